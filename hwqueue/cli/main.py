"""The `hwqueue` program: its sub-commands, its global options, and how errors end it."""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import psycopg
import typer
from typer.core import TyperGroup

from hwqueue.cli import db, demo, lease, match, node, queue, replay, worker
from hwqueue.cli.options import Options, in_front, options_of
from hwqueue.cli.output import report_error
from hwqueue.errors import HwqueueError, translate

# Adding a group of commands is adding a line here.
GROUPS: Sequence[tuple[str, typer.Typer]] = (
    ("db", db.app),
    ("queue", queue.app),
    ("lease", lease.app),
    ("node", node.app),
    ("worker", worker.app),
)
# Commands without a noun: name, function, example.
COMMANDS: Sequence[tuple[str, Callable[..., None], str]] = (
    ("match", match.match, match.EXAMPLE),
    ("demo", demo.demo, demo.EXAMPLE),
    ("replay", replay.replay, replay.EXAMPLE),
)


class _Root(TyperGroup):
    """Takes global options anywhere on the line, and turns errors into messages and exit codes.

    `ctx` is Any: where its class lives depends on the version of Typer.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, in_front(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            with translate():
                return super().invoke(ctx)
        except (HwqueueError, psycopg.Error) as error:
            raise typer.Exit(report_error(error, ctx.find_object(Options) or Options())) from error


app = typer.Typer(
    name="hwqueue",
    rich_markup_mode="markdown",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A task queue inside Postgres that knows which machine may run what.",
    epilog="Without --dsn, HWQUEUE_DSN or PG* variables an embedded Postgres is used. "
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 schema.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("hwqueue"))
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    dsn: Annotated[
        str | None, typer.Option(help="Database to use. Goes before HWQUEUE_DSN and PG*.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log more, and show where an error came from.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold the global options for the sub-command."""
    ctx.obj = Options(dsn=dsn, json=json, verbose=verbose)
    logging.basicConfig(level=logging.INFO if options_of(ctx).verbose else logging.WARNING)


for _name, _group in GROUPS:
    app.add_typer(_group, name=_name)
for _name, _command, _example in COMMANDS:
    app.command(_name, epilog=f"Example: {_example}")(_command)
