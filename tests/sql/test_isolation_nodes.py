"""What a node declares of isolation, and what becomes of its claims when it declares it anew."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.sql.api import Api
from tests.sql.isolation_support import (
    CPU,
    asking,
    assigned,
    core_use,
    cores,
    devices,
    held,
    isolating,
    run,
    why,
)

pytestmark = pytest.mark.thorough


ID = str(uuid4())
PART = {"resource_id": str(uuid4()), "parent_resource_id": ID}
BAD_CORES: list[tuple[str, Any]] = [
    ("", "all"),
    ("", [{"core": core} for core in range(4097)]),
    ("[0]", [0]),
    ("[0].core", [{}]),
    ("[0].core", [{"core": None}]),
    ("[0].core", [{"core": 0.5}]),
    ("[0].core", [{"core": "0"}]),
    ("[0].core", [{"core": 2**31}]),
    ("[1].numa", [{"core": 0}, {"core": 1, "numa": -1}]),
    ("[0].threads", [{"core": 0, "threads": []}]),
    ("[0].threads", [{"core": 0, "threads": 5}]),
    ("[0].threads", [{"core": 0, "threads": [None]}]),
    ("[0].threads", [{"core": 0, "threads": list(range(65))}]),
    ("[0].threads[1]", [{"core": 0, "threads": [0, -1]}]),
    ("[0].socket", [{"core": 0, "socket": 1}]),
    ("", [{"core": 0, "threads": [4]}, {"core": 0, "threads": [5]}]),
    ("", [{"core": 0}, {"core": 1, "threads": [1, 0]}]),
    ("", [{"core": 0, "threads": [3, 3]}]),
]
BAD: list[tuple[str, Row]] = [
    *((f"spec.cores{path}", {"cores": bad}) for path, bad in BAD_CORES),
    ("spec.cores", {"cpu_isolation": ["whole_core"]}),
    ("spec.cores", {"cpu_isolation": ["strict_isolated"], "cores": []}),
    ("spec.cpu_isolation", {"cpu_isolation": "whole_core", "cores": cores(1)}),
    ("spec.cpu_isolation", {"cpu_isolation": ["whole"], "cores": cores(1)}),
    ("spec.cpu_isolation", {"cpu_isolation": [None], "cores": cores(1)}),
    ("spec.gpu_exclusivity", {"gpu_exclusivity": ["whole_core"]}),
    ("spec.gpu_exclusivity", {"gpu_exclusivity": {"shared": True}}),
    ("spec.default_cpu_isolation", {"default_cpu_isolation": "whole_core"}),
    ("spec.default_cpu_isolation", {"default_cpu_isolation": "x", "cpu_isolation": CPU, "cores": cores(1)}),
    ("spec.gpu_share_mode", {"gpu_share_mode": "shared"}),
    ("spec.gpu_share_mode", {"gpu_share_mode": True}),
    ("spec.gpus[0].partitionable", {"gpus": [{"resource_id": ID, "partitionable": "yes"}]}),
    ("spec.gpus[1].parent_resource_id", {"gpus": [{"resource_id": ID}, PART]}),
    ("spec.gpus[0].parent_resource_id", {"gpus": [PART, PART | {"resource_id": ID}]}),
    ("spec.gpus[0].partitionable", {"gpus": [PART | {"partitionable": True}]}),
]


@pytest.mark.parametrize(("field", "spec"), BAD)
def test_bad_specs(api: Api, field: str, spec: Row) -> None:
    spec = {"name": "bad", "instance_id": "first"} | spec
    assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == field


def test_cores_in_full(api: Api) -> None:
    node = api.node(cores=[{"core": 7}, {"core": 2.0, "numa": 1, "threads": [9, 3]}])
    row = api.conn.execute("select cores, core_ids from hwqueue.node where node_id = %s", [node.node_id])
    assert row.fetchone() == (
        [{"core": 7, "numa": 0, "threads": [7]}, {"core": 2, "numa": 1, "threads": [9, 3]}],
        [],
    )


def test_a_node_that_says_nothing_keeps_its_profile(api: Api) -> None:
    """Best effort and shared are what every node offers: naming them is saying nothing."""
    plain = api.node(labels={"a": 1})
    same = api.node(
        labels={"a": 1},
        cores=cores(2),
        cpu_isolation=["best_effort"],
        gpu_exclusivity=["shared"],
        default_cpu_isolation="best_effort",
        gpu_share_mode="fractional",
    )
    other = isolating(api, 1, labels={"a": 1})
    query = "select profile_id from hwqueue.node where node_id = any (%s) order by registered_at"
    rows = api.conn.execute(query, [[plain.node_id, same.node_id]]).fetchall()
    assert len(set(rows)) == 1
    assert api.conn.execute(query, [[other.node_id]]).fetchall()[0] != rows[0]


def test_the_short_way_is_only_for_nodes_that_count_no_cores(api: Api) -> None:
    query = "select on_fast_path, has_limits from hwqueue.node_state where node_id = %s"
    for node, plain in ((api.node(cores=cores(2)), True), (isolating(api, 1), False)):
        assert api.conn.execute(query, [node.node_id]).fetchone() == (plain, not plain)


@pytest.mark.parametrize("cpu", CPU)
def test_what_is_not_honoured(api: Api, cpu: str) -> None:
    [other] = set(CPU) - {cpu}
    node = isolating(api, 2, cpu_isolation=[other])
    assert why(api, node, asking(cpu)) == {"no_node_supports_class": True}
    assert why(api, node, asking(other)) == {}


def again(api: Api, node: Any, **spec: Any) -> None:
    """The same instance says anew what the node is."""
    api.node(node.node_id, **{"name": node.name} | spec)


def test_fewer_cores_than_are_in_use(api: Api) -> None:
    """What is gone counts for nothing, what remains stays counted, and so does what comes back."""
    node = isolating(api, 4)
    first, second = (held(api, node, asking("whole_core", cpu_milli=2000)) for _ in range(2))
    again(api, node)
    assert core_use(api, node) == []
    again(api, node, cores=cores(3), cpu_isolation=CPU)
    assert core_use(api, node) == [1000, 1000, 1000]
    assert run(api, node, asking()) is None
    api.complete(second)
    assert core_use(api, node) == [1000, 1000, 0]
    again(api, node, cores=list(reversed(cores(5))), cpu_isolation=CPU)
    assert core_use(api, node) == [0, 0, 0, 1000, 1000]
    api.complete(first)
    assert core_use(api, node) == [0] * 5


def test_claims_from_before_cores_were_counted_keep_whole_ones_away(api: Api) -> None:
    """They are pinned to nothing and may be on any core."""
    node = api.node(slots=5)
    claims = [held(api, node, asking(cpu_milli=500)) for _ in range(2)]
    again(api, node, cores=cores(2), cpu_isolation=CPU)
    assert core_use(api, node) == [2, 2]
    assert run(api, node, asking("whole_core")) is None
    assert assigned(api, node, asking(cpu_milli=300))["cores"] == [0]
    api.complete(*claims)
    assert core_use(api, node) == [300, 0]
    assert assigned(api, node, asking("whole_core"))["cores"] == [1]


def test_a_new_default_changes_no_running_claim(api: Api) -> None:
    node = isolating(api, 3, capacity={"cpu_milli": 3000})
    claims = [held(api, node, asking(cpu_milli=400)), held(api, node, asking("whole_core"))]
    spec: Row = {"cores": cores(3), "cpu_isolation": CPU, "capacity": {"cpu_milli": 3000}}
    again(api, node, **spec, default_cpu_isolation="whole_core")
    assert core_use(api, node) == [400, 1000, 0]
    assert api.used(node)["used"]["cpu_milli"] == 1400
    assert assigned(api, node, asking(cpu_milli=1))["cores"] == [2]
    api.complete(*claims)
    assert core_use(api, node) == [0, 0, 1000]
    assert api.used(node)["used"]["cpu_milli"] == 1000


def test_fewer_devices_than_are_in_use(api: Api) -> None:
    gpus = devices(None, None, 1, 1)
    honoured = ["device_exclusive", "partition_exclusive"]
    node = api.node(gpus=gpus, gpu_exclusivity=honoured)
    part = held(api, node, asking(None, "partition_exclusive", gpu=1))
    whole = held(api, node, asking(None, "device_exclusive", gpu=1))
    # the whole one is gone, and so is the part that nobody uses
    again(api, node, gpus=gpus[1:3], gpu_exclusivity=honoured)
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 1000]
    assert run(api, node, asking(gpu=1)) is None
    api.complete(whole, part)
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 0]
    held(api, node, asking(gpu=1))
