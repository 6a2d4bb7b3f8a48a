"""Gangs while other sessions claim, settle, or tick: room reserved, and room kept."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import broken
from tests.parking import parking
from tests.races.cluster import QUEUE, Node, register, set_policy
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import ids, paused


def gpu_nodes(direct: Direct, count: int) -> list[Node]:
    return [register(direct, n, gpus=[{"resource_id": str(uuid4())}]) for n in range(count)]


def spawn_gang(direct: Direct, count: int, **options: Any) -> UUID:
    """A gang whose members need a GPU each; its id."""
    options |= {"placement": {"resources": {"gpu": 1}}}
    member = {"task": "work", "count": count, "options": options}
    rows = direct.rows("spawn_gang", queue=QUEUE, members=Jsonb([member]))
    gang_id = rows[0]["gang_id"]
    assert isinstance(gang_id, UUID)
    return gang_id


def gang(direct: Direct, gang_id: UUID) -> Row:
    return direct.row("get_gang", gang=gang_id)


def reap(direct: Direct, times: int = 3) -> None:
    for _ in range(times):
        direct.rows("reap")


def look_again(direct: Direct) -> None:
    """Reap as after the back-off of all gangs."""
    direct.conn.execute("update hwqueue.gang set next_try_at = hwqueue.clock()")
    reap(direct)


def fetched(direct: Direct, nodes: Iterable[Node]) -> list[Row]:
    """What these nodes claim, one each."""
    return [claim for node in nodes for claim in direct.claim(QUEUE, *node)]


@pytest.mark.parametrize("then", ["reserved", "earmarked"])
def test_a_node_that_a_claim_holds(direct: Direct, actor: Actors, then: str) -> None:
    """The tick takes no part of the gang, and waits for nobody; the next one takes or keeps all of it."""
    if then == "reserved":
        nodes, gang_id = gpu_nodes(direct, 3), spawn_gang(direct, 3)
    else:
        nodes, _, gang_id = half_full(direct)
    claims = actor().begin()
    assert claims.direct.claim(QUEUE, *nodes[1]) == []
    reap(direct)
    found = gang(direct, gang_id)
    assert (found["state"], found["reason"]) == ("waiting", "busy")
    assert broken(direct) == []
    claims.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == then


@pytest.mark.parametrize("commits", [True, False])
def test_a_tick_that_is_open(direct: Direct, actor: Actors, commits: bool) -> None:
    """Nobody sees a part of what it has booked, and what it rolls back was never there."""
    nodes = gpu_nodes(direct, 2)
    gang_id = spawn_gang(direct, 2)
    ticks, other = actor().begin(), actor()
    ticks.direct.rows("reap")
    assert gang(ticks.direct, gang_id)["state"] == "reserved"
    reap(other.direct)
    assert gang(other.direct, gang_id)["state"] == "waiting"
    ticks.end(commits)
    if not commits:
        assert broken(direct) == []
        reap(other.direct)
    claimed = [claim for node in nodes for claim in other.direct.claim(QUEUE, *node)]
    assert len(claimed) == 2


def test_a_gang_that_is_spawned_and_left_open(direct: Direct, actor: Actors) -> None:
    """Claims, spawns and other gangs go on."""
    nodes = gpu_nodes(direct, 2)
    idle, other = actor().begin(), actor()
    spawn_gang(idle.direct, 2)
    lease = other.direct.spawn(QUEUE)["lease_id"]
    assert ids(other.direct.claim(QUEUE, *nodes[0])) == [lease]
    second = spawn_gang(other.direct, 2)
    reap(other.direct)
    assert gang(other.direct, second)["state"] == "reserved"
    idle.commit()


def test_two_gangs_and_room_for_one(direct: Direct) -> None:
    """The first holds all of it; the second holds nothing until the first has ended."""
    set_policy(direct, earmarks=0)
    nodes = gpu_nodes(direct, 3)
    first, second = spawn_gang(direct, 2), spawn_gang(direct, 2)
    reap(direct)
    assert [gang(direct, g)["state"] for g in (first, second)] == ["reserved", "waiting"]
    claims = fetched(direct, nodes)
    assert len(claims) == 2
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])
    look_again(direct)
    assert [gang(direct, g)["state"] for g in (first, second)] == ["completed", "reserved"]


def test_a_member_whose_settlement_is_open(direct: Direct, actor: Actors) -> None:
    """Another member fails: the tick passes over what is held, and comes back for it."""
    nodes = gpu_nodes(direct, 3)
    gang_id = spawn_gang(direct, 3)
    reap(direct)
    held, failing, third = fetched(direct, nodes)
    reap(direct)
    settles = actor().begin()
    settles.direct.complete(held["lease_id"], held["claim_token"])
    direct.fail(failing["lease_id"], failing["claim_token"])
    reap(direct)
    stops = [r["stop_reason"] for r in direct.rows("list_leases") if r["state"] == "claimed"]
    assert sorted(stops, key=str) == [None, "preempted"]
    assert gang(direct, gang_id)["state"] == "stopping"
    settles.commit()
    reap(direct)
    direct.release(third["lease_id"], third["claim_token"])
    look_again(direct)
    look_again(direct)
    again = fetched(direct, nodes)
    assert {c["lease_id"] for c in again} == {failing["lease_id"], third["lease_id"]}


@pytest.mark.parametrize("was", ["waiting", "earmarked"])
def test_a_member_that_is_being_cancelled(direct: Direct, actor: Actors, was: str) -> None:
    """Its entry is gone for the session that cancels: the gang gets no room without it."""
    if was == "waiting":
        gpu_nodes(direct, 3)
        gang_id = spawn_gang(direct, 3)
    else:
        _, claims, gang_id = half_full(direct)
        reap(direct)
        complete(direct, *claims)
    lease = UUID(gang(direct, gang_id)["members"][1]["lease_id"])
    cancels = actor().begin()
    cancels.direct.cancel(lease)
    reap(direct)
    found = gang(direct, gang_id)
    assert found["state"] == was
    assert was == "earmarked" or found["reason"] == "gang_incomplete"
    cancels.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "cancelled"


def test_an_operator_deregisters_a_node_that_has_a_reservation(direct: Direct) -> None:
    nodes = gpu_nodes(direct, 3)
    gang_id = spawn_gang(direct, 2)
    reap(direct)
    taken = [m["node_id"] for m in gang(direct, gang_id)["members"]]
    direct.deregister(UUID(taken[0]))
    look_again(direct)
    look_again(direct)
    left = [node for node in nodes if str(node[0]) != taken[0]]
    assert len(fetched(direct, left)) == 2


def test_a_claim_that_waits_until_its_reservation_is_over(
    direct: Direct, actor: Actors, clock: Clock
) -> None:
    """It gets what is reserved when it has its node, not when it began to wait."""
    nodes = gpu_nodes(direct, 2)
    gang_id = spawn_gang(direct, 2)
    reap(direct)
    assert gang(direct, gang_id)["state"] == "reserved"
    holder, worker = actor().begin(), actor()
    assert holder.direct.claim("other", *nodes[0]) == []
    claimed = worker.parked(lambda d: d.claim(QUEUE, *nodes[0]), behind=holder)
    clock.advance(timedelta(minutes=5))
    holder.commit()
    assert claimed.result(TIMEOUT) == []
    reap(direct)
    assert gang(direct, gang_id)["state"] == "waiting"


@pytest.mark.parametrize("end", ["terminated", "statement_timeout"])
def test_a_session_that_ends_in_the_middle_of_assembling(
    direct: Direct, actor: Actors, dsn: str, end: str
) -> None:
    """Its first member has room by then: nothing of that is kept, and others go on meanwhile."""
    nodes = gpu_nodes(direct, 3)
    other = register(direct, 3)
    ticks = actor()
    reap(ticks.direct)  # its plans are made
    gang_id = spawn_gang(direct, 3)
    if end == "statement_timeout":
        ticks.conn.execute("set statement_timeout = '1s'")
    with parking(dsn):
        tick = ticks.parked(lambda d: d.rows("reap"))
        lease = direct.spawn(QUEUE)["lease_id"]
        assert ids(direct.claim(QUEUE, *other)) == [lease]
        reap(direct)
        assert gang(direct, gang_id)["state"] == "waiting"
        if end == "terminated":
            direct.conn.execute("select pg_terminate_backend(%s)", [ticks.conn.info.backend_pid])
            with pytest.raises(psycopg.OperationalError):
                tick.result(TIMEOUT)
        else:  # the tick ends, and only this gang is undone
            tick.result(TIMEOUT)
            assert gang(direct, gang_id)["reason"] == "upkeep_postponed"
            direct.conn.execute("update hwqueue.postponed set next_try_at = now()")
            direct.conn.execute("update hwqueue.gang set next_try_at = hwqueue.clock()")
    assert (gang(direct, gang_id)["state"], broken(direct)) == ("waiting", [])
    reap(direct)
    assert len(fetched(direct, nodes)) == 3


def test_an_assembler_that_stops_after_its_commit(direct: Direct, actor: Actors) -> None:
    """Nobody ticks any more: the members are fetched, the barrier opens, and they complete."""
    nodes = gpu_nodes(direct, 2)
    gang_id = spawn_gang(direct, 2)
    reap(actor().direct, 1)
    claims = fetched(direct, nodes)
    for claim in claims:
        told = direct.row("gang_status", lease=claim["lease_id"], token=claim["claim_token"])
        assert told["ready"]
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])
    assert gang(direct, gang_id)["state"] == "completed"  # as its members are, before upkeep looks
    reap(direct)
    assert (gang(direct, gang_id)["state"], broken(direct)) == ("completed", [])


WHOLE: Row = {"placement": {"resources": {"gpu": 2}}}
HALF: Row = {"placement": {"resources": {"gpu": 1}}}


def half_full(direct: Direct, **options: object) -> tuple[list[Node], list[Row], UUID]:
    """Two nodes with a lease on one of their two GPUs, and a gang that needs all of both."""
    nodes = [register(direct, n, gpus=[{"resource_id": str(uuid4())} for _ in range(2)]) for n in range(2)]
    direct.spawn_many(QUEUE, [HALF | options] * 2)
    claims = [direct.claim(QUEUE, *node)[0] for node in nodes]
    members = Jsonb([{"task": "work", "count": 2, "options": WHOLE}])
    gang_id = direct.rows("spawn_gang", queue=QUEUE, members=members)[0]["gang_id"]
    return nodes, claims, gang_id


def complete(direct: Direct, *claims: Row) -> None:
    for claim in claims:
        direct.complete(claim["lease_id"], claim["claim_token"])


def test_two_ticks_and_claims_at_once(direct: Direct, actor: Actors) -> None:
    """A claim waits for the tick that books its node, and gets nothing; others pass by."""
    nodes, claims, gang_id = half_full(direct)
    direct.spawn_many(QUEUE, [HALF] * 2)
    ticks, other, worker = actor().begin(), actor(), actor()
    ticks.direct.rows("reap")
    assert gang(ticks.direct, gang_id)["state"] == "earmarked"
    reap(other.direct)
    assert gang(other.direct, gang_id)["state"] == "waiting"
    claimed = worker.parked(lambda d: d.claim(QUEUE, *nodes[0]))
    ticks.commit()
    assert claimed.result(TIMEOUT) == []
    complete(direct, *claims)
    assert [direct.claim(QUEUE, *node) for node in nodes] == [[], []]
    reap(direct)
    assert gang(direct, gang_id)["state"] == "reserved"


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_that_is_open(direct: Direct, actor: Actors, commits: bool) -> None:
    """The room is free once the end is committed; the tick does not wait for it."""
    _, claims, gang_id = half_full(direct)
    reap(direct)
    complete(direct, claims[0])
    settles = actor().begin()
    complete(settles.direct, claims[1])
    reap(direct)
    assert gang(direct, gang_id)["state"] == "earmarked"
    settles.end(commits)
    reap(direct)
    assert gang(direct, gang_id)["state"] == ("reserved" if commits else "earmarked")


def test_a_tick_backs_while_nodes_claim(direct: Direct, actor: Actors) -> None:
    """It needs no node: one that another session holds delays nobody."""
    nodes, claims, gang_id = half_full(direct)
    reap(direct)
    complete(direct, *claims)
    lease = direct.spawn(QUEUE)["lease_id"]
    worker, ticks = actor().begin(), actor()
    assert ids(worker.direct.claim(QUEUE, *nodes[0])) == [lease]
    ticks.begin()
    ticks.direct.rows("reap")
    assert gang(ticks.direct, gang_id)["state"] == "reserved"
    assert direct.claim(QUEUE, *nodes[1]) == []  # not backed yet for others
    ticks.commit()
    worker.commit()
    assert len(fetched(direct, nodes)) == 2


def with_room(direct: Direct) -> tuple[Node, UUID]:
    """A node with room for its earmark, which has waited for an earlier lease long enough; the gang."""
    nodes, claims, gang_id = half_full(direct)
    early = {"priority": 1, **HALF}
    direct.spawn(QUEUE, early)
    complete(direct, *direct.claim(QUEUE, *nodes[0]))  # its class is known
    reap(direct, 2)
    complete(direct, *claims)
    direct.spawn(QUEUE, early)
    yielded = "update hwqueue.claim set yields_at = hwqueue.clock() - interval '20 seconds'"
    direct.conn.execute(f"{yielded} where is_earmark")
    return nodes[0], gang_id


def test_a_tick_beside_a_claim_that_takes_the_room(direct: Direct, actor: Actors) -> None:
    node, gang_id = with_room(direct)
    worker = actor().begin()
    assert len(worker.direct.claim(QUEUE, *node)) == 1
    reap(direct)
    worker.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "earmarked"


def test_a_tick_that_saw_the_room_before_a_claim(direct: Direct, actor: Actors) -> None:
    """It looks once more when it holds what it gives."""
    node, gang_id = with_room(direct)
    ticks = actor()
    with paused(direct, ticks, reap, at=("back_earmarks", "v_claims := array(")) as ticked:
        assert len(direct.claim(QUEUE, *node)) == 1
    ticked.result(TIMEOUT)
    assert gang(direct, gang_id)["state"] == "earmarked"


def test_a_claim_beside_a_tick_that_gives_the_room(direct: Direct, actor: Actors) -> None:
    node, gang_id = with_room(direct)
    ticks = actor().begin()
    reap(ticks.direct)
    assert direct.claim(QUEUE, *node) == []
    ticks.commit()
    assert gang(direct, gang_id)["state"] == "reserved"
