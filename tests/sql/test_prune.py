"""prune: what a queue keeps no longer goes, and all that hung on it."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, count_all, outlive, token

DAY = timedelta(days=1)
DAYS = 86400


@pytest.fixture(autouse=True)
def _nothing_left(api: Api, clock: Clock) -> None:
    """prune looks at everything: leave nothing to it from the test before."""
    clock.advance(365 * DAY)
    while sum(api.row("prune").values()):
        pass


def finished(api: Api, queue: str, state: str, **options: Any) -> UUID:
    claim = api.running(queue, **options)
    if state == "completed":
        api.complete(claim)
    else:
        if state == "cancelled":
            api.rows("cancel_lease", lease=claim["lease_id"])
        api.rows("fail_lease", **token(claim), error={}, retry=False)
    lease: UUID = claim["lease_id"]
    return lease


def gone(api: Api, *leases: UUID) -> list[bool]:
    """Which of the leases are on record no more."""
    known = {row["lease_id"] for row in api.rows("list_leases", limit=10000)}
    return [lease not in known for lease in leases]


def test_each_state_has_its_time(api: Api, clock: Clock) -> None:
    queue = api.queue(retain_completed=2 * DAYS, retain_failed=4 * DAYS)
    other = api.queue(retain_completed=4 * DAYS, retain_failed=0)
    leases = [finished(api, queue, state) for state in ("completed", "failed", "cancelled")]
    others = [finished(api, other, state) for state in ("completed", "failed")]
    open_lease = api.spawn(queue)
    for days, expected in [
        (2, [False, False, False, False, True]),
        (0.1, [True, False, True, False, True]),
        (2, [True] * 5),
    ]:
        api.prune_after(clock, days * DAY)
        assert gone(api, *leases, *others) == expected
    assert gone(api, open_lease) == [False]


def test_attempts_and_keys_go_with_the_lease(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Another tenant's lease of the same key stays known by it."""
    queue = api.queue(retain_failed=DAYS)
    key = {"idempotency_key": "k"}
    lease = finished(api, queue, "failed", tenant="a", **key)
    clock.advance(2 * DAY)
    other = api.spawn(queue, tenant="b", **key)
    assert api.row("prune")["leases"] == 1
    count = conn.execute("select count(*) from hwqueue.attempt where lease_id = %s", [lease])
    assert count.fetchone() == (0,)
    again = api.row("spawn_lease", queue=queue, task="work", options=key | {"tenant": "b"})
    assert (again["created"], again["lease_id"]) == (False, other)
    assert api.row("spawn_lease", queue=queue, task="other", options=key | {"tenant": "a"})["created"]


def test_a_call_is_bounded_and_says_whether_there_is_more(api: Api, clock: Clock) -> None:
    """Of leases, and of what a dropped queue has left."""
    queue, dropped = api.queue(retain_completed=0), api.queue()

    def until_done() -> list[Row]:
        calls = [api.row("prune", limit=2)]
        while calls[-1]["more"]:
            calls.append(api.row("prune", limit=2))
        return calls

    for one in (queue, queue, queue, api.queue(retain_completed=0)):
        finished(api, one, "completed")
    clock.advance(DAY)
    calls = until_done()
    assert [call["leases"] for call in calls[:2]] == [2, 2]
    assert {call["leases"] for call in calls[2:]} <= {0}
    for _ in range(3):
        api.spawn(dropped)
    api.rows("drop_queue", queue=dropped, force=True)
    api.rows("prune", limit=2)
    outlive(api.conn)
    assert len(until_done()) > 1
    assert api.conn.execute(QUEUES, [dropped]).fetchall() == [(0,)]


def classes(conn: psycopg.Connection, label: str) -> list[tuple[int, bool]]:
    """The classes with the label: id, and whether spawns pass it by."""
    return conn.execute(
        "select class_id, retired_at is not null from hwqueue.placement_class"
        " where labels ? %s order by class_id",
        [label],
    ).fetchall()


def delete_retired(api: Api, conn: psycopg.Connection) -> None:
    """Let retired classes go: stamped first, deleted when all who may use them are done."""
    api.rows("prune")
    outlive(conn)
    api.rows("prune")


