"""node_claims: what runs on a node and what is set aside for it."""

from datetime import timedelta
from uuid import uuid4

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import NOBODY, Api, token


def test_what_runs_the_oldest_first(api: Api, clock: Clock) -> None:
    gpu = {"resource_id": str(uuid4()), "model": "A100", "memory_mib": 81920}
    node = api.node(capacity={"cpu_milli": 8000}, gpus=[gpu])
    queue, other, service = api.queue(), api.node(), uuid4()
    first = api.running(queue, node, None, placement={"resources": {"gpu": 1}})
    clock.advance(timedelta(seconds=1))
    second = api.running(queue, node, None, tenant="acme", service_id=str(service))
    api.running(queue, other)
    rows = api.rows("node_claims", node=node.node_id)
    assert [row["lease_id"] for row in rows] == [first["lease_id"], second["lease_id"]]
    assert rows[0]["assignment"]["gpus"][0]["resource_id"] == gpu["resource_id"]
    assert (rows[1]["tenant"], rows[1]["service_id"]) == ("acme", service)
    assert {(row["queue"], row["task_name"]) for row in rows} == {(queue, TASK)}
    assert rows[0]["expires_at"] == first["expires_at"]
    assert rows[0]["claim_token"] == first["claim_token"]
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=1))
    rows = api.rows("node_claims", node=node.node_id)
    assert {row["stop_reason"] for row in rows} == {"preempted"}
    assert all(row["stop_by"] for row in rows)
    api.rows("complete_lease", **token(first))
    assert len(api.rows("node_claims", node=node.node_id)) == 1
    assert len(api.rows("node_claims", node=node.node_id, limit=1)) == 1


def test_nothing_runs_where_nobody_is(api: Api) -> None:
    assert api.rows("node_claims", node=NOBODY) == []


def test_how_many(api: Api) -> None:
    for wrong in (0, 10_001, None):
        assert api.refused("QHA01", "node_claims", node=NOBODY, limit=wrong).field == "p_limit"
