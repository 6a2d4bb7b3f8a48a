"""reap: what nobody settles comes back, what is due becomes claimable, what is late fails."""

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


@pytest.fixture(autouse=True)
def _nothing_left(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """reap looks at everything: leave nothing to it from the test before."""
    conn.execute(NO_BUDGET)
    clock.advance(timedelta(days=1))
    while sum(api.row("reap").values()):
        pass


def test_the_next_look_trails_the_end(api: Api, node: Node, clock: Clock, conn: psycopg.Connection) -> None:
    """A heartbeat moves no index entry; reap catches up when it comes by."""
    claim = api.running(api.queue(claim_timeout=60), node)

    def check_at() -> datetime:
        query = "select check_at from hwqueue.claim where lease_id = %s"
        [(at,)] = conn.execute(query, [claim["lease_id"]]).fetchall()
        assert isinstance(at, datetime)
        return at

    first = check_at()
    for _ in range(3):
        clock.advance(timedelta(seconds=30))
        api.rows("heartbeat_node", **node.who, claims=beat(claim))
    assert check_at() == first < clock.now()
    assert api.row("reap")["expired"] == 0
    assert check_at() == api.lease(claim["lease_id"])["expires_at"]
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1


def test_expired_claims_use_up_an_attempt(api: Api, clock: Clock) -> None:
    """The last one ends the lease; what each had set aside is free."""
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 1000})
    needs = {"placement": {"resources": {"cpu_milli": 1000}}}
    claim = api.running(queue, node, max_attempts=2, **needs)
    clock.advance(MINUTE - timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 0
    clock.advance(timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 1
    assert api.used(node)["used"]["cpu_milli"] == 0
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    [attempt] = lease["attempts"]
    assert (attempt["outcome"], attempt["error"]["reason"]) == ("expired", "claim_expired")
    [again] = api.claim(node, queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]["reason"]) == ("failed", "claim_expired")


@pytest.mark.parametrize("needs", [{}, {"placement": {"resources": {"cpu_milli": 1000}}}])
def test_not_before_it_expires(api: Api, clock: Clock, conn: psycopg.Connection, needs: Row) -> None:
    """Nor if reap does not come to it by its limit. Then it wakes those who wait."""
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 2000})
    claim, other = (api.running(queue, node, **needs) for _ in range(2))
    clock.advance(timedelta(seconds=30))
    api.rows("heartbeat_node", **node.who, claims=beat(claim, other))
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    for seconds, limit, expired in [(59, 1, 0), (0, 2, 0), (1, 2, 2)]:
        clock.advance(timedelta(seconds=seconds))
        assert api.row("reap", limit=limit)["expired"] == expired
    assert api.wake_payload(queue) in [notify.payload for notify in conn.notifies(timeout=0)]
    assert api.state(claim["lease_id"]) == "pending"


@pytest.mark.parametrize(("beats", "state"), [(False, "pending"), (True, "claimed")])
def test_a_node_without_work_reaps(api: Api, node: Node, clock: Clock, beats: bool, state: str) -> None:
    """Nobody calls reap: empty claims of another node end what has been silent for long."""
    claim = api.running(api.queue(claim_timeout=60), node)
    for _ in range(4):
        clock.advance(timedelta(seconds=45))
        if beats:
            api.rows("heartbeat_node", **node.who, claims=beat(claim))
    idle, elsewhere = api.node(), api.queue()
    for _ in range(4):
        assert api.claim(idle, elsewhere) == []
    assert api.state(claim["lease_id"]) == state


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


def test_a_deadline_that_is_over_at_the_first_look(api: Api, clock: Clock) -> None:
    """When it was spawned, or when it falls due: it fails in the same call, however late that comes."""
    deadline = (clock.now() + MINUTE).isoformat()
    scheduled = api.spawn(api.queue(), delay=60, deadline=deadline)
    clock.advance(10 * MINUTE)
    assert api.row("reap")["deadlines"] == 1
    assert api.lease(scheduled)["error"]["reason"] == "deadline_exceeded"
    for _ in range(3):  # so that scans start at marks
        clock.advance(MINUTE)
        outlive(api.conn)
        api.rows("reap")
    lease = api.spawn(api.queue(), deadline="2020-01-01T00:00:00Z")
    assert api.row("reap")["deadlines"] == 1
    assert api.state(lease) == "failed"


def test_a_claimed_lease_may_run_beyond_its_deadline(api: Api, clock: Clock) -> None:
    deadline = (clock.now() + MINUTE).isoformat()
    claim = api.running(api.queue(claim_timeout=600), deadline=deadline)
    clock.advance(2 * MINUTE)
    assert api.row("reap")["deadlines"] == 0
    assert api.state(claim["lease_id"]) == "claimed"


