"""Capacity in claims: what is set aside, on which device, and what does not fit."""

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api, Node, settlement, token

GPU = [str(uuid4()) for _ in range(4)]


def devices(count: int) -> list[Row]:
    """The first so many devices."""
    return [{"resource_id": gpu, "model": "A100", "memory_mib": 81920} for gpu in GPU[:count]]


def indexes(claim: Row) -> list[int]:
    """Places of the devices that a claim was given."""
    return [device["index"] for device in claim["assignment"]["gpus"]]


def run(api: Api, node: Node, require: list[Row] | None = None, /, **resources: int) -> Row | None:
    """A lease with these needs, claimed by the node; None when it does not fit."""
    queue = api.queue()
    api.spawn(queue, placement={"resources": resources, "require": require})
    rows = api.claim(node, queue)
    return rows[0] if rows else None


def fits(api: Api, node: Node, require: list[Row] | None = None, /, **resources: int) -> Row:
    claim = run(api, node, require, **resources)
    assert claim is not None
    return claim


@pytest.mark.parametrize("kind", ["cpu_milli", "memory_mib", "license"])
def test_amounts(api: Api, kind: str) -> None:
    node = api.node(capacity={kind: 10})
    first = fits(api, node, **{kind: 6})
    amount = {kind: 6} if kind != "license" else {"custom": {kind: 6}}
    assert first["assignment"] == amount
    assert run(api, node, **{kind: 5}) is None
    assert fits(api, node, **{kind: 4})
    assert run(api, node, **{kind: 1}) is None
    assert fits(api, node)
    api.complete(first)
    assert fits(api, node, **{kind: 6})


@pytest.mark.parametrize("qty", [1, 3])
@pytest.mark.parametrize("kind", ["cpu_milli", "memory_mib", "slots"])
def test_no_more_than_fits_of_a_class_that_is_known(api: Api, kind: str, qty: int) -> None:
    """Claims take these at the head of the queue, in order."""
    queue, node = api.queue(), api.node(**({"slots": 3} if kind == "slots" else {"capacity": {kind: 35}}))
    leases = [api.needing(queue, cpu_milli=10, memory_mib=10) for _ in range(6)]
    rows = [row for _ in range(4) for row in api.claim(node, queue, qty=qty)]
    assert [row["lease_id"] for row in rows] == leases[:3]
    api.complete(rows[0])
    assert api.claimed(node, queue, qty=qty) == leases[3:4]
    assert api.claim(node, queue, qty=qty) == []


def test_a_batch_stops_when_it_is_full(api: Api) -> None:
    """And goes on with what still fits."""
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    large = [api.needing(queue, cpu_milli=400) for _ in range(3)]
    small = api.needing(queue, cpu_milli=200)
    assert set(api.claimed(node, queue, qty=10)) == {large[0], large[1], small}
    assert api.used(node)["used"]["cpu_milli"] == 1000


def test_what_a_node_does_not_declare(api: Api) -> None:
    """Cpu and memory are then not counted; devices and custom countables it does not have."""
    node = api.node(capacity={"cpu_milli": 0}, slots=0)  # it declares 0, which is not nothing
    assert run(api, node) is None
    node = api.node(capacity={"cpu_milli": 0})
    assert run(api, node, cpu_milli=1) is None
    assert fits(api, node)
    node = api.node()
    claim = fits(api, node, cpu_milli=10**12, memory_mib=10**12)
    assert claim["assignment"] is None
    for kind in ("gpu", "gpu_milli", "license"):
        assert run(api, node, **{kind: 1}) is None


def test_all_of_it_must_fit(api: Api) -> None:
    node = api.node(capacity={"cpu_milli": 1000, "memory_mib": 1000, "license": 1})
    good = {"cpu_milli": 1000, "memory_mib": 1000, "license": 1}
    for kind, amount in good.items():
        assert run(api, node, **good | {kind: amount + 1}) is None
    claim = fits(api, node, **good)
    amounts = {"cpu_milli": 1000, "memory_mib": 1000, "custom": {"license": 1}}
    assert claim["assignment"] == amounts


def test_whole_devices(api: Api) -> None:
    node = api.node(gpus=devices(4))
    two = fits(api, node, gpu=2)
    assert two["assignment"] == {
        "gpu_milli": 1000,
        "gpus": [{"index": index, "resource_id": GPU[index], "model": "A100"} for index in (0, 1)],
    }
    one = fits(api, node, gpu=1)
    assert indexes(one) == [2]
    assert run(api, node, gpu=2) is None
    api.complete(two)
    three = fits(api, node, gpu=3)
    assert indexes(three) == [0, 1, 3]


@pytest.mark.parametrize(
    "needs",
    [{"gpu": 1}, {"gpu": 2, "cpu_milli": 500, "memory_mib": 90}, {"cpu_milli": 100}, {"gpu_milli": 400}],
)
def test_the_only_class_is_granted_as_if_it_were_compared(api: Api, needs: dict[str, int]) -> None:
    """Of one queue it is taken at the head; of two, claims compare classes."""
    sides = []
    for others in ([], [api.queue()]):
        gpus = [{"resource_id": str(uuid4()), "model": "A100"} for _ in range(4)]
        amounts = {"cpu_milli": 1400, "memory_mib": 1000, "slots": 5}
        sides.append((api.node(gpus=gpus, capacity=amounts), [api.queue(), *others]))
    found = []
    for node, queues in sides:
        for _ in range(8):
            api.spawn(queues[0], placement={"resources": needs})
        granted: list[Row] = []
        for number in range(7):
            if number == 4:
                api.complete(granted[0])
            granted += api.claim(node, *queues)
        for claim in granted:
            for device in claim["assignment"].get("gpus", []):
                del device["resource_id"]
        found.append([(claim["score"], claim["assignment"]) for claim in granted])
        api.complete(granted[-1])
        api.value("cordon_node", node=node.node_id)
        assert api.claim(node, *queues) == []
    assert found[0] == found[1]


