"""What has ended and what is done with it: its outcome is the lease's mutex, as its entry was."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave

DAY = timedelta(days=1)
PRUNE = "select leases from hwqueue.prune()"
BROKEN = "select rule, subject from hwqueue.verify_invariants()"
OPEN = "QHL07"
GONE = "QHL04"


@pytest.fixture
def node(conn: psycopg.Connection, clock: Clock) -> tuple[UUID, int]:
    """A node, and a queue that keeps nothing."""
    Direct(conn).create_queue(QUEUE, {"retain_completed": 0, "retain_failed": 0})
    return register(conn)


@pytest.fixture
def dead(conn: psycopg.Connection, node: tuple[UUID, int], clock: Clock) -> UUID:
    """A lease that has failed for good, a day ago."""
    lease: UUID = Direct(conn).spawn(QUEUE)["lease_id"]
    fail(Direct(conn), node)
    clock.advance(DAY)
    return lease


def fail(direct: Direct, node: tuple[UUID, int]) -> int:
    """Claim the next lease, and fail it for good; its token."""
    [claim] = direct.claim(QUEUE, *node)
    assert direct.fail(claim["lease_id"], claim["claim_token"], retry=False) == "failed"
    return int(claim["claim_token"])


def sqlstate_of(error: BaseException | None) -> str | None:
    """The SQLSTATE of a call that failed."""
    assert isinstance(error, psycopg.Error), error
    return error.sqlstate


def test_of_two_requeues_one_wins(conn: psycopg.Connection, dsn: str, dead: UUID) -> None:
    with interleave(dsn) as actor:
        first, second = actor(), actor()
        first.begin()
        assert first.direct.requeue(dead) == "pending"
        also = second.start(lambda d: d.requeue(dead))
        second.wait_until_blocked_by(first)
        first.commit()
        assert sqlstate_of(also.exception(TIMEOUT)) == OPEN
    assert conn.execute("select count(*) from hwqueue.ready").fetchall() == [(1,)]
    assert conn.execute(BROKEN).fetchall() == []


def test_the_second_requeue_wins_when_the_first_is_undone(
    conn: psycopg.Connection, dsn: str, dead: UUID
) -> None:
    with interleave(dsn) as actor:
        first, second = actor(), actor()
        first.begin()
        first.direct.requeue(dead)
        also = second.start(lambda d: d.requeue(dead))
        second.wait_until_blocked_by(first)
        first.rollback()
        assert also.result(TIMEOUT) == "pending"
    assert conn.execute(BROKEN).fetchall() == []


def test_a_requeue_finds_that_it_has_failed_again(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], dead: UUID
) -> None:
    """What it waited for is gone, and there is another end, which it takes."""
    with interleave(dsn) as actor:
        first, second = actor(), actor()
        first.begin()
        first.direct.requeue(dead)
        token = fail(first.direct, node)
        also = second.start(lambda d: d.requeue(dead))
        second.wait_until_blocked_by(first)
        first.commit()
        assert also.result(TIMEOUT) == "pending"
    [again] = Direct(conn).claim(QUEUE, *node)
    assert again["claim_token"] > token  # tokens go on rising
    assert conn.execute(BROKEN).fetchall() == []


def test_prune_passes_by_what_is_requeued(conn: psycopg.Connection, dsn: str, dead: UUID) -> None:
    with interleave(dsn, SHORT) as actor:
        operator, sweeper = actor(), actor()
        operator.begin()
        operator.direct.requeue(dead)
        assert sweeper.conn.execute(PRUNE).fetchall() == [(0,)]
        operator.rollback()
        assert sweeper.conn.execute(PRUNE).fetchall() == [(1,)]
    assert conn.execute(BROKEN).fetchall() == []


@pytest.mark.parametrize("call", ["requeue", "cancel"])
def test_what_is_pruned_meanwhile_does_not_exist(
    conn: psycopg.Connection, dsn: str, dead: UUID, call: str
) -> None:
    """A requeue waits for it; a cancellation says what it can see."""
    with interleave(dsn) as actor:
        sweeper, operator = actor(), actor()
        sweeper.begin()
        assert sweeper.conn.execute(PRUNE).fetchall() == [(1,)]
        late = operator.start(lambda d: getattr(d, call)(dead))
        if call == "requeue":
            operator.wait_until_blocked_by(sweeper)
        else:
            assert sqlstate_of(late.exception(TIMEOUT)) == "QHL03"
        sweeper.commit()
        if call == "requeue":
            assert sqlstate_of(late.exception(TIMEOUT)) == GONE
    assert conn.execute(BROKEN).fetchall() == []


def test_a_lease_cannot_end_twice(conn: psycopg.Connection, node: tuple[UUID, int], dead: UUID) -> None:
    """A claim of a lease that has ended is a bug; its settlement does not hide it."""
    Direct(conn).spawn(QUEUE)
    [claim] = Direct(conn).claim(QUEUE, *node)
    conn.execute("update hwqueue.claim set lease_id = %s", [dead])
    lost = ("one_entry", str(claim["lease_id"]))
    assert set(conn.execute(BROKEN)) == {lost, ("one_entry", str(dead))}
    for settle in (Direct.complete, lambda d, *item: d.complete_many([dict(claim, lease_id=dead)])):
        with pytest.raises(psycopg.errors.UniqueViolation):
            settle(Direct(conn), dead, claim["claim_token"])
    assert Direct(conn).lease(dead)["state"] == "failed"


def test_one_node_takes_a_death(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """The other passes it by, and gets it if the first rolls back."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"max_attempts": 1})
    hearing = {"hears_deaths": True, "heartbeat_timeout": "1 day"}
    nodes = [register(conn, number, **hearing) for number in range(2)]
    lease = direct.spawn(QUEUE)["lease_id"]
    assert len(direct.claim(QUEUE, *nodes[0])) == 1
    clock.advance(timedelta(minutes=10))
    direct.reap()
    take = "select lease_id from hwqueue.take_deaths(%s, %s)"
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        assert one.conn.execute(take, nodes[0]).fetchall() == [(lease,)]
        assert two.conn.execute(take, nodes[1]).fetchall() == []
        one.rollback()
        assert two.conn.execute(take, nodes[1]).fetchall() == [(lease,)]
        assert one.conn.execute(take, nodes[0]).fetchall() == []
