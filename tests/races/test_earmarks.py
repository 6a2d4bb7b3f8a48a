"""Earmarks that are booked, backed and given up while other sessions hold what they need."""

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import ids, pause_at, pause_closed, pauses
from tests.races.test_gangs import Place, broken, gang, reap

WHOLE: Row = {"placement": {"resources": {"gpu": 2}}}
HALF: Row = {"placement": {"resources": {"gpu": 1}}}


def half_full(
    conn: psycopg.Connection, direct: Direct, **options: object
) -> tuple[list[Place], list[Row], UUID]:
    """Two nodes with a lease on one of their two GPUs, and a gang that needs all of both."""
    direct.create_queue(QUEUE)
    nodes = [register(conn, n, gpus=[{"resource_id": str(uuid4())} for _ in range(2)]) for n in range(2)]
    direct.spawn_many(QUEUE, [HALF | options] * 2)
    claims = [direct.claim(QUEUE, *node)[0] for node in nodes]
    members = Jsonb([{"task": "work", "count": 2, "options": WHOLE}])
    gang_id = direct.rows("spawn_gang", queue=QUEUE, members=members)[0]["gang_id"]
    return nodes, claims, gang_id


def complete(direct: Direct, *claims: Row) -> None:
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])


def test_two_ticks_and_claims_at_once(conn: psycopg.Connection, dsn: str) -> None:
    """A claim waits for the tick that books its node, and gets nothing; others pass by."""
    direct = Direct(conn)
    nodes, claims, gang_id = half_full(conn, direct)
    direct.spawn_many(QUEUE, [HALF] * 2)
    with interleave(dsn) as actor:
        ticks, other, worker = actor(), actor(), actor()
        ticks.begin()
        ticks.direct.rows("reap")
        assert gang(ticks.direct, gang_id)["state"] == "earmarked"
        reap(other.direct)
        assert gang(other.direct, gang_id)["state"] == "waiting"
        claimed = worker.start(lambda d: d.claim(QUEUE, *nodes[0]))
        worker.wait_until_parked()
        ticks.commit()
        assert claimed.result(TIMEOUT) == []
    complete(direct, *claims)
    assert [direct.claim(QUEUE, *node) for node in nodes] == [[], []]
    reap(direct)
    assert gang(direct, gang_id)["state"] == "reserved"
    assert broken(direct) == []


def test_a_node_that_is_held_is_not_booked(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    nodes, _, gang_id = half_full(conn, direct)
    with interleave(dsn, SHORT) as actor:
        worker = actor()
        worker.begin()
        assert worker.direct.claim(QUEUE, *nodes[1]) == []
        reap(direct)
        found = gang(direct, gang_id)
        assert (found["state"], found["reason"]) == ("waiting", "busy")
        assert broken(direct) == []
        worker.commit()
        reap(direct)
        assert gang(direct, gang_id)["state"] == "earmarked"
    assert broken(direct) == []


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_that_is_open(conn: psycopg.Connection, dsn: str, commits: bool) -> None:
    """The room is free once the end is committed; the tick does not wait for it."""
    direct = Direct(conn)
    _, claims, gang_id = half_full(conn, direct)
    reap(direct)
    complete(direct, claims[0])
    with interleave(dsn, SHORT) as actor:
        settles = actor()
        settles.begin()
        complete(settles.direct, claims[1])
        reap(direct)
        assert gang(direct, gang_id)["state"] == "earmarked"
        settles.commit() if commits else settles.rollback()
        reap(direct)
        assert gang(direct, gang_id)["state"] == ("reserved" if commits else "earmarked")
    assert broken(direct) == []


def test_a_tick_backs_while_nodes_claim(conn: psycopg.Connection, dsn: str) -> None:
    """It needs no node: one that another session holds delays nobody."""
    direct = Direct(conn)
    nodes, claims, gang_id = half_full(conn, direct)
    reap(direct)
    complete(direct, *claims)
    lease = direct.spawn(QUEUE)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        worker, ticks = actor(), actor()
        worker.begin()
        assert ids(worker.direct.claim(QUEUE, *nodes[0])) == [lease]
        ticks.begin()
        ticks.direct.rows("reap")
        assert gang(ticks.direct, gang_id)["state"] == "reserved"
        assert direct.claim(QUEUE, *nodes[1]) == []  # not backed yet for others
        ticks.commit()
        worker.commit()
    assert len([claim for node in nodes for claim in direct.claim(QUEUE, *node)]) == 2
    assert broken(direct) == []


def test_a_member_that_is_being_cancelled(conn: psycopg.Connection, dsn: str) -> None:
    """The gang is not backed without it."""
    direct = Direct(conn)
    _, claims, gang_id = half_full(conn, direct)
    reap(direct)
    complete(direct, *claims)
    lease = UUID(gang(direct, gang_id)["members"][1]["lease_id"])
    with interleave(dsn, SHORT) as actor:
        cancels = actor()
        cancels.begin()
        cancels.direct.cancel(lease)
        reap(direct)
        assert gang(direct, gang_id)["state"] == "earmarked"
        cancels.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "cancelled"
    assert broken(direct) == []


def with_room(conn: psycopg.Connection, direct: Direct) -> tuple[Place, UUID]:
    """A node with room for its earmark, which a lease that is over in time may use; the gang."""
    nodes, claims, gang_id = half_full(conn, direct, max_run=600)
    short = {"max_run": 60, **HALF}
    direct.spawn(QUEUE, short)
    complete(direct, *direct.claim(QUEUE, *nodes[0]))  # its class is known
    reap(direct, 2)
    complete(direct, *claims)
    direct.spawn(QUEUE, short)
    return nodes[0], gang_id


def test_a_tick_beside_a_claim_that_takes_the_room(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    node, gang_id = with_room(conn, direct)
    with interleave(dsn, SHORT) as actor:
        worker = actor()
        worker.begin()
        assert len(worker.direct.claim(QUEUE, *node)) == 1
        reap(direct)
        worker.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "earmarked"
    assert broken(direct) == []


def test_a_tick_that_saw_the_room_before_a_claim(conn: psycopg.Connection, dsn: str) -> None:
    """It looks once more when it holds what it gives."""
    direct = Direct(conn)
    node, gang_id = with_room(conn, direct)
    pause_at(conn, "back_earmarks", "v_claims := array(")
    with interleave(dsn) as actor:
        ticks = actor()
        pauses(ticks)
        with pause_closed(conn):
            ticked = ticks.start(reap)
            ticks.wait_until_parked()
            assert len(direct.claim(QUEUE, *node)) == 1
        ticked.result(TIMEOUT)
    assert gang(direct, gang_id)["state"] == "earmarked"
    assert broken(direct) == []


def test_a_claim_beside_a_tick_that_gives_the_room(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    node, gang_id = with_room(conn, direct)
    with interleave(dsn, SHORT) as actor:
        ticks = actor()
        ticks.begin()
        reap(ticks.direct)
        assert direct.claim(QUEUE, *node) == []
        ticks.commit()
    assert gang(direct, gang_id)["state"] == "reserved"
    assert broken(direct) == []
