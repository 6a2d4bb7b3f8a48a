"""Numbers too small for a double are rounded when they come in; what reads them later goes on."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import Api, Node, raw, token

pytestmark = pytest.mark.thorough

TINY = ["1e-400", "1e-320", "1e-7"]

tiny = pytest.mark.parametrize("number", TINY)


def spawn(api: Api, queue: str, options: str) -> Any:
    """Spawn a lease with options as they are written; its id."""
    return api.row("spawn_lease", queue=queue, task=TASK, options=raw(options))["lease_id"]


@tiny
@pytest.mark.parametrize("key", ["jitter", "base", "max"])
@pytest.mark.parametrize("end", ["fail_lease", "fail_lease of the queue", "reap", "register_node"])
def test_retry(api: Api, clock: Clock, number: str, key: str, end: str) -> None:
    """The attempt ends, whoever ends it, and the lease is tried again."""
    queue, node = api.queue(claim_timeout=60), api.node()
    retry = f'{{"retry": {{"kind": "fixed", "{key}": {number}}}}}'
    if end.endswith("queue"):
        api.rows("set_queue_policy", queue=queue, policy=raw(retry))
    lease = spawn(api, queue, "{}" if end.endswith("queue") else retry)
    [claim] = api.claim(node, queue)
    if end == "reap":
        clock.advance(timedelta(hours=1))
        assert api.row("reap")["expired"] >= 1
    elif end == "register_node":
        node = api.node(node.node_id, name=node.name, instance_id="second")
    else:
        assert api.value("fail_lease", **token(claim), error={}) in ("pending", "scheduled")
    clock.advance(timedelta(hours=1))
    assert api.claimed(node, queue) == [lease]


@tiny
@pytest.mark.parametrize("weight", ["affinity", "fit", "spread"])
def test_weights(api: Api, number: str, weight: str) -> None:
    queue, node = api.queue(), api.node(labels={"zone": "a"}, capacity={"cpu_milli": 1000})
    policy = raw(f'{{"tuning": {{"weight_{weight}": {number}}}}}')
    api.rows("set_queue_policy", queue=queue, policy=policy)
    lease = api.spawn(queue, placement={"prefer": [{"when": {"tags": {"zone": "a"}}}]})
    assert api.claimed(node, queue) == [lease]


@tiny
def test_delay(api: Api, queue: str, node: Node, number: str) -> None:
    lease = spawn(api, queue, f'{{"delay": {number}}}')
    assert api.claimed(node, queue) == [lease]
    batch = raw(f'[{{"task": "t", "options": {{"delay": {number}}}}}]')
    [row] = api.rows("spawn_leases", queue=queue, leases=batch)
    assert api.claimed(node, queue) == [row["lease_id"]]


@pytest.mark.parametrize("number", [*TINY, "1e-6", '"1 microsecond"'])
def test_ageing_step(api: Api, queue: str, node: Node, number: str) -> None:
    """A step of one microsecond is the least; less is none."""
    api.rows("set_queue_policy", queue=queue, policy=raw(f'{{"ageing_step": {number}}}'))
    leases = [api.spawn(queue, priority=priority) for priority in (1, 0)]
    assert api.claimed(node, queue, qty=2) == leases
    api.rows("release_lease", **token(api.running(queue, node)))


@tiny
@pytest.mark.parametrize("key", ["claim_timeout", "poll_interval"])
def test_spans_that_cannot_be_none(api: Api, number: str, key: str) -> None:
    policy = raw(f'{{"{key}": {number}}}')
    assert api.fault("set_queue_policy", queue=api.queue(), policy=policy) == f"policy.{key}"
