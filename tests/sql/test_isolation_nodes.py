"""Isolation: what nodes honour, and devices that are shared, whole or parted."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.isolation_support import (
    CPU,
    GPU,
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


PARTITION = "partition_exclusive"


def places(assignment: Row) -> list[int]:
    """Where the devices stand in the node's list."""
    return [device["index"] for device in assignment["gpus"]]


def split(api: Api, *parents: int | None) -> tuple[Node, list[str]]:
    """A node whose devices are whole ones and parts, honouring everything; the devices' ids."""
    gpus = devices(*parents)
    node = api.node(gpus=gpus, gpu_exclusivity=[*GPU, PARTITION])
    return node, [gpu["resource_id"] for gpu in gpus]


@pytest.mark.parametrize("gpu", GPU)
def test_alone_on_a_device(api: Api, gpu: str) -> None:
    node = api.node(gpus=devices(None, None), gpu_exclusivity=GPU)
    held(api, node, asking(None, "shared", gpu_milli=300))
    alone = assigned(api, node, asking(None, gpu, gpu=1))
    assert (places(alone), alone["gpu_milli"], alone["gpu_exclusivity"]) == ([1], 1000, gpu)
    assert assigned(api, node, asking(gpu_milli=700)).keys() == {"gpu_milli", "gpus"}
    assert run(api, node, asking(gpu_milli=1)) is None, "a share entered an exclusive device"
    assert why(api, node, asking(None, gpu, gpu=1)) == {"nodes_support_but_contended": False}
    assert why(api, node, asking(gpu=1)) == {"insufficient_capacity": False}
    assert why(api, node, asking(None, gpu, gpu=3)) == {"insufficient_capacity": True}


def test_share_mode_exclusive(api: Api) -> None:
    """Whoever asks nothing has its device alone; who asks to share is refused for good."""
    node = api.node(gpus=devices(None, None), gpu_share_mode="exclusive")
    assert assigned(api, node, asking(gpu=1))["gpu_exclusivity"] == "device_exclusive"
    for placement in (asking(None, "shared", gpu=1), asking(gpu_milli=500)):
        assert why(api, node, placement) == {"class_conflicts_with_daemon_mode": True}
    assert why(api, node, asking(None, "device_exclusive", gpu=1)) == {"no_node_supports_class": True}
    held(api, node, asking(gpu=1))
    assert why(api, node, asking(gpu=1)) == {"nodes_support_but_contended": False}
    held(api, node, asking())


def test_a_node_that_changes_its_share_mode_is_judged_anew(api: Api) -> None:
    gpus, shared = devices(None), asking(None, "shared", gpu=1)
    node = api.node(gpus=gpus)
    api.rows("complete_lease", **token(held(api, node, shared)))
    api.node(node.node_id, name=node.name, gpus=gpus, gpu_share_mode="exclusive")
    assert run(api, node, shared) is None
    api.node(node.node_id, name=node.name, gpus=gpus)
    held(api, node, shared)


def test_parts_are_for_those_that_ask_for_parts(api: Api) -> None:
    node, _ = split(api, None, 0, 0)
    assert why(api, node, asking(gpu=2)) == {"insufficient_capacity": True}
    held(api, node, asking(gpu=1))
    assert run(api, node, asking(gpu_milli=1)) is None
    assert why(api, node, asking(None, PARTITION, gpu=1)) == {"nodes_support_but_contended": False}
    whole, _ = split(api, None, None)
    assert why(api, whole, asking(None, PARTITION, gpu=1)) == {"insufficient_capacity": True}


def test_a_part_and_its_device_exclude_each_other(api: Api) -> None:
    node, _ = split(api, None, None, 0, 0)
    part = held(api, node, asking(None, PARTITION, gpu=1))
    assert (places(part["assignment"]), part["assignment"]["gpu_exclusivity"]) == ([2], PARTITION)
    whole = held(api, node, asking(gpu=1))
    assert places(whole["assignment"]) == [1]
    assert run(api, node, asking(gpu_milli=1)) is None
    assert places(assigned(api, node, asking(None, PARTITION, gpu=1))) == [3]
    assert why(api, node, asking(None, "device_exclusive", gpu=1)) == {"nodes_support_but_contended": False}
    api.complete(part)
    assert run(api, node, asking(gpu=1)) is None, "one part is still in use"
    assert places(assigned(api, node, asking(None, PARTITION, gpu=1))) == [2]


