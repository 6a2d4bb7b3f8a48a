"""Two planners at once, and claims beside them: who was replaced writes nothing, nobody waits."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet
from tests.races.test_gangs import gang, gpu_nodes, reap, spawn_gang

Pair = tuple[Actor, Actor]
NO_TIME = timedelta(0)


def lead(actor: Actor, holder: str, ttl: timedelta = timedelta(minutes=1)) -> int | None:
    epoch: int | None = actor.direct.value("lead_planner", holder=holder, ttl=ttl)
    return epoch


def write(actor: Actor, epoch: int | None, number: int, worth: float = 0.5) -> str:
    verdict = actor.direct.value(
        "set_prices",
        queue=QUEUE,
        prices=Jsonb({"device_worth": [worth] * 101}),
        ttl=timedelta(minutes=1),
        round=number,
        epoch=epoch,
    )
    assert isinstance(verdict, str)
    return verdict


def worths(direct: Direct) -> list[tuple[int, int, float]]:
    """Epoch, round and worth of the prices that are kept."""
    return direct.conn.execute(
        "select epoch::int, round::int, device_worth[1] from hwqueue.queue_price order by 1, 2"
    ).fetchall()


@pytest.fixture
def planners(actor: Actors) -> Pair:
    """Two sessions, in a queue without prices."""
    return actor(), actor()


def test_a_write_beside_a_change_of_leaders(direct: Direct, planners: Pair) -> None:
    """It is refused at once while the other's lead is not committed, and for good once it is."""
    one, two = planners
    epoch = lead(one, "one", NO_TIME)
    assert write(one, epoch, 1, 0.1) == "set"
    two.begin()
    later = lead(two, "two")
    assert (epoch, later) == (1, 2)
    assert write(one, epoch, 2, 0.2) == "busy"
    two.commit()
    assert write(one, epoch, 3, 0.3) == "deposed"
    assert worths(direct) == [(1, 1, 0.1)]
    assert write(two, later, 1, 0.4) == "set"
    assert worths(direct) == [(2, 1, 0.4)]


def test_a_change_of_leaders_beside_a_write(direct: Direct, planners: Pair) -> None:
    """Nobody takes the lead while a write is open; then the write counts, until the next one."""
    one, two = planners
    epoch = lead(one, "one", NO_TIME)
    one.begin()
    assert write(one, epoch, 1, 0.1) == "set"
    assert lead(two, "two") is None
    one.commit()
    assert lead(two, "two") == 2
    assert write(one, epoch, 2, 0.2) == "deposed"
    assert worths(direct) == [(1, 1, 0.1)]


def test_two_that_are_the_first(meet: Meet) -> None:
    epoch, waiting = meet(
        lambda d: d.value("lead_planner", holder="one"), lambda d: d.value("lead_planner", holder="two")
    )
    assert (epoch, waiting.result(TIMEOUT)) == (1, None)


def test_claims_wait_for_no_planner(direct: Direct, planners: Pair) -> None:
    """Not even where the prices are a queue's first ones, and those that are not committed."""
    one, two = planners
    node = register(direct, 1, gpus=[{"resource_id": str(uuid4())}])
    for _ in range(2):
        direct.spawn(QUEUE, {"placement": {"resources": {"gpu_milli": 300}}})
    one.begin()
    assert write(one, lead(one, "one"), 1) == "set"
    [before] = two.direct.claim(QUEUE, *node)
    one.commit()
    [after] = two.direct.claim(QUEUE, *node)
    # own fit, and 42 for each device gained: 0.3, as no room is worth more than other
    own = {True: 17.5 + 0.35 * 0.3, False: 17.5 + 0.35 * 0.6}
    assert before["score"] == pytest.approx(own[True])
    assert after["score"] == pytest.approx(own[False] + 42 * 0.3)


def propose(actor: Actor, gang_id: UUID, epoch: int | None, number: int = 1) -> str:
    verdict = actor.direct.value("reserve_gang", gang=gang_id, place="", round=number, epoch=epoch)
    assert isinstance(verdict, str)
    return verdict


def test_an_old_leader_that_proposes_late(direct: Direct, planners: Pair) -> None:
    """Refused at once while the other's lead is not committed, and for good once it is."""
    one, two = planners
    gpu_nodes(direct, 2)
    gang_id = spawn_gang(direct, 2)
    epoch = lead(one, "one", NO_TIME)
    two.begin()
    later = lead(two, "two")
    assert propose(one, gang_id, epoch) == "busy"
    two.commit()
    assert propose(one, gang_id, epoch) == "deposed"
    assert gang(direct, gang_id)["state"] == "waiting"
    assert propose(two, gang_id, later) == "reserved"
    assert propose(one, gang_id, epoch) == "deposed"
    assert gang(direct, gang_id)["state"] == "reserved"


def test_a_proposal_beside_a_tick(direct: Direct, planners: Pair) -> None:
    """Whichever is open, the other leaves the gang alone and waits for nobody."""
    one, two = planners
    gpu_nodes(direct, 4)
    first, second = spawn_gang(direct, 2), spawn_gang(direct, 2)
    epoch = lead(one, "one")
    one.begin()
    assert propose(one, first, epoch) == "reserved"
    reap(two.direct)
    assert gang(direct, second)["state"] == "reserved"
    assert gang(direct, first)["state"] == "waiting"
    one.commit()
    assert gang(direct, first)["state"] == "reserved"
    assert broken(direct) == []
    third = spawn_gang(direct, 2)
    two.begin()
    reap(two.direct, 1)
    assert propose(one, third, epoch) == "busy"
    two.commit()
    assert propose(one, third, epoch) in ("no_room", "not_waiting")


def assign(actor: Actor, lease: UUID, node: UUID) -> list[str]:
    rows = actor.direct.rows(
        "reserve_leases",
        places=[{"lease": str(lease), "node": str(node)}],
        hold=timedelta(seconds=3),
        round=1,
        epoch=lead(actor, "one"),
    )
    return [row["verdict"] for row in rows]


@pytest.mark.parametrize("commits", [True, False])
def test_a_reservation_that_upkeep_is_ending(
    direct: Direct, node: Node, planners: Pair, clock: Clock, commits: bool
) -> None:
    """Its node waits for nobody, and gets the lease once: as reserved, or from the line anew."""
    one, two = planners
    lease = direct.spawn(QUEUE)["lease_id"]
    assert assign(one, lease, node[0]) == ["reserved"]
    clock.advance(timedelta(minutes=1))
    one.begin()
    one.direct.reap()
    assert two.direct.claim(QUEUE, *node) == []
    one.end(commits)
    [claim] = two.direct.claim(QUEUE, *node)
    assert (claim["lease_id"], claim["attempt"]) == (lease, 1)
    assert claim["claim_token"] % 2 == commits  # that of a first claim is even