def test_a_call_is_bounded(api: Api, clock: Clock) -> None:
    """In each of its parts: claims that expire, leases that fall due, deadlines that pass."""
    queue, node = api.queue(claim_timeout=60), api.node()
    late = {"deadline": (clock.now() + MINUTE).isoformat()}
    due = []
    for _ in range(3):
        api.running(queue, node)
        due.append(api.spawn(api.queue(), delay=60))
        api.spawn(api.queue(), **late)
    while (row := api.row("reap", limit=100))["reaches"]:
        assert row["promoted"] == 0  # new classes are a part as well
    clock.advance(MINUTE)
    for times in (2, 1, 0):
        row = api.row("reap", limit=2)
        assert [row[part] for part in ("expired", "promoted", "deadlines")] == [times] * 3
        assert row["more"] == (times == 2)
    assert {api.state(lease) for lease in due} == {"pending"}


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


def test_many_that_fell_due_after_their_deadline(api: Api, queue: str, clock: Clock) -> None:
    """More than a call promotes: those of the later calls fail as soon as the first."""
    deadline = (clock.now() + timedelta(seconds=90)).isoformat()
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
    """Without one it always reaps."""
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
    api.claim(node, queue)
    clock.advance(MINUTE)
    api.rows("reap", **within)
    api.claim(node, queue)
    clock.advance(MINUTE)
    for expired in (1, 0):
        assert api.row("reap")["expired"] == expired
    for span in (timedelta(seconds=-1), timedelta(days=1, seconds=1), None):
        assert api.refused("QHA01", "reap", unless_within=span).field == "p_unless_within"


def test_a_clock_that_was_set_back(api: Api, clock: Clock) -> None:
    """The last reap lies in the future: nobody waits for it."""
    api.rows("reap")
    clock.advance(-2 * MINUTE)
    api.running(api.queue(claim_timeout=60))
    clock.advance(MINUTE)
    assert api.row("reap", unless_within=MINUTE)["expired"] == 1
    clock.advance(2 * MINUTE)


UNESTIMATED = """
  select count(*) from hwqueue.placement_class c join hwqueue.queue q using (queue_id)
  where q.name = %s and not exists (select from hwqueue.class_fleet f where f.class_id = c.class_id)
"""


def test_classes_are_looked_at_in_turn(api: Api, queue: str, conn: psycopg.Connection) -> None:
    """Which nodes suit new classes: as many as its limit in a call."""
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


LOOK = timedelta(seconds=11)  # classes are looked at again every ten seconds


@pytest.mark.parametrize("how", ["registered", "attested", "cordoned", "silent"])
@pytest.mark.parametrize("alone", [True, False])
def test_classes_are_looked_at_again(api: Api, node: Node, clock: Clock, how: str, alone: bool) -> None:
    """When a node is no longer what it was, or the last that suited is cordoned or silent."""
    if not alone:
        api.node(heartbeat_timeout=86400)
    api.spawn(api.queue())
    while api.row("reap")["reaches"]:
        clock.advance(LOOK)
    clock.advance(LOOK)
    assert api.row("reap")["reaches"] == 0
    if how == "registered":
        api.node()
    elif how == "attested":
        api.rows("attest_node", node=node.node_id, domain="t")
    elif how == "cordoned":
        api.rows("cordon_node", node=node.node_id)
    clock.advance(timedelta(hours=1) if how == "silent" else LOOK)
    looks = alone or how in ("registered", "attested")
    assert [api.row("reap")["reaches"] > 0 for _ in range(2)] == [looks, False]
    if looks:  # and not at every call
        api.node()
        assert api.row("reap")["reaches"] == 0


def test_what_no_node_may_run_takes_not_all_turns(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Of the classes that are looked at again half are those that were looked at longest ago."""
    queue = api.queue()
    api.node()
    oldest = api.spawn(queue)
    for number in range(510):
        api.spawn(queue, placement={"require": [{"node": str(UUID(int=number))}]})
    while api.row("reap")["reaches"]:
        clock.advance(LOOK)
    conn.execute(
        "update hwqueue.class_fleet f set looked_at = '-infinity' from hwqueue.lease l"
        " where l.lease_id = %s and f.class_id = l.class_id",
        [oldest],
    )
    api.node()
    clock.advance(LOOK)
    assert api.row("reap", limit=500)["reaches"] == 500
    left = conn.execute("select from hwqueue.class_fleet where looked_at = '-infinity'")
    assert left.rowcount == 0
