"""spawn_leases: a batch in one statement, all or nothing."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.calls import TASK
from tests.sql.api import Api
from tests.sql.test_tenants_apart import limited


def item(task: str = TASK, params: Any = None, **options: Any) -> dict[str, Any]:
    """One element of a batch."""
    return {"task": task, "params": params or {}, "options": options}


def test_rows_come_in_the_order_given(api: Api, queue: str) -> None:
    """And are claimed in that order."""
    with api.unchanged():
        assert api.rows("spawn_leases", queue=queue, leases=[]) == []
    batch = [item("a"), item("b", delay=60), {"task": "c"}, *(item(f"t{n}") for n in range(20))]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["ordinal"] for row in rows] == list(range(1, 24))
    assert [row["state"] for row in rows] == ["pending", "scheduled", *["pending"] * 21]
    leases = [row["lease_id"] for row in rows]
    assert [api.lease(lease)["task_name"] for lease in leases] == [each["task"] for each in batch]
    assert api.claimed(api.node(), queue, qty=30) == [leases[0], *leases[2:]]


KINDS: list[dict[str, Any]] = [{"task": "a"}, {"task": "b", "options": {"affinity_tags": {"gpu": True}}}]


def test_kinds_with_the_params_of_each(api: Api, queue: str) -> None:
    """They are what the elements one by one would be, in the order of each."""
    own = [*KINDS, {"task": "c", "options": {"priority": 3, "delay": 60}}]
    for kinds, of in ((KINDS, [1.0, 0, 1]), (own, [2, 0, 1]), (KINDS[:1], None)):
        batch = {"kinds": kinds, "each": [{"n": n} for n in range(3)]} | ({"of": of} if of else {})
        rows = api.rows("spawn_leases", queue=queue, leases=batch)
        alike = [kinds[int(n)] | {"params": {"n": i}} for i, n in enumerate(of or [0] * 3)]
        spawned = [api.lease(row["lease_id"]) for row in rows]
        same = [api.lease(row["lease_id"]) for row in api.rows("spawn_leases", queue=queue, leases=alike)]
        told = ("task_name", "params", "placement", "priority", "state")
        assert [[one[key] for key in told] for one in spawned] == [[one[key] for key in told] for one in same]
        assert [row["ordinal"] for row in rows] == [1, 2, 3]
    kinds = [*KINDS, {"task": "c", "options": {"priority": "high"}}]
    wrong = {"kinds": kinds, "each": [{}] * 3, "of": [0, 2, 2]}
    refusal = api.refused("QHA01", "spawn_leases", queue=queue, leases=wrong)
    assert (refusal.field, refusal.detail["index"]) == ("options.priority", 1)


def test_kinds_that_nothing_is_of(api: Api, queue: str) -> None:
    """They are neither read nor written, whoever's they are."""
    kinds = [KINDS[0] | {"options": {"tenant": tenant}} for tenant in ("mine", "another's")]
    with limited(api, "mine"):
        batch = {"kinds": [{"task": 7}, *kinds], "each": [{}, {}], "of": [1, 1]}
        assert len(api.rows("spawn_leases", queue=queue, leases=batch)) == 2
    classes = "select array_agg(tenant) from hwqueue.placement_class where tenant in ('mine', 'another''s')"
    assert api.one(classes) == ["mine"]


def test_options_in_the_same_words_are_read_once(api: Api, queue: str) -> None:
    """Their class is found by these words, in others by what they say; a retired one is not."""
    words = ({"affinity_tags": {"gpu": True}}, {"placement": {"require": [{"tags": {"gpu": True}}]}})

    def classes() -> set[int]:
        rows = api.rows("spawn_leases", queue=queue, leases=[item(**each) for each in (*words, *words)])
        query = "select class_id from hwqueue.lease where lease_id = %s"
        return {api.one(query, row["lease_id"]) for row in rows}

    first = classes()
    assert classes() == first
    api.conn.execute("update hwqueue.placement_class set retired_at = now()")
    second = classes()
    assert len(first) == len(second) == 1
    assert first != second
    api.conn.execute("update hwqueue.placement_class set asked = 'other'")
    assert classes() == second


