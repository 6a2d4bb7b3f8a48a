"""Policies of services: what is kept, and what leases of a service keep away from."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.api import Api, Node

NOTHING: dict[str, Any] = {"failure_domain": None, "anti_affinity_services": []}
OTHERS = sorted(str(uuid4()) for _ in range(3))


@pytest.mark.parametrize("domain", ["node", "rack", "label:z", "label:" + "k" * 253])
def test_domains(api: Api, domain: str) -> None:
    service = uuid4()
    assert api.value("service_policy", service=service) == NOTHING
    policy = api.value("set_service_policy", service=service, policy={"failure_domain": domain})
    assert policy == NOTHING | {"failure_domain": domain}
    assert api.value("service_policy", service=service) == policy


def test_keys_not_given_stay(api: Api) -> None:
    service = uuid4()
    api.rows("set_service_policy", service=service, policy={"failure_domain": "node"})
    given = {"anti_affinity_services": [OTHERS[2], OTHERS[0].upper(), OTHERS[2]]}
    policy = api.value("set_service_policy", service=service, policy=given)
    assert policy == {"failure_domain": "node", "anti_affinity_services": [OTHERS[0], OTHERS[2]]}
    assert api.value("set_service_policy", service=service, policy={}) == policy
    policy = api.value("set_service_policy", service=service, policy={"failure_domain": None})
    assert policy == NOTHING | {"anti_affinity_services": [OTHERS[0], OTHERS[2]]}
    given = {"anti_affinity_services": []}
    assert api.value("set_service_policy", service=service, policy=given) == NOTHING
    given = {"anti_affinity_services": [str(service)]}  # it may keep away from itself
    assert api.value("set_service_policy", service=service, policy=given) == NOTHING | given


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("policy", None),
        ("policy", []),
        ("policy.domain", {"domain": "node"}),
        ("policy.failure_domain", {"failure_domain": "zone"}),
        ("policy.failure_domain", {"failure_domain": "label:"}),
        ("policy.failure_domain", {"failure_domain": "label:" + "k" * 254}),
        ("policy.failure_domain", {"failure_domain": 7}),
        ("policy.anti_affinity_services", {"anti_affinity_services": OTHERS[0]}),
        ("policy.anti_affinity_services[1]", {"anti_affinity_services": [OTHERS[0], "x"]}),
        ("policy.anti_affinity_services[0]", {"anti_affinity_services": [None]}),
    ],
)
@pytest.mark.thorough
def test_bad_policies(api: Api, field: str, policy: Any) -> None:
    assert api.fault("set_service_policy", service=uuid4(), policy=policy) == field


def test_a_service_has_an_id(api: Api) -> None:
    assert api.fault("set_service_policy", service=None, policy={}) == "p_service"
    assert api.fault("service_policy", service=None) == "p_service"


def racks(api: Api, *racks: int) -> list[Node]:
    return [api.node(rack=rack, labels={"zone": f"z{rack % 2}"}) for rack in racks]


def spawn(api: Api, queue: str, service: UUID, **options: object) -> UUID:
    lease = api.spawn(queue, service_id=str(service), **options)
    api.settle_terms()
    return lease


def away(service: UUID) -> dict[str, object]:
    """A placement away from a service, in its failure domain."""
    return {"require": [{"service": str(service), "away": True}]}


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_leases_of_a_service_away_from_each_other(api: Api) -> None:
    queue, (left, right, far) = api.queue(), racks(api, 21, 21, 22)
    web = uuid4()
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": [str(web)]})
    leases = [spawn(api, queue, web) for _ in range(2)]
    assert api.claimed(left, queue, qty=2) == leases[:1]
    assert api.claimed(right, queue) == []
    assert api.claimed(far, queue) == leases[1:]


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
