"""Tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hwqueue.server.models.base import Answer, Object, Request, example
from hwqueue.server.models.derived import list_of
from hwqueue.types import PreemptedClaim, Tenant, TenantUsage


class SetTenant(Request):
    """Keys of a specification; null resets one."""

    model_config = example(changes={"tier": "scavenger"})

    changes: Object


class TenantSpec(Answer):
    """A tenant's specification after a change."""

    name: str
    spec: Object


class TenantGone(Answer):
    """A tenant without a row and logins. changed: false if it had none before."""

    name: str
    changed: bool


class GrantTenant(Request):
    """What a login may do for a tenant, beside reading."""

    model_config = example(rights=["spawn", "operate"])

    rights: Sequence[Literal["read", "spawn", "operate"]] = ("read",)


class TenantLogin(Answer):
    """A login and its rights for a tenant. changed: of one that has none, whether it had any."""

    name: str
    login: str
    rights: Sequence[str] = ()
    changed: bool = True


TenantPage = list_of(
    Tenant, pages=True, name="TenantPage", doc="Tenants that have a row or a login, by name."
)
TenantsInUse = list_of(TenantUsage, name="TenantsInUse", doc="What tenants use, the busiest first.")
PreemptedClaims = list_of(
    PreemptedClaim, name="PreemptedClaims", doc="Claims that were asked to stop for others, the newest first."
)
