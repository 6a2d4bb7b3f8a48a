"""Tenants."""

from __future__ import annotations

from hwqueue.server.models.base import Answer, Object, Request, example
from hwqueue.server.models.derived import list_of
from hwqueue.types import Tenant


class SetTenant(Request):
    """Keys of a specification; null resets one."""

    model_config = example(changes={"tier": "scavenger"})

    changes: Object


class TenantSpec(Answer):
    """A tenant's specification after a change."""

    name: str
    spec: Object


class TenantGone(Answer):
    """A tenant without a row. changed: false if it had none before."""

    name: str
    changed: bool


TenantPage = list_of(Tenant, pages=True, name="TenantPage", doc="Tenants that have a row, by name.")