def test_of_several_known_classes_the_best_is_granted(api: Api) -> None:
    node, queue = api.node(gpus=devices(4)), api.queue()
    for count in (1, 2, 1, 2):
        api.spawn(queue, placement={"resources": {"gpu": count}})
    for _ in range(2):
        [claim] = api.claim(node, queue)
        assert indexes(claim) == [0, 1]
        api.complete(claim)


def test_shares_are_of_one_device(api: Api) -> None:
    """500 of 1000 free in all do not fit when no device has them."""
    node = api.node(gpus=devices(2))
    for index in (0, 1):
        claim = fits(api, node, gpu_milli=750)
        assert claim["assignment"]["gpu_milli"] == 750
        assert indexes(claim) == [index]
    assert run(api, node, gpu_milli=251) is None
    assert run(api, node, gpu=1) is None
    assert fits(api, node, gpu_milli=250)


def test_a_share_goes_where_it_leaves_least(api: Api) -> None:
    node = api.node(gpus=devices(3))
    got = [fits(api, node, gpu_milli=milli) for milli in (600, 700, 300, 400, 500)]
    assert [indexes(claim) for claim in got][2:] == [[1], [0], [2]]
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [1000, 1000, 500]
    node = api.node(gpus=devices(3))  # whole devices are those that nothing uses
    share = fits(api, node, gpu_milli=1)
    whole = fits(api, node, gpu=2)
    assert (indexes(share), indexes(whole)) == ([0], [1, 2])


@pytest.mark.parametrize("need", [{"gpu": 1}, {"gpu_milli": 600}])
def test_a_wanted_device(api: Api, need: dict[str, int]) -> None:
    """Named by `resource`, on a lease that asks for GPUs, it is that device or none."""
    node = api.node(gpus=devices(3))
    wanted: list[Row] = [{"resource": GPU[2]}]
    claim = fits(api, node, wanted, **need)
    assert indexes(claim) == [2]
    assert run(api, node, wanted, **need) is None
    assert fits(api, node, **need)
    assert run(api, api.node(gpus=[{"resource_id": str(uuid4())}]), wanted, **need) is None


def test_a_wanted_device_among_several(api: Api) -> None:
    node = api.node(gpus=devices(4))
    claim = fits(api, node, [{"resource": GPU[3]}], gpu=2)
    assert indexes(claim) == [0, 3]
    both: list[Row] = [{"resource": GPU[1]}, {"resource": GPU[2]}]
    assert run(api, node, both, gpu=1) is None  # more than are asked for
    assert fits(api, node, both, gpu=2)
    disk = str(uuid4())  # a resource that is no device is a matter of where, not of which device
    node = api.node(gpus=devices(1), resources=[disk])
    assert fits(api, node, [{"resource": disk}], gpu=1)
    assert fits(api, node, [{"resource": disk}])
    assert run(api, api.node(gpus=devices(1)), [{"resource": disk}]) is None


def test_every_way_to_end_gives_the_room_back(api: Api) -> None:
    node = api.node(capacity={"cpu_milli": 1000, "license": 1}, gpus=devices(2), slots=1)
    needs = {"cpu_milli": 1000, "license": 1, "gpu": 2}
    ends: list[tuple[str, dict[str, Any]]] = [
        ("complete_lease", {}),
        ("fail_lease", {"error": {}}),
        ("fail_lease", {"error": {}, "retry": False}),
        ("release_lease", {}),
    ]
    for function, more in ends:
        claim = fits(api, node, **needs)
        api.rows(function, **token(claim), **more)
        row = api.used(node)
        assert row["used"] == {"cpu_milli": 0, "memory_mib": 0}
        assert [gpu["milli_used"] for gpu in row["gpus"]] == [0, 0]


def test_which_device_a_lease_had_is_kept(api: Api) -> None:
    """Of each attempt, however it ended, and of the one that ended the lease."""
    node, queue = api.node(gpus=devices(2)), api.queue(retry={"kind": "fixed", "base": 0})
    one_gpu = {"resources": {"gpu": 1}}
    for _ in range(2):
        api.spawn(queue, placement=one_gpu, max_attempts=2)
    [failing, other] = api.claim(node, queue, qty=2)
    api.rows("fail_lease", **token(failing), error={"message": "ECC"})
    assert api.lease(failing["lease_id"])["assignment"] is None  # it has none now
    api.complete(other)
    [again] = api.claim(node, queue)
    done = Jsonb([settlement(again)])
    api.rows("settle_and_claim", **node.who, settle=done, queues=[queue], qty=0)
    dead = api.running(queue, node, max_attempts=1, placement={"resources": {"gpu": 2}})
    api.rows("fail_lease", **token(dead), error={"message": "ECC"})
    for claim in (again, other, dead):
        assert api.lease(claim["lease_id"])["assignment"] == claim["assignment"]
    for claim in (failing, dead):
        [attempt] = api.lease(claim["lease_id"])["attempts"]
        assert attempt["assignment"] == claim["assignment"]
    assert (indexes(failing), indexes(other), indexes(dead)) == ([0], [1], [0, 1])
