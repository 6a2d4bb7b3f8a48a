"""Tiers of tenants: whose leases run first, and what a claim pays for them."""

from collections.abc import Callable
from random import Random
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.counted import counting
from tests.sql.api import Api, Node, token
from tests.sql.warm import WarmApi

OF_QUEUE = "from hwqueue.lease join hwqueue.queue using (queue_id) where name = %s"
TIERS = ["guaranteed", "best_effort", "scavenger"]


@pytest.fixture(params=[pytest.param("cold", marks=pytest.mark.thorough), "warm", "marked"])
def api(request: pytest.FixtureRequest, conn: psycopg.Connection) -> Api:
    """Nodes at their first claim, and such as have claimed before; from where a mark is, too."""
    if request.param == "marked":
        request.getfixturevalue("eager_marks")
    return Api(conn) if request.param == "cold" else WarmApi(conn)


@pytest.fixture
def tenants(api: Api) -> list[str]:
    """One of each tier."""
    for tier in TIERS:
        api.value("set_tenant", name=tier[0], changes={"tier": tier})
    return [tier[0] for tier in TIERS]


def drained(api: Api, node: Node, *queues: str, qty: int = 1) -> list[UUID]:
    found: list[UUID] = []
    while taken := api.claimed(node, *queues, qty=qty):
        found += taken
    return found


@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_tier_then_priority_then_age(api: Api, tenants: list[str], names: int, seed: int) -> None:
    """In one queue and in two, of one class a tenant and of two, as many tiers as there may be at a time."""
    chance = Random(seed)
    queues, node = [api.queue() for _ in range(names)], api.node(labels={"zone": "a"})
    options: list[Callable[[], Row]] = [dict, lambda: {"labels": {"x": "1"}}]
    for _ in range(3):
        some = chance.sample(tenants, chance.randint(1, 3))
        waiting = []
        for turn in range(12):
            tenant, priority = chance.choice(some), chance.choice([0, 0, 1])
            more = options[chance.randrange(2)]()
            lease = api.spawn(chance.choice(queues), tenant=tenant, priority=priority, **more)
            waiting.append((tenants.index(tenant), -priority, turn, lease))
        expected = [lease for *_, lease in sorted(waiting)]
        assert drained(api, node, *queues, qty=chance.choice([1, 1, 3])) == expected


def test_an_earlier_tier_that_comes_later_goes_first(api: Api, tenants: list[str], queue: str) -> None:
    """Also where the queue's mark is in a later tier, and nothing is left of it."""
    node = api.node()
    for _ in range(3):
        late = [api.spawn(queue, tenant=tenants[2]) for _ in range(4)]
        assert api.claimed(node, queue) == late[:1]
        soon = api.spawn(queue, tenant=tenants[0])
        later = api.spawn(queue, tenant=tenants[1])
        assert drained(api, node, queue) == [soon, later, *late[1:]]


def test_all_ways_of_spawning(api: Api, tenants: list[str], queue: str) -> None:
    """Batches, gangs, steps of runs, delayed leases and retries have the tier of their tenant."""
    node = api.node()
    gang = api.rows("spawn_gang", queue=queue, members=Jsonb([{"task": "t", "options": {"tenant": "s"}}] * 2))
    api.rows("define_workflow", spec={"name": "w", "steps": [{"name": "a", "queue": queue, "task": "step"}]})
    api.rows("submit_workflow", workflow="w", options={"tenant": tenants[1]})
    leases = [{"task": "t", "options": {"tenant": tenant}} for tenant in tenants[::-1]]
    batch = [row["lease_id"] for row in api.rows("spawn_leases", queue=queue, leases=Jsonb(leases))]
    tiers = dict(api.conn.execute(f"select lease_id, tier {OF_QUEUE}", [queue]).fetchall())
    assert [tiers[lease] for lease in batch] == [2, 1, 0]
    assert [tiers[row["lease_id"]] for row in gang] == [2, 2]
    assert sorted(tiers.values())[-5:] == [1, 1, 2, 2, 2]
    api.rows("fail_lease", **token(api.claim(node, queue)[0]), error={})
    assert api.one("select tier from hwqueue.scheduled where lease_id = %s", batch[2]) == 0


def test_tenants_without_a_row(api: Api, tenants: list[str], queue: str) -> None:
    """They have the tier of the row *, leases of no tenant none, and a name is any that a spawn may give."""
    rows = {"*": "scavenger", "Équipe du film": "best_effort"}
    for name, tier in rows.items():
        assert api.value("set_tenant", name=name, changes={"tier": tier}) == {"tier": tier}
    names: list[Row] = [{"tenant": name} for name in ("x", "g", "Équipe du film", None)]
    names.append({})
    leases = [api.spawn(queue, **options) for options in names]
    batch = [{"task": "t", "options": options} for options in names]
    leases += [row["lease_id"] for row in api.rows("spawn_leases", queue=queue, leases=Jsonb(batch))]
    tiers = dict(api.conn.execute(f"select lease_id, tier {OF_QUEUE}", [queue]).fetchall())
    assert [tiers[lease] for lease in leases] == [2, 0, 1, 0, 0] * 2
    for name in rows:
        assert api.value("drop_tenant", name=name)
    for wrong in ("", None, "x" * 101):
        assert api.fault("set_tenant", name=wrong, changes={}) == "p_name"


@pytest.mark.parametrize("tier", TIERS)
def test_a_single_tier_is_claimed_at_the_head(
    conn: psycopg.Connection, eager_marks: None, queue: str, tier: str
) -> None:
    """What waits in one tier costs no more than what has no tenant."""
    api = Api(conn)
    node = api.node()
    api.value("set_tenant", name="t", changes={"tier": tier})
    leases = [api.spawn(queue, tenant="t") for _ in range(6)]
    while api.claimed(node, queue) != leases[-2:-1]:  # then the mark is in this tier
        pass
    with counting(conn) as calls:
        assert api.claimed(node, queue) == leases[-1:]
    assert calls["claim_at_head"] == 1
    assert "claim_general" not in calls
