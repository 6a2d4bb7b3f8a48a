"""Gangs that are assembled, fetched and stopped while other sessions hold what they need."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.parking import parking
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import ids

Place = tuple[UUID, int]


def gpu_nodes(conn: psycopg.Connection[Any], count: int) -> list[Place]:
    """Nodes with a GPU each."""
    return [register(conn, n, gpus=[{"resource_id": str(uuid4())}]) for n in range(count)]


def spawn_gang(direct: Direct, count: int) -> UUID:
    """A gang whose members need a GPU each; its id."""
    member = {"task": "work", "count": count, "options": {"placement": {"resources": {"gpu": 1}}}}
    rows = direct.rows("spawn_gang", queue=QUEUE, members=Jsonb([member]))
    gang_id = rows[0]["gang_id"]
    assert isinstance(gang_id, UUID)
    return gang_id


def gang(direct: Direct, gang_id: UUID) -> Row:
    return direct.row("get_gang", gang=gang_id)


def reap(direct: Direct, times: int = 3) -> None:
    for _ in range(times):
        direct.rows("reap")


def broken(direct: Direct) -> list[Row]:
    return direct.rows("verify_invariants")


def test_a_node_that_a_claim_holds(conn: psycopg.Connection, dsn: str) -> None:
    """The tick takes no part of the gang, and waits for nobody; the next one takes all of it."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 3)
    gang_id = spawn_gang(direct, 3)
    with interleave(dsn, SHORT) as actor:
        claims = actor()
        claims.begin()
        assert claims.direct.claim(QUEUE, *nodes[1]) == []
        reap(direct)
        found = gang(direct, gang_id)
        assert (found["state"], found["reason"]) == ("waiting", "busy")
        assert broken(direct) == []
        claims.commit()
        reap(direct)
        assert gang(direct, gang_id)["state"] == "reserved"
    assert broken(direct) == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_tick_that_is_open(conn: psycopg.Connection, dsn: str, commits: bool) -> None:
    """Nobody sees a part of what it has booked, and what it rolls back was never there."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 2)
    gang_id = spawn_gang(direct, 2)
    with interleave(dsn, SHORT) as actor:
        ticks, other = actor(), actor()
        ticks.begin()
        ticks.direct.rows("reap")
        assert gang(ticks.direct, gang_id)["state"] == "reserved"
        reap(other.direct)
        assert gang(other.direct, gang_id)["state"] == "waiting"
        ticks.commit() if commits else ticks.rollback()
        if not commits:
            assert broken(direct) == []
            reap(other.direct)
        claimed = [claim for node in nodes for claim in other.direct.claim(QUEUE, *node)]
        assert len(claimed) == 2
    assert broken(direct) == []


def test_a_gang_that_is_spawned_and_left_open(conn: psycopg.Connection, dsn: str) -> None:
    """Claims, spawns and other gangs go on."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 2)
    with interleave(dsn, SHORT) as actor:
        idle, other = actor(), actor()
        idle.begin()
        spawn_gang(idle.direct, 2)
        lease = other.direct.spawn(QUEUE)["lease_id"]
        assert ids(other.direct.claim(QUEUE, *nodes[0])) == [lease]
        second = spawn_gang(other.direct, 2)
        reap(other.direct)
        assert gang(other.direct, second)["state"] == "reserved"
        idle.commit()
    assert broken(direct) == []


def test_two_gangs_and_room_for_one(conn: psycopg.Connection, dsn: str) -> None:
    """The first holds all of it; the second holds nothing until the first has ended."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"earmarks": 0})
    nodes = gpu_nodes(conn, 3)
    first, second = spawn_gang(direct, 2), spawn_gang(direct, 2)
    reap(direct)
    assert [gang(direct, g)["state"] for g in (first, second)] == ["reserved", "waiting"]
    claims = [claim for node in nodes for claim in direct.claim(QUEUE, *node)]
    assert len(claims) == 2
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])
    conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    reap(direct)
    assert [gang(direct, g)["state"] for g in (first, second)] == ["completed", "reserved"]
    assert broken(direct) == []


def test_a_member_whose_settlement_is_open(conn: psycopg.Connection, dsn: str) -> None:
    """Another member fails: the tick passes over what is held, and comes back for it."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 3)
    gang_id = spawn_gang(direct, 3)
    reap(direct)
    held, failing, third = (claim for node in nodes for claim in direct.claim(QUEUE, *node))
    reap(direct)
    with interleave(dsn, SHORT) as actor:
        settles = actor()
        settles.begin()
        settles.direct.complete(held["lease_id"], held["claim_token"])
        direct.fail(failing["lease_id"], failing["claim_token"])
        reap(direct)
        stops = [r["stop_reason"] for r in direct.rows("list_leases") if r["state"] == "claimed"]
        assert sorted(stops, key=str) == [None, "preempted"]
        assert gang(direct, gang_id)["state"] == "stopping"
        settles.commit()
    reap(direct)
    direct.release(third["lease_id"], third["claim_token"])
    conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    reap(direct)
    conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    reap(direct)
    again = [claim for node in nodes for claim in direct.claim(QUEUE, *node)]
    assert {c["lease_id"] for c in again} == {failing["lease_id"], third["lease_id"]}
    assert broken(direct) == []