def test_parts_come_from_devices_that_are_broken_already(api: Api) -> None:
    node, _ = split(api, None, None, 0, 1, 1, 1)
    first = held(api, node, asking(None, PARTITION, gpu=2))
    api.complete(first)
    for many, taken in ((1, [2]), (1, [3]), (2, [4, 5])):  # fewest parts left
        assert places(assigned(api, node, asking(None, PARTITION, gpu=many))) == taken


def test_parts_of_a_device_that_nobody_may_have_whole(api: Api) -> None:
    """As of a GPU in MIG mode: its parts are listed, the device is not."""
    gpus = devices(None, 0, 0)[1:]
    node = api.node(gpus=gpus, gpu_exclusivity=[*GPU, PARTITION])
    assert why(api, node, asking(gpu=1)) == {"insufficient_capacity": True}
    assert run(api, node, asking(None, PARTITION, gpu=3)) is None
    assert [places(assigned(api, node, asking(None, PARTITION, gpu=1))) for _ in gpus] == [[0], [1]]
    assert run(api, node, asking(None, PARTITION, gpu=1)) is None
    again = api.node(node.node_id, name=node.name, gpus=gpus, gpu_exclusivity=[PARTITION])
    assert run(api, again, asking(None, PARTITION, gpu=1)) is None, "those that run keep theirs"


@pytest.mark.parametrize("gpu", [None, "shared", *GPU])
def test_a_part_by_name_is_only_for_partition_exclusive(api: Api, gpu: str | None) -> None:
    node, ids = split(api, None, 0)

    def named(asked: str | None, index: int) -> Row:
        return asking(None, asked, require=[{"resource": [ids[index]]}], gpu=1)

    for placement in (named(gpu, 1), named(PARTITION, 0)):
        assert why(api, node, placement).items() >= {("class_conflicts_with_resource_id", True)}
    claim = held(api, node, named(PARTITION, 1))
    assert places(claim["assignment"]) == [1]
    api.complete(claim)
    assert places(assigned(api, node, named(gpu, 0))) == [0]


@pytest.mark.parametrize("gpu", [*GPU, PARTITION])
def test_exclusivity_that_is_not_honoured(api: Api, gpu: str) -> None:
    others = [other for other in (*GPU, PARTITION) if other != gpu]
    node = api.node(gpus=devices(None, 0), gpu_exclusivity=others)
    found = why(api, node, asking(None, gpu, gpu=1))
    assert found == {"no_node_supports_class": True}


@pytest.mark.parametrize(
    ("parents", "gpu", "taken", "used"),
    [((None, None), GPU[0], 0, [1000, 400]), ((None, 0, None), PARTITION, 1, [0, 1000, 400])],
    ids=["an exclusive device", "one of which a part is taken"],
)
def test_what_adopted_work_does_not_enter(
    api: Api, parents: tuple[int | None, ...], gpu: str, taken: int, used: list[int]
) -> None:
    node, ids = split(api, *parents)
    work = {"queue": api.queue(), "node": node.node_id, "task": "work"}
    assert places(assigned(api, node, asking(None, gpu, gpu=1))) == [taken]
    options = {"placement": {"resources": {"gpu_milli": 400}}}
    named = options | {"gpus": [ids[0]]}
    assert api.refused("QHA01", "adopt_lease", **work, options=named).field == "options.gpus"
    api.rows("adopt_lease", **work, options=options)
    assert [device["milli_used"] for device in api.used(node)["gpus"]] == used


def test_adopted_work_that_is_alone_finds_its_device_free(api: Api) -> None:
    node = api.node(gpus=devices(None), gpu_share_mode="exclusive")
    work = {"queue": api.queue(), "node": node.node_id, "task": "work"}
    work["options"] = {"placement": {"resources": {"gpu": 1}}}
    assert isinstance(api.row("adopt_lease", **work)["lease_id"], UUID)
    assert api.refused("QHA01", "adopt_lease", **work).field == "options.gpus"
