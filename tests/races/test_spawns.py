"""Spawns wait on nobody, save for their own idempotency key."""

from functools import partial
from uuid import uuid4

import psycopg
import pytest

from tests.calls import TASK
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave
from tests.sql.api import refusing

NEW_CLASS = {
    "placement": {
        "require": [{"label": "zone", "op": "in", "values": ["a"]}],
        "prefer": [{"weight": 10, "when": {"tags": {"disk": "ssd"}}}],
        "resources": {"cpu_milli": 500},
    },
    "labels": {"app": "web"},
}


def test_an_open_spawn_of_a_new_class_holds_up_nobody(conn: psycopg.Connection, dsn: str) -> None:
    """Others spawn the very same class, spawn in bulk, claim and settle meanwhile."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn, labels={"zone": "a"}, capacity={"cpu_milli": 4000})
    with interleave(dsn, SHORT) as actor:
        idle, other = actor(), actor()
        idle.begin()
        unseen = idle.direct.spawn(QUEUE, NEW_CLASS)["lease_id"]
        same_class = other.direct.spawn(QUEUE, NEW_CLASS)["lease_id"]
        other.direct.spawn_many(QUEUE, [NEW_CLASS, {}, NEW_CLASS])
        claims = other.direct.claim(QUEUE, *node, qty=10)
        assert len(claims) == 4
        assert unseen not in {row["lease_id"] for row in claims}
        assert same_class in {row["lease_id"] for row in claims}
        for row in claims:
            other.direct.complete(row["lease_id"], row["claim_token"])
        other.direct.reap()
        idle.commit()
        late = other.direct.claim(QUEUE, *node, qty=10)
        assert [row["lease_id"] for row in late] == [unseen]


def test_two_open_spawns_of_one_new_class(conn: psycopg.Connection, dsn: str) -> None:
    """Neither waits for the other, in whatever order they commit, and both are claimable."""
    Direct(conn).create_queue(QUEUE)
    node = register(conn, labels={"zone": "a"})
    with interleave(dsn, SHORT) as actor:
        one, two, worker = actor(), actor(), actor()
        one.begin()
        two.begin()
        spawned = {side.direct.spawn(QUEUE, NEW_CLASS)["lease_id"] for side in (one, two)}
        two.commit()
        first = worker.direct.claim(QUEUE, *node)
        one.commit()
        second = worker.direct.claim(QUEUE, *node)
        assert {row["lease_id"] for row in first + second} == spawned


@pytest.mark.parametrize("first_commits", [True, False])
def test_same_key_from_two_sessions(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """The second waits for the first, and gets its lease, or makes one if that is undone."""
    Direct(conn).create_queue(QUEUE)
    options = {"idempotency_key": "order-1"}
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        first = one.direct.spawn(QUEUE, options)
        assert first["created"]
        waiting = two.start(lambda d: d.spawn(QUEUE, options))
        two.wait_until_parked()
        one.commit() if first_commits else one.rollback()
        second = waiting.result(TIMEOUT)
    assert second["created"] is not first_commits
    assert (second["lease_id"] == first["lease_id"]) is first_commits


@pytest.mark.parametrize("first_commits", [True, False])
def test_same_id_from_two_sessions(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """The second waits for the first, and is refused, or goes through if that is undone."""
    Direct(conn).create_queue(QUEUE)
    options = {"lease_id": str(uuid4())}
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        one.direct.spawn(QUEUE, options)
        waiting = two.start(lambda d: d.spawn(QUEUE, options))
        two.wait_until_parked()
        one.commit() if first_commits else one.rollback()
        if first_commits:
            with refusing("QHL06"):
                waiting.result(TIMEOUT)
        else:
            assert waiting.result(TIMEOUT)["created"]


def test_batches_with_the_same_keys_do_not_deadlock(conn: psycopg.Connection, dsn: str) -> None:
    """Keys are taken in sorted order, whatever the order in the batch."""
    Direct(conn).create_queue(QUEUE)
    batch = [{"idempotency_key": f"key-{number}"} for number in range(50)]
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        first = one.direct.spawn_many(QUEUE, batch)
        waiting = two.start(lambda d: d.spawn_many(QUEUE, batch[::-1]))
        two.wait_until_parked()
        one.commit()
        second = waiting.result(TIMEOUT)
    assert not any(row["created"] for row in second)
    assert {row["lease_id"] for row in first} == {row["lease_id"] for row in second}


def test_batches_with_the_same_keys_at_full_speed(conn: psycopg.Connection, dsn: str) -> None:
    """The same without a schedule: opposite orders, eight times, no deadlock."""
    Direct(conn).create_queue(QUEUE)
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        for attempt in range(8):
            batch = [{"idempotency_key": f"{attempt}-{number}"} for number in range(200)]
            jobs = [
                one.start(partial(Direct.spawn_many, queue=QUEUE, options=batch)),
                two.start(partial(Direct.spawn_many, queue=QUEUE, options=batch[::-1])),
            ]
            leases = [{row["lease_id"] for row in job.result(TIMEOUT)} for job in jobs]
            assert leases[0] == leases[1]
            assert len(leases[0]) == len(batch)


@pytest.mark.parametrize("how", ["spawn", "spawn_many"])
def test_a_spawn_beside_an_open_set_task_has_what_is_committed(
    conn: psycopg.Connection, dsn: str, how: str
) -> None:
    """It waits for nobody; the next one after the commit has the new defaults."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.value("set_task", task=TASK, defaults={"priority": 1})
    with interleave(dsn, SHORT) as actor:
        operator, producer = actor(), actor()

        def priority() -> int:
            found = getattr(producer.direct, how)(QUEUE, *([[{}]] if how == "spawn_many" else []))
            [row] = found if how == "spawn_many" else [found]
            return int(producer.direct.lease(row["lease_id"])["priority"])

        for function, more, before, after in (
            ("set_task", {"defaults": {"priority": 2}}, 1, 2),
            ("drop_task", {}, 2, 0),
            ("set_task", {"defaults": {"priority": 3}}, 0, 3),
        ):
            operator.begin()
            operator.direct.value(function, task=TASK, **more)
            assert priority() == before
            operator.commit()
            assert priority() == after


