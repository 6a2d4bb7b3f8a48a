"""Gangs: the list, and one gang with its members."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.ids import as_id, uuid_or_none
from hwqueue.dashboard.pages.asked import Listing
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import GangMember, GangState

STATES: dict[str, GangState] = {each: each for each in get_args(GangState)}
WAITS = ("waiting", "earmarked", "stopping", "cancelling")
MOST_CLAIMS = 5  # shown of each place


@protected("/gangs")
async def gangs(request: Request) -> Response:
    """Gangs, newest first, a page at a time."""
    listing, asked = Listing.of(request, STATES), request.query_params
    rows = await reads(request).gangs(
        state=STATES.get(listing.state),
        before=_moment(asked.get("before")),
        before_gang=uuid_or_none(asked.get("before_gang")),
        limit=listing.size + 1,
    )
    shown = listing.shown(rows)
    last = shown["rows"][-1] if rows else None
    shown["rows"] = sorted(shown["rows"], key=lambda row: WAITS.index(row.state) if row.state in WAITS else 9)
    return page(request, "gangs.html", "Gangs", last=last, **shown)


@protected("/gangs/{gang}")
async def gang(request: Request) -> Response:
    """One gang: its members, where each is, and who is missing."""
    source = reads(request)
    found = await source.gang(as_id("gang", request.path_params["gang"]))
    states = Counter(map(state_of, found.members))
    return page(
        request,
        "gang.html",
        f"Gang {found.gang_id}",
        gang=found,
        members=[(each, state_of(each)) for each in found.members],
        counts=list(states.items()),
        missing=sum(states[each] for each in ("waiting", "earmarked", "reserved")),
        events=await source.gang_events(found),
        now=datetime.now(UTC),
    )


@protected("/gangs/{gang}/why")
async def why(request: Request) -> Response:
    """Why the gang is where it is: loaded after its page, since it looks at the whole fleet."""
    gang_id = as_id("gang", request.path_params["gang"])
    cached = await reads(request).explain_gang(gang_id)
    return page(
        request,
        "gang_why.html",
        "Why it waits",
        read=[cached],
        live=0,
        why=cached.value,
        most_claims=MOST_CLAIMS,
        now=cached.value.as_of,
    )


def state_of(member: GangMember) -> str:
    """The state of a member, in the words of its gang."""
    if member.reserved_until is not None:
        return "reserved"
    if member.earmarked:
        return "earmarked"
    if member.state is None:
        return "gone"
    return {"scheduled": "waiting", "claimed": "running"}.get(member.state.value, member.state.value)


def _moment(text: str | None) -> datetime | None:
    """The time in an address, if it is one."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
