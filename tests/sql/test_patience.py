"""Patience: a lease waits for a better node that lives, a bounded time, and says so."""

from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.test_terms import settle_terms

pytestmark = pytest.mark.usefixtures("clock")

Fleet = tuple[Node, Node, Node]

ZONES: Row = {
    "prefer": [
        {"weight": 100, "when": {"label": "zone", "op": "in", "values": ["a"]}},
        {"weight": 50, "when": {"label": "zone", "op": "in", "values": ["b"]}},
    ]
}


def retry_after(api: Api, node: object, queue: str) -> tuple[float, Row]:
    """What claim_hint says: seconds and reasons."""
    row = api.row("claim_hint", queues=[queue], node=node)
    return row["retry_after"].total_seconds(), row["reasons"]


@pytest.fixture
def fleet(api: Api) -> tuple[Node, Node, Node]:
    """A node in each of the zones a, b and c; no other nodes live."""
    api.leave_all()
    best, middle, worst = (api.node(labels={"zone": zone}) for zone in "abc")
    return best, middle, worst


def test_others_wait_by_how_much_worse_they_are(api: Api, clock: Clock, fleet: Fleet) -> None:
    """And the best one does not."""
    best, middle, worst = fleet
    queue = api.queue(poll_interval=60)
    lease = api.spawn(queue, placement=ZONES)
    assert api.claimed(best, queue) == [lease]
    lease = api.spawn(queue, placement=ZONES)
    assert api.claimed(middle, queue) == api.claimed(worst, queue) == []
    seconds, reasons = retry_after(api, worst.node_id, queue)
    assert reasons == {"waiting_for_preferred": 1}
    assert 1.5 < seconds <= 2
    assert 0.5 < retry_after(api, middle.node_id, queue)[0] <= 1
    clock.advance(timedelta(seconds=1))
    assert api.claimed(worst, queue) == []
    assert api.claimed(middle, queue) == [lease]


def test_one_look_while_the_best_and_the_worst_live(api: Api, clock: Clock, fleet: Fleet) -> None:
    """However often they have given signs of life since."""
    worst = fleet[2]
    queue = api.queue(patience=1000)
    lease = api.spawn(queue, placement=ZONES)
    look = "select range_id from hwqueue.class_range r join hwqueue.lease l using (class_id)"
    look += " where l.lease_id = %s"
    found = []
    for _ in range(4):
        assert api.claimed(worst, queue) == []
        found += api.conn.execute(look, [lease]).fetchall()
        clock.advance(timedelta(seconds=40))
        for node in fleet:
            api.rows("heartbeat_node", **node.who, claims=[])
    assert found == found[:1] * 4
    clock.advance(timedelta(seconds=40))
    api.rows("heartbeat_node", **worst.who, claims=[])
    clock.advance(timedelta(seconds=10))
    assert api.claimed(worst, queue) == [lease]


def test_no_longer_than_its_patience(api: Api, clock: Clock, fleet: Fleet) -> None:
    worst = fleet[2]
    queue = api.queue(patience=30)
    lease = api.spawn(queue, placement=ZONES)
    hasty = api.spawn(queue, placement=ZONES, patience=1)
    none = api.spawn(queue, placement=ZONES, patience=0)
    assert api.claimed(worst, queue, qty=5) == [none]
    clock.advance(timedelta(seconds=1))
    assert api.claimed(worst, queue) == [hasty]
    assert api.claimed(worst, queue) == []
    clock.advance(timedelta(seconds=29))
    assert api.claimed(worst, queue) == [lease]
    queue = api.queue(patience=0)
    lease = api.spawn(queue, placement=ZONES)
    assert api.claimed(worst, queue) == [lease]


def test_one_that_has_waited_does_not_let_younger_ones_through(
    api: Api, fleet: Fleet, clock: Clock, dsn: str
) -> None:
    best, _, worst = fleet
    queue = api.queue()
    waited = api.spawn(queue, placement=ZONES)
    clock.advance(timedelta(seconds=2))
    young = api.spawn(queue, placement=ZONES)
    with psycopg.connect(dsn) as other:
        assert Api(other).claimed(best, queue) == [waited]
        assert api.claimed(worst, queue) == []
    assert api.claimed(worst, queue) == []
    clock.advance(timedelta(seconds=2))
    assert api.claimed(worst, queue) == [young]


def test_one_that_has_waited_keeps_its_rank(api: Api, fleet: Fleet, clock: Clock) -> None:
    """What waits before it in its class does not lend it its own priority."""
    worst = fleet[2]
    queue = api.queue(patience=10)
    less: Row = ZONES | {"strength": 50}
    low = api.spawn(queue, placement=ZONES)
    lower = api.spawn(queue, priority=-1, placement=less)
    clock.advance(timedelta(seconds=10))
    for placement in ZONES, less:
        api.spawn(queue, priority=2, placement=placement)
    away = {"require": [{"leases": {"labels": {"app": "x"}}, "domain": "node", "away": True}]}
    free = [api.spawn(queue, priority=1), api.spawn(queue, priority=1, placement=away)]
    free_low, free_lower = (api.spawn(queue, priority=priority) for priority in (0, -1))
    settle_terms(api)
    ordered = [*free, low, free_low, lower, free_lower]
    assert [api.claimed(worst, queue) for _ in ordered] == [[lease] for lease in ordered]
    assert api.claimed(worst, queue) == []


