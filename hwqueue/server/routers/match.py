"""Which nodes could run this, and why the others could not."""

from fastapi import APIRouter

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.nodes import Match, MatchRequest, NodeMatch
from hwqueue.server.routers.shared import NO_QUEUE, Matcher

router = APIRouter(route_class=AuthenticatedRoute, tags=["placement"])


@router.post("/match", responses=NO_QUEUE)
async def match_nodes(body: MatchRequest, caller: Matcher) -> Match:
    """Try a placement on every registered node; nothing is claimed.

    Those that could run it come first, best first. Every page tries all nodes anew.
    """
    asked = body.model_dump(exclude={"placement"})
    async with caller.read() as client:
        found = await client.match_page(body.placement, shard=caller.shard, **asked)
    end = body.skip + len(found.items)
    return Match(
        nodes=found.nodes,
        eligible=found.eligible,
        reasons=dict(found.reasons),
        items=[NodeMatch.model_validate(node) for node in found.items],
        next=end if found.items and end < found.nodes else None,
    )
