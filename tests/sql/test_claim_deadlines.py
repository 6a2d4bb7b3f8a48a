"""Leases past their deadline are not granted, whichever way a claim finds them."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)
CAPACITY = {"cpu_milli": 1_000_000}


def accustomed(api: Api, queue: str, node: Node, tasks: list[str]) -> None:
    """Let the node claim leases of all these tasks: each is a class that it then knows."""
    for _ in range(4):
        for task in tasks:
            api.spawn(queue, task)
        claims = api.claim(node, queue, qty=len(tasks))
        assert len(claims) == len(tasks)
        api.complete(*claims)


@pytest.mark.parametrize("qty", [1, 5])
@pytest.mark.parametrize("spec", [{}, {"capacity": CAPACITY}], ids=["uncounted", "counted"])
@pytest.mark.parametrize("classes", [1, 2, 65, 201])
def test_of_classes_that_the_node_knows(api: Api, clock: Clock, classes: int, spec: Row, qty: int) -> None:
    """At the head of the queue, however many classes the node may run."""
    queue, node = api.queue(tuning={"window_size": 10_000}), api.node(**spec)
    tasks = [f"task-{number}" for number in range(classes)]
    accustomed(api, queue, node, tasks)
    late = api.spawn(queue, tasks[0], deadline=(clock.now() + MINUTE).isoformat())
    good = api.spawn(queue, tasks[-1])
    clock.advance(MINUTE)
    assert api.claimed(node, queue, qty=qty) == [good]
    assert api.claimed(node, queue, qty=qty) == []
    assert api.lease(late)["state"] != "claimed"


@pytest.mark.parametrize("classes", [1, 2])
def test_far_behind_the_head(api: Api, queue: str, node: Node, clock: Clock, classes: int) -> None:
    """Where the classes' oldest leases are looked up one class at a time."""
    tasks = [f"task-{number}" for number in range(classes)]
    accustomed(api, queue, node, tasks)
    other = api.queue()
    stopper = api.spawn(queue, "stopper", placement={"require": [{"tags": {"no": "where"}}]})
    fill = [{"task": "fill", "options": {}}] * 1000
    for _ in range(3):  # positions are of all queues: they lie between
        api.rows("spawn_leases", queue=other, leases=fill)
    api.spawn(queue, tasks[0], deadline=(clock.now() + MINUTE).isoformat())
    good = api.spawn(queue, tasks[-1])
    clock.advance(MINUTE)
    assert api.claimed(node, queue) == [good]
    assert api.claimed(node, queue) == []
    assert api.state(stopper) == "pending"


def test_behind_a_lease_that_waits_for_a_better_node(api: Api, clock: Clock) -> None:
    """Of two behind it that have waited long enough, the older one is too late."""
    queue = api.queue(patience=60)
    api.node(labels={"zone": "a"}, heartbeat_timeout=3600)
    worse = api.node(labels={"zone": "b"}, heartbeat_timeout=3600)
    placement = {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}]}
    deadline = (clock.now() + timedelta(seconds=70)).isoformat()
    late = api.spawn(queue, priority=1, placement=placement, deadline=deadline)
    good = api.spawn(queue, priority=1, placement=placement)
    clock.advance(timedelta(seconds=70))
    first = api.spawn(queue, priority=2, placement=placement)
    assert api.claimed(worse, queue) == [good]
    assert api.claimed(worse, queue) == []
    assert api.state(first) == "pending"
    assert api.state(late) in ("pending", "failed")