def test_equal_keys_are_one_lease(api: Api, queue: str) -> None:
    first = api.spawn(queue, idempotency_key="old")
    batch = [
        item(idempotency_key="new"),
        item(),
        item(idempotency_key="new", priority=5),
        item(idempotency_key="old"),
        *[item(idempotency_key="with an id", lease_id=str(uuid4()))] * 2,
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["created"] for row in rows] == [True, True, False, False, True, False]
    assert rows[0]["lease_id"] == rows[2]["lease_id"] != rows[1]["lease_id"]
    assert (rows[3]["lease_id"], rows[5]["lease_id"]) == (first, rows[4]["lease_id"])
    assert api.listed(queue)["pending"] == 4


def test_one_element_at_fault_undoes_all(api: Api) -> None:
    batch = [item(), item(idempotency_key="k"), item(priority="high")]
    refusal = api.refused("QHA01", "spawn_leases", queue=api.queue(), leases=batch)
    assert (refusal.field, refusal.detail["index"]) == ("options.priority", 2)
    assert refusal.message.startswith("leases[2]")


@pytest.mark.parametrize(
    ("code", "element", "field"),
    [
        ("QHA01", "work", "lease"),
        ("QHA01", {"task": TASK, "priority": 1}, "lease.priority"),
        ("QHA01", {"task": TASK, "options": "x"}, "options"),
        ("QHA01", {"task": TASK, "options": []}, "options"),
        ("QHA01", {"params": {}}, "task"),
        ("QHA01", {"task": 7}, "task"),
        ("QHA01", item("a b"), "task"),
        ("QHC03", item(placement={"require": {}}), "options.placement.require"),
        ("QHW01", item(wire="AA=="), "options.wire"),
        ("QHA01", item(wire="AA="), "options.wire"),
    ],
)
@pytest.mark.thorough
def test_the_element_at_fault_is_named(api: Api, code: str, element: Any, field: str) -> None:
    refusal = api.refused(code, "spawn_leases", queue=api.queue(), leases=[item(), element])
    assert (refusal.field, refusal.detail["index"]) == (field, 1)


def test_a_key_with_other_content_and_an_id_that_is_taken(api: Api) -> None:
    """In the batch itself, and against what is there already."""
    queue, mine = api.queue(), str(uuid4())
    key, own = {"idempotency_key": "k"}, {"lease_id": mine}
    for code, option, batch in (
        ("QHT01", "idempotency_key", [item(), item("a", **key), item("b", **key)]),
        ("QHL06", "lease_id", [item(), *[item(**own)] * 2]),  # whatever its content
    ):
        refusal = api.refused(code, "spawn_leases", queue=queue, leases=batch)
        assert (refusal.field, refusal.detail["index"]) == (f"options.{option}", 2)
        api.rows("spawn_leases", queue=queue, leases=batch[1:2])
        refusal = api.refused(code, "spawn_leases", queue=queue, leases=batch[::2])
        assert refusal.detail["index"] == 1


def test_a_batch_is_an_array_for_a_queue(api: Api) -> None:
    two: dict[str, Any] = {"kinds": KINDS, "each": [{}, {}]}
    wrong: tuple[Any, ...] = (
        *(None, {}, "x", 1, {"each": [{}]}, two, two | {"kinds": KINDS[:1], "extra": 1}),
        *(two | {"of": of} for of in ([0], [0, 2], [0, -1], [0, 0.5], [0, "0"], [0, None], 0, [[1], 0])),
        two | {"kinds": [{"task": "a", "params": {}}]},
    )
    for leases in wrong:
        assert api.fault("spawn_leases", queue=api.queue(), leases=leases) == "leases"
    refusal = api.refused("QHQ01", "spawn_leases", queue="nowhere", leases=[item()])
    assert refusal.detail["queue"] == "nowhere"


def test_it_wakes_once(api: Api, queue: str, conn: psycopg.Connection) -> None:
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    api.rows("spawn_leases", queue=queue, leases=[item(), item()])
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
