"""Log lines of leases: list them, follow them."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from hwqueue.client._ends import ENDED
from hwqueue.errors import LeaseNotFound
from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.event_streams import BATCH
from hwqueue.server.models.base import Id
from hwqueue.server.models.derived import written
from hwqueue.server.models.leases import LogPage
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import NO_LEASE, LeaseReader, followed, stream_slot

router = APIRouter(route_class=AuthenticatedRoute, prefix="/leases", tags=["leases"])

_CURSOR = r"^[0-9]{1,19}[.][0-9]{1,10}$"
_BEGINNING = "0.0"


@router.get("/{lease_id:uuid}/logs", response_model=LogPage, responses=NO_LEASE)
async def lease_logs(
    *,
    lease_id: Id,
    caller: LeaseReader,
    page: Paged,
    attempt: Annotated[int | None, Query(ge=1, le=32767, description="Only of this one.")] = None,
    last: Annotated[bool, Query(description="The last `limit` lines, not the first.")] = False,
    limit: Annotated[int, Query(ge=1, le=999)] = 200,
    after: Annotated[
        str | None,
        Query(pattern=_CURSOR, description="The `cursor` of a line."),
    ] = None,
) -> Any:
    """What the handlers of a lease logged, oldest first: the last 1000 lines of each attempt."""
    async with caller.call() as client:
        found = await client.lease_logs(
            lease_id, after=after, attempt=attempt, last=last, limit=limit if last else limit + 1
        )
    return page.of(found, limit, lambda row: row.cursor, name="after")


async def _lease_is_there(lease_id: Id, caller: LeaseReader) -> None:
    """A stream that has begun cannot say that there is no such lease."""
    async with caller.call() as client:
        await client.get_lease(lease_id)


@router.get(
    "/{lease_id:uuid}/logs/stream",
    response_class=EventSourceResponse,
    responses=NO_LEASE,
    dependencies=[Depends(_lease_is_there), Depends(stream_slot)],
)
async def stream_lease_logs(
    *,
    lease_id: Id,
    caller: LeaseReader,
    request: Request,
    last_event_id: Annotated[
        str | None, Header(pattern=_CURSOR, description="The last one seen; what follows comes.")
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Follow what handlers log as server-sent events, from the beginning or from `Last-Event-ID`.

    `id` is the line's cursor, `event` its level, `data` its JSON as in the list. A comment comes
    while nothing is logged. When the lease has ended, so does the stream: its last event is
    `ended`, with the lease's state, or `deleted` where it is gone. It also ends after ten minutes,
    and when the token does; browsers come back by themselves, and go on where they were.
    """

    async def fetch(seen: str | None) -> tuple[list[ServerSentEvent], str | None]:
        try:
            async with caller.call() as client:
                # asked first: what is logged before the end is fetched
                lease = await client.get_lease(lease_id)
                lines = await client.lease_logs(lease_id, after=seen, limit=BATCH)
        except LeaseNotFound:
            return [], "deleted"
        return [
            ServerSentEvent(id=line.cursor, event=line.level, raw_data=written(line)) for line in lines
        ], lease.state.value if lease.state in ENDED else None

    async for event in followed(caller, request, last_event_id or _BEGINNING, fetch):
        yield event
