"""Why a lease waits, and what nodes that are not there would change."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Id, Object, Request, example
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.server.routers.shared import NO_CLASS, NO_LEASE, Explainer, Reader
from hwqueue.types import ClassExplanation, LeaseExplanation, Preemption, ServedClass

router = APIRouter(route_class=AuthenticatedRoute, tags=["placement"])

ClassId = Annotated[int, Path(ge=0, le=2**63 - 1, description="Of a placement class.")]


class WhatIf(Request):
    """Nodes that are not there."""

    model_config = example(
        nodes=[
            {
                "labels": {"gpu_model": "A100"},
                "gpus": [{"resource_id": "0197f3a2-7c1e-7000-8000-000000000001", "model": "A100"}],
                "count": 3,
            }
        ]
    )

    nodes: Annotated[list[Object], Field(min_length=1, max_length=100)] = Field(
        description="As `register_node` takes them; `name` and `instance_id` may be left out, and "
        "`count` says how many such nodes."
    )


@router.get(
    "/leases/{lease_id:uuid}/explanation",
    response_model=answer_of(LeaseExplanation),
    responses=NO_LEASE,
)
async def explain_lease(lease_id: Id, caller: Explainer) -> Any:
    """Why a lease is where it is; of a pending one, node by node, why it does not run."""
    async with caller.read() as client:
        return await client.explain_lease(lease_id)


@router.get(
    "/classes/{class_id}/explanation",
    response_model=answer_of(ClassExplanation),
    responses=NO_CLASS,
)
async def explain_class(class_id: ClassId, caller: Reader) -> Any:
    """Why the leases of a placement class are pending."""
    async with caller.read() as client:
        return await client.explain_class(class_id)


@router.get("/leases/{lease_id:uuid}/preemption", response_model=answer_of(Preemption), responses=NO_LEASE)
async def preview_preemption(lease_id: Id, caller: Reader) -> Any:
    """Where a pending lease would get room if leases of later tiers stopped, and which."""
    async with caller.read() as client:
        return await client.preview_preemption(lease_id)


@router.post("/what-if", response_model=list_of(ServedClass))
async def what_if(body: WhatIf, caller: Reader) -> Any:
    """Which pending classes such nodes could run if they were there, idle; up to 1,000."""
    async with caller.read() as client:
        return {"items": await client.what_if(body.nodes)}
