"""adopt_lease: work that runs already is recorded and counts like any claim."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import NOBODY, Api, Node, token

pytestmark = pytest.mark.thorough

GPU = [str(uuid4()) for _ in range(3)]
DEVICES = [{"resource_id": gpu, "model": "T4"} for gpu in GPU]


def adopt(api: Api, queue: str, node: Node, **options: Any) -> Row:
    """Adopt work on the node; the row."""
    return api.row("adopt_lease", queue=queue, node=node.node_id, task=TASK, options=options)


def test_it_is_a_claim(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    claim = adopt(api, queue, node, labels={"app": "old"})
    lease = api.lease(claim["lease_id"])
    expected = {"state": "claimed", "attempt": 1, "node_id": node.node_id}
    expected |= {"expires_at": clock.now() + timedelta(seconds=60), "labels": {"app": "old"}}
    assert lease.items() >= expected.items()
    assert api.verdicts(node, claim) == ["ok"]
    assert api.value("complete_lease", **token(claim), result=1) == "completed"
    queue = api.queue(retry={"kind": "fixed", "base": 0})
    claim = adopt(api, queue, node)  # failed it is tried elsewhere
    api.rows("fail_lease", **token(claim), error={})
    [again] = api.claim(api.node(), queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)
    assert again["claim_token"] > claim["claim_token"]


def test_no_filter_and_no_room_check(api: Api) -> None:
    """It runs there, whatever the rules say; nothing else gets in meanwhile."""
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    api.rows("cordon_node", node=node.node_id)
    placement = {"require": [{"tags": {"zone": "a"}}], "resources": {"cpu_milli": 5000}}
    claim = adopt(api, queue, node, placement=placement)
    assert api.used(node)["used"]["cpu_milli"] == 5000
    api.rows("uncordon_node", node=node.node_id)
    waiting = api.needing(queue, cpu_milli=1)
    assert api.claim(node, queue) == []
    api.complete(claim)
    assert api.claimed(node, queue) == [waiting]


def test_the_devices_that_it_names(api: Api) -> None:
    """Else those with most left."""
    queue, node = api.queue(), api.node(gpus=DEVICES)
    needs = {"resources": {"gpu": 2}}
    claim = adopt(api, queue, node, placement=needs, gpus=[GPU[0], GPU[2]])
    assignment = api.lease(claim["lease_id"])["assignment"]
    assert [device["index"] for device in assignment["gpus"]] == [0, 2]
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [1000, 0, 1000]
    api.rows("release_lease", **token(claim))
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 0, 0]
    for expected in (0, 1, 2, 0):
        claim = adopt(api, queue, node, placement={"resources": {"gpu_milli": 600}})
        [device] = api.lease(claim["lease_id"])["assignment"]["gpus"]
        assert device["index"] == expected


@pytest.mark.parametrize("gpus", [[GPU[0]], [GPU[0], str(uuid4())], [*GPU], ["T4"], "T4", [GPU[0], None]])
def test_devices_that_cannot_be(api: Api, gpus: Any) -> None:
    """Two are asked for: other counts and devices of others are refused."""
    arguments = {
        "queue": api.queue(),
        "node": api.node(gpus=DEVICES).node_id,
        "task": TASK,
        "options": {"placement": {"resources": {"gpu": 2}}, "gpus": gpus},
    }
    field = api.refused("QHA01", "adopt_lease", **arguments).field
    assert field is not None
    assert field.startswith("options.gpus")


def test_a_key_records_it_once(api: Api, queue: str, node: Node) -> None:
    """The lease that waits by this key, if there is one."""
    lease = api.spawn(queue, idempotency_key="k", delay=60)
    assert adopt(api, queue, node, idempotency_key="k")["lease_id"] == lease
    assert api.state(lease) == "claimed"
    for key, known in (("k", lease), ("new", adopt(api, queue, node, idempotency_key="new")["lease_id"])):
        arguments = {"queue": queue, "node": node.node_id, "task": TASK, "options": {"idempotency_key": key}}
        assert api.refused("QHL07", "adopt_lease", **arguments).detail["lease_id"] == str(known)


def test_bad_arguments(api: Api, queue: str, node: Node) -> None:
    good: Row = {"queue": queue, "node": node.node_id, "task": TASK}
    assert api.refused("QHQ01", "adopt_lease", **good | {"queue": "nowhere"}).detail["queue"]
    assert api.refused("QHN01", "adopt_lease", **good | {"node": NOBODY}).detail["node_id"]
    assert api.fault("adopt_lease", **good | {"task": ""}) == "task"
    wrong: list[Any] = ["x", [], 7]
    for options in wrong:
        assert api.fault("adopt_lease", **good, options=options) == "options"
    refusal = api.refused("QHC03", "adopt_lease", **good, options={"placement": 7})
    assert refusal.field == "options.placement"
