"""Events: list them, follow them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.event_streams import BATCH
from hwqueue.server.models.base import Id, Moment, Name
from hwqueue.server.models.derived import list_of, written
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import Reader, followed, stream_slot
from hwqueue.types import Event

router = APIRouter(route_class=AuthenticatedRoute, prefix="/events", tags=["events"])

EventId = Annotated[int, Query(ge=0, le=2**63 - 1)]

# Without NUL. What the database refuses is refused here: a stream that has begun cannot say so.
_TEXT = r"^[^\x00]*$"


@dataclass(frozen=True, slots=True)
class Subjects:
    """What events are to be about."""

    code: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100, pattern=_TEXT)]] | None,
        Query(max_length=100, description="One or several."),
    ] = None
    queue: Annotated[Name | None, Query()] = None
    node_id: Annotated[Id | None, Query()] = None
    lease_id: Annotated[Id | None, Query()] = None
    class_id: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None
    actor: Annotated[str | None, Query(min_length=1, max_length=200, pattern=_TEXT)] = None

    def as_options(self) -> dict[str, Any]:
        """As the client's `list_events` takes them."""
        return {name: getattr(self, name) or None for name in self.__dataclass_fields__}


Wanted = Annotated[Subjects, Depends()]


@router.get("", response_model=list_of(Event, pages=True))
async def list_events(
    *,
    caller: Reader,
    wanted: Wanted,
    page: Paged,
    after: Annotated[EventId | None, Query(description="What follows this one, oldest first.")] = None,
    before: Annotated[EventId | None, Query(description="Cursor: `next` of the page before.")] = None,
    since: Moment | None = None,
    until: Moment | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """What happened and who did it, newest first; with `after`, what followed, oldest first.

    To follow by asking again, pass the highest `event_id` seen as `after`: what an open transaction
    may still come before is left out, so nothing is missed and nothing comes twice.
    """
    async with caller.read() as client:
        found = await client.list_events(
            **wanted.as_options(),
            after=after,
            before=before,
            since=since,
            until=until,
            limit=limit + 1,
        )
    name = "before" if after is None else "after"
    return page.of(found, limit, lambda row: row.event_id, name=name)


@router.get("/stream", response_class=EventSourceResponse, dependencies=[Depends(stream_slot)])
async def stream_events(
    *,
    caller: Reader,
    request: Request,
    wanted: Wanted,
    last_event_id: Annotated[
        str | None,
        Header(pattern=r"^[0-9]{1,18}$", description="The last one seen; what follows comes."),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Follow events as server-sent events, from now on or from `Last-Event-ID`.

    `id` is the event's id, `event` its code, `data` its JSON as in the list. A comment comes while
    nothing happens. The stream ends after ten minutes, and when the token does; browsers come back
    by themselves, and go on where they were.
    """

    async def fetch(seen: str | None) -> tuple[list[ServerSentEvent], None]:
        async with caller.read() as client:
            if seen is None:
                rows = await client.list_events(final=True, limit=1)
            else:
                rows = await client.list_events(**wanted.as_options(), after=int(seen), limit=BATCH)
        return [
            ServerSentEvent(id=str(row.event_id), event=row.code, raw_data=written(row)) for row in rows
        ], None

    async for event in followed(caller, request, last_event_id, fetch):
        yield event
