"""Explanations as text: why a lease is where it is, and what a gang waits for."""

from collections.abc import Iterable, Iterator

import typer
from rich.console import Console
from rich.text import Text

from hwqueue.cli.options import options_of
from hwqueue.cli.output import cell, to_json
from hwqueue.text import duration, plural
from hwqueue.types import (
    GangExplanation,
    GangForecast,
    GangKind,
    GangPlace,
    Holder,
    LeaseExplanation,
    NearNode,
    NearReason,
)

_MOST = 10_000


def show_explanation(ctx: typer.Context, explanation: LeaseExplanation, nodes: int) -> None:
    """Print it, with this many of the nearest nodes; all of them with --json."""
    _show_told(ctx, explanation, _lines(explanation, nodes))


def _show_told(ctx: typer.Context, explanation: object, lines: Iterable[Text]) -> None:
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
        ("lease ", "bold"), f"{found.lease_id} is ", (found.state.value, "bold"), " in ", cell(found.queue)
    )
    yield cell(found.headline)
    if found.released:
        yield cell(found.released)
    yield Text()
    if found.pending is None:
        yield _fact("asks", found.words)
        return
    kind = "until nodes or the lease change" if found.permanent else "for now"
    yield _fact("code", found.code if found.code == "ready" else f"{found.code}, {kind}")
    yield _fact("asks", found.words)
    yield _fact(
        "pending", f"{counted(found.pending)} of its class; {counted(found.position or 0)} in line before it"
    )
    yield _fact(
        "nodes",
        f"{found.nodes_registered} registered, {found.nodes_live} live, "
        f"{found.nodes_matching} of the right kind and size, {found.nodes_free} could take it now",
    )
    yield _fact("left after", " > ".join(f"{stage.stage} {stage.nodes}" for stage in found.funnel or ()))
    unannounced = sum(stage.unannounced for stage in found.funnel or ())
    if unannounced:
        yield _fact(
            "unannounced",
            f"{unannounced} of them did not say which queues and tasks they serve, and count as serving any",
        )
    yield from _part(
        "Kept out by one thing alone",
        (
            f"{blocker.nodes:6}  {blocker.words} ({', '.join(blocker.samples)})"
            for blocker in found.sole_blockers or ()
        ),
    )
    yield from _part("What would help", (f"  {one.words}" for one in found.help or ()))
    nearest = (found.nearest or ())[:nodes]
    yield from _part("Nearest nodes", (line for node in nearest for line in _node(node)))


def _fact(name: str, value: str) -> Text:
    """A line with a name before it."""
    return Text.assemble((f"{name:12}", "bold"), cell(value))


def _part(title: str, lines: Iterable[str]) -> Iterator[Text]:
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


def show_gang_explanation(ctx: typer.Context, found: GangExplanation | GangForecast, places: int) -> None:
    """Print it, with this many of its places; all of them with --json."""
    _show_told(ctx, found, _gang_lines(found, places))


def _gang_lines(found: GangExplanation | GangForecast, places: int) -> Iterator[Text]:
    if isinstance(found, GangExplanation):
        yield Text.assemble(
            ("gang ", "bold"), f"{found.gang_id} is ", (found.state, "bold"), " in ", cell(found.queue)
        )
    yield cell(found.headline)
    if found.kinds:
        yield Text()
        kind = "" if found.code == "ready" else ", for now"
        yield _fact("code", found.code + (", until nodes change" if found.permanent else kind))
        waiting = (
            f"{found.waiting} of {found.size} wait" if isinstance(found, GangExplanation) else found.size
        )
        yield _fact("members", f"{waiting}")
        yield from _part("Kinds of members", (_kind(each) for each in found.kinds))
    yield from _part(
        "What would let it start",
        (line for way in found.ways for line in (f"  {way.words}", *_claims(way.claims, found))),
    )
    shown = found.places[:places]
    yield from _part(
        f"Places with most room, of {found.place_count}" if found.kinds else "Where room is kept",
        (line for place in shown for line in _gang_place(place, found)),
    )


def _kind(kind: GangKind) -> str:
    where = kind.blocker or f"{plural(kind.nodes, 'node')} may run it, {kind.room} have room now"
    return f"  {kind.members} of {kind.task}: {kind.words}; {where}"


def _gang_place(place: GangPlace, found: GangExplanation | GangForecast) -> Iterator[str]:
    yield (
        f"  {place.words}: room for {place.room}, empty for {place.emptied}, on {plural(place.nodes, 'node')}"
    )
    yield from _claims(place.claims, found)
    if place.others:
        yield f"    {plural(place.others, 'lease')} of other tenants"


def _claims(claims: Iterable[Holder], found: GangExplanation | GangForecast) -> Iterator[str]:
    for claim in claims:
        holds = f", has {claim.holds}" if claim.holds else ""
        yield (
            f"    lease {claim.lease_id} of task {claim.task} on {claim.node} "
            f"for {duration(found.as_of - claim.since)}{holds}"
        )
