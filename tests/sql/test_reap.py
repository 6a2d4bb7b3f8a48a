"""reap: what nobody settles comes back, what is due becomes claimable, what is late fails."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.patience import NO_BUDGET, looks
from tests.sql.api import Api, Node, beat, outlive

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nothing_left(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """reap looks at everything: leave nothing to it from the test before."""
    conn.execute(NO_BUDGET)
    clock.advance(timedelta(days=1))
    while sum(api.row("reap").values()):
        pass


def check_at(conn: psycopg.Connection, lease: UUID) -> datetime:
    """When reap looks at the lease's claim next."""
    row = conn.execute("select check_at from hwqueue.claim where lease_id = %s", [lease]).fetchone()
    assert row is not None
    at: datetime = row[0]
    return at


def test_expired_claims_use_up_an_attempt(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    claim = api.running(queue, node)
    clock.advance(MINUTE - timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 0
    clock.advance(timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 1
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    [attempt] = lease["attempts"]
    assert (attempt["outcome"], attempt["error"]["reason"]) == ("expired", "claim_expired")
    [again] = api.claim(node, queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)


def test_the_last_attempt_kills(api: Api, clock: Clock) -> None:
    claim = api.running(api.queue(claim_timeout=60), max_attempts=1)
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]["reason"]) == ("failed", "claim_expired")


COUNTED: Row = {"capacity": {"cpu_milli": 1000}, "slots": 1}


@pytest.mark.parametrize("spec", [{}, COUNTED], ids=["uncounted", "counted"])
def test_not_before_it_expires(api: Api, clock: Clock, spec: Row) -> None:
    node = api.node(**spec)
    claim = api.running(api.queue(claim_timeout=60), node)
    clock.advance(timedelta(seconds=30))
    api.rows("heartbeat_node", **node.who, claims=beat(claim))
    for seconds, expired in [(59, 0), (1, 1)]:
        clock.advance(timedelta(seconds=seconds))
        assert api.row("reap")["expired"] == expired
    assert api.state(claim["lease_id"]) == "pending"


@pytest.mark.parametrize(("beats", "state"), [(False, "pending"), (True, "claimed")])
def test_a_node_without_work_reaps(api: Api, clock: Clock, beats: bool, state: str) -> None:
    """Nobody calls reap: empty claims of another node end what has been silent for long."""
    node = api.node()
    claim = api.running(api.queue(claim_timeout=60), node)
    for _ in range(4):
        clock.advance(timedelta(seconds=45))
        if beats:
            api.rows("heartbeat_node", **node.who, claims=beat(claim))
    idle, elsewhere = api.node(), api.queue()
    for _ in range(4):
        assert api.claim(idle, elsewhere) == []
    assert api.state(claim["lease_id"]) == state


def test_the_next_look_trails_the_end(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """A heartbeat moves no index entry; reap catches up when it comes by."""
    node = api.node()
    claim = api.running(api.queue(claim_timeout=60), node)
    first = check_at(conn, claim["lease_id"])
    for _ in range(3):
        clock.advance(timedelta(seconds=30))
        api.rows("heartbeat_node", **node.who, claims=beat(claim))
    assert check_at(conn, claim["lease_id"]) == first < clock.now()
    assert api.row("reap")["expired"] == 0
    assert check_at(conn, claim["lease_id"]) == api.lease(claim["lease_id"])["expires_at"]
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1


def test_what_it_had_set_aside_is_free(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 1000})
    api.running(queue, node, placement={"resources": {"cpu_milli": 1000}})
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1
    assert api.used(node)["used"]["cpu_milli"] == 0


def test_due_leases_are_promoted(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=60)
    assert api.row("reap")["promoted"] == 0
    clock.advance(MINUTE)
    assert api.row("reap")["promoted"] == 1
    assert api.state(lease) == "pending"


@pytest.mark.parametrize("delay", [0, 3600])
def test_deadlines(api: Api, clock: Clock, delay: int) -> None:
    deadline = clock.now() + MINUTE
    lease = api.spawn(api.queue(), delay=delay, deadline=deadline.isoformat())
    clock.advance(MINUTE - timedelta(milliseconds=1))
    assert api.row("reap")["deadlines"] == 0
    clock.advance(timedelta(milliseconds=1))
    assert api.row("reap")["deadlines"] == 1
    row = api.lease(lease)
    assert (row["state"], row["error"]["reason"]) == ("failed", "deadline_exceeded")
    assert datetime.fromisoformat(row["error"]["deadline"]) == deadline


def test_a_claimed_lease_may_run_beyond_its_deadline(api: Api, clock: Clock) -> None:
    deadline = (clock.now() + MINUTE).isoformat()
    claim = api.running(api.queue(claim_timeout=600), deadline=deadline)
    clock.advance(2 * MINUTE)
    assert api.row("reap")["deadlines"] == 0
    assert api.state(claim["lease_id"]) == "claimed"


def test_a_call_is_bounded(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    late = {"deadline": (clock.now() + MINUTE).isoformat()}
    for _ in range(3):
        api.running(queue, node)
        api.spawn(api.queue(), delay=60)
        api.spawn(api.queue(), **late)
    while api.row("reap", limit=100)["reaches"]:
        pass  # new classes, which are a part as well
    clock.advance(MINUTE)
    for times in (2, 1, 0):
        row = api.row("reap", limit=2)
        assert [row[part] for part in ("expired", "promoted", "deadlines")] == [times] * 3
        assert row["more"] == (times == 2)


def test_claims_that_live_use_up_none_of_the_limit(api: Api, clock: Clock) -> None:
    """They are met because heartbeats do not touch the index that reap reads."""
    queue, node = api.queue(claim_timeout=60), api.node()
    alive = [api.running(queue, node) for _ in range(5)]
    silent = api.running(queue)
    clock.advance(timedelta(seconds=50))
    api.rows("heartbeat_node", **node.who, claims=beat(*alive))
    clock.advance(timedelta(seconds=10))
    row = api.row("reap", limit=1)
    assert (row["expired"], row["more"]) == (1, True)
    assert api.state(silent["lease_id"]) == "pending"
    assert {api.state(claim["lease_id"]) for claim in alive} == {"claimed"}


def test_a_schedule_and_a_deadline_at_once(api: Api, clock: Clock) -> None:
    """What falls due only after its deadline fails in the same call, however late that comes."""
    deadline = (clock.now() + MINUTE).isoformat()
    lease = api.spawn(api.queue(), delay=60, deadline=deadline)
    clock.advance(10 * MINUTE)
    assert api.row("reap")["deadlines"] == 1
    assert api.lease(lease)["error"]["reason"] == "deadline_exceeded"


def test_a_deadline_that_was_over_when_it_was_spawned(api: Api, clock: Clock) -> None:
    for _ in range(3):  # so that scans start at marks
        clock.advance(MINUTE)
        outlive(api.conn)
        api.rows("reap")
    lease = api.spawn(api.queue(), deadline="2020-01-01T00:00:00Z")
    assert api.row("reap")["deadlines"] == 1
    assert api.state(lease) == "failed"


def test_many_that_fell_due_after_their_deadline(api: Api, clock: Clock) -> None:
    """More than a call promotes: those of the later calls fail as soon as the first."""
    deadline = (clock.now() + timedelta(seconds=90)).isoformat()
    queue = api.queue()
    late = [api.spawn(queue, delay=120, deadline=deadline) for _ in range(15)]
    clock.advance(MINUTE)
    outlive(api.conn)
    api.rows("reap")
    clock.advance(3 * MINUTE)
    for _ in looks():
        outlive(api.conn)
        if not api.row("reap", limit=2)["more"]:
            break
    assert {api.state(lease) for lease in late} == {"failed"}


def test_not_twice_within_a_span(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    within = {"unless_within": timedelta(seconds=10)}
    clock.advance(MINUTE)
    api.rows("reap", **within)
    claim = api.running(queue, node)
    clock.advance(timedelta(seconds=52))
    api.rows("reap", **within)
    for seconds, expired in [(9, 0), (1, 1)]:
        clock.advance(timedelta(seconds=seconds))
        assert api.row("reap", **within)["expired"] == expired
    assert api.state(claim["lease_id"]) == "pending"


def test_without_a_span_it_always_reaps(api: Api, clock: Clock) -> None:
    api.rows("reap")
    api.running(api.queue(claim_timeout=60))
    clock.advance(MINUTE)
    for expired in (1, 0):
        assert api.row("reap")["expired"] == expired


def test_a_clock_that_was_set_back(api: Api, clock: Clock) -> None:
    """The last reap lies in the future: nobody waits for it."""
    api.rows("reap")
    clock.advance(-2 * MINUTE)
    api.running(api.queue(claim_timeout=60))
    clock.advance(MINUTE)
    assert api.row("reap", unless_within=MINUTE)["expired"] == 1
    clock.advance(2 * MINUTE)


@pytest.mark.parametrize("span", [timedelta(seconds=-1), timedelta(days=1, seconds=1), None])
def test_bad_spans(api: Api, span: timedelta | None) -> None:
    assert api.refused("QHA01", "reap", unless_within=span).field == "p_unless_within"


def test_it_wakes_those_who_wait(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    api.running(queue, node)
    assert api.claim(node, queue) == []
    conn.execute("listen hwqueue")
    clock.advance(MINUTE)
    api.rows("reap")
    assert api.wake_payload(queue) in [notify.payload for notify in conn.notifies(timeout=0)]


UNESTIMATED = """
  select count(*) from hwqueue.placement_class c join hwqueue.queue q using (queue_id)
  where q.name = %s and not exists (select from hwqueue.class_fleet f where f.class_id = c.class_id)
"""


def test_classes_are_looked_at_in_turn(api: Api, conn: psycopg.Connection) -> None:
    """Which nodes suit new classes: as many as its limit in a call."""
    queue = api.queue()
    api.node()
    for number in range(510):
        api.spawn(queue, placement={"require": [{"node": str(UUID(int=number))}]})
    found = []
    while conn.execute(UNESTIMATED, [queue]).fetchone() != (0,):
        row = api.row("reap", limit=500)
        assert row["more"] == (row["reaches"] == 500)
        found.append(row["reaches"])
    assert max(found) <= 500
    assert sum(found) == 510


def registered(api: Api, clock: Clock, node: Node) -> None:
    api.node()
    clock.advance(timedelta(seconds=11))


def attested(api: Api, clock: Clock, node: Node) -> None:
    api.rows("attest_node", node=node.node_id, domain="t")
    clock.advance(timedelta(seconds=11))


def cordoned(api: Api, clock: Clock, node: Node) -> None:
    api.rows("cordon_node", node=node.node_id)
    clock.advance(timedelta(seconds=11))


def silent(api: Api, clock: Clock, node: Node) -> None:
    clock.advance(HOUR)


@pytest.mark.parametrize("change", [registered, attested, cordoned, silent])
@pytest.mark.parametrize("alone", [True, False])
def test_classes_are_looked_at_again(
    api: Api, clock: Clock, *, change: Callable[[Api, Clock, Node], None], alone: bool
) -> None:
    """When a node is no longer what it was, or the last that suited is cordoned or silent."""
    node = api.node()
    if not alone:
        api.node(heartbeat_timeout=86400)
    api.spawn(api.queue())
    while api.row("reap")["reaches"]:
        clock.advance(timedelta(seconds=11))
    clock.advance(timedelta(seconds=11))
    assert api.row("reap")["reaches"] == 0
    change(api, clock, node)
    looks = alone or change in (registered, attested)
    assert [api.row("reap")["reaches"] > 0 for _ in range(2)] == [looks, False]


@pytest.mark.parametrize("change", [registered, silent])
def test_classes_are_looked_at_every_ten_seconds(
    api: Api, clock: Clock, change: Callable[[Api, Clock, Node], None]
) -> None:
    """Not at every call."""
    node = api.node()
    api.spawn(api.queue())
    while api.row("reap")["reaches"]:
        clock.advance(timedelta(seconds=11))
    change(api, clock, node)
    looked = api.row("reap")["reaches"]
    api.node()
    assert looked > 0
    assert api.row("reap")["reaches"] == 0


def test_what_no_node_may_run_takes_not_all_turns(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Of the classes that are looked at again half are those that were looked at longest ago."""
    queue = api.queue()
    api.node()
    oldest = api.spawn(queue)
    for number in range(510):
        api.spawn(queue, placement={"require": [{"node": str(UUID(int=number))}]})
    while api.row("reap")["reaches"]:
        clock.advance(timedelta(seconds=11))
    conn.execute(
        "update hwqueue.class_fleet f set looked_at = '-infinity' from hwqueue.lease l"
        " where l.lease_id = %s and f.class_id = l.class_id",
        [oldest],
    )
    api.node()
    clock.advance(timedelta(seconds=11))
    assert api.row("reap", limit=500)["reaches"] == 500
    left = conn.execute("select from hwqueue.class_fleet where looked_at = '-infinity'")
    assert left.rowcount == 0


@pytest.mark.parametrize("limit", [0, -1, 100001, None])
def test_bad_limits(api: Api, limit: int | None) -> None:
    assert api.refused("QHA01", "reap", limit=limit).field == "p_limit"