@pytest.mark.parametrize("others", [0, 3, 20])
def test_one_that_has_waited_is_found_among_many_classes(
    api: Api, fleet: Fleet, clock: Clock, others: int
) -> None:
    """Also where there are more classes than claims look at one by one."""
    worst = fleet[2]
    queue = api.queue(patience=10, tuning={"probe_size": others})
    for number in range(others):
        api.spawn(queue, labels={str(number): "app"}, delay=86_400)
    waited = api.spawn(queue, placement=ZONES)
    free = api.spawn(queue, priority=-3)
    clock.advance(timedelta(seconds=10))
    api.spawn(queue, priority=1, placement=ZONES)
    assert [api.claimed(worst, queue) for _ in range(3)] == [[waited], [free], []]


def test_many_that_have_waited_keep_their_ranks(api: Api, fleet: Fleet, clock: Clock) -> None:
    """Of more classes than a claim tries; none is left out for good."""
    worst = fleet[2]
    queue = api.queue(patience=10)
    kinds: list[Row] = [ZONES | {"strength": 100 - number} for number in range(12)]
    waited = [
        api.spawn(queue, priority=-number, placement=kind) for number, kind in enumerate(kinds, start=1)
    ]
    clock.advance(timedelta(seconds=10))
    for kind in kinds:
        api.spawn(queue, priority=5, placement=kind)
    free = [api.spawn(queue), api.spawn(queue, priority=-20)]
    ordered = [free[0], *waited, free[1]]
    assert [api.claimed(worst, queue) for _ in ordered] == [[lease] for lease in ordered]
    assert api.claimed(worst, queue) == []


@pytest.mark.parametrize("held", [1, 12])
def test_those_that_have_waited_do_not_make_younger_ones_wait(
    api: Api, fleet: Fleet, clock: Clock, dsn: str, held: int
) -> None:
    """Where no better node lives nothing waits, whoever holds the older leases of the class."""
    best, middle, worst = fleet
    api.rows("deregister_node", node=best.node_id)
    queue = api.queue()
    waited = [api.spawn(queue, placement=ZONES) for _ in range(held)]
    clock.advance(timedelta(seconds=2))
    young = api.spawn(queue, placement=ZONES)
    with psycopg.connect(dsn) as other:
        assert Api(other).claimed(worst, queue, qty=held) == waited
        assert api.claimed(middle, queue) == [young]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("gone", ["dead", "cordon_node", "deregister_node", "too small"])
def test_only_for_nodes_that_could_run_it(
    api: Api, clock: Clock, fleet: Fleet, gone: str, by_name: bool
) -> None:
    best, middle, _ = fleet
    needs: Row = {}
    if gone == "dead":
        clock.advance(timedelta(seconds=50))
        api.rows("heartbeat_node", **middle.who, claims=[])
    elif gone == "too small":
        api.node(best.node_id, name=best.name, labels={"zone": "a"}, capacity={"cpu_milli": 1})
        needs = {"resources": {"cpu_milli": 2}}
    else:
        api.rows(gone, node=best.node_id)
    wanted: Row = {"placement": ZONES | needs}
    if by_name:
        wanted = {"affinity_with": str(best.node_id), "placement": needs}
    queue = api.queue()
    lease = api.spawn(queue, **wanted)
    assert api.claimed(middle, queue) == [lease]


def test_a_busy_node_is_waited_for(api: Api, queue: str, clock: Clock, fleet: Fleet) -> None:
    """Its total capacity counts, not what is free; nor whether it has ever asked."""
    best, middle, _ = fleet
    api.node(best.node_id, name=best.name, labels={"zone": "a"}, slots=1)
    first, second = (api.spawn(queue, placement=ZONES) for _ in range(2))
    assert api.claimed(middle, queue) == []
    assert api.claimed(best, queue, qty=2) == [first]
    assert api.claimed(middle, queue) == []
    clock.advance(timedelta(seconds=1))
    assert api.claimed(middle, queue) == [second]


def test_what_waits_does_not_keep_others_waiting(api: Api, queue: str, fleet: Fleet) -> None:
    waiting = [api.spawn(queue, placement=ZONES, priority=9) for _ in range(3)]
    lease = api.spawn(queue)
    assert api.claimed(fleet[2], queue, qty=5) == [lease]
    assert all(api.state(one) == "pending" for one in waiting)


def test_a_failed_poll_or_a_release_of_others_sets_nothing_back(api: Api, fleet: Fleet, clock: Clock) -> None:
    middle = fleet[1]
    queue = api.queue()
    lease = api.spawn(queue, placement=ZONES)
    for _ in range(3):
        assert api.claimed(middle, queue) == []
        clock.advance(timedelta(seconds=0.3))
    other = api.spawn(queue)
    claim = api.granted(other, middle, queue)
    api.rows("release_lease", **token(claim), delay="1 hour")
    clock.advance(timedelta(seconds=0.1))
    assert api.claimed(middle, queue) == [lease]


def test_a_retry_waits_anew(api: Api, fleet: Fleet, clock: Clock) -> None:
    """From the moment it is claimable again."""
    middle = fleet[1]
    queue = api.queue(retry={"kind": "fixed", "base": 0})
    api.spawn(queue, placement=ZONES)
    clock.advance(timedelta(seconds=5))
    [claim] = api.claim(middle, queue)
    api.rows("fail_lease", **token(claim), error={})
    assert api.claimed(middle, queue) == []
    clock.advance(timedelta(seconds=1))
    assert len(api.claimed(middle, queue)) == 1


def test_a_node_by_name(api: Api, queue: str, fleet: Fleet, clock: Clock) -> None:
    """affinity_with and anti_affinity_with."""
    first, second, _ = fleet
    lease = api.spawn(queue, affinity_with=str(first.node_id))
    assert api.claimed(second, queue) == []
    assert api.claimed(first, queue) == [lease]
    lease = api.spawn(queue, anti_affinity_with=str(first.node_id))
    assert api.claimed(first, queue) == []
    clock.advance(timedelta(seconds=2))
    assert api.claimed(first, queue) == [lease]
