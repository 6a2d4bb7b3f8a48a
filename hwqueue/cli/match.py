"""hwqueue match: which nodes could run this, and why the others could not."""

from collections import Counter
from typing import Annotated

import typer
from typer import Argument, Option

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask
from hwqueue.cli.inputs import json_object
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, say, show_items
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import plural
from hwqueue.types import NodeMatch

EXAMPLE = """hwqueue match '{"require": [{"tags": {"gpu": true}}]}' --queue renders --all"""


def match(
    ctx: typer.Context,
    placement: Annotated[
        str | None,
        Argument(help="Placement: JSON, a file, or - for stdin; with --task that of its defaults."),
    ] = None,
    *,
    queue: Annotated[
        str | None, Option(help="Judge and score as this queue's policy says.", autocompletion=queue_names)
    ] = None,
    task: Annotated[str | None, Option(help="As a lease of this task.")] = None,
    tenant: Annotated[str | None, Option(help="As a lease of this tenant.")] = None,
    all_nodes: Annotated[bool, Option("--all", help="List the nodes that could not run it, too.")] = False,
) -> None:
    """Show which nodes could run a lease with this placement now, and why others could not.

    Nothing is claimed. Exits with 1 when no node could. With --json every node is there.
    """
    if placement is None and task is None:
        raise ConfigError("PLACEMENT is missing", hint="give one, {} for any node, or a --task")
    wanted = None if placement is None else json_object(placement, "PLACEMENT")
    matches = ask(ctx, Client.match_nodes, wanted, queue=queue, task=task, tenant=tenant)
    best_first = sorted(matches, key=lambda node: (not node.eligible, -(node.score or 0), node.node_name))
    able = [node for node in best_first if node.eligible]
    shown = best_first if all_nodes or options_of(ctx).json else able
    show_items(ctx, shown, _row, empty="no node could run it now")
    unable = [node for node in best_first if not node.eligible]
    if unable:
        say(ctx, f"{plural(len(unable), 'node')} could not:")
    # a node with two reasons counts for both
    counts = Counter((reason.code, reason.permanent) for node in unable for reason in node.reasons)
    for (code, permanent), count in counts.most_common():
        say(ctx, f"  {count:6}  {code}{' (never)' if permanent else ' (now)'}")
    if not able:
        raise typer.Exit(ExitCode.FAILED)


_row = row_of(
    NodeMatch,
    "node=node_name eligible score why_not",
    score=lambda node: None if node.score is None else f"{node.score:.1f}",
    why_not=lambda node: "; ".join(f"{one.code}: {one.message}" for one in node.reasons) or None,
)
