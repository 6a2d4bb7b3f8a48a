"""Devices that leases have to themselves, and parts of devices."""

from uuid import UUID

import pytest

from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.isolation_support import GPU, asking, assigned, devices, held, run, why

pytestmark = pytest.mark.thorough

PART = "partition_exclusive"


def places(assignment: Row) -> list[int]:
    """Where the devices stand in the node's list."""
    return [device["index"] for device in assignment["gpus"]]


def split(api: Api, *parents: int | None) -> tuple[Node, list[str]]:
    """A node whose devices are whole ones and parts, honouring everything; the devices' ids."""
    gpus = devices(*parents)
    node = api.node(gpus=gpus, gpu_exclusivity=[*GPU, PART])
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
    assert why(api, node, asking(None, PART, gpu=1)) == {"nodes_support_but_contended": False}
    whole, _ = split(api, None, None)
    assert why(api, whole, asking(None, PART, gpu=1)) == {"insufficient_capacity": True}


def test_a_part_and_its_device_exclude_each_other(api: Api) -> None:
    node, _ = split(api, None, None, 0, 0)
    part = held(api, node, asking(None, PART, gpu=1))
    assert (places(part["assignment"]), part["assignment"]["gpu_exclusivity"]) == ([2], PART)
    whole = held(api, node, asking(gpu=1))
    assert places(whole["assignment"]) == [1]
    assert run(api, node, asking(gpu_milli=1)) is None
    assert places(assigned(api, node, asking(None, PART, gpu=1))) == [3]
    assert why(api, node, asking(None, "device_exclusive", gpu=1)) == {"nodes_support_but_contended": False}
    api.complete(part)
    assert run(api, node, asking(gpu=1)) is None, "one part is still in use"
    assert places(assigned(api, node, asking(None, PART, gpu=1))) == [2]


def test_parts_come_from_devices_that_are_broken_already(api: Api) -> None:
    node, _ = split(api, None, None, 0, 1, 1, 1)
    first = held(api, node, asking(None, PART, gpu=2))
    api.complete(first)
    for many, taken in ((1, [2]), (1, [3]), (2, [4, 5])):  # fewest parts left
        assert places(assigned(api, node, asking(None, PART, gpu=many))) == taken


def test_parts_of_a_device_that_nobody_may_have_whole(api: Api) -> None:
    """As of a GPU in MIG mode: its parts are listed, the device is not."""
    gpus = devices(None, 0, 0)[1:]
    node = api.node(gpus=gpus, gpu_exclusivity=[*GPU, PART])
    assert why(api, node, asking(gpu=1)) == {"insufficient_capacity": True}
    assert run(api, node, asking(None, PART, gpu=3)) is None
    assert [places(assigned(api, node, asking(None, PART, gpu=1))) for _ in gpus] == [[0], [1]]
    assert run(api, node, asking(None, PART, gpu=1)) is None
    again = api.node(node.node_id, name=node.name, gpus=gpus, gpu_exclusivity=[PART])
    assert run(api, again, asking(None, PART, gpu=1)) is None, "those that run keep theirs"


@pytest.mark.parametrize("gpu", [None, "shared", *GPU])
def test_a_part_by_name_is_only_for_partition_exclusive(api: Api, gpu: str | None) -> None:
    node, ids = split(api, None, 0)

    def named(asked: str | None, index: int) -> Row:
        return asking(None, asked, require=[{"resource": [ids[index]]}], gpu=1)

    for placement in (named(gpu, 1), named(PART, 0)):
        assert why(api, node, placement).items() >= {("class_conflicts_with_resource_id", True)}
    claim = held(api, node, named(PART, 1))
    assert places(claim["assignment"]) == [1]
    api.complete(claim)
    assert places(assigned(api, node, named(gpu, 0))) == [0]


@pytest.mark.parametrize("gpu", [*GPU, PART])
def test_what_is_not_honoured(api: Api, gpu: str) -> None:
    others = [other for other in (*GPU, PART) if other != gpu]
    node = api.node(gpus=devices(None, 0), gpu_exclusivity=others)
    found = why(api, node, asking(None, gpu, gpu=1))
    assert found == {"no_node_supports_class": True}


@pytest.mark.parametrize(
    ("parents", "gpu", "taken", "used"),
    [((None, None), GPU[0], 0, [1000, 400]), ((None, 0, None), PART, 1, [0, 1000, 400])],
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
