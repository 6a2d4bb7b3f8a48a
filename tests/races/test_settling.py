"""Settling against everything that may end the claim first: reap, restart, cancel."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, node_spec, register
from tests.races.interleave import TIMEOUT, interleave

LOST = "QHL01"
FINISHED = "QHL03"
SUPERSEDED = "QHN03"
AT_ONCE = {"kind": "fixed", "base": 0, "jitter": 0}
COUNTED = {"resources": {"cpu_milli": 1000}}
CAPACITY = {"cpu_milli": 4000}


@pytest.fixture(params=[{"capacity": CAPACITY}, {}], ids=["counted", "uncounted"])
def node(request: pytest.FixtureRequest, conn: psycopg.Connection) -> tuple[UUID, int]:
    """A node, and a queue: claims that set something aside end in another way than the rest."""
    Direct(conn).create_queue(QUEUE, {"retry": AT_ONCE})
    return register(conn, **request.param)


@pytest.fixture
def claim(conn: psycopg.Connection, node: tuple[UUID, int]) -> Row:
    """A running claim of that node."""
    direct = Direct(conn)
    direct.spawn(QUEUE, {"placement": COUNTED, "max_attempts": 3})
    return direct.claim(QUEUE, *node)[0]


def complete(direct: Direct, claim: Row) -> str:
    """Complete the claim."""
    return direct.complete(claim["lease_id"], claim["claim_token"])


def sqlstate_of(error: BaseException | None) -> str | None:
    """The SQLSTATE of a call that failed."""
    assert isinstance(error, psycopg.Error), error
    return error.sqlstate


def test_stale_token_after_reap(
    conn: psycopg.Connection, clock: Clock, node: tuple[UUID, int], claim: Row
) -> None:
    """A reaped claim cannot settle, nor can it once the lease is granted anew."""
    direct = Direct(conn)
    clock.advance(timedelta(minutes=5))
    assert direct.reap()["expired"] == 1
    with pytest.raises(psycopg.DatabaseError) as lost:
        complete(direct, claim)
    assert lost.value.sqlstate == LOST
    again = direct.claim(QUEUE, *node)[0]
    assert again["lease_id"] == claim["lease_id"]
    assert again["claim_token"] > claim["claim_token"]
    with pytest.raises(psycopg.DatabaseError) as stale:
        complete(direct, claim)
    assert stale.value.sqlstate == LOST
    assert complete(direct, again) == "completed"


def test_an_expired_claim_still_settles(conn: psycopg.Connection, clock: Clock, claim: Row) -> None:
    """Until it is reaped, the clock alone takes nothing away."""
    clock.advance(timedelta(minutes=5))
    assert complete(Direct(conn), claim) == "completed"
    assert Direct(conn).reap()["expired"] == 0


def test_settle_wins_over_reap(conn: psycopg.Connection, dsn: str, clock: Clock, claim: Row) -> None:
    """A reap that comes while the settlement is open passes the lease over."""
    clock.advance(timedelta(minutes=5))
    with interleave(dsn) as actor:
        worker, sweeper = actor(), actor()
        worker.begin()
        assert complete(worker.direct, claim) == "completed"
        swept = sweeper.start(lambda d: d.reap())
        worker.commit()
        assert swept.result(TIMEOUT)["expired"] == 0
    assert Direct(conn).lease(claim["lease_id"])["state"] == "completed"


def test_reap_wins_over_settle(conn: psycopg.Connection, dsn: str, clock: Clock, claim: Row) -> None:
    """A settlement that waits for an open reap finds its claim lost."""
    clock.advance(timedelta(minutes=5))
    with interleave(dsn) as actor:
        sweeper, worker = actor(), actor()
        sweeper.begin()
        assert sweeper.direct.reap()["expired"] == 1
        settled = worker.start(lambda d: complete(d, claim))
        worker.wait_until_parked()
        sweeper.commit()
        assert sqlstate_of(settled.exception(TIMEOUT)) == LOST
    assert Direct(conn).lease(claim["lease_id"])["state"] == "pending"


def test_node_restarted_under_a_running_claim(
    conn: psycopg.Connection, node: tuple[UUID, int], claim: Row
) -> None:
    """A new instance ends the old one's claims at once; the old one is fenced off."""
    direct = Direct(conn)
    epoch = direct.register(node[0], node_spec(0, instance_id="second", capacity=CAPACITY))
    assert epoch > node[1]
    with pytest.raises(psycopg.DatabaseError) as lost:
        complete(direct, claim)
    assert lost.value.sqlstate == LOST
    with pytest.raises(psycopg.DatabaseError) as claiming:
        direct.claim(QUEUE, *node)
    with pytest.raises(psycopg.DatabaseError) as beating:
        direct.heartbeat(*node, [claim])
    assert claiming.value.sqlstate == beating.value.sqlstate == SUPERSEDED
    again = direct.claim(QUEUE, node[0], epoch)
    assert [(row["lease_id"], row["attempt"]) for row in again] == [(claim["lease_id"], 2)]


def test_restart_waits_for_an_open_settlement(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], claim: Row
) -> None:
    """What the old instance settled first stays settled."""
    spec = node_spec(0, instance_id="second", capacity=CAPACITY)
    with interleave(dsn) as actor:
        worker, restarted = actor(), actor()
        worker.begin()
        complete(worker.direct, claim)
        epoch = restarted.start(lambda d: d.register(node[0], spec))
        restarted.wait_until_parked()
        worker.commit()
        assert epoch.result(TIMEOUT) > node[1]
    assert Direct(conn).lease(claim["lease_id"])["state"] == "completed"


