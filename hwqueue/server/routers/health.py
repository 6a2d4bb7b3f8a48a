"""Whether the process lives, and whether it can work."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from hwqueue.schema.state import refuse_incompatible
from hwqueue.server.dependencies import Services
from hwqueue.types import SchemaVersion

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The database answers, and its schema fits."""

    status: Literal["ready"] = "ready"
    revision: str = Field(description="Of the schema.", examples=["0001_labels"])


@router.get("/healthz")
async def health() -> Health:
    """Whether the process lives; asks nobody. For liveness probes."""
    return Health()


@router.get("/readyz", responses={503: {"description": "The database is away, or too old."}})
async def readiness(request: Request) -> Readiness:
    """Whether the database answers and its schema fits. For readiness probes."""
    services: Services = request.app.state.services
    installed = await services.pools.schema()
    _check(installed)
    return Readiness(revision=installed.revision)


@lru_cache(maxsize=8)
def _check(installed: SchemaVersion) -> None:
    """Refuse a schema that does not fit; one that does is remembered, since looking reads files.

    Raises: SchemaTooOld, SchemaTooNew.
    """
    refuse_incompatible(installed)
