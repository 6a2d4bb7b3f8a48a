"""Tenants: whose leases run first, and which logins call for them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import tenants as models
from hwqueue.server.models.base import Id, Tenant
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import Admin, Reader

router = APIRouter(route_class=AuthenticatedRoute, tags=["tenants"])

PathName = Annotated[Tenant, Path(description="Name of the tenant; *: all without a row.", examples=["lab"])]
PathLogin = Annotated[str, Path(description="A login of the database.", examples=["app_lab"], max_length=63)]


@router.get("/tenants", response_model=models.TenantPage)
async def list_tenants(
    *,
    caller: Reader,
    page: Paged,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[Tenant | None, Query(description="Cursor: `next` of the page before.")] = None,
) -> Any:
    """The tenants that have a row or a login, by name."""
    async with caller.read() as client:
        found = await client.list_tenants(after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.name, name="after")


@router.get("/tenant-usage", response_model=models.TenantsInUse)
async def tenant_usage(
    caller: Reader,
    tenant: Annotated[Tenant | None, Query(description="This one alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """What tenants use beside what they may, the busiest first."""
    async with caller.read() as client:
        return {"items": await client.tenant_usage(name=tenant, limit=limit)}


@router.get("/preemptions", response_model=models.PreemptedClaims)
async def list_preemptions(
    caller: Reader,
    lease_id: Annotated[Id | None, Query(description="Whose claims were asked to stop.")] = None,
    tenant: Annotated[Tenant | None, Query(description="On either side.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """Claims that were asked to stop for leases of earlier tiers, the newest first."""
    async with caller.read() as client:
        return {"items": await client.list_preemptions(lease_id=lease_id, tenant=tenant, limit=limit)}


@router.put("/logins/{login}/tenants/{tenant:name}")
async def grant_tenant(
    tenant: PathName, login: PathLogin, body: models.GrantTenant, caller: Admin
) -> models.TenantLogin:
    """Let a login that is bound to tenants call for this one."""
    async with caller.call() as client:
        rights = await client.grant_tenant(login, tenant, body.rights)
    return models.TenantLogin(name=tenant, login=login, rights=rights)


@router.delete("/logins/{login}/tenants/{tenant:name}")
async def revoke_tenant(tenant: PathName, login: PathLogin, caller: Admin) -> models.TenantLogin:
    """Take a tenant from a login."""
    async with caller.call() as client:
        changed = await client.revoke_tenant(login, tenant)
    return models.TenantLogin(name=tenant, login=login, changed=changed)


@router.patch("/tenants/{tenant:name}")
async def set_tenant(tenant: PathName, body: models.SetTenant, caller: Admin) -> models.TenantSpec:
    """Change what a tenant may have."""
    async with caller.call() as client:
        spec = await client.set_tenant(tenant, body.changes)
    return models.TenantSpec(name=tenant, spec=spec)


@router.delete("/tenants/{tenant:name}")
async def drop_tenant(tenant: PathName, caller: Admin) -> models.TenantGone:
    """Drop the row of a tenant and its logins; its leases that wait keep their tier."""
    async with caller.call() as client:
        dropped = await client.drop_tenant(tenant)
    return models.TenantGone(name=tenant, changed=dropped)
