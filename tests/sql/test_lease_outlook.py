"""lease_outlook: what a worker's log says of leases that its node runs, or ran last."""

from datetime import timedelta
from uuid import uuid4

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, token


def outlook(api: Api, node: object, *leases: object) -> list[Row]:
    """The rows, without their ids."""
    rows = api.rows("lease_outlook", node=node, lease_ids=list(leases))
    return [{key: row[key] for key in row if key != "lease_id"} for row in rows]


def test_a_running_lease(api: Api) -> None:
    queue, node = api.queue(max_attempts=4), api.node(labels={"gpu": True})
    api.spawn(queue, max_attempts=2, affinity_tags={"gpu": True})
    [claim] = api.claim(node, queue)
    [row] = outlook(api, node.node_id, claim["lease_id"])
    assert (row["state"], row["max_attempts"], row["own_max_attempts"]) == ("claimed", 2, 2)
    assert row["again_in"] is None
    assert row["placement"] == {"require": [{"label": "gpu", "op": "in", "values": [True]}]}


def test_after_a_failure(api: Api, clock: Clock) -> None:
    queue = api.queue(max_attempts=2, retry={"kind": "fixed", "base": 30, "jitter": 0})
    node = api.node()
    claim = api.running(queue, node)
    api.rows("fail_lease", **token(claim), error={"message": "no"})
    clock.advance(timedelta(seconds=10))
    expected = {"state": "scheduled", "max_attempts": 2, "own_max_attempts": None, "placement": {}}
    [row] = outlook(api, node.node_id, claim["lease_id"])
    assert row == expected | {"again_in": timedelta(seconds=20)}


def test_leases_of_other_nodes_are_left_out(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    waiting = api.spawn(queue)
    assert outlook(api, api.node().node_id, claim["lease_id"], waiting, uuid4()) == []


def test_a_long_list_is_refused(api: Api) -> None:
    node = api.node().node_id
    for leases in (None, [uuid4()] * 1001):
        assert api.refused("QHA01", "lease_outlook", node=node, lease_ids=leases).field == "p_lease_ids"
