"""A clock that is set back: what ends then is counted once, and nothing short waits for the old time."""

from collections import Counter
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, beat, count_all, outlive, token
from tests.sql.gangs import GPU, gang, gpus, later, spawn
from tests.sql.test_everywhere import Fleet, fleet
from tests.sql.test_replaces import Swap
from tests.sql.test_webhooks import claimed, delivery, made, settled, to_test

__all__ = ["fleet"]  # a fixture

SECOND = timedelta(seconds=1)
STEPS = [2 * SECOND, 30 * SECOND, timedelta(hours=3)]
TOTALS = """
  select m.completed, m.failed from hwqueue.minute_stat m join hwqueue.queue q using (queue_id)
  where q.name = %s order by m.minute desc limit 1
"""
DELIVERIES = """
  select d.lease_id from hwqueue.webhook_delivery d join hwqueue.webhook w using (webhook_id)
  where w.name = %s
"""


BACK = timedelta(hours=2)


def set_back(api: Api, clock: Clock, **limit: int) -> None:
    """By two hours; upkeep looks before and, until there is no more, after."""
    outlive(api.conn)
    api.rows("reap")
    clock.advance(-BACK)
    for _ in range(1000):
        outlive(api.conn)
        api.rows("reap", **limit)
        if api.one("select max(reaped_at) <= hwqueue.clock() from hwqueue.reap_cursor"):
            return
    raise AssertionError("upkeep goes on for ever")


# the first test here: upkeep moves a row back a call, and of other tests there are none yet
def test_claims_end_and_retries_begin_as_if_nothing_had_happened(api: Api, clock: Clock) -> None:
    """But for times that somebody named; and each claim is at its end when it would have been."""
    queue = api.queue(claim_timeout=60, max_attempts=3, retry={"kind": "fixed", "base": 30})
    dead, alive = api.node(), api.node()
    old = api.running(queue, alive, max_run=4 * 3600)
    api.rows("extend_claim", **token(old), extend=timedelta(hours=5))
    clock.advance(timedelta(hours=3))
    lost, held, failed = api.running(queue, dead), api.running(queue, alive), api.running(queue, alive)
    overrun = api.running(queue, alive, max_run=100)
    api.rows("extend_claim", **token(held), extend=timedelta(minutes=30))
    api.rows("fail_lease", **token(failed), error={"message": "x"})
    slept, named, changed = (api.running(queue, alive) for _ in range(3))
    soon, later = clock.now() + SECOND, clock.now() + timedelta(minutes=9)
    for claim, retry_at in ((slept, soon), (named, later), (changed, None)):
        api.rows("fail_lease", **token(claim), error={"message": "x"}, retry_at=retry_at)
    api.rows("update_lease", lease=changed["lease_id"], changes={"available_at": later.isoformat()})
    api.reap_after(clock, 2 * SECOND)
    [again] = api.claim(alive, queue)
    api.rows("release_lease", **token(again), delay=timedelta(minutes=9))
    waiting = [api.spawn(queue, delay="10 minutes"), *(each["lease_id"] for each in (slept, named, changed))]
    named_times = [api.lease(lease)["available_at"] for lease in waiting]
    cancelled = api.running(queue, alive)
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    hook = to_test(api)
    [sent] = [row for row in claimed(api, limit=1000) if row["webhook"] == hook]
    settled(api, sent, status=503)
    for _ in range(2):
        set_back(api, clock, limit=1)
    assert clock.now() - api.lease(old["lease_id"])["claimed_at"] >= timedelta(hours=3)
    assert api.verdicts(alive, cancelled) == ["cancelled"]
    for _ in range(4):
        api.rows("heartbeat_node", **alive.who, claims=beat(overrun))
        api.reap_after(clock, timedelta(seconds=20))
    live = {row["node_id"]: row["live"] for row in api.rows("list_nodes")}
    assert (live[dead.node_id], live[alive.node_id]) == (False, True)
    states = [api.state(each["lease_id"]) for each in (lost, held, failed, overrun)]
    assert states == ["pending", "claimed", "pending", "claimed"]
    assert [api.lease(lease)["available_at"] for lease in waiting] == named_times
    assert delivery(api, sent)["available_at"] < clock.now()
    api.rows("heartbeat_node", **alive.who, claims=beat(overrun))
    api.reap_after(clock, timedelta(seconds=40))
    assert api.lease(overrun["lease_id"])["stop_reason"] == "run_time_exceeded"
    set_back(api, clock)
    for seconds in (40, 21):  # it goes on for a claim timeout
        api.rows("heartbeat_node", **alive.who, claims=beat(overrun))
        clock.advance(timedelta(seconds=seconds))
    api.rows("reap")
    assert api.state(overrun["lease_id"]) == "scheduled"
    api.reap_after(clock, timedelta(minutes=29))
    assert api.state(held["lease_id"]) == "pending"
    assert api.rows("verify_invariants") == []


