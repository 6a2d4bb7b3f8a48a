"""What operators ask over HTTP: why, what if, how much; and metrics."""

from datetime import timedelta
from uuid import uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.server.conftest import V1, Http, ok, problem

WANTED = {"require": [{"tags": {"gpu_model": "A100"}}]}


@pytest.fixture
def stuck(sql: Client, queue: str) -> str:
    """A lease that no node may run, though one is there."""
    sql.register_node(uuid4(), NodeSpec(name=f"old-{queue}", instance_id="1", labels={"gpu_model": "T4"}))
    return str(sql.spawn_lease(queue, "draw", placement=WANTED).lease_id)


async def test_why_a_lease_waits(http: Http, stuck: str) -> None:
    why = ok(await http.get(f"{V1}/leases/{stuck}/explanation"))
    assert (why["lease_id"], why["state"], why["nodes_matching"]) == (stuck, "pending", 0)
    assert "gpu_model" in why["words"]
    assert why["headline"]
    assert why["nearest"][0]["reasons"]
    of_class = ok(await http.get(f"{V1}/classes/{why['class_id']}/explanation"))
    assert of_class["headline"] == why["headline"]
    assert [lease["lease_id"] for lease in of_class["leases"]] == [stuck]


async def test_who_plans(http: Http, sql: Client, queue: str) -> None:
    nobody = ok(await http.get(f"{V1}/planner"))
    assert (nobody["holder"], nobody["bound"], nobody["prices"]) == (None, None, [])
    epoch = sql.lead_planner("me")
    assert epoch is not None
    minute = timedelta(minutes=1)
    sql.set_prices(queue, [0.5] * 101, ttl=minute, round=1, epoch=epoch)
    sql.note_room(gpus=8, allocated=2.5, bound=6, ttl=minute, round=1, epoch=epoch)
    try:
        found = ok(await http.get(f"{V1}/planner"))
        assert (found["holder"], found["epoch"], found["bound"]) == ("me", epoch, 6)
        assert [prices["queue"] for prices in found["prices"]] == [queue]
    finally:
        sql.lead_planner("me", ttl=timedelta())


async def test_what_would_help(http: Http, queue: str, stuck: str) -> None:
    body = {"nodes": [{"labels": {"gpu_model": "A100"}, "count": 2}]}
    served = ok(await http.post(f"{V1}/what-if", json=body))["items"]
    [found] = [each for each in served if each["queue"] == queue]
    assert (found["pending"], found["is_served_already"]) == (1, False)
    other = {"nodes": [{"labels": {"gpu_model": "T4"}}]}
    served = ok(await http.post(f"{V1}/what-if", json=other))["items"]
    assert queue not in {each["queue"] for each in served}
    problem(await http.post(f"{V1}/what-if", json={"nodes": [{"labels": 1}]}), 422, "QHA01")
    problem(await http.post(f"{V1}/what-if", json={"nodes": []}), 422, "QHA01")


async def test_pending_by_class(http: Http, queue: str, stuck: str) -> None:
    [row] = ok(await http.get(f"{V1}/pending", params={"queue": queue}))["items"]
    assert (row["pending"], row["nodes_matching"], row["nodes_free"]) == (1, 0, 0)
    assert "gpu_model" in row["words"]
    kinds = {"no_match": 1, "contended": 0}
    for kind, count in kinds.items():
        params = {"queue": queue, "kind": kind}
        assert len(ok(await http.get(f"{V1}/pending", params=params))["items"]) == count
    [depth] = ok(await http.get(f"{V1}/queue-depth", params={"queue": queue}))["items"]
    assert (depth["queue"], depth["pending"], depth["running"]) == (queue, 1, 0)
    problem(await http.get(f"{V1}/pending", params={"queue": "nowhere"}), 404, "QHQ01")


async def test_nodes_and_labels(http: Http, stuck: str, queue: str) -> None:
    rows = ok(await http.get(f"{V1}/node-usage", params={"state": "live", "limit": 500}))["items"]
    [row] = [row for row in rows if row["node_name"] == f"old-{queue}"]
    assert (row["state"], row["claims"], row["gpus"]) == ("live", 0, 0)
    response = await http.get(f"{V1}/node-usage", params={"limit": 1})
    assert len(ok(response)["items"]) == 1
    values = ok(await http.get(f"{V1}/labels", params={"label": "gpu_model"}))["items"]
    assert "T4" in {row["value"] for row in values}


async def test_the_life_of_a_lease(http: Http, stuck: str) -> None:
    steps = ok(await http.get(f"{V1}/leases/{stuck}/history"))["items"]
    assert [step["event"] for step in steps][:1] == ["spawned"]
    assert all(step["lasted"] is None or step["lasted"] >= 0 for step in steps)


async def test_throughput(http: Http, queue: str) -> None:
    rows = ok(await http.get(f"{V1}/throughput", params={"queue": queue, "minutes": 3}))["items"]
    assert all(row["completed"] == 0 for row in rows)
    problem(await http.get(f"{V1}/throughput", params={"minutes": 0}), 422, "QHA01")


async def test_metrics(http: Http, queue: str, stuck: str) -> None:
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "\nhwqueue_up 1.0\n" in response.text
    assert queue in response.text
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = await http.get("/metrics", headers=openmetrics)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    for version in ("x", "", "9.9.9", "1.0.0; escaping=x"):
        accept = {"Accept": f"application/openmetrics-text; version={version}"}
        response = await http.get("/metrics", headers=accept)
        assert response.status_code == 200, version
        assert "hwqueue_up 1" in response.text