def test_classes_go_step_by_step(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Retired first, and not found again; deleted once nobody can have found it unretired."""
    queue = api.queue(retain_completed=0)
    finished(api, queue, "completed", labels={"steps": ""})
    [(first, retired)] = classes(conn, "steps")
    assert not retired
    api.prune_after(clock, DAY)
    assert classes(conn, "steps") == [(first, True)]
    lease = api.spawn(queue, labels={"steps": ""})
    assert [retired for _, retired in classes(conn, "steps")] == [True, False]
    assert api.claimed(api.node(), queue) == [lease]
    delete_retired(api, conn)
    assert [retired for _, retired in classes(conn, "steps")] == [False]


def test_a_spawn_in_flight_keeps_the_class(
    api: Api, clock: Clock, conn: psycopg.Connection, dsn: str
) -> None:
    """It found the class unretired and commits only after both steps were tried."""
    queue = api.queue(retain_completed=0)
    finished(api, queue, "completed", labels={"flight": ""})
    clock.advance(DAY)
    with psycopg.connect(dsn) as other:
        lease = Api(other).spawn(queue, labels={"flight": ""})
        api.rows("prune")
        api.rows("prune")
        assert [retired for _, retired in classes(conn, "flight")] == [True]
        other.commit()
    delete_retired(api, conn)
    assert [retired for _, retired in classes(conn, "flight")] == [True]
    assert api.claimed(api.node(), queue) == [lease]


def test_a_class_in_use_and_a_young_one_stay(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    queue = api.queue(retain_completed=0)
    api.spawn(queue, labels={"used": ""})
    clock.advance(DAY)
    done = finished(api, api.queue(retain_completed=0), "completed", labels={"young": ""})
    clock.advance(timedelta(minutes=50))
    count_all(conn)
    api.rows("prune")
    assert gone(api, done) == [True]
    assert [retired for _, retired in classes(conn, "used")] == [False]
    assert [retired for _, retired in classes(conn, "young")] == [False]


def test_nothing_is_left_of_a_node_and_its_epoch_stays_fenced(
    api: Api, clock: Clock, conn: psycopg.Connection
) -> None:
    """When it has been deregistered for 30 days."""
    node, kept = api.node(), api.node()
    for instance in ("second", "third"):
        old = api.node(node.node_id, name=node.name, instance_id=instance)
    clock.advance(timedelta(minutes=5))
    api.rows("reap")  # reports it as silent
    api.rows("deregister_node", node=node.node_id)
    nodes = "select from hwqueue.node where node_id = any (%s)"
    for days, left in ((29, 2), (2, 1)):
        clock.advance(days * DAY)
        assert (api.row("prune")["nodes"] > 0) == (left == 1)  # of tests before, too
        assert conn.execute(nodes, [[node.node_id, kept.node_id]]).rowcount == left
    for table in ("node", "node_state", "node_load"):
        query = sql.SQL("select from {} where node_id = %s").format(sql.Identifier("hwqueue", table))
        assert conn.execute(query, [node.node_id]).rowcount == 0, table
    api.refused("QHN01", "claim_task", queues=[api.queue()], **old.who)
    again = api.node(node.node_id, name=node.name, instance_id="fourth")
    assert again.epoch > old.epoch
    api.refused("QHN03", "claim_task", queues=[api.queue()], **old.who)
    assert api.node().epoch > old.epoch  # whichever node is new


def test_classes_are_looked_at_in_turn(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """Two a call, and round again from the end: none is left out."""
    queue = api.queue(retain_completed=0)
    for number in range(5):
        finished(api, queue, "completed", labels={str(number): "turn"})
    clock.advance(DAY)
    while api.row("prune", limit=2)["leases"]:
        pass
    retired = []
    for _ in range(60):
        if (now := sum(done for _, done in classes(conn, "turn"))) not in retired:
            retired.append(now)
        api.rows("prune", limit=2)
        outlive(conn)
        if not classes(conn, "turn"):
            break
    assert classes(conn, "turn") == []
    steps = [after - before for before, after in pairwise(retired)]
    assert max(steps, default=0) <= 2


PROFILES = "select count(*) from hwqueue.profile where labels ? %s"


def test_profiles_that_no_node_has(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    node = api.node(labels={"old": 1})
    api.claim(node, api.queue())
    api.node(node.node_id, name=node.name, labels={"new": 1})
    counts = []
    for hours in (0, 2):
        api.prune_after(clock, timedelta(hours=hours))
        counts += [conn.execute(PROFILES, [key]).fetchall() for key in ("old", "new")]
    assert counts == [[(1,)], [(1,)], [(0,)], [(1,)]]


QUEUES = "select count(*) from hwqueue.queue where name = %s"


def test_a_dropped_queue_goes_bit_by_bit(api: Api, conn: psycopg.Connection) -> None:
    """Four leases or classes a call, whether they wait or are done; at last the queue."""
    queue = api.queue(retain_completed=DAYS)
    leases = [finished(api, queue, "completed", idempotency_key="k")]
    for number in range(5):
        leases.append(api.spawn(queue, labels={str(number): "bit"}))
        leases.append(api.spawn(queue, delay=60))
    api.rows("drop_queue", queue=queue, force=True)
    left = [len(leases)]
    for _ in range(20):
        api.rows("prune", limit=4)
        outlive(conn)
        left.append(gone(api, *leases).count(False))
    assert max(before - after for before, after in pairwise(left)) == 4
    assert (left[-1], classes(conn, "bit")) == (0, [])
    assert conn.execute(QUEUES, [queue]).fetchall() == [(0,)]


def test_not_twice_within_a_span(api: Api, clock: Clock) -> None:
    """Without one it always prunes; where the last prune lies in the future nobody waits for it."""
    queue = api.queue(retain_completed=0)
    within = {"unless_within": DAY}
    clock.advance(DAY)
    api.rows("prune", **within)
    finished(api, queue, "completed")
    for hours, removed in [(23, 0), (1, 1)]:
        clock.advance(timedelta(hours=hours))
        assert api.row("prune", **within)["leases"] == removed
    for _ in range(2):
        finished(api, queue, "completed")
        clock.advance(timedelta(hours=2))
        assert api.row("prune")["leases"] == 1
    clock.advance(-2 * DAY)
    finished(api, queue, "completed")
    clock.advance(DAY)
    assert api.row("prune", **within)["leases"] == 1
    clock.advance(DAY)
    for span in (timedelta(seconds=-1), timedelta(days=1, seconds=1), None):
        assert api.refused("QHA01", "prune", unless_within=span).field == "p_unless_within"
