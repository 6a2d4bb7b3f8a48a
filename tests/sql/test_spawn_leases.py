"""spawn_leases: a batch in one statement, all or nothing."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.calls import TASK
from tests.sql.api import Api


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
    wrong: tuple[Any, ...] = (None, {}, "x", 1)
    for leases in wrong:
        assert api.fault("spawn_leases", queue=api.queue(), leases=leases) == "leases"
    refusal = api.refused("QHQ01", "spawn_leases", queue="nowhere", leases=[item()])
    assert refusal.detail["queue"] == "nowhere"


def test_it_wakes_once(api: Api, queue: str, conn: psycopg.Connection) -> None:
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    api.rows("spawn_leases", queue=queue, leases=[item(), item()])
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
