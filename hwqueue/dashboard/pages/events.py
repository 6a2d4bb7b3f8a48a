"""Events: who did what, newest first, and as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hwqueue.dashboard.auth import protected, reauthenticate, viewer
from hwqueue.dashboard.ids import uuid_or_none
from hwqueue.dashboard.pages.asked import texts
from hwqueue.dashboard.reads import Reads, reads
from hwqueue.dashboard.render import fragment, page
from hwqueue.errors import BadArgument
from hwqueue.server.event_streams import BATCH, CAUGHT_UP, UNAVAILABLE, EventStreams
from hwqueue.types import Event

PAGE = 100
MOST_ROWS = 300  # that a page which follows keeps
FILTERS = ("code", "queue", "node", "lease", "actor")


@protected("/events")
async def events(request: Request) -> Response:
    """What happened, a page at a time; the first page follows what happens."""
    asked = request.query_params
    filters = texts(request, FILTERS)
    before = asked.get("before", "")
    source = reads(request)
    names, queues = await source.node_names(), await source.queues()
    wanted = await _wanted(source, filters)
    # first of all, so that nothing falls between the rows and what follows them
    last = [] if before else await source.events(limit=1, final=True)
    if before.isdecimal():
        wanted["before"] = int(before)
    rows = await source.events(limit=PAGE + 1, **wanted)
    return page(
        request,
        "events.html",
        "Events",
        live=0,
        follows=not before,
        cursor=last[0].event_id if last else 0,
        most_rows=MOST_ROWS,
        rows=rows[:PAGE],
        more=len(rows) > PAGE,
        before=before,
        filters=filters,
        names=names.value,
        queues=[row.queue for row in queues.value],
    )


@protected("/events/stream")
async def stream(request: Request) -> Response:
    """What follows an event, each as a row of the page's table; `gap`: too much to tell has."""
    asked = request.query_params
    last = request.headers.get("last-event-id") or asked.get("after", "")
    if not last.isdecimal() or len(last) > 18:
        raise BadArgument(f"{last[:30]!r} is no event id", hint="load the page again")
    filters = texts(request, FILTERS)
    source = reads(request)
    wanted = await _wanted(source, filters)

    async def fetch(after: int | None) -> tuple[list[Event], bool]:
        return await source.events(limit=BATCH, after=after, **wanted), False

    is_gap = len((await fetch(int(last)))[0]) == BATCH

    async def told() -> AsyncIterator[bytes]:
        if is_gap:
            yield format_sse_event(event="gap", data_str="-")
            return
        following = request.app.state.streams.follow(
            int(last),
            check=lambda: reauthenticate(request),
            fetch=fetch,
            place_of=lambda event: event.event_id,
        )
        async for found in following:
            yield await _sse(request, source, filters, found)

    return _Stream(told(), request.app.state.streams, viewer(request).counted_name)


class _Stream(EventSourceResponse):
    """A stream that holds one of the slots of the process for as long as it lasts."""

    def __init__(self, content: AsyncIterator[bytes], streams: EventStreams, who: str) -> None:
        # a proxy that gathers before it sends would make it seem dead
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, headers=headers)
        self._streams = streams
        self._who = who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.slot(self._who):
            await super().__call__(scope, receive, send)


async def _sse(request: Request, source: Reads, filters: Mapping[str, str], found: Event | str) -> bytes:
    if found in (CAUGHT_UP, UNAVAILABLE):
        return format_sse_event(event="here" if found == CAUGHT_UP else "away", data_str="-")
    if isinstance(found, str):
        return format_sse_event(comment=found)
    names = await source.node_names()
    row = fragment(request, "event_row.html", now=found.at, row=found, filters=filters, names=names.value)
    return format_sse_event(event="row", data_str=row, id=str(found.event_id))


async def _wanted(source: Reads, filters: Mapping[str, str]) -> dict[str, Any]:
    """The filter as the client takes it. Raises: NodeUnknown, BadArgument."""
    wanted: dict[str, Any] = {name: filters[name] for name in ("code", "queue", "actor") if filters[name]}
    if filters["node"]:
        wanted["node_id"] = (await source.node(filters["node"])).node_id
    if filters["lease"]:
        wanted["lease_id"] = uuid_or_none(filters["lease"])
        if wanted["lease_id"] is None:
            raise BadArgument(f"{filters['lease'][:60]!r} is no lease id", hint="give all of it")
    return wanted
