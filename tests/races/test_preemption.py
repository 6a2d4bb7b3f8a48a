"""Preemption while nodes claim, victims go, and upkeep runs in two sessions that are killed."""

from concurrent.futures import Future
from functools import partial
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register, set_policy
from tests.races.interleave import TIMEOUT, Actor, Actors
from tests.races.test_gangs import spawn_gang

DEVICES = 2


def of(tenant: str, gpu: int = 1) -> Row:
    return {"tenant": tenant, "placement": {"resources": {"gpu": gpu}}}


def worked(direct: Direct, node: Node, chance: Random) -> None:
    """What a worker does: it gives up what was asked to stop, ends some of the rest, and claims."""
    held = direct.conn.execute(
        "select c.lease_id, c.claim_token, c.stop_reason from hwqueue.claim c"
        " where c.node_id = %s and c.is_reserved is null",
        [node[0]],
    ).fetchall()
    for lease, token, reason in held:
        if reason == "tier_preempted" and chance.random() < 0.7:
            direct.release(lease, token)
        elif chance.random() < 0.1:
            direct.complete(lease, token)
    direct.claim(QUEUE, *node, DEVICES)


def over(direct: Direct) -> list[Row]:
    """Nodes of which more is in use than they have, and claims of the first tier that were asked."""
    return direct.conn.execute(
        "select c.node_id::text from hwqueue.claim c where c.is_earmark is null group by c.node_id"
        " having sum(jsonb_array_length(c.assignment -> 'gpus')) > %s"
        " union all select c.lease_id::text from hwqueue.claim c join hwqueue.lease l using (lease_id)"
        " where l.tier = 0 and c.stop_reason = 'tier_preempted'",
        [DEVICES],
    ).fetchall()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_two_upkeeps_that_are_killed(direct: Direct, actor: Actors, seed: int) -> None:
    """All of the first tier is seated, alone and in gangs; nothing is ever over capacity."""
    chance = Random(seed)
    set_policy(direct, preempt={"after": 0, "grace": 30, "hold": 30}, retry={"kind": "none"})
    for tenant, tier in (("first", "guaranteed"), ("second", "best_effort"), ("third", "scavenger")):
        direct.rows("set_tenant", name=tenant, changes={"tier": tier})
    gpus = [[{"resource_id": str(uuid4())} for _ in range(DEVICES)] for _ in range(4)]
    nodes = [(actor(), register(direct, number, gpus=gpus[number])) for number in range(4)]
    upkeep = [actor(), actor()]
    wanted: set[UUID] = set()
    for turn in range(150):
        if turn < 30:
            later = [of(chance.choice(["second", "third"])) for _ in range(6)]
            direct.spawn_many(QUEUE, later)
            wanted.add(direct.spawn(QUEUE, of("first", chance.randint(1, DEVICES)))["lease_id"])
            if turn % 10 == 5:
                gang = spawn_gang(direct, chance.randint(2, 4), tenant="first")
                wanted |= {UUID(one["lease_id"]) for one in direct.row("get_gang", gang=gang)["members"]}
        calls = [one.start(partial(worked, node=node, chance=chance)) for one, node in nodes]
        ticks = [one.start(lambda direct: direct.rows("reap")) for one in upkeep]
        if chance.random() < 0.3:
            killed = chance.randrange(2)
            _kill(direct, upkeep[killed])
            ticks.pop(killed)
            upkeep[killed] = actor()
        started: list[Future[Any]] = [*calls, *ticks]
        for call in started:
            call.result(TIMEOUT)
        assert over(direct) == []
        if turn >= 30 and not _open(direct, wanted):
            break
    assert _open(direct, wanted) == []
    stops = direct.rows("list_events", filter={"code": "claim_stop_requested"}, limit=1000)
    assert stops


def _kill(direct: Direct, session: Actor) -> None:
    direct.conn.execute("select pg_terminate_backend(%s, 15000)", [session.conn.info.backend_pid])


def _open(direct: Direct, leases: set[UUID]) -> list[Row]:
    """Those that have not run."""
    return direct.conn.execute(
        "select l.lease_id from hwqueue.lease l left join hwqueue.claim c using (lease_id)"
        " where l.lease_id = any (%s) and (c.lease_id is null or c.is_reserved)"
        " and not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id)",
        [list(leases)],
    ).fetchall()
