"""Signals that leases and runs are sent."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Id, Request, example
from hwqueue.server.models.derived import answer_of
from hwqueue.server.models.leases import Key
from hwqueue.server.routers.shared import (
    NO_LEASE,
    NO_RUN,
    WRONG_RUN_STATE,
    WRONG_STATE,
    LeaseWriter,
)
from hwqueue.types import RunSignalSent, SignalSent

router = APIRouter(route_class=AuthenticatedRoute)

SignalName = Annotated[
    str, Path(min_length=1, max_length=200, description="Name of the signal; it may have slashes.")
]


class SignalRequest(Request):
    """What comes with a signal."""

    model_config = example(payload={"parcel": 7}, key="warehouse-4711")

    payload: Any = Field(
        default=None,
        description="What `wait_for` of the handler returns; the result of the step that waits.",
    )
    key: Key | None = Field(
        default=None,
        description="The same name and key reach the lease or the run once: repeat at will.",
    )


@router.post(
    "/leases/{lease_id:uuid}/signals/{name:name}",
    response_model=answer_of(SignalSent),
    responses=NO_LEASE | WRONG_STATE,
    tags=["leases"],
)
async def signal_lease(
    lease_id: Id, name: SignalName, caller: LeaseWriter, body: SignalRequest | None = None
) -> Any:
    """Send an open lease a signal; one that is suspended until it comes is claimable at once."""
    sent = body or SignalRequest()
    async with caller.call() as client:
        return await client.signal_lease(lease_id, name, sent.payload, key=sent.key)


@router.post(
    "/runs/{run_id:uuid}/signals/{name:name}",
    response_model=answer_of(RunSignalSent),
    responses=NO_RUN | WRONG_RUN_STATE,
    tags=["runs"],
)
async def signal_run(
    run_id: Annotated[Id, Path(description="Id of the run.")],
    name: SignalName,
    caller: LeaseWriter,
    body: SignalRequest | None = None,
) -> Any:
    """Send a run a signal; a step that waits for it has completed, now or when it is released."""
    sent = body or SignalRequest()
    async with caller.call() as client:
        return await client.signal_workflow_run(run_id, name, sent.payload, key=sent.key)