def test_a_spawn_that_is_open_holds_up_no_set_task(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.value("set_task", task=TASK, defaults={"priority": 1})
    with interleave(dsn, SHORT) as actor:
        producer, operator = actor(), actor()
        producer.begin()
        lease = producer.direct.spawn(QUEUE)["lease_id"]
        operator.direct.value("set_task", task=TASK, defaults={"priority": 2})
        producer.commit()
        assert operator.direct.lease(lease)["priority"] == 1


UNIQUE = {"unique": {"key": "report"}}


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("held_before", [True, False])
def test_same_unique_key_from_two_sessions(
    conn: psycopg.Connection, dsn: str, first_commits: bool, held_before: bool
) -> None:
    """The second waits for the first, and gets its lease, or makes one if that is undone."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    if held_before:  # by a lease that has ended: the key is taken over, not inserted
        ended = direct.spawn(QUEUE, UNIQUE)["lease_id"]
        conn.execute("select hwqueue.cancel_lease(%s)", [ended])
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        first = one.direct.spawn(QUEUE, UNIQUE)
        assert first["created"]
        waiting = two.start(lambda d: d.spawn(QUEUE, UNIQUE))
        two.wait_until_parked()
        one.commit() if first_commits else one.rollback()
        second = waiting.result(TIMEOUT)
    assert second["created"] is not first_commits
    assert (second["lease_id"] == first["lease_id"]) is first_commits


def test_a_unique_spawn_beside_a_settlement(conn: psycopg.Connection, dsn: str) -> None:
    """It waits for nobody; the key is free once the settlement is committed."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    with interleave(dsn, SHORT) as actor:
        worker, producer = actor(), actor()
        worker.begin()
        worker.direct.complete(first, claim["claim_token"])
        assert producer.direct.spawn(QUEUE, UNIQUE)["lease_id"] == first
        worker.commit()
        assert producer.direct.spawn(QUEUE, UNIQUE)["created"]


@pytest.mark.parametrize("claim_commits", [True, False])
def test_a_replacement_beside_a_claim(conn: psycopg.Connection, dsn: str, claim_commits: bool) -> None:
    """It waits for the claim: what runs stays as it is, what waits again is changed."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    options = {"unique": {"key": "report", "on_conflict": "replace"}, "priority": 7}
    with interleave(dsn) as actor:
        worker, producer = actor(), actor()
        worker.begin()
        assert len(worker.direct.claim(QUEUE, *node)) == 1
        waiting = producer.start(lambda d: d.spawn(QUEUE, options))
        producer.wait_until_parked()
        worker.commit() if claim_commits else worker.rollback()
        found = waiting.result(TIMEOUT)
    assert (found["lease_id"], found["created"]) == (first, False)
    [row] = conn.execute("select priority, state from hwqueue.get_lease(%s)", [first]).fetchall()
    assert row == ((0, "claimed") if claim_commits else (7, "pending"))


def test_a_claim_passes_by_a_replacement(conn: psycopg.Connection, dsn: str) -> None:
    """A lease that an open transaction replaces is skipped, and claimed afterwards."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    options = {"unique": {"key": "report", "on_conflict": "replace"}, "labels": {"a": "b"}}
    with interleave(dsn, SHORT) as actor:
        producer, worker = actor(), actor()
        producer.begin()
        producer.direct.spawn(QUEUE, options)
        assert worker.direct.claim(QUEUE, *node) == []
        producer.commit()
        assert [row["lease_id"] for row in worker.direct.claim(QUEUE, *node)] == [first]


def test_prune_passes_by_a_key_that_is_taken_over(conn: psycopg.Connection, dsn: str) -> None:
    """It waits for no producer, and leaves the key, which is then that of the new lease."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    ended = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    conn.execute("select hwqueue.cancel_lease(%s)", [ended])
    with interleave(dsn, SHORT) as actor:
        producer, operator = actor(), actor()
        producer.begin()
        fresh = producer.direct.spawn(QUEUE, UNIQUE)["lease_id"]
        operator.start(
            lambda d: d.conn.execute(
                "select hwqueue.delete_leases(jsonb_build_object('queue', %s::text))", [QUEUE]
            )
        ).result(TIMEOUT)
        producer.commit()
        assert operator.direct.spawn(QUEUE, UNIQUE)["lease_id"] == fresh


@pytest.mark.parametrize("spawn_commits", [True, False])
def test_a_requeue_beside_a_spawn_that_takes_its_key(
    conn: psycopg.Connection, dsn: str, spawn_commits: bool
) -> None:
    """It waits for the spawn: two are never open."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    direct.cancel(first)
    with interleave(dsn) as actor:
        producer, operator = actor(), actor()
        producer.begin()
        second = producer.direct.spawn(QUEUE, UNIQUE)["lease_id"]
        waiting = operator.start(lambda d: d.requeue(first))
        operator.wait_until_parked()
        producer.commit() if spawn_commits else producer.rollback()
        if spawn_commits:
            with refusing("QHT02"):
                waiting.result(TIMEOUT)
        else:
            assert waiting.result(TIMEOUT) == "pending"
    assert direct.spawn(QUEUE, UNIQUE)["lease_id"] == (second if spawn_commits else first)
    assert sorted(direct.states(QUEUE).values()) == (
        ["cancelled", "pending"] if spawn_commits else ["pending"]
    )


@pytest.mark.parametrize("requeue_commits", [True, False])
def test_a_spawn_beside_a_requeue_of_its_keys_lease(
    conn: psycopg.Connection, dsn: str, requeue_commits: bool
) -> None:
    """It waits for the requeue, and then finds that lease open."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    first = direct.spawn(QUEUE, UNIQUE)["lease_id"]
    direct.cancel(first)
    with interleave(dsn) as actor:
        operator, producer = actor(), actor()
        operator.begin()
        assert operator.direct.requeue(first) == "pending"
        waiting = producer.start(lambda d: d.spawn(QUEUE, UNIQUE))
        producer.wait_until_parked()
        operator.commit() if requeue_commits else operator.rollback()
        found = waiting.result(TIMEOUT)
    assert (found["lease_id"] == first) is requeue_commits
    assert found["created"] is not requeue_commits


def test_a_page_of_requeues_passes_by_a_key_that_is_held(conn: psycopg.Connection, dsn: str) -> None:
    """It waits for no producer: the lease is skipped."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    keyed, plain = direct.spawn(QUEUE, UNIQUE)["lease_id"], direct.spawn(QUEUE)["lease_id"]
    direct.cancel(keyed)
    direct.cancel(plain)
    filtered = {"queue": QUEUE, "state": "cancelled"}
    with interleave(dsn, SHORT) as actor:
        producer, operator = actor(), actor()
        producer.begin()
        producer.direct.spawn(QUEUE, UNIQUE)
        page = operator.direct.row("requeue_leases", filter=filtered)
        assert (page["changed"], page["skipped"]) == ([plain], [keyed])
        producer.rollback()
        page = operator.direct.row("requeue_leases", filter=filtered)
        assert (page["changed"], page["skipped"]) == ([keyed], [])
