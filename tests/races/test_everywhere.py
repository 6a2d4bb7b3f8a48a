"""Everywhere tasks that several sessions want to give a node its lease at once."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.patience import NO_BUDGET
from tests.races.cluster import QUEUE, SHORT, node_spec, register
from tests.races.interleave import TIMEOUT, interleave


@pytest.fixture(autouse=True)
def _all_in_a_call(conn: psycopg.Connection) -> None:
    """A reap looks at all nodes, however slow the machine is."""
    conn.execute(NO_BUDGET)


def spawn(direct: Direct, **options: Any) -> UUID:
    """Spawn an everywhere task; its id."""
    row = direct.row("spawn_everywhere", queue=QUEUE, task="agent", options=Jsonb(options))
    found = row["everywhere_id"]
    assert isinstance(found, UUID)
    return found


def states(direct: Direct, everywhere: UUID) -> list[str]:
    leases = direct.row("get_everywhere", everywhere=everywhere)["leases"]
    return [lease["state"] for lease in leases]


def reap(direct: Direct, times: int = 3) -> None:
    for _ in range(times):
        direct.rows("reap")


def broken(direct: Direct) -> list[dict[str, Any]]:
    return direct.rows("verify_invariants")


def open_leases(direct: Direct) -> int:
    return len([r for r in direct.rows("list_leases") if r["finished_at"] is None])


@pytest.mark.parametrize("first", ["register", "spawn"])
def test_a_node_that_registers_while_it_is_spawned(conn: psycopg.Connection, dsn: str, first: str) -> None:
    """Neither sees the other: upkeep gives the node its lease, whoever commits first."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    with interleave(dsn, SHORT) as actor:
        registers, spawns = actor(), actor()
        registers.begin()
        spawns.begin()
        place = register(registers.conn)
        everywhere = spawn(spawns.direct)
        for session in (registers, spawns) if first == "register" else (spawns, registers):
            session.commit()
            reap(direct)
    assert states(direct, everywhere) == ["reserved"]
    assert len(direct.claim(QUEUE, *place, qty=9)) == 1
    assert open_leases(direct) == 1
    assert broken(direct) == []


@pytest.mark.parametrize("commits", [True, False])
def test_two_reaps(conn: psycopg.Connection, dsn: str, commits: bool) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = [register(conn, number) for number in range(3)]
    everywhere = spawn(direct)
    with interleave(dsn, SHORT) as actor:
        ticks = actor()
        ticks.begin()
        ticks.direct.rows("reap")
        assert states(ticks.direct, everywhere) == ["reserved"] * 3
        reap(direct)
        assert states(direct, everywhere) == []
        ticks.commit() if commits else ticks.rollback()
        reap(direct)
    assert states(direct, everywhere) == ["reserved"] * 3
    assert [len(direct.claim(QUEUE, *node, qty=9)) for node in nodes] == [1, 1, 1]
    assert broken(direct) == []


def test_a_node_that_a_claim_holds_is_left_to_the_next_tick(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    held, other = register(conn, 0), register(conn, 1)
    with interleave(dsn, SHORT) as actor:
        claims = actor()
        claims.begin()
        assert claims.direct.claim(QUEUE, *held) == []
        everywhere = spawn(direct)
        reap(direct)
        assert states(direct, everywhere) == ["reserved"]
        claims.commit()
        reap(direct)
    assert states(direct, everywhere) == ["reserved"] * 2
    assert [len(direct.claim(QUEUE, *node, qty=9)) for node in (held, other)] == [1, 1]


def test_a_new_instance_registers_while_upkeep_looks(conn: psycopg.Connection, dsn: str) -> None:
    """The node has exactly one, whichever of the two is first."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    everywhere = spawn(direct)
    reap(direct)
    [claim] = direct.claim(QUEUE, node, epoch)
    with interleave(dsn, SHORT) as actor:
        registers, ticks = actor(), actor()
        registers.begin()
        again = registers.direct.register(node, node_spec(0, instance_id="second"))
        reap(ticks.direct)  # waits for nobody
        registers.commit()
        reap(ticks.direct)
    found = direct.claim(QUEUE, node, again, qty=9)
    assert [row["lease_id"] for row in found] == [claim["lease_id"]]
    assert states(direct, everywhere) == ["running"]
    assert broken(direct) == []


def test_it_is_stopped_while_a_node_gets_its_lease(conn: psycopg.Connection, dsn: str) -> None:
    """The stop waits for the first claim of a node, whose lease then goes on as any that runs."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    everywhere = spawn(direct)
    with interleave(dsn) as actor:
        claims, stops = actor(), actor()
        place = register(conn)
        claims.begin()
        assert len(claims.direct.claim(QUEUE, *place)) == 1
        stop = stops.start(lambda d: d.value("stop_everywhere", everywhere=everywhere))
        stops.wait_until_parked()
        claims.commit()
        assert stop.result(TIMEOUT) == "stopping"
    reap(direct)
    assert states(direct, everywhere) == ["running"]
    assert direct.row("get_everywhere", everywhere=everywhere)["state"] == "stopping"
    assert broken(direct) == []


def test_a_node_registers_while_it_is_stopped(conn: psycopg.Connection, dsn: str) -> None:
    """The registration waits for nobody; when the stop is undone, upkeep gives it its lease."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    everywhere = spawn(direct)
    with interleave(dsn, SHORT) as actor:
        registers, stops = actor(), actor()
        stops.begin()
        stops.direct.value("stop_everywhere", everywhere=everywhere)
        place = register(registers.conn)
        assert registers.direct.claim(QUEUE, *place) == []
        stops.rollback()
    reap(direct)
    assert len(direct.claim(QUEUE, *place)) == 1


def test_a_lease_that_is_being_cancelled(conn: psycopg.Connection, dsn: str) -> None:
    """Upkeep passes over it; another one follows when it is gone."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    place = register(conn, 0, gpus=[])
    everywhere = spawn(direct, mode="once")
    reap(direct)
    lease = UUID(direct.row("get_everywhere", everywhere=everywhere)["leases"][0]["lease_id"])
    with interleave(dsn, SHORT) as actor:
        cancels = actor()
        cancels.begin()
        cancels.direct.cancel(lease)
        conn.execute("update hwqueue.everywhere_node set due_at = '-infinity'")
        reap(direct)
        cancels.commit()
    conn.execute("update hwqueue.everywhere_node set due_at = '-infinity'")
    reap(direct)
    assert direct.claim(QUEUE, *place) == []
    assert states(direct, everywhere) == ["cancelled"]
    assert broken(direct) == []
