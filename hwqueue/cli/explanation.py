"""An explanation as text: why a lease is where it is."""

from collections.abc import Iterable, Iterator

import typer
from rich.console import Console
from rich.text import Text

from hwqueue.cli.options import options_of
from hwqueue.cli.output import cell, to_json
from hwqueue.types import LeaseExplanation, NearNode, NearReason

_MOST = 10_000


def show_explanation(ctx: typer.Context, explanation: LeaseExplanation, nodes: int) -> None:
    """Print it, with this many of the nearest nodes; all of them with --json."""
    show_told(ctx, explanation, _lines(explanation, nodes))


def show_told(ctx: typer.Context, explanation: object, lines: Iterable[Text]) -> None:
    """Print these lines for a person, all that is known as JSON."""
    if options_of(ctx).json:
        typer.echo(to_json(explanation))
        return
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def counted(number: int) -> str:
    """A number that was counted to 10,001."""
    return f"{number}" if number <= _MOST else f"more than {_MOST}"


def _lines(found: LeaseExplanation, nodes: int) -> Iterator[Text]:
    yield Text.assemble(
        ("lease ", "bold"),
        f"{found.lease_id} is ",
        (found.state.value, "bold"),
        " in ",
        cell(found.queue),
    )
    yield cell(found.headline)
    if found.released:
        yield cell(found.released)
    yield Text()
    if found.pending is None:
        yield fact("asks", found.words)
        return
    kind = "until nodes or the lease change" if found.permanent else "for now"
    yield fact("code", found.code if found.code == "ready" else f"{found.code}, {kind}")
    yield fact("asks", found.words)
    yield fact(
        "pending",
        f"{counted(found.pending)} of its class; {counted(found.position or 0)} in line before it",
    )
    yield fact(
        "nodes",
        f"{found.nodes_registered} registered, {found.nodes_live} live, "
        f"{found.nodes_matching} of the right kind and size, {found.nodes_free} could take it now",
    )
    yield fact("left after", " > ".join(f"{stage.stage} {stage.nodes}" for stage in found.funnel or ()))
    unannounced = sum(stage.unannounced for stage in found.funnel or ())
    if unannounced:
        yield fact(
            "unannounced",
            f"{unannounced} of them did not say which queues and tasks they serve, and count as serving any",
        )
    yield from part(
        "Kept out by one thing alone",
        (
            f"{blocker.nodes:6}  {blocker.words} ({', '.join(blocker.samples)})"
            for blocker in found.sole_blockers or ()
        ),
    )
    yield from part("What would help", (f"  {one.words}" for one in found.help or ()))
    nearest = (found.nearest or ())[:nodes]
    yield from part("Nearest nodes", (line for node in nearest for line in _node(node)))


def fact(name: str, value: str) -> Text:
    """A line with a name before it."""
    return Text.assemble((f"{name:12}", "bold"), cell(value))


def part(title: str, lines: Iterable[str]) -> Iterator[Text]:
    """A title and lines below it; nothing, if there are none."""
    listed = list(lines)
    if listed:
        yield Text()
        yield Text(title, "bold")
        yield from map(cell, listed)


def _node(node: NearNode) -> Iterator[str]:
    where = "" if node.rack is None else f", rack {node.rack}"
    yield f"  {node.node} ({node.state}{where}){'' if node.reasons else ': could take it now'}"
    yield from (f"    {_reason(reason)}" for reason in node.reasons)


def _reason(reason: NearReason) -> str:
    parts = [reason.code]
    if reason.wanted:
        parts.append(f": wants {reason.wanted}")
    if reason.has:
        parts.append(f", has {reason.has}")
    for holder in reason.holders[:1]:
        whose = f"service {holder.service_id}" if holder.service_id else f"task {holder.task}"
        holds = f"holds {holder.holds}" if holder.holds else "is there"
        parts.append(f"; lease {holder.lease_id} of {whose} {holds}")
    if len(reason.holders) > 1:
        parts.append(f", and {len(reason.holders) - 1} more")
    return "".join(parts)
