"""A lease that moves to another queue, beside claims, pauses, spawns and other moves."""

from uuid import UUID

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import SHORT, register
from tests.races.interleave import TIMEOUT, interleave

HERE, THERE, ELSEWHERE = "here", "there", "elsewhere"
BROKEN = "select rule, subject from hwqueue.verify_invariants()"
KEYED = {"unique": {"key": "k", "on_conflict": "replace"}}
TO_THERE = {"queue": THERE}


@pytest.fixture
def node(conn: psycopg.Connection) -> tuple[UUID, int]:
    """A node, and three queues."""
    for queue in (HERE, THERE, ELSEWHERE):
        Direct(conn).create_queue(queue)
    return register(conn)


@pytest.fixture
def lease(conn: psycopg.Connection, node: tuple[UUID, int]) -> UUID:
    """A lease that waits in the first of them, with a unique key."""
    found: UUID = Direct(conn).spawn(HERE, KEYED)["lease_id"]
    return found


def moved(direct: Direct) -> tuple[list[UUID], list[UUID]]:
    """Move all from here to there; which did, and which were skipped."""
    row = direct.row("update_leases", filter={"queue": HERE}, changes=TO_THERE)
    return row["changed"], row["skipped"]


def test_no_claim_gets_it_on_the_way(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], lease: UUID
) -> None:
    with interleave(dsn, SHORT) as actor:
        mover, worker = actor(), actor()
        mover.begin()
        mover.direct.update(lease, TO_THERE)
        for queue in (HERE, THERE):
            assert worker.direct.claim(queue, *node) == []
        assert worker.direct.claim_any([HERE, THERE], *node) == []
        mover.commit()
        assert worker.direct.claim(HERE, *node) == []
        [claim] = worker.direct.claim_any([HERE, THERE], *node)
        assert claim["lease_id"] == lease
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("kept", [True, False], ids=["claimed", "not claimed"])
def test_a_claim_comes_first(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], lease: UUID, kept: bool
) -> None:
    with interleave(dsn) as actor:
        worker, mover = actor(), actor()
        worker.begin()
        assert len(worker.direct.claim(HERE, *node)) == 1
        late = mover.start(lambda d: d.update(lease, TO_THERE))
        mover.wait_until_blocked_by(worker)
        if kept:
            worker.commit()
            error = late.exception(TIMEOUT)
            assert isinstance(error, psycopg.Error)
            assert error.sqlstate == "QHL07"
        else:
            worker.rollback()
            assert late.result(TIMEOUT) == "pending"
    assert Direct(conn).lease(lease)["queue"] == (HERE if kept else THERE)
    assert conn.execute(BROKEN).fetchall() == []


def test_a_claim_passes_by_a_page_that_moves(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], lease: UUID
) -> None:
    other = Direct(conn).spawn(HERE)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        worker, mover = actor(), actor()
        worker.begin()
        [claim] = worker.direct.claim(HERE, *node)
        assert claim["lease_id"] == lease
        assert moved(mover.direct) == ([other], [lease])
        worker.commit()
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("case", [(q, first) for q in (HERE, THERE) for first in (True, False)])
def test_a_pause_beside_it(
    conn: psycopg.Connection,
    dsn: str,
    node: tuple[UUID, int],
    lease: UUID,
    case: tuple[str, bool],
) -> None:
    """Neither waits for the other; the queue where the lease is then decides."""
    queue, pause_first = case
    with interleave(dsn, SHORT) as actor:
        mover, operator = actor(), actor()
        first, second = (operator, mover) if pause_first else (mover, operator)
        for one in (first, second):
            one.begin()
            if one is mover:
                one.direct.update(lease, TO_THERE)
            else:
                one.direct.rows("pause_queue", queue=queue)
        second.commit()
        first.commit()
    found = Direct(conn).claim_any([HERE, THERE], *node)
    assert [row["lease_id"] for row in found] == ([lease] if queue == HERE else [])
    assert conn.execute(BROKEN).fetchall() == []


def test_of_two_moves_the_second_goes_on_from_the_first(
    conn: psycopg.Connection, dsn: str, lease: UUID
) -> None:
    with interleave(dsn) as actor:
        first, second = actor(), actor()
        first.begin()
        first.direct.update(lease, TO_THERE)
        late = second.start(lambda d: d.update(lease, {"queue": ELSEWHERE}))
        second.wait_until_blocked_by(first)
        first.commit()
        assert late.result(TIMEOUT) == "pending"
    keys = conn.execute(
        "select q.name from hwqueue.idempotency i join hwqueue.queue q using (queue_id)"
    ).fetchall()
    assert (Direct(conn).lease(lease)["queue"], keys) == (ELSEWHERE, [(ELSEWHERE,)])
    assert conn.execute(BROKEN).fetchall() == []


def test_a_spawn_that_holds_its_key(conn: psycopg.Connection, dsn: str, lease: UUID) -> None:
    """The spawn waits for the entry, so the move must not wait for the key."""
    with interleave(dsn, SHORT) as actor:
        producer, mover = actor(), actor()
        producer.begin()
        producer.conn.execute("select 1 from hwqueue.idempotency for update")
        with pytest.raises(psycopg.Error) as caught:
            mover.direct.update(lease, TO_THERE)
        assert caught.value.sqlstate == "QHT02"
        assert moved(mover.direct) == ([], [lease])
        assert producer.direct.spawn(HERE, KEYED)["lease_id"] == lease
        producer.commit()
        assert moved(mover.direct) == ([lease], [])
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("kept", [True, False], ids=["moved", "not moved"])
def test_a_spawn_there_waits_for_the_key(conn: psycopg.Connection, dsn: str, lease: UUID, kept: bool) -> None:
    with interleave(dsn) as actor:
        mover, producer = actor(), actor()
        mover.begin()
        mover.direct.update(lease, TO_THERE)
        late = producer.start(lambda d: d.spawn(THERE, {"unique": {"key": "k"}}))
        producer.wait_until_blocked_by(mover)
        if kept:
            mover.commit()
        else:
            mover.rollback()
        assert (late.result(TIMEOUT)["lease_id"] == lease) is kept
    assert conn.execute(BROKEN).fetchall() == []


def test_two_that_swap_a_key_leave_both(conn: psycopg.Connection, dsn: str, lease: UUID) -> None:
    """Each finds the other's lease with the key, and waits for nothing."""
    other = Direct(conn).spawn(THERE, KEYED)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        two.begin()
        assert moved(one.direct) == ([], [lease])
        row = two.direct.row("update_leases", filter={"queue": THERE}, changes={"queue": HERE})
        assert (row["changed"], row["skipped"]) == ([], [other])
        one.commit()
        two.commit()
    assert conn.execute(BROKEN).fetchall() == []
