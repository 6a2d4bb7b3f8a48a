"""Who one is to this server."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from hwqueue.server.callers import Caller, Needs, Route
from hwqueue.server.models.base import Answer
from hwqueue.server.roles import SCOPES, Role, Scope

router = APIRouter(route_class=Route, tags=["auth"])

Anybody = Annotated[Caller, Depends(Needs(Scope.LEASES_READ, tenants=True))]


class Me(Answer):
    """Whom a token stands for."""

    actor: str = Field(description="Whom actions are put down to.", examples=["token:render-farm"])
    role: Role
    tenant: str | None = Field(description="The only one; null: all.")
    scopes: list[Scope]


@router.get("/me")
async def who_am_i(caller: Anybody) -> Me:
    """Whom the token stands for, and what it may do."""
    who = caller.principal
    return Me(actor=who.actor, role=who.role, tenant=who.tenant, scopes=sorted(SCOPES[who.role]))
