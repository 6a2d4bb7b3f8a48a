"""A batch does what its elements do one by one: it is refused for the same, and writes the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.properties.strategies import NODE_IDS, STRANGER, labels, placements
from tests.sql.api import Refusal, read_refusal

QUEUE = "spawns"
POLICY = {"max_params_bytes": 60, "ageing_step": 60}
ONE = "select * from hwqueue.spawn_lease(p_queue => %s, p_task => %s, p_params => %s, p_options => %s)"
ALL = "select * from hwqueue.spawn_leases(p_queue => %s, p_leases => %s)"
SPAWNED = Path(__file__).with_name("spawned.sql").read_bytes()
WIRE = "\\x0910000903820600040000002a"  # rather not in rack 42
CLASHES = {"QHT01", "QHL06"}  # refused because of another lease, not for what it is

Values = st.SearchStrategy[Any]


def mostly(good: Values, *bad: Any) -> Values:
    """One value in twenty is a bad one."""
    return st.integers(0, 19).flatmap(lambda n: good if n else st.sampled_from(bad))


ids = st.sampled_from([str(node) for node in NODE_IDS])
OPTIONS: dict[str, Values] = {
    "placement": mostly(placements, [], {"require": {}}, {"resources": {"gpu": -1}}),
    "affinity_tags": mostly(labels, ["gpu"], {"": 1}),
    "affinity_with": mostly(ids, "n1"),
    "anti_affinity_with": mostly(ids, 7),
    "tenant": mostly(st.sampled_from([None, "acme"]), ""),
    "service_id": mostly(st.sampled_from([None, STRANGER]), "billing"),
    "labels": mostly(st.sampled_from([None, {}, {"app": "a"}]), {"app": 1}, []),
    "lease_id": mostly(st.one_of(st.none(), st.uuids().map(str), ids), "x", 7),
    "priority": mostly(st.one_of(st.none(), st.integers(-3, 3)), 1.5, 32768, "high"),
    "delay": mostly(st.sampled_from([None, 0, 90, "1 minute"]), -1, "1 month", True),
    "available_at": mostly(st.sampled_from([None, "2100-01-31T12:00:00Z"]), "soon", 7),
    "max_attempts": mostly(st.integers(1, 9), 0, "5"),
    "retry": mostly(st.sampled_from([None, {"kind": "none"}, {"base": 3}]), {"tries": 1}, 5),
    "claim_timeout": mostly(st.sampled_from([None, 9, "9 seconds"]), 0, "x"),
    "deadline": mostly(st.just("2100-01-31T12:00:00Z"), "tomorrow", 7),
    "idempotency_key": mostly(st.sampled_from([None, "k", "l"]), "", {}),
    "headers": mostly(st.sampled_from([None, {}, {"trace": "x"}]), "x", [1]),
    "notify": mostly(st.booleans(), "no"),
    "wire": mostly(st.sampled_from([None, "", WIRE]), "AA==", "x", 7),
    "colour": st.just("blue"),
}
names = st.sets(mostly(st.sampled_from(sorted({*OPTIONS} - {"colour"})), "colour"))
kinds = st.fixed_dictionaries(
    {"task": mostly(st.sampled_from(["a", "b"]), None, "", "a b", "x" * 201)},
    optional={
        "options": mostly(
            names.flatmap(lambda some: st.fixed_dictionaries({n: OPTIONS[n] for n in some})),
            [],
            "delay",
            ["delay"],
        )
    },
)
params = mostly(st.sampled_from([None, {}, {"n": 1}, [1.50]]), "x" * 60)
# few kinds, and some leases of each, as in the batches that producers send
own = st.fixed_dictionaries({}, optional={"params": params})
batches = st.lists(kinds, min_size=1, max_size=3).flatmap(
    lambda some: st.lists(
        st.builds(lambda kind, params: kind | params, st.sampled_from(some), own), min_size=1, max_size=6
    )
)


@pytest.fixture
def producer(conn: psycopg.Connection, clock: Clock) -> psycopg.Connection:
    """A connection to a database with the queue, where time stands still."""
    clock.freeze()
    conn.execute("select hwqueue.create_queue(p_queue => %s, p_policy => %s)", [QUEUE, Jsonb(POLICY)])
    return conn


@given(batch=batches)
def test_a_batch_is_its_elements(producer: psycopg.Connection, batch: list[Row]) -> None:
    """Refused exactly when one of them is; else the same rows, in the same order."""
    alone = [refusal for refusal, _ in (spawned(producer, [one], spawn_each) for one in batch)]
    clash, expected = spawned(producer, batch, spawn_each)
    refusal, found = spawned(producer, batch, spawn_all)
    faults = [(index, fault) for index, fault in enumerate(alone) if fault]
    if faults:
        index, fault = faults[0]
        event(f"refused: {fault.code}")
        assert refusal is not None
        assert (refusal.code, refusal.field) == (fault.code, fault.field)
        assert refusal.detail["index"] == index
    elif clash:
        event(f"refused beside another: {clash.code}")
        assert refusal is not None
        assert {refusal.code, clash.code} <= CLASHES
    else:
        event("written")
        assert refusal is None
        assert found == expected


def spawn_each(cursor: psycopg.Cursor[Row], batch: Sequence[Row]) -> list[Row]:
    """Spawn the elements one by one; the rows that they gave."""
    rows = []
    for element in batch:
        given = [Jsonb(element.get(part, {})) for part in ("params", "options")]
        rows += cursor.execute(ONE, [QUEUE, element["task"], *given]).fetchall()
    return rows


def spawn_all(cursor: psycopg.Cursor[Row], batch: Sequence[Row]) -> list[Row]:
    """Spawn the batch; the rows that it gave."""
    return cursor.execute(ALL, [QUEUE, Jsonb(batch)]).fetchall()


def spawned(
    conn: psycopg.Connection,
    batch: Sequence[Row],
    spawn: Callable[[psycopg.Cursor[Row], Sequence[Row]], list[Row]],
) -> tuple[Refusal | None, list[Row]]:
    """How the spawn was refused, or what it answered and wrote. Nothing of it stays."""
    with conn.transaction(force_rollback=True), conn.cursor(row_factory=dict_row) as cursor:
        try:
            with conn.transaction():
                answers = spawn(cursor, batch)
        except psycopg.DatabaseError as error:
            return read_refusal(error), []
        leases = [answer["lease_id"] for answer in answers]
        written = cursor.execute(SPAWNED, {"leases": leases}).fetchall()
    said = [{"created": one["created"], "state": one["state"]} for one in answers]
    # which of the leases are one
    first = [{"first": leases.index(lease)} for lease in leases]
    return None, [a | b | c for a, b, c in zip(said, first, written, strict=True)]
