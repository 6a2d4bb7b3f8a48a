"""Preemption stops no more than it has to, never in vain, and nobody who is spared.

What other schedulers do wrong here, and which test shows that it cannot happen, is in
lab/known_failures.md.
"""

from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.gangs import GPU, gpus, reap
from tests.sql.tiers import (
    BEST_EFFORT,
    GUARANTEED,
    PREEMPT,
    SCAVENGER,
    TIERS,
    asked,
    code,
    fill,
    fleet,
    release,
)


@pytest.fixture(autouse=True)
def _fleet(api: Api) -> Iterator[None]:
    yield from fleet(api)


@pytest.fixture
def queue(api: Api) -> str:
    return api.queue(preempt=PREEMPT, retry={"kind": "none"})


def many(count: int, **placement: Any) -> Row:
    """Options of a lease that takes so many GPUs."""
    return {"placement": {"resources": {"gpu": count}, **placement}}


def test_one_is_needed_and_one_is_asked(api: Api, queue: str) -> None:
    """Of ten that would do; and where a large one is enough, none beside it."""
    node, wide = api.node(gpus=gpus(10)), api.node(gpus=gpus(4))
    api.rows("cordon_node", node=wide.node_id)
    claims = fill(api, node, queue, *[SCAVENGER] * 10)
    lease = api.spawn(queue, tenant=GUARANTEED, **many(1))
    reap(api)
    assert len(asked(api, *claims)) == 1
    api.rows("cancel_lease", lease=lease)
    api.rows("cordon_node", node=node.node_id)
    api.rows("uncordon_node", node=wide.node_id)
    api.running(queue, wide, tenant=GUARANTEED, **many(1))
    large = api.running(queue, wide, tenant=SCAVENGER, **many(2))
    small = api.running(queue, wide, tenant=SCAVENGER, **many(1))
    api.spawn(queue, tenant=GUARANTEED, **many(2))
    reap(api)
    assert asked(api, small, large) == [large]


def test_nobody_stops_on_a_node_that_does_not_suit(api: Api, queue: str) -> None:
    """Another model of GPU, or one that is kept for other tenants; however many run there."""
    others = [api.node(gpus=gpus(2), labels={"model": "L40S"}) for _ in range(3)]
    closed, node = (api.node(gpus=gpus(2), labels={"model": "H20"}) for _ in range(2))
    claims = [claim for each in (*others, closed) for claim in fill(api, each, queue, SCAVENGER, SCAVENGER)]
    api.rows("set_node_tenants", node=closed.node_id, tenants=[SCAVENGER])
    mine = fill(api, node, queue, BEST_EFFORT, BEST_EFFORT)
    api.spawn(queue, tenant=GUARANTEED, **many(1, require=[{"tags": {"model": "H20"}}]))
    reap(api)
    assert asked(api, *claims) == []
    assert len(asked(api, *mine)) == 1


def test_two_that_want_the_room_of_one(api: Api, queue: str) -> None:
    """One has it booked; the other stops nobody, and waits for what comes next."""
    node = api.node(gpus=gpus(1))
    [claim] = fill(api, node, queue, SCAVENGER)
    wanted = [api.spawn(queue, tenant=GUARANTEED, **GPU, labels={str(n): "n"}) for n in range(2)]
    reap(api)
    wanted.sort(key=lambda lease: code(api, lease) != "waits_for_preemption")
    assert code(api, wanted[1]) != "waits_for_preemption"
    assert api.one("select count(*) from hwqueue.claim where is_earmark") == 1
    release(api, claim)
    reap(api)
    [first] = api.claim(node, queue, qty=9)
    reap(api)
    assert first["lease_id"] == wanted[0]
    assert api.lease(first["lease_id"])["stop_reason"] is None
    api.complete(first)
    assert api.claimed(node, queue, qty=9) == wanted[1:]