class Line:
    """A queue whose completions a webhook is told of."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self.api, self.clock = api, clock
        self.queue, self.node = api.queue(retry={"kind": "none"}), api.node()
        self.hook, _ = made(api, codes=["lease_completed"], queues=[self.queue])
        self.ended = 0

    def complete(self, count: int) -> None:
        """Complete some leases, each at a time of its own."""
        for _ in range(count):
            self.clock.advance(timedelta(milliseconds=1))
            self.api.complete(self.api.running(self.queue, self.node))
        self.ended += count

    def look(self) -> None:
        self.clock.advance(timedelta(milliseconds=10))
        outlive(self.api.conn)
        count_all(self.api.conn)
        self.api.conn.execute("select hwqueue.route_webhooks(1000)")

    def told(self) -> Counter[object]:
        """How often the webhook is told of each lease."""
        for _ in range(8):  # a step a call
            self.look()
        return Counter(row[0] for row in self.api.conn.execute(DELIVERIES, [self.hook]))

    def totals(self) -> tuple[int, int]:
        """What is counted: completed, failed."""
        return tuple(self.api.conn.execute(TOTALS, [self.queue]).fetchone() or ())


@pytest.fixture
def line(api: Api, clock: Clock) -> Line:
    return Line(api, clock)


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_nothing_is_lost_or_met_twice(line: Line, clock: Clock, step: timedelta, is_seen: bool) -> None:
    """Whether upkeep looks while the clock is behind or not."""
    line.complete(2)
    line.look()
    clock.advance(step)
    line.complete(2)
    line.look()
    clock.advance(-step)
    line.complete(5)
    if is_seen:
        line.look()
        assert line.totals() == (9, 0)
        line.complete(3)
        clock.advance(-SECOND)  # and back once more
        line.complete(3)
        line.look()
    clock.advance(step + 10 * SECOND)
    line.complete(1)
    told = line.told()
    assert (len(told), set(told.values())) == (line.ended, {1})
    assert line.totals() == (line.ended, 0)


def test_what_is_requeued_is_counted_once(line: Line, api: Api, clock: Clock) -> None:
    def fail() -> object:
        claim = api.running(line.queue, line.node)
        api.rows("fail_lease", **token(claim), error={"message": "x"})
        return claim["lease_id"]

    line.look()
    clock.advance(30 * SECOND)
    counted = fail()
    line.look()
    clock.advance(-20 * SECOND)
    for lease in (counted, fail()):
        api.value("requeue_lease", lease=lease)
    line.look()
    clock.advance(60 * SECOND)
    line.look()
    assert line.totals() == (0, 2)


def test_a_webhook_that_is_new_is_told_of_nothing_before(line: Line, api: Api, clock: Clock) -> None:
    line.complete(2)
    clock.advance(30 * SECOND)
    line.look()
    clock.advance(-20 * SECOND)
    line.complete(2)
    line.look()
    line.hook, _ = made(api, codes=["lease_completed"], queues=[line.queue])
    line.complete(1)
    assert list(line.told().values()) == [1]
    assert len(line.told()) == 1


def test_what_waits_below_the_marks_of_upkeep_is_found(api: Api, clock: Clock, dsn: str) -> None:
    """What is written after upkeep has looked, beside an idle writer, too."""
    (hook, _), queue = made(api, codes=["lease_failed"]), api.queue()
    for _ in range(3):
        clock.advance(SECOND)
        outlive(api.conn)
        api.rows("reap")
    large = {"placement": {"resources": {"gpu": 99}}}
    gangs = [spawn(api, queue, 2, large)]
    with psycopg.connect(dsn) as idle:
        idle.execute("select pg_current_xact_id()")
        clock.advance(-STEPS[-1])
        delivery = api.value("test_webhook", name=hook)
        api.reap_after(clock, SECOND)
        assert delivery in [row["delivery_id"] for row in api.rows("claim_deliveries", limit=1000)]
        gangs.append(spawn(api, queue, 2, large))
        delayed = api.spawn(queue, delay=1)
        api.reap_after(clock, 2 * SECOND)
    assert [gang(api, each)["reason"] for each in gangs] == ["insufficient_capacity"] * 2
    assert api.state(delayed) == "pending"


def test_what_waits_for_room_is_tried_again(api: Api, fleet: Fleet, clock: Clock) -> None:
    """Gangs, replacements and everywhere tasks, and a new planner leads. Room is kept for a gang."""
    big = {"placement": {"resources": {"gpu": 2}}}
    swap = Swap(api, placement=big["placement"])
    waiting = spawn(api, swap.queue, 2, big)
    for _ in range(6):  # until the next try of each is some seconds away
        api.rows("heartbeat_node", **swap.node.who, claims=beat(swap.claim))
        fleet.reap(timedelta(seconds=9))
    node = fleet.node()
    everywhere = fleet.spawn(retry={"kind": "fixed", "base": 30})
    fleet.reap()
    [claim] = api.claim(node, fleet.queue)
    api.rows("fail_lease", **token(claim), error={"message": "x"})
    full = api.node(gpus=gpus(2))
    api.needing(fleet.queue, gpu=2)
    assert len(api.claim(full, fleet.queue)) == 1
    assert api.value("lead_planner", holder="lost", ttl=timedelta(minutes=1))
    set_back(api, clock)
    soon = clock.now() + timedelta(minutes=1)
    assert api.value("lead_planner", holder="next")
    assert gang(api, waiting)["next_try_at"] < soon
    due = "select due_at from hwqueue.everywhere_node where everywhere_id = %s"
    assert api.one(due, everywhere) < soon
    next_try = "select next_try_at from hwqueue.replacement where lease_id = %s"
    assert api.one(next_try, swap.new) < soon
    kept = spawn(api, fleet.queue, 2, GPU)
    api.reap()
    assert (gang(api, kept)["state"], gang(api, kept)["losses"]) == ("earmarked", 0)
    later(api, clock, [api.node(gpus=gpus(4))])
    assert gang(api, waiting)["state"] == "reserved"
