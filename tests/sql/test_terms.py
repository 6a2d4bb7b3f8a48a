"""Leases that ask about other leases: how terms come into force, and who is held up by them."""

from datetime import timedelta
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
        api.spawn(queue, labels={"n": str(number)})
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
    api.rows("cancel_lease", lease=leases[0])
    assert api.claimed(fleet[1], other) == []
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
    api.complete(claim)
    assert api.claimed(fleet[1], queue) == []  # the other one counts
    api.complete(api.lease(other))
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
