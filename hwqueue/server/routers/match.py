"""Which nodes could run this, and why the others could not."""

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from hwqueue.server.callers import Caller, Needs, Route
from hwqueue.server.models.nodes import Match, MatchRequest, NodeMatch
from hwqueue.server.roles import Scope

router = APIRouter(route_class=Route, tags=["placement"])

Matcher = Annotated[Caller, Depends(Needs(Scope.MATCH))]
NO_QUEUE: dict[int | str, dict[str, Any]] = {404: {"description": "No such queue."}}


@router.post("/match", responses=NO_QUEUE)
async def match_nodes(body: MatchRequest, caller: Matcher) -> Match:
    """Try a placement on every registered node; nothing is claimed.

    Those that could run it come first, best first.
    """
    lease = body.model_dump(exclude={"placement", "limit"})
    async with caller.read() as client:
        found = await client.match_nodes(body.placement, shard=caller.shard, **lease)
    return Match(
        nodes=len(found),
        eligible=sum(node.eligible for node in found),
        reasons=Counter(code for node in found for code in {r.code for r in node.reasons}),
        items=[NodeMatch.model_validate(node) for node in found[: body.limit]],
    )
