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


def test_rows_come_in_the_order_given(api: Api) -> None:
    queue = api.queue()
    batch = [item("a"), item("b", delay=60), {"task": "c"}]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["ordinal"] for row in rows] == [1, 2, 3]
    assert [row["state"] for row in rows] == ["pending", "scheduled", "pending"]
    assert [api.lease(row["lease_id"])["task_name"] for row in rows] == ["a", "b", "c"]


def test_they_are_claimed_in_that_order(api: Api) -> None:
    queue = api.queue()
    rows = api.rows("spawn_leases", queue=queue, leases=[item(f"t{n}") for n in range(20)])
    assert api.claimed(api.node(), queue, qty=20) == [row["lease_id"] for row in rows]


def test_an_empty_batch_is_no_row(api: Api) -> None:
    queue = api.queue()
    with api.unchanged():
        assert api.rows("spawn_leases", queue=queue, leases=[]) == []


def test_equal_keys_are_one_lease(api: Api) -> None:
    queue = api.queue()
    first = api.spawn(queue, idempotency_key="old")
    batch = [
        item(idempotency_key="new"),
        item(),
        item(idempotency_key="new", priority=5),
        item(idempotency_key="old"),
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    assert [row["created"] for row in rows] == [True, True, False, False]
    assert rows[0]["lease_id"] == rows[2]["lease_id"] != rows[1]["lease_id"]
    assert rows[3]["lease_id"] == first
    assert [row["pending"] for row in api.rows("list_queues") if row["queue"] == queue] == [3]


def test_equal_keys_with_an_equal_id_are_one_lease(api: Api) -> None:
    mine = str(uuid4())
    batch = [item(idempotency_key="k", lease_id=mine)] * 2
    rows = api.rows("spawn_leases", queue=api.queue(), leases=batch)
    assert [row["created"] for row in rows] == [True, False]


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


def test_a_key_with_other_content(api: Api) -> None:
    """In the batch itself, and against what is there already."""
    queue = api.queue()
    batch = [item(), item("a", idempotency_key="k"), item("b", idempotency_key="k")]
    refusal = api.refused("QHT01", "spawn_leases", queue=queue, leases=batch)
    assert (refusal.field, refusal.detail["index"]) == ("options.idempotency_key", 2)
    api.spawn(queue, "a", idempotency_key="k")
    refusal = api.refused("QHT01", "spawn_leases", queue=queue, leases=batch[::2])
    assert refusal.detail["index"] == 1


def test_an_id_that_is_taken(api: Api) -> None:
    queue, mine = api.queue(), str(uuid4())
    twice = [item(), item(lease_id=mine), item(lease_id=mine)]
    refusal = api.refused("QHL06", "spawn_leases", queue=queue, leases=twice)
    assert (refusal.field, refusal.detail["index"]) == ("options.lease_id", 2)
    api.spawn(queue, lease_id=mine)
    refusal = api.refused("QHL06", "spawn_leases", queue=queue, leases=twice[:2])
    assert refusal.detail["index"] == 1


@pytest.mark.parametrize("leases", [None, {}, "x", 1])
def test_a_batch_is_an_array(api: Api, leases: Any) -> None:
    assert api.fault("spawn_leases", queue=api.queue(), leases=leases) == "leases"


def test_unknown_queue(api: Api) -> None:
    refusal = api.refused("QHQ01", "spawn_leases", queue="nowhere", leases=[item()])
    assert refusal.detail["queue"] == "nowhere"


def test_it_wakes_once(api: Api, conn: psycopg.Connection) -> None:
    queue = api.queue()
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    api.rows("spawn_leases", queue=queue, leases=[item(), item()])
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
