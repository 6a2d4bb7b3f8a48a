"""what_if: which pending classes nodes could run that are not there."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, raw
from tests.sql.explained import class_of, label
from tests.sql.isolation_support import CPU, devices

GPUS = [{"resource_id": str(uuid4()), "model": "A100"} for _ in range(4)]
CORES = [{"core": n, "numa": n // 3} for n in range(6)]


@pytest.fixture(autouse=True)
def _alone(api: Api) -> None:
    api.leave_all()
    for queue in api.rows("list_queues"):
        api.rows("drop_queue", queue=queue["queue"], force=True)


def asked(api: Api, nodes: Any) -> dict[int, Row]:
    return {row["class_id"]: row for row in api.rows("what_if", nodes=nodes)}


@pytest.mark.thorough
def test_classes_that_such_a_node_could_run(api: Api, queue: str, clock: Clock) -> None:
    wanted = {"require": [label("model", "A100")], "resources": {"gpu": 1}}
    first = api.spawn(queue, placement=wanted)
    clock.advance(timedelta(seconds=1))
    api.spawn(queue, placement=wanted)
    other = api.spawn(queue, placement={"require": [label("model", "T4")]})
    plain = api.spawn(queue)
    spec = {"labels": {"model": "A100"}, "gpus": GPUS}
    with api.unchanged():
        found = asked(api, [spec])
    assert set(found) == {class_of(api, first), class_of(api, plain)}
    row = found[class_of(api, first)]
    assert (row["queue"], row["words"]) == (queue, "model in A100, 1 GPU")
    assert (row["pending"], row["fits_at_once"]) == (2, 4)
    assert row["oldest_at"] == api.lease(first)["created_at"]
    assert row["is_served_already"] is False
    assert found[class_of(api, plain)]["fits_at_once"] is None
    assert class_of(api, other) in asked(api, {"labels": {"model": "T4"}})


def test_what_is_served_already(api: Api, queue: str, clock: Clock) -> None:
    """By a live node, large enough, that may run it; not where that takes too long to judge."""
    node = api.node(labels={"served": 1}, capacity={"cpu_milli": 1000}, heartbeat_timeout=45)
    here = {"label": "served", "op": "exists"}
    small = api.spawn(queue, placement={"require": [here], "resources": {"cpu_milli": 500}})
    large = api.spawn(queue, placement={"require": [here], "resources": {"cpu_milli": 5000}})
    named = api.spawn(queue, placement={"require": [here, {"node": str(node.node_id), "away": True}]})

    for number in range(90):
        pattern = f"(abcdefghijkl){{1,32}}|^2$|{number}x"
        slow = {"label": "served", "op": "regexp", "values": [pattern]}
        api.spawn(queue, placement={"require": [here, slow]})

    def served() -> list[bool]:
        found = asked(api, {"labels": {"served": "2"}, "capacity": {"cpu_milli": 8000}})
        judged = [found.pop(class_of(api, lease))["is_served_already"] for lease in (small, large, named)]
        assert [row["is_served_already"] for row in found.values()] == [False] * 90
        return judged

    assert served() == [True, False, False]
    api.rows("cordon_node", node=node.node_id)
    assert served() == [False, False, False]
    api.rows("uncordon_node", node=node.node_id)
    clock.advance(timedelta(seconds=50))
    assert served() == [False, False, False]


@pytest.mark.parametrize(
    ("spec", "placement"),
    [
        ({"capacity": {"cpu_milli": 4000}}, {"resources": {"cpu_milli": 1500}}),
        ({"capacity": {"memory_mib": 4000}}, {"resources": {"memory_mib": 1000}}),
        ({"capacity": {"license": 3}}, {"resources": {"license": 1}}),
        ({"slots": 3}, {}),
        ({"gpus": GPUS}, {"resources": {"gpu": 2}}),
        ({"gpus": GPUS[:2]}, {"resources": {"gpu_milli": 300}}),
        ({"gpus": GPUS[:2], "gpu_share_mode": "exclusive"}, {"resources": {"gpu": 1}}),
        (
            {"gpus": GPUS[:2]},
            {"require": [{"resource": GPUS[0]["resource_id"]}], "resources": {"gpu_milli": 300}},
        ),
        (
            {"gpus": devices(None, 0, 0, 0), "gpu_exclusivity": ["partition_exclusive"]},
            {"resources": {"gpu": 1}, "isolation": {"gpu": "partition_exclusive"}},
        ),
        *(
            (
                {"cores": CORES, "cpu_isolation": CPU},
                {"resources": {"cpu_milli": 1500}, "isolation": {"cpu": isolation}},
            )
            for isolation in CPU
        ),
        ({"cores": CORES[:2], "cpu_isolation": ["whole_core"]}, {"resources": {"cpu_milli": 600}}),
        (
            {"cores": CORES, "cpu_isolation": ["whole_core"], "default_cpu_isolation": "whole_core"},
            {"resources": {"cpu_milli": 1100}},
        ),
    ],
)
@pytest.mark.thorough
def test_it_takes_as_many_as_are_claimed(api: Api, queue: str, spec: Row, placement: Row) -> None:
    """The number is what such a node claims when it is there."""
    leases = [api.spawn(queue, placement=placement) for _ in range(12)]
    row = asked(api, spec)[class_of(api, leases[0])]
    node = api.node(**spec)
    claimed = sum(len(api.claim(node, queue)) for _ in leases)
    assert 0 < row["fits_at_once"] == claimed < 12


def test_several_nodes_and_kinds(api: Api) -> None:
    lease = api.spawn(api.queue(), placement={"resources": {"cpu_milli": 1000}})
    sizes = [{"capacity": {"cpu_milli": size}} for size in (900, 2000, 3000)]
    row = asked(api, [sizes[0], sizes[1] | {"count": 10}, sizes[2]])[class_of(api, lease)]
    assert row["fits_at_once"] == 23
    assert asked(api, sizes[0]) == {}
    assert asked(api, [sizes[1], {}])[class_of(api, lease)]["fits_at_once"] is None


def test_taints_trust_and_other_leases(api: Api, queue: str) -> None:
    tolerant = api.spawn(queue, placement={"tolerate": [{"op": "exists"}]})
    api.spawn(queue)
    trusting = api.spawn(queue, placement={"require": [{"trust": "acme"}]})
    others = {"leases": {"labels": {"app": "web"}}, "domain": "rack"}
    social = api.spawn(queue, placement={"require": [others]})
    taint = {"key": "film", "effect": "no_schedule"}
    assert set(asked(api, {"taints": [taint]})) == {class_of(api, tolerant)}
    assert class_of(api, trusting) not in asked(api, {})
    assert class_of(api, social) in asked(api, {"rack": 1})


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        (None, "p_nodes"),
        ([], "p_nodes"),
        ("node", "p_nodes"),
        ([{}] * 101, "p_nodes"),
        ([1], "spec"),
        ({"label": {}}, "spec.label"),
        ({"labels": []}, "spec.labels"),
        ({"count": 0}, "spec.count"),
        ({"count": 1.5}, "spec.count"),
        ([{}, {"rack": -1}], "spec.rack"),
        (raw('{"rack": 1e400}'), "spec.rack"),
    ],
)
@pytest.mark.thorough
def test_bad_input(api: Api, nodes: Any, field: str) -> None:
    assert api.fault("what_if", nodes=nodes) == field
