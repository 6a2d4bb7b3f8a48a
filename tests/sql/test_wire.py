"""The spawn option `wire`: a blob is ANDed with what else is asked, and kept as it was sent."""

from base64 import b64encode, encodebytes
from typing import Any
from uuid import UUID

import pytest

from hwqueue.wire import (
    Affinity,
    Category,
    CpuIsolation,
    Direction,
    GpuExclusivity,
    Strength,
    TargetType,
    WireIntent,
    encode,
)
from tests.calls import TASK, Row
from tests.sql.api import Api, refusing
from tests.sql.explained import class_of

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER = UUID(int=7)


def entry(kind: TargetType, target: UUID | int | str, *, away: bool = False) -> Affinity:
    categories = {
        TargetType.LEASE: Category.STATE,
        TargetType.RESOURCE: Category.RESOURCE,
        TargetType.TRUST_DOMAIN: Category.TRUST,
    }
    category = categories.get(kind, Category.TOPOLOGY)
    direction = Direction.AWAY if away else Direction.TOWARD
    return Affinity(category, Strength.REQUIRED, direction, kind, target)


def asking(*entries: Affinity, **classes: Any) -> bytes:
    """A blob of required entries."""
    return encode(WireIntent(affinity=entries, **classes))


def text(blob: bytes) -> str:
    """The blob as the option takes it."""
    return f"\\x{blob.hex()}"


RACK_42 = asking(entry(TargetType.RACK, 42))
IN_RACK_42 = {"require": [{"rack": [42]}]}


@pytest.mark.parametrize(
    ("wire", "blob"),
    [
        *((wire, RACK_42) for wire in (text(RACK_42), text(RACK_42).upper().replace("X", "x"))),
        (b64encode(RACK_42).decode(), RACK_42),
        (encodebytes(RACK_42 * 10).decode(), RACK_42 * 10),  # in lines, as Postgres itself writes it
    ],
)
def test_hex_or_base64(api: Api, wire: str, blob: bytes) -> None:
    lease = api.lease(api.spawn(api.queue(), wire=wire))
    assert (lease["placement"], lease["wire"]) == (IN_RACK_42, blob)


def test_an_empty_blob_asks_nothing(api: Api, queue: str) -> None:
    """Most leases have none."""
    options: Row
    for options, blob in (
        *(({"wire": "\\x"}, b""), ({"wire": ""}, b"")),
        *(({}, None), ({"wire": None, "priority": 1}, None)),
    ):
        lease = api.lease(api.spawn(queue, **options))
        assert (lease["placement"], lease["wire"]) == ({}, blob)


@pytest.mark.thorough
def test_what_is_no_text_of_a_blob(api: Api) -> None:
    spawn: Row = {"queue": api.queue(), "task": TASK}
    wires: list[Any] = ["\\x091", "\\x0g", "\\x 00", "AA=", "A", "A-_/", " AA==", "é", 7, {}, [], True]
    for wire in wires:
        assert api.fault("spawn_lease", **spawn, options={"wire": wire}) == "options.wire"
    # base64, of another blob than was meant
    refusal = api.refused("QHW01", "spawn_lease", **spawn, options={"wire": "0910"})
    assert refusal.detail["reason"] == "truncated_tlv_header"


