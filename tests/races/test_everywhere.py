"""Everywhere tasks that several sessions want to give a node its lease at once."""

from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.patience import NO_BUDGET
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, Actors
from tests.races.test_gangs import reap


@pytest.fixture(autouse=True)
def _all_in_a_call(direct: Direct) -> None:
    """A reap looks at all nodes, however slow the machine is."""
    direct.conn.execute(NO_BUDGET)


def spawn(direct: Direct, **options: Any) -> UUID:
    row = direct.row("spawn_everywhere", queue=QUEUE, task="agent", options=Jsonb(options))
    found = row["everywhere_id"]
    assert isinstance(found, UUID)
    return found


def states(direct: Direct, everywhere: UUID) -> list[str]:
    leases = direct.row("get_everywhere", everywhere=everywhere)["leases"]
    return [lease["state"] for lease in leases]


@pytest.mark.parametrize("first", ["register", "spawn"])
def test_a_node_that_registers_while_it_is_spawned(direct: Direct, actor: Actors, first: str) -> None:
    """Neither sees the other: upkeep gives the node its lease, whoever commits first."""
    registers, spawns = actor().begin(), actor().begin()
    place = register(registers.direct)
    everywhere = spawn(spawns.direct)
    for session in (registers, spawns) if first == "register" else (spawns, registers):
        session.commit()
        reap(direct)
    assert states(direct, everywhere) == ["reserved"]
    assert len(direct.claim(QUEUE, *place, qty=9)) == 1
    assert len([r for r in direct.rows("list_leases") if r["finished_at"] is None]) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_two_reaps(direct: Direct, actor: Actors, commits: bool) -> None:
    nodes = [register(direct, number) for number in range(3)]
    everywhere = spawn(direct)
    ticks = actor().begin()
    ticks.direct.rows("reap")
    assert states(ticks.direct, everywhere) == ["reserved"] * 3
    reap(direct)
    assert states(direct, everywhere) == []
    ticks.end(commits)
    reap(direct)
    assert states(direct, everywhere) == ["reserved"] * 3
    assert [len(direct.claim(QUEUE, *node, qty=9)) for node in nodes] == [1, 1, 1]


def test_a_node_that_a_claim_holds_is_left_to_the_next_tick(direct: Direct, actor: Actors) -> None:
    held, other = register(direct, 0), register(direct, 1)
    claims = actor().begin()
    assert claims.direct.claim(QUEUE, *held) == []
    everywhere = spawn(direct)
    reap(direct)
    assert states(direct, everywhere) == ["reserved"]
    claims.commit()
    reap(direct)
    assert states(direct, everywhere) == ["reserved"] * 2
    assert [len(direct.claim(QUEUE, *node, qty=9)) for node in (held, other)] == [1, 1]


def test_a_new_instance_registers_while_upkeep_looks(direct: Direct, actor: Actors) -> None:
    """The node has exactly one, whichever of the two is first."""
    node, epoch = register(direct)
    everywhere = spawn(direct)
    reap(direct)
    [claim] = direct.claim(QUEUE, node, epoch)
    registers, ticks = actor().begin(), actor()
    again = registers.direct.register(node, node_spec(0, instance_id="second"))
    reap(ticks.direct)  # waits for nobody
    registers.commit()
    reap(ticks.direct)
    found = direct.claim(QUEUE, node, again, qty=9)
    assert [row["lease_id"] for row in found] == [claim["lease_id"]]
    assert states(direct, everywhere) == ["running"]


def test_it_is_stopped_while_a_node_gets_its_lease(direct: Direct, actor: Actors) -> None:
    """The stop waits for the first claim of a node, whose lease then goes on as any that runs."""
    everywhere = spawn(direct)
    place = register(direct)
    claims, stops = actor().begin(), actor()
    assert len(claims.direct.claim(QUEUE, *place)) == 1
    stop = stops.parked(lambda d: d.value("stop_everywhere", everywhere=everywhere))
    claims.commit()
    assert stop.result(TIMEOUT) == "stopping"
    reap(direct)
    assert states(direct, everywhere) == ["running"]
    assert direct.row("get_everywhere", everywhere=everywhere)["state"] == "stopping"


def test_a_node_registers_while_it_is_stopped(direct: Direct, actor: Actors) -> None:
    """The registration waits for nobody; when the stop is undone, upkeep gives it its lease."""
    everywhere = spawn(direct)
    registers, stops = actor(), actor().begin()
    stops.direct.value("stop_everywhere", everywhere=everywhere)
    place = register(registers.direct)
    assert registers.direct.claim(QUEUE, *place) == []
    stops.rollback()
    reap(direct)
    assert len(direct.claim(QUEUE, *place)) == 1


def test_a_lease_that_is_being_cancelled(direct: Direct, actor: Actors) -> None:
    """Upkeep passes over it; another one follows when it is gone."""
    place = register(direct, 0, gpus=[])
    everywhere = spawn(direct, mode="once")
    reap(direct)
    lease = UUID(direct.row("get_everywhere", everywhere=everywhere)["leases"][0]["lease_id"])
    cancels = actor().begin()
    cancels.direct.cancel(lease)
    direct.conn.execute("update hwqueue.everywhere_node set due_at = '-infinity'")
    reap(direct)
    cancels.commit()
    direct.conn.execute("update hwqueue.everywhere_node set due_at = '-infinity'")
    reap(direct)
    assert direct.claim(QUEUE, *place) == []
    assert states(direct, everywhere) == ["cancelled"]
