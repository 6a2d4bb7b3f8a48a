"""list_nodes, node_claims, node_headroom and list_queues: what there is and what of it is in use."""

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import NOBODY, Api


def test_use_follows_the_claims(api: Api) -> None:
    gpu = {"resource_id": str(uuid4()), "model": "A100", "memory_mib": 81920}
    node = api.node(capacity={"cpu_milli": 8000, "memory_mib": 100, "license": 2}, gpus=[gpu], slots=3)
    idle = {"cpu_milli": 0, "memory_mib": 0}
    assert (api.used(node)["used"], api.used(node)["claims"]) == (idle, 0)
    needs = {"cpu_milli": 500, "memory_mib": 10, "license": 2, "gpu_milli": 250}
    claim = api.running(api.queue(), node, placement={"resources": needs})
    row = api.used(node)
    assert row["used"] == {"cpu_milli": 500, "memory_mib": 10, "license": 2}
    assert (row["gpus"], row["claims"]) == ([gpu | {"milli_used": 250}], 1)
    api.complete(claim)
    row = api.used(node)
    assert (row["used"], row["gpus"][0]["milli_used"], row["claims"]) == (idle, 0, 0)


def test_all_of_them_by_name_one_and_pages(api: Api) -> None:
    nodes = [api.node(name=f"zz-page-{letter}") for letter in "dbac"]
    listed = [row["name"] for row in api.rows("list_nodes")]
    assert {node.name for node in nodes} <= set(listed)
    assert listed == sorted(listed)
    assert api.row("list_nodes", node=nodes[0].node_id)["name"] == nodes[0].name
    assert api.rows("list_nodes", name="nobody") == api.rows("list_nodes", node=uuid4()) == []
    first = [row["name"] for row in api.rows("list_nodes", after="zz-page-", limit=3)]
    assert first == ["zz-page-a", "zz-page-b", "zz-page-c"]
    rest = [row["name"] for row in api.rows("list_nodes", after=first[-1], limit=3)]
    assert rest[0] == "zz-page-d"


def test_cores_and_isolation(api: Api) -> None:
    """Cores are counted where whole ones can be asked for, and else only told; a part names its device."""
    cores = [{"core": number, "numa": number // 2, "threads": [number]} for number in range(3)]
    assert api.used(api.node(cores=cores))["cores"] == cores
    whole, part = str(uuid4()), str(uuid4())
    gpus = [
        {"resource_id": whole, "model": "A100", "partitionable": True},
        {"resource_id": part, "model": "1g", "parent_resource_id": whole},
    ]
    isolation: Row = {"cpu_isolation": ["whole_core"], "default_cpu_isolation": "whole_core"}
    node = api.node(cores=cores, gpus=gpus, **isolation)
    api.running(api.queue(), node, placement={"resources": {"cpu_milli": 1500}})
    row = api.used(node)
    assert sorted(core["milli_used"] for core in row["cores"]) == [0, 1000, 1000]
    assert row["isolation"] == {
        "cpu": ["best_effort", "whole_core"],
        "gpu": ["shared"],
        "default_cpu": "whole_core",
        "gpu_share_mode": "fractional",
    }
    assert [gpu.get("parent_resource_id", "none") for gpu in row["gpus"]] == ["none", whole]


def test_what_runs_on_a_node_the_oldest_first(api: Api, clock: Clock) -> None:
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
    assert (rows[0]["expires_at"], rows[0]["claim_token"]) == (first["expires_at"], first["claim_token"])
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=1))
    rows = api.rows("node_claims", node=node.node_id)
    assert {row["stop_reason"] for row in rows} == {"preempted"}
    assert all(row["stop_by"] for row in rows)
    api.complete(first)
    assert len(api.rows("node_claims", node=node.node_id)) == 1
    assert len(api.rows("node_claims", node=node.node_id, limit=1)) == 1
    assert api.rows("node_claims", node=NOBODY) == []


_ROOM = """
  select r.gpu_free, r.gpu_sorted, r.gpu_total, r.gpu_most, r.gpu_whole
  from jsonb_populate_record(null::hwqueue.node, jsonb_build_object(
    'custom', '{}'::jsonb, 'gpu_ids', to_jsonb(%(ids)s::uuid[]), 'gpu_parents', '[]'::jsonb,
    'core_ids', '[]'::jsonb)) n
  cross join jsonb_populate_record(null::hwqueue.node_load, jsonb_build_object(
    'gpu_used', to_jsonb(%(used)s::int[]))) u
  cross join hwqueue.node_headroom(n, u) r
"""


USED = ([0], [1000], [0, 0, 0], [1000, 0, 1000, 0], [0, 1000, 1000], [250, 0, 1000, 0], [999, 1, 500])


@pytest.mark.parametrize("used", USED)
def test_headroom_of_devices(conn: psycopg.Connection, used: list[int]) -> None:
    free = [1000 - one for one in used]
    row = conn.execute(_ROOM, {"ids": [uuid4() for _ in used], "used": used}).fetchone()
    assert row == (free, sorted(free), sum(free), max(free), used.count(0))


def test_counts_of_queues(api: Api, queue: str) -> None:
    api.running(queue)
    api.spawn(queue)
    api.spawn(queue)
    api.spawn(queue, delay=60)
    empty = api.queue()
    api.rows("pause_queue", queue=empty)
    rows = {row["queue"]: row for row in api.rows("list_queues")}
    columns = ("paused", "pending", "scheduled", "claimed")
    assert [rows[queue][column] for column in columns] == [False, 2, 1, 1]
    assert [rows[empty][column] for column in columns] == [True, 0, 0, 0]
    assert list(rows) == sorted(rows)
