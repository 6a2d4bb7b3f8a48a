"""The command `hwqueue top`."""

import asyncio
import importlib.util
import shutil
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict
from typer import Option

from hwqueue.cli.connect import connection_string
from hwqueue.cli.inputs import span
from hwqueue.cli.options import options_of
from hwqueue.cli.output import to_json
from hwqueue.cli.top.frame import frame
from hwqueue.cli.top.reading import Reading
from hwqueue.cli.top.source import DatabaseSource
from hwqueue.errors import ConfigError
from hwqueue.stopping import until_told

EXAMPLE = "hwqueue top --interval 5s"
NARROWEST = 40


@until_told()
def top(
    ctx: typer.Context,
    *,
    interval: Annotated[str, Option("--interval", help="Wait between two looks, at least 500ms.")] = "2s",
    once: Annotated[bool, Option("--once", help="Print one frame and leave; with --json all of it.")] = False,
    rows: Annotated[int, Option("--rows", min=1, max=1000, help="With --once: rows of each table.")] = 10,
) -> None:
    """Watch queues, what is pending and why, nodes, events and throughput.

    Keys: 1 to 4 tables, enter all about a row, s sort, r reverse, / filter, p pause, ? all keys,
    q quit.
    """
    wait = span(interval, "--interval")
    if wait is None or wait.total_seconds() < 0.5:
        raise ConfigError(f"--interval: {interval} is too short", hint="500ms is the least")
    if not once and options_of(ctx).json:
        raise ConfigError("--json goes with --once", hint="hwqueue top --once --json")
    if not once and importlib.util.find_spec("textual") is None:
        raise ConfigError(
            "the screen needs textual, which is not installed",
            hint="pip install 'hwqueue[top]', or print one frame: hwqueue top --once",
        )
    dsn = connection_string(ctx)
    if once:
        _show_once(ctx, asyncio.run(_read_once(DatabaseSource(dsn))), rows)
        return
    # Imported here: Textual takes a while, and --once does without.
    from hwqueue.cli.top.screen import Top  # noqa: PLC0415

    Top(DatabaseSource(dsn), _name_of(dsn), wait).run()


async def _read_once(source: DatabaseSource) -> Reading:
    try:
        return await source.read()
    finally:
        await source.close()


def _show_once(ctx: typer.Context, reading: Reading, rows: int) -> None:
    if options_of(ctx).json:
        content = asdict(reading) | {"cut": sorted(reading.cut)}
        typer.echo(to_json(content))
        return
    # what goes to a file or a program is not cut
    is_seen = sys.stdout.isatty()
    width = max(NARROWEST, shutil.get_terminal_size().columns) if is_seen else None
    typer.echo(frame(reading, rows=rows, width=width))


def _name_of(dsn: str) -> str:
    """What is looked at, without passwords."""
    parts = conninfo_to_dict(dsn)
    return f"{parts.get('dbname', '')}@{parts.get('host', 'local')}"
