"""Signals that leases are sent."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Id, Request, example
from hwqueue.server.models.derived import answer_of
from hwqueue.server.models.leases import Key
from hwqueue.server.routers.shared import NO_LEASE, WRONG_STATE, LeaseWriter
from hwqueue.types import SignalSent

router = APIRouter(route_class=AuthenticatedRoute, prefix="/leases", tags=["leases"])


class SignalRequest(Request):
    """What comes with a signal."""

    model_config = example(payload={"parcel": 7}, key="warehouse-4711")

    payload: Any = Field(default=None, description="What `wait_for` of the handler returns.")
    key: Key | None = Field(
        default=None, description="The same name and key reach the lease once: repeat at will."
    )


@router.post(
    "/{lease_id:uuid}/signals/{name}",
    response_model=answer_of(SignalSent),
    responses=NO_LEASE | WRONG_STATE,
)
async def signal_lease(
    lease_id: Id,
    name: Annotated[str, Path(min_length=1, max_length=200)],
    caller: LeaseWriter,
    body: SignalRequest | None = None,
) -> Any:
    """Send an open lease a signal; one that is suspended until it comes is claimable at once."""
    sent = body or SignalRequest()
    async with caller.call() as client:
        return await client.signal_lease(
            lease_id, name, sent.payload, key=sent.key, shard=caller.shard
        )
