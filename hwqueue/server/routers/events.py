"""Events: list them, follow them."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from psycopg_pool import PoolTimeout
from pydantic import Field

from hwqueue.server.auth import authenticate
from hwqueue.server.callers import Caller, Route
from hwqueue.server.models.base import Id, Moment, Name
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.pages import cut, link_next
from hwqueue.server.problems import Refusal
from hwqueue.server.routers.shared import Reader
from hwqueue.types import Event

router = APIRouter(route_class=Route, prefix="/events", tags=["events"])

EventId = Annotated[int, Query(ge=0, le=2**63 - 1)]
EventOut = answer_of(Event)

_EVERY_SECONDS = 1.0  # between two looks of a stream
_AT_ONCE = 200
# Then it ends and the client comes back, with a token that is good by then.
_LIFETIME_SECONDS = 600.0
# Without NUL. What the database refuses is refused here: a stream that has begun cannot say so.
_TEXT = r"^[^\x00]*$"
# What happens after the client has got this will come.
_HERE = ServerSentEvent(comment="from here on")


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
    request: Request,
    response: Response,
    after: Annotated[
        EventId | None, Query(description="What follows this one, oldest first.")
    ] = None,
    before: Annotated[
        EventId | None, Query(description="Cursor: `next` of the page before.")
    ] = None,
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
            shard=caller.shard,
        )
    page, last = cut(found, limit)
    if last:
        cursor = {"before": last.event_id} if after is None else {"after": last.event_id}
        link_next(request, response, **cursor)
    return {"items": page, "next": str(last.event_id) if last else None}


async def _room(caller: Reader) -> AsyncIterator[None]:
    """Room for one more stream of theirs, as long as it lasts."""
    with caller.services.streams.one(caller.principal.caller):
        yield


@router.get("/stream", response_class=EventSourceResponse)
async def stream_events(
    *,
    caller: Reader,
    request: Request,
    wanted: Wanted,
    _here: Annotated[None, Depends(_room)],
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
    streams = caller.services.streams
    until = time.monotonic() + _LIFETIME_SECONDS
    seen = None if last_event_id is None else int(last_event_id)
    if seen is not None:
        yield _HERE
    while time.monotonic() < until and not streams.stopping:
        try:
            await authenticate(caller.services.authenticators, request)
            found = await _look(caller, wanted, seen)
        except Refusal:
            return  # revoked or expired since
        except (psycopg.Error, PoolTimeout):
            yield ServerSentEvent(comment="the database is not there just now")
            await asyncio.sleep(5 * _EVERY_SECONDS)
            continue
        if seen is None:
            seen = max((event.event_id for event in found), default=0)
            yield _HERE
            continue
        for event in found:
            seen = event.event_id
            yield ServerSentEvent(
                id=str(seen), event=event.code, data=EventOut.model_validate(event)
            )
        if len(found) < _AT_ONCE:
            await asyncio.sleep(_EVERY_SECONDS)


async def _look(caller: Caller, wanted: Subjects, seen: int | None) -> list[Event]:
    """What followed; with nothing seen yet, the last event of all, whatever it is about."""
    async with caller.read() as client:
        if seen is None:
            return await client.list_events(final=True, limit=1, shard=caller.shard)
        return await client.list_events(
            **wanted.as_options(), after=seen, limit=_AT_ONCE, shard=caller.shard
        )
