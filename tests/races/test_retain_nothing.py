"""A lease that goes when it completes, beside those who want something of it at that moment."""

from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, Actor, interleave
from tests.races.test_ends import BROKEN, DAY, GONE, OPEN, PRUNE, sqlstate_of

TAKEN = "QHL06"
LEASES = "select count(*) from hwqueue.lease"
OUTCOMES = "select state from hwqueue.outcome"


@pytest.fixture
def claim(conn: psycopg.Connection, clock: Clock) -> Row:
    """A claim of a queue that keeps nothing."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"retain_completed": 0, "retain_failed": 0})
    node = register(conn)
    direct.spawn(QUEUE, {"lease_id": str(uuid4())})
    [claim] = direct.claim(QUEUE, *node)
    return claim


def complete(actor: Actor, claim: Row, *, in_batch: bool) -> None:
    """Complete it."""
    if in_batch:
        assert actor.direct.complete_many([claim]) == []
    else:
        assert actor.direct.complete(claim["lease_id"], claim["claim_token"]) == "completed"


def call(direct: Direct, name: str, lease: UUID) -> str:
    """Ask something of the lease."""
    if name == "update":
        return direct.update(lease, {"priority": 1})
    return str(getattr(direct, name)(lease))


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("name", ["cancel", "update"])
def test_who_waits_for_the_claim_finds_no_lease(
    conn: psycopg.Connection, dsn: str, claim: Row, name: str, in_batch: bool
) -> None:
    """Or finds it as it was, if the completion is undone."""
    for end in ("rollback", "commit"):
        with interleave(dsn) as actor:
            worker, operator = actor(), actor()
            worker.begin()
            complete(worker, claim, in_batch=in_batch)
            also = operator.start(lambda d: call(d, name, claim["lease_id"]))
            operator.wait_until_blocked_by(worker)
            getattr(worker, end)()
            if end == "commit":
                assert sqlstate_of(also.exception(TIMEOUT)) == GONE
            elif name == "update":
                assert sqlstate_of(also.exception(TIMEOUT)) == OPEN
            else:
                assert also.result(TIMEOUT) == "claimed"
    assert conn.execute(LEASES).fetchall() == [(0,)]
    assert conn.execute(BROKEN).fetchall() == []


def test_a_requeue_waits_for_nothing(conn: psycopg.Connection, dsn: str, claim: Row) -> None:
    with interleave(dsn, SHORT) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        complete(worker, claim, in_batch=False)
        for end, code in (("keep", OPEN), ("commit", GONE)):
            if end == "commit":
                worker.commit()
            with pytest.raises(psycopg.Error) as caught:
                operator.direct.requeue(claim["lease_id"])
            assert caught.value.sqlstate == code
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_completion_waits_for_a_cancellation_and_wins(
    conn: psycopg.Connection, dsn: str, claim: Row, in_batch: bool
) -> None:
    with interleave(dsn) as actor:
        operator, worker = actor(), actor()
        operator.begin()
        assert operator.direct.cancel(claim["lease_id"]) == "claimed"
        done = worker.start(lambda d: complete(worker, claim, in_batch=in_batch))
        worker.wait_until_blocked_by(operator)
        operator.commit()
        done.result(TIMEOUT)
    assert conn.execute(LEASES).fetchall() == [(0,)]
    assert conn.execute(OUTCOMES).fetchall() == [("completed",)]
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_prune_beside_an_open_completion(
    conn: psycopg.Connection, dsn: str, clock: Clock, claim: Row, end: str
) -> None:
    """It takes the outcome when that is there, and leaves a lease alone that still runs."""
    with interleave(dsn, SHORT) as actor:
        worker, sweeper = actor(), actor()
        worker.begin()
        complete(worker, claim, in_batch=False)
        clock.advance(DAY)
        assert sweeper.conn.execute(PRUNE).fetchall() == [(0,)]
        getattr(worker, end)()
        left = 1 if end == "commit" else 0
        assert sweeper.conn.execute(PRUNE).fetchall() == [(left,)]
    assert conn.execute(LEASES).fetchall() == [(1 - left,)]
    assert conn.execute(OUTCOMES).fetchall() == []
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_its_id_is_taken_before_and_after(conn: psycopg.Connection, dsn: str, claim: Row, end: str) -> None:
    """A spawn does not wait for the completion to say so."""
    with interleave(dsn, SHORT) as actor:
        worker, producer = actor(), actor()
        worker.begin()
        complete(worker, claim, in_batch=False)
        for _ in range(2):
            with pytest.raises(psycopg.Error) as caught:
                producer.direct.spawn(QUEUE, {"lease_id": str(claim["lease_id"])})
            assert caught.value.sqlstate == TAKEN
            if worker.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                getattr(worker, end)()
    assert conn.execute(BROKEN).fetchall() == []


def test_of_two_completions_one_is_told_that_it_is_over(
    conn: psycopg.Connection, dsn: str, claim: Row
) -> None:
    with interleave(dsn) as actor:
        first, second = actor(), actor()
        first.begin()
        complete(first, claim, in_batch=False)
        also = second.start(lambda d: d.complete(claim["lease_id"], claim["claim_token"]))
        second.wait_until_blocked_by(first)
        first.commit()
        assert sqlstate_of(also.exception(TIMEOUT)) == "QHL03"
    assert conn.execute(BROKEN).fetchall() == []
