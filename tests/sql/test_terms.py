"""Leases that ask about other leases: how terms come into force, whom they hold up, policies of services."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import looks
from tests.sql.api import Api, Node, token

WEB: Row = {"labels": {"app": "web"}}
AWAY: Row = {"require": [{"leases": WEB, "domain": "rack", "away": True}]}


def capped(limit: int, domain: str = "rack") -> Row:
    """A placement with at most so many web leases in a domain."""
    return {"spread": [{"domain": domain, "max_per_domain": limit, "select": WEB}]}


def in_force(api: Api) -> bool:
    row = api.conn.execute(
        "select not exists (select from hwqueue.affinity_term where published_at is null)"
        " and not exists (select from hwqueue.placement_class"
        "   where terms <> '[]' and not terms_written)"
    ).fetchone()
    return row == (True,)


def settle_terms(api: Api) -> None:
    """Bring new terms into force; other sessions on this server may hold them up a little."""
    for look in looks():
        api.rows("reap")
        if look and in_force(api):
            return
    raise AssertionError("some session on this server keeps a transaction open")


def web(api: Api, queue: str, placement: Row | None = None, **options: object) -> UUID:
    return api.spawn(queue, placement=placement or {}, labels={"app": "web"}, **options)


@pytest.fixture
def fleet(api: Api) -> list[Node]:
    """Two nodes in rack 1 and two in rack 2; no other nodes live."""
    api.leave_all()
    return [api.node(rack=rack, labels={"zone": f"z{rack}"}) for rack in (1, 1, 2, 2)]


def granted_in_time(api: Api, node: Node, queue: str, wanted: UUID) -> bool:
    """Whether the node gets a lease, be it after others; what other sessions hold up passes."""
    return any(wanted in api.claimed(node, queue) for _ in looks())


def test_claims_alone_bring_a_term_into_force(api: Api, fleet: list[Node]) -> None:
    """Nobody calls reap: nodes that want such a lease take the steps, whatever backlog there is of others."""
    alone, queue = api.queue(), api.queue()
    lease = web(api, alone, AWAY)
    assert api.claimed(fleet[0], alone) == []
    assert granted_in_time(api, fleet[1], alone, lease)
    for _ in range(30):
        api.spawn(queue)
    lease = web(api, queue, AWAY, priority=1)
    assert granted_in_time(api, fleet[2], queue, lease)


def test_a_term_that_ever_new_classes_meet_comes_into_force(api: Api, queue: str, fleet: list[Node]) -> None:
    everything: Row = {"leases": {"labels": {}}, "domain": "rack", "away": True}
    lease = api.spawn(queue, placement={"require": [everything]}, priority=9)
    for number in looks():
        api.spawn(queue, labels={str(number): "n"})
        api.rows("reap")
        if number > 2 and in_force(api):
            break
    assert api.claimed(fleet[0], queue) == [lease]


def test_both_ways(api: Api, queue: str, fleet: list[Node]) -> None:
    holder, plain = web(api, queue, AWAY), web(api, queue)
    settle_terms(api)
    assert api.claimed(fleet[0], queue, qty=2) == [holder]
    assert api.claimed(fleet[1], queue) == []
    assert api.claimed(fleet[2], queue) == [plain]
    another = web(api, queue, AWAY)
    assert api.claimed(fleet[3], queue) == []
    [row] = [r for r in api.rows("list_leases", filter={"queue": queue}) if r["lease_id"] == plain]
    assert row["state"] == "claimed"
    api.rows("complete_lease", **token(api.lease(plain)))
    assert api.claimed(fleet[3], queue) == [another]
    assert api.rows("verify_invariants") == []


def test_the_rest_of_a_batch_goes_on(api: Api, queue: str, fleet: list[Node]) -> None:
    """What is checked is granted one by one, what is not in batches, in the order of the queue."""
    first, second = web(api, queue, capped(1)), web(api, queue, capped(1))
    others = [api.spawn(queue) for _ in range(4)]
    settle_terms(api)
    assert api.claimed(fleet[0], queue, qty=9) == [first, *others]
    assert api.claimed(fleet[2], queue, qty=9) == [second]


def test_what_a_node_may_not_claim_others_may(api: Api, queue: str, dsn: str, fleet: list[Node]) -> None:
    """Even while the transaction is open in which it was refused."""
    web_lease, lease = web(api, queue), web(api, queue, AWAY)
    settle_terms(api)
    assert api.claimed(fleet[0], queue) == [web_lease]
    with psycopg.connect(dsn) as other:
        refused = other.execute(
            "select * from hwqueue.claim_task(array[%s], %s, %s)", [queue, fleet[1].node_id, fleet[1].epoch]
        ).fetchall()
        assert refused == []
        assert api.claimed(fleet[2], queue) == [lease]


def test_expired_and_stopping(api: Api, fleet: list[Node], clock: Clock) -> None:
    """Both count for away and for a cap: a worker may still be at it. Only what stays is company."""
    queue, other = api.queue(), api.queue(claim_timeout=60)
    running = web(api, queue)
    [claim] = api.claim(fleet[0], queue)
    api.rows("cancel_lease", lease=running)
    joins: Row = {"require": [{"leases": WEB, "domain": "rack"}]}
    kept, joining = web(api, queue, AWAY), api.spawn(queue, placement=joins)
    api.settle_terms()
    assert api.claimed(fleet[1], queue, qty=2) == []
    api.rows("fail_lease", **token(claim), error={})
    assert api.claimed(fleet[1], queue) == [kept]
    assert api.claimed(fleet[3], queue) == []
    assert api.claimed(fleet[1], queue) == [joining]
    api.complete(*map(api.lease, (kept, joining)))
    leases = [web(api, other, capped(1)) for _ in range(2)]
    api.settle_terms()
    assert api.claimed(fleet[0], other) == leases[:1]
    clock.advance(timedelta(seconds=61))
    assert api.claimed(fleet[1], other) == []
    assert api.claimed(fleet[2], other) == leases[1:]


def test_so_many_at_once_in_the_whole_fleet(api: Api, fleet: list[Node]) -> None:
    """Wherever they run: the next one starts when one of them ends. A node without rack and labels counts."""
    queue, bare = api.queue(), api.node()
    leases = [web(api, queue, capped(2, "fleet")) for _ in range(4)]
    other = web(api, queue)  # picked by the rule, and not held back by it
    api.settle_terms()
    assert api.claimed(bare, queue) == leases[:1]
    claim = api.granted(leases[1], fleet[2], queue)
    assert api.claimed(fleet[3], queue, qty=9) == [other]
    api.rows("cancel_lease", lease=other)
    api.complete(claim)
    assert api.claimed(fleet[1], queue) == []  # the other one counts, though it was asked to stop
    api.rows("fail_lease", **token(api.lease(other)), error={})
    assert api.claimed(fleet[1], queue, qty=9) == [leases[2]]
    assert api.claimed(fleet[3], queue) == api.claimed(bare, queue) == []
    assert api.sound()


def test_the_asking_node_is_alive(api: Api, queue: str, fleet: list[Node], clock: Clock) -> None:
    """It has been silent, but it asks: its own zone counts for the skew."""
    skew: Row = {"spread": [{"domain": "label:zone", "max_skew": 1, "select": WEB}]}
    leases = [web(api, queue, skew) for _ in range(4)]
    settle_terms(api)
    clock.advance(timedelta(seconds=100))
    for node in fleet[2:]:
        api.rows("heartbeat_node", **node.who, claims=[])
    assert api.claimed(fleet[0], queue, qty=4) == leases[:1]


@pytest.mark.parametrize("is_spawned", [True, False])
def test_a_lease_is_named_after_or_before_it_was_spawned(
    api: Api, fleet: list[Node], is_spawned: bool
) -> None:
    """It is kept out alone; what shared its class goes on."""
    queue, named = api.queue(), uuid4()
    if is_spawned:
        named, *others = [api.spawn(queue) for _ in range(4)]
    away_from: Row = {"require": [{"lease": str(named), "domain": "rack", "away": True}]}
    holder = api.spawn(queue, placement=away_from, priority=1)
    api.settle_terms()
    assert api.claimed(fleet[0], queue) == [holder]
    if not is_spawned:
        api.spawn(queue, lease_id=str(named))
        others = [api.spawn(queue)]
    assert api.claimed(fleet[1], queue, qty=9) == others
    assert api.claimed(fleet[2], queue) == [named]
    assert api.sound()


def test_with_a_lease_where_it_runs_and_where_it_succeeded(api: Api, queue: str, fleet: list[Node]) -> None:
    leader = api.spawn(queue)
    [claim] = api.claim(fleet[2], queue)
    beside: Row = {"require": [{"lease": str(leader)}]}
    first = api.spawn(queue, placement=beside)
    settle_terms(api)
    assert api.claimed(fleet[0], queue) == api.claimed(fleet[3], queue) == []
    assert api.claimed(fleet[2], queue) == [first]
    api.complete(claim)
    second = api.spawn(queue, placement=beside)
    assert api.claimed(fleet[3], queue) == []
    assert api.claimed(fleet[2], queue) == [second]


def test_a_relabelled_node_takes_its_counts_along(api: Api, queue: str, fleet: list[Node]) -> None:
    running, lease = web(api, queue), web(api, queue, AWAY)
    settle_terms(api)
    assert api.claimed(fleet[0], queue) == [running]
    assert api.claimed(fleet[1], queue) == []
    api.node(fleet[0].node_id, name=fleet[0].name, rack=2, labels={"zone": "z1"})
    assert api.rows("verify_invariants") == []
    assert api.claimed(fleet[2], queue) == []
    assert api.claimed(fleet[1], queue) == [lease]


def test_patience_of_another_rank_goes_on(api: Api, fleet: list[Node], clock: Clock) -> None:
    """Urgent leases that keep coming do not hold back one that has waited long enough, nor does a change."""
    queue, other = api.queue(patience=5), api.queue(patience=5)
    liked: Row = {"prefer": [{"when": {"rack": 1}}]}
    changed, old = api.spawn(other, placement=liked), api.spawn(queue, placement=liked)
    urgent = []
    for _ in range(2):
        clock.advance(timedelta(seconds=2))
        urgent.append(api.spawn(queue, placement=liked, priority=5))
    api.rows("update_lease", lease=changed, changes={"priority": 3})
    assert api.claimed(fleet[2], other) == []
    clock.advance(timedelta(seconds=1))
    assert api.claimed(fleet[2], other) == [changed]
    for _ in range(2):
        urgent.append(api.spawn(queue, placement=liked, priority=5))
        clock.advance(timedelta(seconds=1.5))
    for node in fleet:
        api.rows("heartbeat_node", **node.who, claims=[])
    assert api.claimed(fleet[2], queue, qty=9) == [urgent[0], old]


def test_terms_that_nobody_asks_are_pruned(api: Api, fleet: list[Node], clock: Clock) -> None:
    queue = api.queue(retain_completed=0)
    known = "select count(*) from hwqueue.affinity_term where spec @> %s"
    spec = Jsonb({"all": [{"exprs": [{"label": "pruned"}]}]})
    unlike: Row = {"leases": {"labels": {"pruned": "x"}}, "domain": "rack", "away": True}
    selected = api.spawn(queue, labels={"pruned": "x"}, priority=-1, tenant="t")
    lease = api.spawn(queue, placement={"require": [unlike]}, tenant="t")
    api.settle_terms()
    assert api.one(known, spec) == 1
    claim = api.granted(lease, fleet[0], queue)
    api.complete(claim)
    clock.advance(timedelta(days=1))
    for _ in looks():
        api.rows("prune")
        if api.one(known, spec) == 0:
            break
    assert api.one(known, spec) == 0
    checked = (
        "select bool_or(e.is_checked) from hwqueue.eligibility e"
        " join hwqueue.placement_class c using (class_id) where c.labels @> %s"
    )
    assert api.one(checked, Jsonb({"pruned": "x"})) is False
    assert api.claimed(fleet[1], queue) == [selected]


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