def test_one_that_is_asked_still_has_its_room(api: Api, queue: str) -> None:
    """Who waits for two starts once the last has gone, and what the first leaves is nobody's meanwhile."""
    node = api.node(gpus=gpus(2))
    claims = fill(api, node, queue, SCAVENGER, SCAVENGER)
    lease = api.spawn(queue, tenant=GUARANTEED, **many(2))
    reap(api)
    assert asked(api, *claims) == claims
    api.spawn(queue, tenant=GUARANTEED, **many(1))
    for claim in claims:
        assert api.claimed(node, queue, qty=9) == []
        release(api, claim)
        reap(api)
    assert api.claimed(node, queue, qty=9) == [lease]


def test_who_stopped_for_another_stops_nobody_for_itself(api: Api, queue: str) -> None:
    """It waits behind it, and comes back when there is room, though its own retries are used up."""
    node = api.node(gpus=gpus(2))
    claims = fill(api, node, queue, BEST_EFFORT, BEST_EFFORT, max_attempts=1)
    wanted = [api.spawn(queue, tenant=GUARANTEED, **GPU) for _ in range(2)]
    reap(api)
    reap(api)
    release(api, *claims)
    reap(api)
    running = api.claim(node, queue, qty=9)
    assert {row["lease_id"] for row in running} == set(wanted)
    for _ in range(3):
        reap(api)
    assert [api.lease(row["lease_id"])["stop_reason"] for row in running] == [None, None]
    api.complete(*running)
    assert api.claimed(node, queue, qty=9) == [claim["lease_id"] for claim in claims]


def test_a_task_on_every_node_is_never_asked(api: Api, queue: str) -> None:
    """It would start again where it was; and a new node has it before anybody preempts there."""
    node = api.node(gpus=gpus(1))
    api.rows("spawn_everywhere", queue=queue, task="agent", options={"tenant": SCAVENGER, **GPU})
    reap(api)
    [agent] = api.claim(node, queue, qty=9)
    lease = api.spawn(queue, tenant=GUARANTEED, **GPU)
    reap(api)
    assert asked(api, agent) == []
    assert api.row("preview_preemption", lease=lease)["reason"] == "no_victims"
    other = api.node(gpus=gpus(1))
    reap(api)
    [second] = api.claim(other, queue, qty=9)
    assert second["task_name"] == "agent"


def previewed(api: Api, lease: UUID) -> tuple[str | None, set[str]]:
    """The node, and who would stop there."""
    found = api.row("preview_preemption", lease=lease)
    return found["node"], {victim["lease_id"] for victim in found["victims"] or []}


@pytest.mark.parametrize("seed", range(6))
def test_the_preview_names_those_who_are_asked(api: Api, queue: str, seed: int) -> None:
    """What finds them for people is what finds them for upkeep, in any fleet, and most bounds both."""
    chance = Random(seed)
    api.rows("set_queue_policy", queue=queue, policy={"preempt": {**PREEMPT, "most": chance.choice([1, 3])}})
    nodes: list[Node] = [api.node(gpus=gpus(4)) for _ in range(4)]
    claims: dict[str, Row] = {}
    for node in nodes:
        free = 4
        while free:
            size = chance.randint(1, free)
            claim = api.running(queue, node, tenant=chance.choice(TIERS), **many(size))
            claims[str(claim["lease_id"])] = claim
            free -= size
    lease = api.spawn(queue, tenant=GUARANTEED, **many(chance.choice([1, 2, 4])))
    node_name, victims = previewed(api, lease)
    with api.unchanged():
        previewed(api, lease)
    reap(api)
    assert {name for name, claim in claims.items() if asked(api, claim)} == victims
    assert (node_name is None) == (victims == set())
    for name in victims:
        api.rows("release_lease", **token(claims[name]))
    reap(api)
    granted = {node.name: api.claimed(node, queue) for node in nodes}
    assert [name for name, leases in granted.items() if lease in leases] == ([node_name] if node_name else [])
