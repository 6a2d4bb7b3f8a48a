"""Which nodes could run this, and why the others could not."""

from typing import Any

from fastapi import APIRouter

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.derived import with_more
from hwqueue.server.models.nodes import Match, MatchRequest
from hwqueue.server.routers.shared import NO_QUEUE, Matcher

router = APIRouter(route_class=AuthenticatedRoute, tags=["placement"])


@router.post("/match", response_model=Match, responses=NO_QUEUE)
async def match_nodes(body: MatchRequest, caller: Matcher) -> Any:
    """Try a placement on every registered node; nothing is claimed.

    Those that could run it come first, best first. Every page tries all nodes again.
    """
    asked = body.model_dump(exclude={"placement"})
    async with caller.read() as client:
        found = await client.match_page(body.placement, **asked)
    end = body.skip + len(found.items)
    following = end if found.items and end < found.nodes else None
    return with_more(found, next=following)
