"""Gangs: the list, and one gang with its members."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.ids import as_id, uuid_or_none
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import Gang, GangMember, GangState

PAGE_SIZES = (50, 100, 200)
STATES: dict[str, GangState] = {each: each for each in get_args(GangState)}
WAITS = ("waiting", "earmarked", "stopping", "cancelling")
MOST_CLAIMS = 5  # shown of each place


async def gangs(request: Request) -> Response:
    """Gangs, newest first, a page at a time."""
    asked = request.query_params
    state = STATES.get(asked.get("state", ""))
    size = next((each for each in PAGE_SIZES if str(each) == asked.get("size")), PAGE_SIZES[0])
    before, before_gang = _moment(asked.get("before")), uuid_or_none(asked.get("before_gang"))
    rows = await reads(request).gangs(state=state, before=before, before_gang=before_gang, limit=size + 1)
    query: dict[str, Any] = {"state": state or ""}
    if size != PAGE_SIZES[0]:
        query["size"] = size
    return page(
        request,
        "gangs.html",
        "Gangs",
        rows=sorted(rows[:size], key=lambda row: WAITS.index(row.state) if row.state in WAITS else 9),
        last=rows[:size][-1] if rows else None,
        more=len(rows) > size,
        paged=before is not None,
        states=STATES,
        state=state or "",
        query=query,
    )


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
        missing=_missing(found),
        events=await source.gang_events(found),
        now=datetime.now(UTC),
    )


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


def _missing(gang: Gang) -> int:
    """How many members are not there: they wait, or their node has not fetched them."""
    return sum(state_of(each) in ("waiting", "earmarked", "reserved") for each in gang.members)


def _moment(text: str | None) -> datetime | None:
    """The time in an address, if it is one."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None


ROUTES = [
    protected("/gangs", gangs),
    protected("/gangs/{gang}", gang),
    protected("/gangs/{gang}/why", why),
]
