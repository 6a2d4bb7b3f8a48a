"""Figures of runs: each end counts once, under the name of its workflow, and never falls."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.flows import Flow, step
from tests.sql.api import Api, count_all

SECOND = timedelta(seconds=1)
TOTALS = """
  select labels ->> 'outcome', value::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_runs_finished_total' and labels ->> 'workflow' = %s
"""
BUCKETS = """
  select (labels ->> 'le')::float8, value::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_run_seconds_bucket' and labels ->> 'outcome' = %s order by 1
"""
NAMED = """
  select labels ->> 'workflow', sum(value)::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_runs_finished_total' group by 1
"""
INSTANT = {"kind": "sleep", "for": 0, "name": "s"}


def totals(conn: psycopg.Connection[Any], workflow: str) -> dict[str, int]:
    """How many of its runs have ended how, as counted."""
    count_all(conn)
    return dict(conn.execute(TOTALS, [workflow]).fetchall())


def named(conn: psycopg.Connection[Any]) -> dict[str, int]:
    """How many runs of each workflow have ended, as counted."""
    count_all(conn)
    return dict(conn.execute(NAMED).fetchall())


def begin(conn: psycopg.Connection[Any], clock: Clock) -> int:
    """Let the names of other tests go; how many runs they have left without one."""
    clock.freeze()
    clock.advance(timedelta(days=31))
    count_all(conn)
    Api(conn).rows("prune")
    left = named(conn)
    assert left.keys() <= {"(other)"}
    return left.get("(other)", 0)


def end(api: Api, *names: str) -> None:
    """End an ad hoc run of each name."""
    api.rows("create_queue", queue="totals")
    for name in names:
        spec = {"name": name, "queue": "totals", "steps": [{"name": "s", "task": "t"}]}
        api.rows("cancel_workflow_run", run=api.row("submit_spec", spec=spec)["run_id"])


def test_each_outcome_and_how_long_it_took(conn: psycopg.Connection[Any], clock: Clock) -> None:
    clock.freeze()
    flow = Flow(Api(conn), [step("a")])
    clock.advance(7 * SECOND)
    flow.complete("a")
    clock.advance(SECOND)
    for _ in range(2):
        assert totals(conn, flow.queue) == {"completed": 1, "failed": 0, "cancelled": 0}
    buckets = dict(conn.execute(BUCKETS, ["completed"]).fetchall())
    assert (buckets[5.0], buckets[10.0], buckets[float("inf")]) == (0, 1, 1)


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_retried_run_counts_at_each_of_its_ends(
    conn: psycopg.Connection[Any], clock: Clock, is_counted: bool
) -> None:
    """Whether or not its first end was counted before the retry."""
    clock.freeze()
    flow = Flow(Api(conn), [step("a")])
    clock.advance(SECOND)
    flow.fail("a")
    clock.advance(SECOND)
    if is_counted:
        assert totals(conn, flow.queue)["failed"] == 1
    flow.calls.rows("retry_workflow_run", run=flow.run)
    flow.complete("a")
    clock.advance(SECOND)
    assert totals(conn, flow.queue) == {"completed": 1, "failed": 1, "cancelled": 0}
    clock.advance(SECOND)
    count_all(conn)
    assert conn.execute("select count(*) from hwqueue.undone_end").fetchall() == [(0,)]
    assert totals(conn, flow.queue)["failed"] == 1


@pytest.mark.thorough
def test_the_first_workflows_have_counters_of_their_own(conn: psycopg.Connection[Any], clock: Clock) -> None:
    """Ad hoc names past 50 share one; a defined workflow still gets its own, and all stay."""
    other = begin(conn, clock)
    api = Api(conn)
    names = [f"w{number:02}" for number in range(52)]
    end(api, *names)
    clock.advance(SECOND)
    assert named(conn) == dict.fromkeys(names[:50], 1) | {"(other)": other + 2}
    api.rows("define_workflow", spec={"name": "late", "queue": "totals", "steps": [INSTANT]})
    api.rows("submit_workflow", workflow="late")
    end(api, "w00", "w51")
    clock.advance(SECOND)
    more = {"w00": 2, "late": 1, "(other)": other + 3}
    assert named(conn) == dict.fromkeys(names[1:50], 1) | more


def test_a_workflow_that_ends_nothing_for_30_days_leaves_its_place(
    conn: psycopg.Connection[Any], clock: Clock
) -> None:
    begin(conn, clock)
    api = Api(conn)
    end(api, "old", "new")
    clock.advance(timedelta(days=29))
    end(api, "new")
    clock.advance(timedelta(days=1))
    count_all(conn)
    api.rows("prune")
    assert named(conn).keys() >= {"new", "old"}
    api.prune_after(clock, SECOND)
    assert "new" in (left := named(conn))
    assert "old" not in left
