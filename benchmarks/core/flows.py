"""Runs of workflows to measure: shapes of graphs, definitions, submissions."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE, TASK

Step = Mapping[str, Any]
"""One step, as define_workflow takes it."""
Steps = Sequence[Step]
"""The steps of a definition, as define_workflow takes them."""

SUBMIT = "select run_id from hwqueue.submit_workflow(p_workflow => %s, p_options => %s)"
_DEFINE = "select hwqueue.define_workflow(p_spec => %s)"
_SUBMIT_MANY = "select count(*) from hwqueue.submit_workflows(p_workflow => %s, p_runs => %s)"
_RELEASE = "select released from hwqueue.advance_workflows()"
_BATCH = 100


def step(name: str, *after: str, **more: Any) -> Step:
    """A step of the benchmarks' task that comes after others; `more` is e.g. affinity_tags."""
    return {"name": name, "task": TASK, "after": list(after), **more}


def chain(length: int) -> Steps:
    """Steps one after the other."""
    return [step(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(length)]


def abreast(count: int) -> Steps:
    """Steps that are all released at once."""
    return [step(f"s{n}") for n in range(count)]


def behind_one(count: int, **first: Any) -> Steps:
    """Steps of which all but the first wait for it; `first` is more of that one."""
    return [step("s0", **first), *(step(f"s{n}", "s0") for n in range(1, count))]


def join(parents: int) -> Steps:
    """Steps that are all released at once, and one that waits for all of them."""
    before = abreast(parents)
    return [*before, step("end", *(one["name"] for one in before))]


def items(count: int, at_once: int | None = None) -> Steps:
    """A map of so many items; all of them may run at once unless it is said how many."""
    return [step("each", kind="map", over=list(range(count)), max_parallel=at_once or count)]


def at_once(steps: Steps) -> int:
    """How many leases a run has when it is submitted and swept."""
    return sum(one.get("max_parallel", 1) for one in steps if not one["after"])


def define(dsn: str, name: str, steps: Steps) -> None:
    """Define a workflow in the benchmarks' queue."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_DEFINE, [Jsonb({"name": name, "queue": QUEUE, "steps": list(steps)})])


def submit(connection: psycopg.Connection, name: str, options: Mapping[str, Any] | None = None) -> UUID:
    """Submit one run; its id."""
    row = connection.execute(SUBMIT, [name, Jsonb(options or {})], prepare=True).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def release(connection: psycopg.Connection) -> None:
    """Sweep until everything that submissions have left is released."""
    while True:
        [(released,)] = connection.execute(_RELEASE, prepare=True).fetchall()
        if released == 0:
            return


def submit_many(dsn: str, name: str, count: int) -> None:
    """Submit `count` runs, in batches."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for start in range(0, count, _BATCH):
            runs = Jsonb([{}] * min(_BATCH, count - start))
            connection.execute(_SUBMIT_MANY, [name, runs], prepare=True)
