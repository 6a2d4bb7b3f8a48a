"""Signals against suspensions, in both orders, and checkpoints against the end of their claim."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Calls, Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, register
from tests.races.interleave import TIMEOUT, interleave


@pytest.fixture
def node(conn: psycopg.Connection) -> tuple[UUID, int]:
    """A node, and a queue."""
    Direct(conn).create_queue(QUEUE, {"retry": {"kind": "fixed", "base": 0, "jitter": 0}})
    return register(conn)


@pytest.fixture
def claim(conn: psycopg.Connection, node: tuple[UUID, int]) -> Row:
    """A running claim of that node."""
    direct = Direct(conn)
    direct.spawn(QUEUE, {"max_attempts": 3})
    return direct.claim(QUEUE, *node)[0]


def held(claim: Row) -> dict[str, Any]:
    """The arguments that say which claim calls."""
    return {"lease": claim["lease_id"], "token": claim["claim_token"]}


def suspend(conn: psycopg.Connection[Any], claim: Row, near: str | None = None) -> str:
    """Wait for the signal."""
    state = Calls(conn).value("suspend_lease", **held(claim), signal="packed", near=near)
    assert isinstance(state, str)
    return state


def signal(conn: psycopg.Connection[Any], claim: Row) -> str:
    """Send it."""
    row = Calls(conn).row("signal_lease", lease=claim["lease_id"], name="packed")
    state = row["state"]
    assert isinstance(state, str)
    return state


def save(conn: psycopg.Connection[Any], claim: Row) -> None:
    """Save a checkpoint."""
    Calls(conn).value("save_checkpoint", **held(claim), name="charge", state=Jsonb(1))


@pytest.mark.parametrize("near", [None, "self"])
def test_a_signal_that_waits_for_a_suspension_wakes_the_lease(
    conn: psycopg.Connection, dsn: str, claim: Row, near: str | None
) -> None:
    with interleave(dsn) as actor:
        worker, sender = actor(), actor()
        worker.begin()
        assert suspend(worker.conn, claim, near) == "scheduled"
        sent = sender.start(lambda _d: signal(sender.conn, claim))
        sender.wait_until_blocked_by(worker)
        worker.commit()
        assert sent.result(TIMEOUT) == "pending"
    assert Direct(conn).lease(claim["lease_id"])["state"] == "pending"


@pytest.mark.parametrize("near", [None, "self"])
def test_a_suspension_that_waits_for_a_signal_finds_it(
    conn: psycopg.Connection, dsn: str, claim: Row, near: str | None
) -> None:
    with interleave(dsn) as actor:
        worker, sender = actor(), actor()
        sender.begin()
        assert signal(sender.conn, claim) == "claimed"
        suspended = worker.start(lambda _d: suspend(worker.conn, claim, near))
        worker.wait_until_blocked_by(sender)
        sender.commit()
        assert suspended.result(TIMEOUT) == "pending"
    lease = Direct(conn).lease(claim["lease_id"])
    assert (lease["state"], "prefer" in lease["placement"]) == ("pending", near is not None)


def test_suspensions_near_one_node_do_not_wait_for_the_class(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], claim: Row
) -> None:
    """Both find no class that prefers it: each writes its own."""
    direct = Direct(conn)
    direct.spawn(QUEUE, {"max_attempts": 3})
    [other] = direct.claim(QUEUE, *node)
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert suspend(one.conn, claim, "self") == "scheduled"
        assert suspend(two.conn, other, "self") == "scheduled"
        one.commit()
    placements = [direct.lease(row["lease_id"])["placement"] for row in (claim, other)]
    assert placements[0] == placements[1]
    assert placements[0]["prefer"]


def test_a_signal_to_a_waiting_lease_keeps_it_from_being_claimed_meanwhile(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], claim: Row
) -> None:
    """Else the claim could look for the signal, find none, and be suspended before it commits."""
    direct = Direct(conn)
    Calls(conn).value("release_lease", **held(claim))
    with interleave(dsn) as actor:
        sender = actor()
        sender.begin()
        assert signal(sender.conn, claim) == "pending"
        assert direct.claim(QUEUE, *node) == []
        sender.commit()
    [again] = direct.claim(QUEUE, *node)
    row = Calls(conn).row("take_signal", **held(again), signal="packed")
    assert row["verdict"] == "taken"


def test_two_signals_at_once_are_both_kept(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], claim: Row
) -> None:
    suspend(conn, claim)
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert signal(one.conn, claim) == "pending"
        second = two.start(lambda _d: signal(two.conn, claim))
        two.wait_until_blocked_by(one)
        one.commit()
        assert second.result(TIMEOUT) == "pending"
    [again] = Direct(conn).claim(QUEUE, *node)
    for name in ("first", "second"):
        row = Calls(conn).row("take_signal", **held(again), signal="packed", name=name)
        assert row["verdict"] == "taken"


def test_a_claim_is_not_reaped_while_its_checkpoint_is_open(
    conn: psycopg.Connection, dsn: str, clock: Clock, claim: Row
) -> None:
    clock.advance(timedelta(minutes=5))
    with interleave(dsn) as actor:
        worker = actor()
        worker.begin()
        save(worker.conn, claim)
        assert Direct(conn).reap()["expired"] == 0
        worker.commit()
    assert Direct(conn).reap()["expired"] == 1


def test_a_checkpoint_that_waits_for_a_reap_is_refused(
    conn: psycopg.Connection, dsn: str, clock: Clock, claim: Row
) -> None:
    clock.advance(timedelta(minutes=5))
    with interleave(dsn) as actor:
        sweeper, worker = actor(), actor()
        sweeper.begin()
        assert sweeper.direct.reap()["expired"] == 1
        saving = worker.start(lambda _d: save(worker.conn, claim))
        worker.wait_until_blocked_by(sweeper)
        sweeper.commit()
        error = saving.exception(TIMEOUT)
    assert isinstance(error, psycopg.Error)
    assert error.sqlstate == "QHL01"
    assert conn.execute("select count(*) from hwqueue.checkpoint").fetchone() == (0,)


def test_two_checkpoints_of_a_claim_do_not_wait_for_each_other(
    dsn: str, conn: psycopg.Connection, claim: Row
) -> None:
    with interleave(dsn) as actor:
        one = actor()
        one.begin()
        save(one.conn, claim)
        Calls(conn).value("save_checkpoint", **held(claim), name="other", state=Jsonb(2))
        one.commit()
    names = conn.execute("select name from hwqueue.checkpoint order by name").fetchall()
    assert names == [("charge",), ("other",)]