def test_settlement_waits_for_an_open_restart(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], claim: Row
) -> None:
    """The old instance's settlement finds its claim lost, not granted twice."""
    spec = node_spec(0, instance_id="second", capacity=CAPACITY)
    with interleave(dsn) as actor:
        restarted, worker = actor(), actor()
        restarted.begin()
        restarted.direct.register(node[0], spec)
        settled = worker.start(lambda d: complete(d, claim))
        worker.wait_until_parked()
        restarted.commit()
        assert sqlstate_of(settled.exception(TIMEOUT)) == LOST
    assert Direct(conn).lease(claim["lease_id"])["state"] == "pending"


def test_cancel_waits_for_an_open_claim(conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]) -> None:
    """It then asks the worker to stop: the lease stays claimed until the worker settles."""
    direct = Direct(conn)
    lease = direct.spawn(QUEUE)["lease_id"]
    with interleave(dsn) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        claim = worker.direct.claim(QUEUE, *node)[0]
        cancelled = operator.start(lambda d: d.cancel(lease))
        operator.wait_until_parked()
        worker.commit()
        assert cancelled.result(TIMEOUT) == "claimed"
    verdicts = direct.heartbeat(*node, [claim])
    assert [row["verdict"] for row in verdicts] == ["cancelled"]
    assert direct.release(lease, claim["claim_token"]) == "cancelled"


def test_claim_passes_by_an_open_cancel(conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]) -> None:
    """A lease that is being cancelled is not granted; if the cancel is undone, it is."""
    lease = Direct(conn).spawn(QUEUE)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        operator, worker = actor(), actor()
        operator.begin()
        assert operator.direct.cancel(lease) == "cancelled"
        assert worker.direct.claim(QUEUE, *node) == []
        operator.rollback()
        assert [row["lease_id"] for row in worker.direct.claim(QUEUE, *node)] == [lease]


def test_a_completion_that_arrives_first_wins_over_cancel(
    conn: psycopg.Connection, dsn: str, claim: Row
) -> None:
    """The cancel finds the lease finished."""
    with interleave(dsn) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        complete(worker.direct, claim)
        cancelled = operator.start(lambda d: d.cancel(claim["lease_id"]))
        operator.wait_until_parked()
        worker.commit()
        ended: Any = cancelled.exception(TIMEOUT)
        assert ended is None or sqlstate_of(ended) == FINISHED
    assert Direct(conn).lease(claim["lease_id"])["state"] == "completed"


@pytest.mark.parametrize("call", ["complete_leases", "settle_and_claim"])
def test_a_batch_completes_a_lease_that_a_new_term_names_meanwhile(
    conn: psycopg.Connection, dsn: str, call: str
) -> None:
    """The lease's row changes while the batch waits for its claim; its end is written."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue("other")
    plain = register(conn)
    named, also = (direct.spawn(QUEUE)["lease_id"] for _ in range(2))
    claims = direct.claim(QUEUE, *plain, qty=2)
    away = {"require": [{"lease": str(named), "domain": "rack", "away": True}]}
    direct.spawn("other", {"placement": away})
    with interleave(dsn) as actor:
        publisher, worker = actor(), actor()
        publisher.begin()
        publisher.direct.reap()
        if call == "complete_leases":
            ended = worker.start(lambda d: d.complete_many(claims))
        else:
            ended = worker.start(lambda d: d.settle_and_claim(QUEUE, *plain, [], qty=0, completed=claims))
        worker.wait_until_blocked_by(publisher)
        publisher.commit()
        assert ended.result(TIMEOUT) == []
    assert [direct.lease(lease)["state"] for lease in (named, also)] == ["completed"] * 2
    assert conn.execute("select * from hwqueue.verify_invariants()").fetchall() == []


@pytest.mark.parametrize("node", [{"capacity": CAPACITY}], ids=["counted"], indirect=True)
def test_reap_does_not_hold_claims_of_a_node_at_work(
    conn: psycopg.Connection, dsn: str, clock: Clock, node: tuple[UUID, int], claim: Row
) -> None:
    """It passes the node by; the claim, which it has seen to be over, stays free as well."""
    Direct(conn).spawn(QUEUE, {"placement": COUNTED})
    clock.advance(timedelta(minutes=5))
    with interleave(dsn, SHORT) as actor:
        worker, sweeper = actor(), actor()
        worker.begin()
        worker.conn.execute("select from hwqueue.node_state for no key update")
        sweeper.begin()
        assert sweeper.direct.reap()["expired"] == 0
        worker.conn.execute("select from hwqueue.claim for update nowait")


def test_an_adoption_takes_the_node_before_the_entry(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]
) -> None:
    """While it waits for the node, the lease that its key stands for can still be cancelled."""
    key = {"idempotency_key": "once"}
    lease = Direct(conn).spawn(QUEUE, key)["lease_id"]
    with interleave(dsn) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        worker.conn.execute("select from hwqueue.node_state for no key update")
        adopted = operator.start(lambda d: d.adopt(QUEUE, node[0], key))
        operator.wait_until_blocked_by(worker)
        assert worker.direct.cancel(lease) == "cancelled"
        worker.commit()
        assert sqlstate_of(adopted.exception(TIMEOUT)) == "QHL07"