def test_a_member_that_is_being_cancelled(conn: psycopg.Connection, dsn: str) -> None:
    """Its entry is gone for the session that cancels: the gang is not assembled without it."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    gpu_nodes(conn, 3)
    gang_id = spawn_gang(direct, 3)
    lease = UUID(gang(direct, gang_id)["members"][1]["lease_id"])
    with interleave(dsn, SHORT) as actor:
        cancels = actor()
        cancels.begin()
        cancels.direct.cancel(lease)
        reap(direct)
        found = gang(direct, gang_id)
        assert (found["state"], found["reason"]) == ("waiting", "gang_incomplete")
        cancels.commit()
        reap(direct)
        assert gang(direct, gang_id)["state"] == "cancelled"
    assert broken(direct) == []


def test_an_operator_deregisters_a_node_that_has_a_reservation(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 3)
    gang_id = spawn_gang(direct, 2)
    reap(direct)
    taken = [m["node_id"] for m in gang(direct, gang_id)["members"]]
    direct.deregister(UUID(taken[0]))
    conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    reap(direct)
    conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    reap(direct)
    left = [node for node in nodes if str(node[0]) != taken[0]]
    assert len([claim for node in left for claim in direct.claim(QUEUE, *node)]) == 2
    assert broken(direct) == []


def test_a_claim_that_waits_until_its_reservation_is_over(
    conn: psycopg.Connection, dsn: str, clock: Clock
) -> None:
    """It gets what is reserved when it has its node, not when it began to wait."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue("other")
    nodes = gpu_nodes(conn, 2)
    gang_id = spawn_gang(direct, 2)
    reap(direct)
    assert gang(direct, gang_id)["state"] == "reserved"
    with interleave(dsn) as actor:
        holder, worker = actor(), actor()
        holder.begin()
        assert holder.direct.claim("other", *nodes[0]) == []
        claimed = worker.start(lambda d: d.claim(QUEUE, *nodes[0]))
        worker.wait_until_blocked_by(holder)
        clock.advance(timedelta(minutes=5))
        holder.commit()
        assert claimed.result(TIMEOUT) == []
    reap(direct)
    assert gang(direct, gang_id)["state"] == "waiting"
    assert broken(direct) == []


@pytest.mark.parametrize("end", ["terminated", "statement_timeout"])
def test_a_session_that_ends_in_the_middle_of_assembling(
    conn: psycopg.Connection, dsn: str, end: str
) -> None:
    """Its first member has room by then: nothing of that is kept, and others go on meanwhile."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 3)
    other = register(conn, 3)
    with interleave(dsn) as actor:
        ticks = actor()
        reap(ticks.direct)  # its plans are made
        gang_id = spawn_gang(direct, 3)
        if end == "statement_timeout":
            ticks.conn.execute("set statement_timeout = '1s'")
        with parking(dsn):
            tick = ticks.start(lambda d: d.rows("reap"))
            ticks.wait_until_parked()
            lease = direct.spawn(QUEUE)["lease_id"]
            assert ids(direct.claim(QUEUE, *other)) == [lease]
            reap(direct)
            assert gang(direct, gang_id)["state"] == "waiting"
            if end == "terminated":
                conn.execute("select pg_terminate_backend(%s)", [ticks.conn.info.backend_pid])
                with pytest.raises(psycopg.OperationalError):
                    tick.result(TIMEOUT)
            else:  # the tick ends, and only this gang is undone
                tick.result(TIMEOUT)
                assert gang(direct, gang_id)["reason"] == "upkeep_postponed"
                conn.execute("update hwqueue.postponed set next_try_at = now()")
                conn.execute("update hwqueue.gang set next_try_at = now()")
        assert (gang(direct, gang_id)["state"], broken(direct)) == ("waiting", [])
        reap(direct)
    assert len([claim for node in nodes for claim in direct.claim(QUEUE, *node)]) == 3
    assert broken(direct) == []


def test_an_assembler_that_stops_after_its_commit(conn: psycopg.Connection, dsn: str) -> None:
    """Nobody ticks any more: the members are fetched, the barrier opens, and they complete."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = gpu_nodes(conn, 2)
    gang_id = spawn_gang(direct, 2)
    with interleave(dsn, SHORT) as actor:
        reap(actor().direct, 1)
    claims = [claim for node in nodes for claim in direct.claim(QUEUE, *node)]
    for claim in claims:
        told = direct.row("gang_status", lease=claim["lease_id"], token=claim["claim_token"])
        assert told["ready"]
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])
    assert gang(direct, gang_id)["state"] == "completed"  # as its members are, before upkeep looks
    reap(direct)
    assert (gang(direct, gang_id)["state"], broken(direct)) == ("completed", [])
