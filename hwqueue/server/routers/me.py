"""Who one is to this server."""

from fastapi import APIRouter
from pydantic import Field

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Answer
from hwqueue.server.roles import SCOPES, Role, Scope
from hwqueue.server.routers.shared import LeaseReader

router = APIRouter(route_class=AuthenticatedRoute, tags=["auth"])


class Me(Answer):
    """Whom a token stands for."""

    actor: str = Field(description="Whom actions are put down to.", examples=["token:render-farm"])
    role: Role
    tenant: str | None = Field(description="The only one; null: all.")
    scopes: list[Scope]


@router.get("/me")
async def who_am_i(caller: LeaseReader) -> Me:
    """Whom the token stands for, and what it may do."""
    who = caller.principal
    return Me(actor=who.actor, role=who.role, tenant=who.tenant, scopes=sorted(SCOPES[who.role]))
