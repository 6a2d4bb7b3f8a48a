"""An explanation of a gang as text: where it has room, what is in the way, and the ways out."""

from collections.abc import Iterable, Iterator

import typer
from rich.text import Text

from hwqueue.cli.explanation import fact, part, show_told
from hwqueue.cli.output import cell
from hwqueue.text import duration, plural
from hwqueue.types import GangExplanation, GangForecast, GangKind, GangPlace, GangWay, Holder


def show_gang_explanation(ctx: typer.Context, found: GangExplanation | GangForecast, places: int) -> None:
    """Print it, with this many of its places; all of them with --json."""
    show_told(ctx, found, _lines(found, places))


def _lines(found: GangExplanation | GangForecast, places: int) -> Iterator[Text]:
    if isinstance(found, GangExplanation):
        yield Text.assemble(
            ("gang ", "bold"),
            f"{found.gang_id} is ",
            (found.state, "bold"),
            " in ",
            cell(found.queue),
        )
    yield cell(found.headline)
    if found.kinds:
        yield Text()
        kind = "" if found.code == "ready" else ", for now"
        yield fact("code", found.code + (", until nodes change" if found.permanent else kind))
        waiting = (
            f"{found.waiting} of {found.size} wait" if isinstance(found, GangExplanation) else found.size
        )
        yield fact("members", f"{waiting}")
        yield from part("Kinds of members", (_kind(each) for each in found.kinds))
    yield from part("What would let it start", (line for way in found.ways for line in _way(way, found)))
    shown = found.places[:places]
    yield from part(
        f"Places with most room, of {found.place_count}" if found.kinds else "Where room is kept",
        (line for place in shown for line in _place(place, found)),
    )


def _kind(kind: GangKind) -> str:
    where = kind.blocker or f"{plural(kind.nodes, 'node')} may run it, {kind.room} have room now"
    return f"  {kind.members} of {kind.task}: {kind.words}; {where}"


def _way(way: GangWay, found: GangExplanation | GangForecast) -> Iterator[str]:
    yield f"  {way.words}"
    yield from _claims(way.claims, found)


def _place(place: GangPlace, found: GangExplanation | GangForecast) -> Iterator[str]:
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
