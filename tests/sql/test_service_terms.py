"""Policies of services at the claim: what is kept away from, and what the same place means."""

from uuid import UUID, uuid4

import pytest

from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough


def racks(api: Api, *racks: int) -> list[Node]:
    return [api.node(rack=rack, labels={"zone": f"z{rack % 2}"}) for rack in racks]


def spawn(api: Api, queue: str, service: UUID, **options: object) -> UUID:
    lease = api.spawn(queue, service_id=str(service), **options)
    api.settle_terms()
    return lease


def away(service: UUID) -> dict[str, object]:
    """A placement away from a service, in its failure domain."""
    return {"require": [{"service": str(service), "away": True}]}


def test_a_service_away_from_another_one_both_ways(api: Api) -> None:
    queue, (left, right, far) = api.queue(), racks(api, 1, 1, 2)
    web, db = uuid4(), uuid4()
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": [str(db)]})
    first = spawn(api, queue, web)
    assert api.claimed(left, queue) == [first]
    second = spawn(api, queue, db)
    assert api.claimed(right, queue) == []
    assert api.claimed(far, queue) == [second]
    third = spawn(api, queue, web)
    assert api.claimed(far, queue) == []
    assert api.claimed(right, queue) == [third]
    assert api.rows("verify_invariants") == []


def test_a_policy_that_comes_later_counts_what_runs(api: Api) -> None:
    queue, (left, right, far) = api.queue(), racks(api, 11, 11, 12)
    web, db = uuid4(), uuid4()
    waiting = [spawn(api, queue, web) for _ in range(3)]
    assert api.claimed(left, queue) == waiting[:1]
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": [str(db)]})
    api.settle_terms()
    data = spawn(api, queue, db, priority=9)
    assert api.claimed(right, queue) == waiting[1:2]
    assert api.claimed(far, queue) == [data]
    assert api.claimed(far, queue) == []
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": []})
    api.settle_terms()
    assert api.claimed(far, queue) == waiting[2:]
    assert api.rows("verify_invariants") == []


def test_leases_of_a_service_away_from_each_other(api: Api) -> None:
    queue, (left, right, far) = api.queue(), racks(api, 21, 21, 22)
    web = uuid4()
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": [str(web)]})
    leases = [spawn(api, queue, web) for _ in range(2)]
    assert api.claimed(left, queue, qty=2) == leases[:1]
    assert api.claimed(right, queue) == []
    assert api.claimed(far, queue) == leases[1:]


def test_the_failure_domain_moves(api: Api) -> None:
    """From the rack to the zone: what runs is counted anew, and nobody slips in meanwhile."""
    queue, (left, right, other) = api.queue(), racks(api, 31, 33, 32)
    db = uuid4()
    data = spawn(api, queue, db)
    assert api.claimed(left, queue) == [data]
    lease = spawn(api, queue, uuid4(), placement=away(db))
    assert api.claimed(left, queue) == []
    api.value("set_service_policy", service=db, policy={"failure_domain": "label:zone"})
    assert api.claimed(right, queue) == []
    api.settle_terms()
    assert api.claimed(right, queue) == []
    claim = api.granted(lease, other, queue)
    assert api.rows("verify_invariants") == []
    api.complete(claim)
    api.value("set_service_policy", service=db, policy={"failure_domain": None})
    again = spawn(api, queue, uuid4(), placement=away(db))
    assert api.claimed(left, queue) == []
    assert api.claimed(right, queue) == [again]


def test_the_queues_failure_domain(api: Api) -> None:
    """A node without a rack is alone."""
    queue, (left, right, other) = api.queue(failure_domain="node"), racks(api, 41, 41, 42)
    db = uuid4()
    data = spawn(api, queue, db)
    assert api.claimed(left, queue) == [data]
    leases = [spawn(api, queue, uuid4(), placement=away(db)) for _ in range(2)]
    assert api.claimed(left, queue) == []
    assert api.claimed(right, queue) == leases[:1]
    api.value("set_queue_policy", queue=queue, policy={"failure_domain": "rack"})
    api.settle_terms()
    assert api.claimed(right, queue) == []
    assert api.claimed(other, queue) == leases[1:]
    first, second, db = api.node(), api.node(), uuid4()
    data = spawn(api, queue, db)
    assert api.claimed(first, queue) == [data]
    lease = spawn(api, queue, uuid4(), placement=away(db))
    assert api.claimed(first, queue) == []
    assert api.claimed(second, queue) == [lease]


def test_a_policy_that_is_taken_back_while_others_have_it(api: Api) -> None:
    """The term lives on, and the class that it no longer concerns is not kept away by it."""
    queue, node = api.queue(), api.node(rack=61)
    db, web, cache = uuid4(), uuid4(), uuid4()
    policy = {"anti_affinity_services": [str(db)]}
    for service in (web, cache):
        api.value("set_service_policy", service=service, policy=policy)
    spawn(api, queue, db)
    data = api.claim(node, queue)
    assert len(data) == 1
    kept, freed = spawn(api, queue, cache), spawn(api, queue, web)
    assert api.claimed(node, queue) == api.claimed(node, queue) == []
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": []})
    api.settle_terms()
    api.rows("prune")
    assert api.claimed(node, queue) == [freed]
    assert kept not in api.claimed(node, queue)
