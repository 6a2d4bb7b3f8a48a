"""Tenants of each tier, what they run, and who of it was asked to stop."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, clear

GUARANTEED, BEST_EFFORT, SCAVENGER = TIERS = ["guaranteed", "best_effort", "scavenger"]
PREEMPT = {"after": 0, "grace": 30}


def fleet(api: Api) -> Iterator[None]:
    """A tenant of each tier, by its name, and no nodes but the test's; afterwards all invariants hold."""
    clear(api)
    for tier in TIERS:
        api.value("set_tenant", name=tier, changes={"tier": tier})
    yield
    assert api.rows("verify_invariants") == []
    for row in api.rows("list_queues"):
        api.rows("drop_queue", queue=row["queue"], force=True)


def fill(api: Api, node: Node, queue: str, *tenants: str, **options: Any) -> list[Row]:
    """Leases of these tenants, one after the other, which run on the node; their claims."""
    return [api.running(queue, node, tenant=tenant, **GPU, **options) for tenant in tenants]


def asked(api: Api, *claims: Row) -> list[Row]:
    """Those that preemption has asked to stop, in the order given."""
    return [claim for claim in claims if api.lease(claim["lease_id"])["stop_reason"] == "tier_preempted"]


def release(api: Api, *claims: Row) -> None:
    for claim in claims:
        api.rows("release_lease", **token(claim))


def code(api: Api, lease: UUID) -> str:
    return str(api.row("explain_lease", lease=lease)["code"])


def of(tenant: str, gpu: int = 1) -> Row:
    """What a lease of a tenant asks."""
    return {"tenant": tenant, "placement": {"resources": {"gpu": gpu}}}
