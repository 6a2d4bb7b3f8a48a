"""Gangs of earlier tiers that get the room of later ones."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api
from tests.sql.gangs import Gang, gpus, reap
from tests.sql.tiers import BEST_EFFORT, GUARANTEED, PREEMPT, SCAVENGER, asked, code, fill, fleet, of, release


@pytest.fixture(autouse=True)
def _fleet(api: Api) -> Iterator[None]:
    yield from fleet(api)


@pytest.fixture
def queue(api: Api) -> str:
    return api.queue(preempt=PREEMPT, retry={"kind": "none"})


def test_a_gang_is_seated_where_later_tiers_run(api: Api, clock: Clock, queue: str) -> None:
    """Not where as much would be free if nothing ran; all of its room is booked before anyone is asked."""
    theirs = [api.node(gpus=gpus(3), heartbeat_timeout=86_400) for _ in range(3)]
    ours = [api.node(gpus=gpus(3), heartbeat_timeout=86_400) for _ in range(2)]
    for node in theirs:
        fill(api, node, queue, *[GUARANTEED] * 3)
    claims = {node.name: fill(api, node, queue, *[SCAVENGER] * 3) for node in ours}
    ask = Gang(api, theirs + ours, 4, of(GUARANTEED), queue=queue)
    reap(api)
    assert (ask.now("state", "reason"), ask.on) == (("earmarked", "waits_for_preemption"), {*claims})
    stopped = {name: asked(api, *runs) for name, runs in claims.items()}
    assert sum(map(len, stopped.values())) == 4  # nobody in vain
    assert code(api, ask.leases[0]) == "waits_for_preemption"
    assert "4 leases of later tiers are asked to stop" in api.row("explain_gang", gang=ask.id)["headline"]
    release(api, *(claim for runs in stopped.values() for claim in runs))
    assert [api.claimed(node, queue, qty=9) for node in ours] == [[], []]
    assert [claim["lease_id"] in ask.leases for claim in ask.run()] == [True] * 4
    for node, (name, runs) in zip(ours, stopped.items(), strict=True):
        assert node.name == name
        assert all(api.state(claim["lease_id"]) == "pending" for claim in runs)


def test_a_gang_that_is_earmarked_moves_once_others_can_stop(api: Api, clock: Clock, queue: str) -> None:
    """It waited for its turn, for its policy and for one that has to go; else it keeps its room."""
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"after": 20, "most": 1}})
    first, second = (api.node(gpus=gpus(2), heartbeat_timeout=86_400) for _ in range(2))
    fill(api, first, queue, GUARANTEED, claim_timeout=86_400)
    wide = [
        api.running(queue, node, claim_timeout=86_400, **of(SCAVENGER, size))
        for node, size in ((first, 1), (second, 1), (second, 1))
    ]
    ask = Gang(api, [first, second], 2, of(GUARANTEED), queue=queue, together=["node"])
    reap(api)
    assert (ask.now("state", "reason"), asked(api, *wide)) == (("earmarked", None), [])
    clock.advance(timedelta(seconds=21))
    reap(api)
    assert (ask.on, asked(api, *wide)) == ({second.name}, wide[1:])
    narrow = api.queue(preempt={"after": 0, "most": 1})
    api.complete(wide[0])
    again = Gang(api, [first], 2, of(GUARANTEED), queue=narrow)
    reap(api)
    assert (again.state, asked(api, *wide)) == ("waiting", wide[1:])  # nobody there may be asked


@pytest.mark.parametrize(("tier", "passes"), [(BEST_EFFORT, False), (GUARANTEED, True)])
def test_only_an_earlier_tier_takes_the_room_of_a_gang(api: Api, queue: str, tier: str, passes: bool) -> None:
    """Neither a gang of the same tier that comes before it, nor a lease of it."""
    node = api.node(gpus=gpus(2))
    claims = fill(api, node, queue, SCAVENGER, SCAVENGER)
    ask = Gang(api, [node], 2, of(BEST_EFFORT), queue=queue)
    reap(api)
    assert asked(api, *claims) == claims
    other = Gang(api, [node], 2, {**of(tier), "priority": 9}, queue=queue)
    reap(api)
    assert (ask.state, other.state) == (("waiting", "earmarked") if passes else ("earmarked", "waiting"))
    if not passes:
        api.spawn(queue, priority=9, **of(tier, 2))
    release(api, *claims)
    assert api.claim(node, queue) == []
    reap(api)
    got = {claim["lease_id"] for claim in api.claim(node, queue, qty=9)}
    assert got == {*(other if passes else ask).leases}


def test_gangs_of_an_earlier_tier_come_first(api: Api, queue: str) -> None:
    """Whatever their priority, and they take back what is kept for a later one."""
    node = api.node(gpus=gpus(2))
    late = Gang(api, [node], 2, {**of(SCAVENGER), "priority": 9}, queue=queue)
    early = Gang(api, [node], 2, of(GUARANTEED), queue=queue)
    reap(api)
    assert (late.state, early.state) == ("earmarked", "reserved")


@pytest.mark.parametrize("away", [True, False])
def test_terms_of_a_gang_are_judged_without_those_that_go(api: Api, queue: str, away: bool) -> None:
    node = api.node(gpus=gpus(3), rack=1)
    goes = fill(api, node, queue, SCAVENGER, SCAVENGER, labels={"app": "db"})
    [stays] = fill(api, node, queue, GUARANTEED, labels={"app": "web" if away else "db"})
    term = {"leases": {"labels": {"app": "db"}}, "domain": "node", "away": True}
    member = of(GUARANTEED)
    member["placement"] = {**member["placement"], "require": [term]}
    ask = Gang(api, [node], 2, member, queue=queue)
    api.settle_terms()
    reap(api)
    assert asked(api, *goes, stays) == (goes if away else [])
    release(api, *asked(api, *goes))
    assert len(ask.run()) == (2 if away else 0)


def test_a_gang_moves_with_all_of_its_members(api: Api, dsn: str, clock: Clock, queue: str) -> None:
    """Or with none, while another session holds a node of one."""
    racks = [api.node(gpus=gpus(1), rack=rack, heartbeat_timeout=86_400) for rack in (1, 1, 2, 2)]
    for node in racks[:2]:
        fill(api, node, queue, GUARANTEED, claim_timeout=86_400)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {"enabled": False}})
    claims = [claim for node in racks[2:] for claim in fill(api, node, queue, GUARANTEED)]
    ask = Gang(api, racks, 2, of(BEST_EFFORT), queue=queue, together=["rack"])
    reap(api)
    assert ask.state == "earmarked"
    for claim in claims:
        api.complete(claim)
    late = [claim for node in racks[2:] for claim in fill(api, node, api.queue(), SCAVENGER)]
    api.rows("set_queue_policy", queue=queue, policy={"preempt": PREEMPT})
    held = next(node for node in racks if node.name in ask.on)
    with psycopg.connect(dsn) as other:
        other.execute("select from hwqueue.node_state where node_id = %s for update", [held.node_id])
        clock.advance(timedelta(seconds=20))
        reap(api)
        assert ask.on in ({racks[0].name, racks[1].name}, {racks[2].name, racks[3].name})
    assert len(asked(api, *late)) in (0, 2)


def test_what_leaves_already_is_booked(api: Api, queue: str) -> None:
    """For a gang that lost its earmarks meanwhile, and no one of its tier gets it."""
    node = api.node(gpus=gpus(2), heartbeat_timeout=86_400)
    claims = fill(api, node, queue, SCAVENGER, SCAVENGER)
    ask = Gang(api, [node], 2, of(GUARANTEED), queue=queue)
    reap(api)
    assert asked(api, *claims) == claims
    api.rows("cordon_node", node=node.node_id)
    reap(api)
    api.rows("uncordon_node", node=node.node_id)
    api.conn.execute("update hwqueue.gang set next_try_at = hwqueue.clock()")
    reap(api)
    assert ask.now("state", "reason") == ("earmarked", "waits_for_preemption")
    api.spawn(queue, priority=9, **of(GUARANTEED))
    release(api, *claims)
    assert api.claim(node, queue) == []
    assert {claim["lease_id"] for claim in ask.run()} == {*ask.leases}


def test_room_is_kept_until_those_that_were_asked_have_gone(api: Api, clock: Clock, queue: str) -> None:
    """However short earmark_time is: else they would stop in vain."""
    api.rows(
        "set_queue_policy",
        queue=queue,
        policy={"preempt": {"after": 0, "grace": 900}, "tuning": {"earmark_time": 60}},
    )
    node, other = (api.node(gpus=gpus(count), heartbeat_timeout=86_400) for count in (2, 1))
    claims = fill(api, node, queue, *[SCAVENGER] * 2, claim_timeout=86_400)
    claims += fill(api, other, queue, SCAVENGER, claim_timeout=86_400)
    ask = Gang(api, [node], 2, of(GUARANTEED), queue=queue, together=["node"])
    alone = api.spawn(queue, **of(GUARANTEED))
    for _ in range(12):
        reap(api)
        clock.advance(timedelta(seconds=60))
    assert asked(api, *claims) == claims
    release(api, *claims)
    reap(api)
    assert {*api.claimed(node, queue, qty=9), *api.claimed(other, queue, qty=9)} == {alone, *ask.leases}