def test_a_bad_blob(api: Api) -> None:
    options = {"wire": text(RACK_42 + b"\x09\x02\x00\x01\x03"), "priority": 1}
    refusal = api.refused("QHW01", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert (refusal.field, refusal.detail["reason"]) == ("options.wire", "unknown_class")
    assert (refusal.detail["offset"], refusal.detail["class"]) == (len(RACK_42) + 4, "0x03")
    assert len(refusal.detail) == 4


def same_class(api: Api, one: UUID, other: UUID) -> bool:
    """Whether two leases are of one class."""
    return class_of(api, one) == class_of(api, other)


NODE = entry(TargetType.NODE, ID)
SAID_TWICE = [
    (asking(NODE), {"require": [{"node": str(ID)}]}),
    (asking(entry(TargetType.NODE, ID, away=True)), {"require": [{"node": str(ID), "away": True}]}),
    (asking(entry(TargetType.RESOURCE, ID)), {"require": [{"resource": str(ID)}]}),
    (RACK_42, {"require": [{"rack": 42}]}),
    (RACK_42 + b"\x77\x77\x00\x01\xff", {"require": [{"rack": 42}]}),
    (
        encode(
            WireIntent(
                affinity=tuple(
                    Affinity(category, Strength.PREFERRED, Direction.TOWARD, TargetType.NODE, ID)
                    for category in (Category.RESOURCE, Category.STATE)
                )
            )
        ),
        {"prefer": [{"weight": 100, "when": {"node": str(ID)}}]},
    ),
    (asking(entry(TargetType.LEASE, ID)), {"require": [{"lease": str(ID), "domain": "node"}]}),
    (asking(entry(TargetType.SERVICE, ID, away=True)), {"require": [{"service": str(ID), "away": True}]}),
    (asking(entry(TargetType.TRUST_DOMAIN, "tee")), {"require": [{"trust": "tee"}]}),
    (asking(cpu_isolation=CpuIsolation.BEST_EFFORT), {"isolation": {"cpu": "best_effort"}}),
    (asking(gpu_exclusivity=GpuExclusivity.SHARED), {"isolation": {"gpu": "shared"}}),
]


@pytest.mark.parametrize(("blob", "placement"), SAID_TWICE)
def test_one_class_with_the_placement_that_says_the_same(api: Api, blob: bytes, placement: Row) -> None:
    queue = api.queue()
    spelled, wired = api.spawn(queue, placement=placement), api.spawn(queue, wire=text(blob))
    assert api.lease(spelled)["placement"] == api.lease(wired)["placement"]
    assert same_class(api, spelled, wired)
    assert api.lease(wired)["wire"] == blob


def test_it_is_anded_with_placement_and_shorthands(api: Api) -> None:
    lease = api.spawn(
        api.queue(),
        wire=text(RACK_42),
        placement={"require": [{"rack": [42, 43]}], "resources": {"cpu_milli": 5}},
        affinity_tags={"gpu": True},
    )
    assert api.lease(lease)["placement"] == {
        "require": [{"label": "gpu", "op": "in", "values": [True]}, {"rack": [42, 43]}, {"rack": [42]}],
        "resources": {"cpu_milli": 5},
    }


def test_a_contradiction_with_the_placement(api: Api) -> None:
    """Two isolation classes are one; the same twice is none."""
    queue, wire = api.queue(), text(asking(cpu_isolation=CpuIsolation.WHOLE_CORE))
    options = {"wire": text(RACK_42), "placement": {"require": [{"rack": 42, "away": True}]}}
    assert api.refused("QHC04", "spawn_lease", queue=queue, task=TASK, options=options).field == "options"
    same = {"isolation": {"cpu": "whole_core"}}
    assert api.lease(api.spawn(queue, wire=wire, placement=same))["placement"] == same
    options = {"wire": wire, "placement": {"isolation": {"cpu": "best_effort"}}}
    refusal = api.refused("QHC04", "spawn_lease", queue=queue, task=TASK, options=options)
    assert refusal.detail["class"] in ("whole_core", "best_effort")


def test_resources_of_the_placement_count_for_a_gpu_class(api: Api) -> None:
    wire = text(asking(gpu_exclusivity=GpuExclusivity.DEVICE_EXCLUSIVE))
    lease = api.spawn(api.queue(), wire=wire, placement={"resources": {"gpu": 2}})
    assert api.lease(lease)["placement"]["resources"] == {"gpu": 2}
    lease = api.spawn(api.queue(), wire=wire, placement={"resources": {"cpu_milli": 2}})
    assert api.lease(lease)["placement"]["resources"] == {"cpu_milli": 2, "gpu": 1}
    with refusing("QHC04"):
        api.spawn(api.queue(), wire=wire, placement={"resources": {"gpu_milli": 500}})


def test_nodes_are_held_to_it(api: Api) -> None:
    """By a claim; a lease that is adopted has it, too."""
    queue, node = api.queue(), api.node(rack=42)
    options = {"wire": text(RACK_42)}
    lease = api.spawn(queue, **options)
    assert api.claimed(api.node(rack=41), queue) == []
    assert api.claimed(node, queue) == [lease]
    row = api.row("adopt_lease", queue=queue, node=node.node_id, task=TASK, options=options)
    adopted = api.lease(row["lease_id"])
    assert (adopted["placement"], adopted["wire"]) == (IN_RACK_42, RACK_42)


def test_in_a_batch(api: Api, queue: str) -> None:
    items = [{"task": TASK, "options": {"wire": text(blob)}} for blob in (RACK_42, b"", RACK_42)]
    rows = api.rows("spawn_leases", queue=queue, leases=[*items, {"task": TASK}])
    kept = [api.lease(row["lease_id"]) for row in rows]
    assert [lease["wire"] for lease in kept] == [RACK_42, b"", RACK_42, None]
    assert [lease["placement"] for lease in kept] == [IN_RACK_42, {}, IN_RACK_42, {}]
    bad = {"task": TASK, "options": {"wire": "\\x09", "priority": 1}}
    refusal = api.refused("QHW01", "spawn_leases", queue=queue, leases=[*items, bad])
    assert (refusal.field, refusal.detail["index"]) == ("options.wire", 3)


def test_the_same_key_with_the_same_meaning(api: Api, queue: str) -> None:
    """It is the placement that counts, not the bytes."""
    first = api.spawn(queue, wire=text(RACK_42), idempotency_key="k")
    assert api.spawn(queue, placement={"require": [{"rack": 42}]}, idempotency_key="k") == first
    assert api.spawn(queue, wire=text(RACK_42 * 2), idempotency_key="k") == first
    assert api.lease(first)["wire"] == RACK_42
    with refusing("QHT01"):
        api.spawn(queue, wire="\\x", idempotency_key="k")


@pytest.mark.thorough
def test_updated(api: Api, queue: str) -> None:
    """placement and wire together replace what was asked."""
    lease = api.spawn(queue, placement={"resources": {"cpu_milli": 5}})

    def change(**changes: Any) -> tuple[Any, Any]:
        api.rows("update_lease", lease=lease, changes=changes)
        now = api.lease(lease)
        return now["placement"], now["wire"]

    assert change(wire=text(RACK_42)) == (IN_RACK_42, RACK_42)
    assert change(priority=3) == (IN_RACK_42, RACK_42)
    both = change(wire=text(RACK_42), placement={"resources": {"cpu_milli": 1}})
    assert both == (IN_RACK_42 | {"resources": {"cpu_milli": 1}}, RACK_42)
    assert change(placement={}) == ({}, None)
    change(wire=text(RACK_42))
    assert change(wire=None) == ({}, None)
    refusal = api.refused("QHW01", "update_lease", lease=lease, changes={"wire": "\\x00"})
    assert refusal.field == "changes.wire"
    assert api.fault("update_lease", lease=lease, changes={"wire": 5}) == "changes.wire"


def test_a_placement_that_was_read_can_be_sent_again(api: Api, queue: str) -> None:
    """The normal form is its own."""
    blob = asking(entry(TargetType.RESOURCE, ID), entry(TargetType.RESOURCE, OTHER), NODE)
    lease = api.spawn(queue, wire=text(blob))
    again = api.spawn(queue, placement=api.lease(lease)["placement"])
    assert same_class(api, lease, again)
