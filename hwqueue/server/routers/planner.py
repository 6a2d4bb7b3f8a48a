"""Who plans, what room is worth, and how much of it is lost."""

from typing import Any

from fastapi import APIRouter

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.derived import answer_of
from hwqueue.server.routers.shared import Reader
from hwqueue.types import PlannerStatus

router = APIRouter(route_class=AuthenticatedRoute, prefix="/planner", tags=["planner"])


@router.get("", response_model=answer_of(PlannerStatus))
async def planner_status(caller: Reader) -> Any:
    """The planner that leads and what it has found; null and no prices, where none leads.

    `bound` less `allocated` is how many GPUs could be in use besides, if what waits was placed at
    best: more nodes help where that is small and much waits.
    """
    async with caller.read() as client:
        found = await client.planner_status()
    return found or PlannerStatus.nobody()
