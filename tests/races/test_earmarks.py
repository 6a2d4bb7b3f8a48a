"""Earmarks that are booked, backed and given up while other sessions hold what they need."""

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import ids, paused
from tests.races.test_gangs import fetched, gang, reap

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


def test_a_node_that_is_held_is_not_booked(direct: Direct, actor: Actors) -> None:
    nodes, _, gang_id = half_full(direct)
    worker = actor().begin()
    assert worker.direct.claim(QUEUE, *nodes[1]) == []
    reap(direct)
    found = gang(direct, gang_id)
    assert (found["state"], found["reason"]) == ("waiting", "busy")
    assert broken(direct) == []
    worker.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "earmarked"


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


def test_a_member_that_is_being_cancelled(direct: Direct, actor: Actors) -> None:
    """The gang is not backed without it."""
    _, claims, gang_id = half_full(direct)
    reap(direct)
    complete(direct, *claims)
    lease = UUID(gang(direct, gang_id)["members"][1]["lease_id"])
    cancels = actor().begin()
    cancels.direct.cancel(lease)
    reap(direct)
    assert gang(direct, gang_id)["state"] == "earmarked"
    cancels.commit()
    reap(direct)
    assert gang(direct, gang_id)["state"] == "cancelled"


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
