"""A lease takes the place of another one while other sessions hold what it needs."""

from typing import Any
from uuid import uuid4

import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register, started
from tests.races.interleave import Actors
from tests.races.terms import ids

GPU = {"placement": {"resources": {"gpu": 1}}}


def running(direct: Direct) -> tuple[Node, dict[str, Any]]:
    """A node with a GPU, and the claim that has it."""
    node = register(direct, 1, gpus=[{"resource_id": str(uuid4())}])
    return node, started(direct, node, GPU)


def test_others_that_hold_the_node_or_the_lease(direct: Direct, actor: Actors) -> None:
    """Upkeep waits for nobody, and asks nobody to stop before it has the place."""
    node, claim = running(direct)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
    other = actor()
    for hold in (
        lambda: other.direct.claim(QUEUE, *node),
        lambda: other.direct.cancel(old),
        lambda: other.direct.update(new, {"priority": 1}),
    ):
        other.begin()
        hold()
        direct.reap()
        assert direct.lease(old)["stop_reason"] is None
        assert direct.lease(new)["state"] == "scheduled"
        other.rollback()
    direct.reap()
    assert direct.lease(old)["stop_reason"] == "cancelled"
    other.begin()
    other.direct.release(old, claim["claim_token"])
    direct.reap()
    assert other.direct.claim(QUEUE, *node) == []
    other.commit()
    direct.reap()
    assert ids(direct.claim(QUEUE, *node)) == [new]


@pytest.mark.parametrize("commits", [True, False])
def test_a_tick_that_is_open(direct: Direct, actor: Actors, commits: bool) -> None:
    """What it has booked nobody gets; what it rolls back was never there."""
    _, claim = running(direct)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
    ticks = actor().begin()
    ticks.direct.reap()
    assert ticks.direct.lease(old)["stop_reason"] == "cancelled"
    assert direct.lease(old)["stop_reason"] is None
    ticks.end(commits)
    assert direct.lease(new)["state"] == ("claimed" if commits else "scheduled")
