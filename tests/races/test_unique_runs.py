"""Submissions of runs with one unique key that meet each other, or the end of the run."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.calls import Calls, Row
from tests.flows import Flow, finish, step
from tests.races.interleave import TIMEOUT, Actor, interleave

pytestmark = pytest.mark.thorough


@pytest.fixture
def actors(dsn: str, calls: Calls) -> Iterator[tuple[Actor, Actor]]:
    """Two sessions that meet."""
    with interleave(dsn) as actor:
        yield actor(), actor()


def submit(calls: Any, flow: Flow, on_conflict: str) -> Row:
    unique = {"unique": {"key": "k", "on_conflict": on_conflict}}
    row: Row = Calls(calls.conn).row("submit_spec", spec=flow.spec, options=unique)
    return row


def running(calls: Calls, flow: Flow) -> set[Any]:
    rows = calls.rows("list_workflow_runs", filter={"workflow": flow.spec["name"]})
    return {row["run_id"] for row in rows if row["state"] == "running"}


KEY = {"unique": {"key": "k"}}


@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_waits_for_one_with_its_key(
    calls: Calls, actors: tuple[Actor, Actor], commits: bool
) -> None:
    one, two = actors
    flow = Flow(calls, [step("a")])
    one.begin()
    first = submit(one, flow, "keep")
    blocked = two.start(lambda d: submit(d, flow, "keep"))
    two.wait_until_blocked_by(one)
    one.commit() if commits else one.rollback()
    second = blocked.result(TIMEOUT)
    assert second["created"] is not commits
    assert (second["run_id"] == first["run_id"]) is commits


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_meets_the_end_of_the_run(
    calls: Calls, actors: tuple[Actor, Actor], commits: bool, on_conflict: str
) -> None:
    one, two = actors
    flow = Flow(calls, [step("a")], options=KEY)
    claim = flow.claims()["a"]
    one.begin()
    finish(one.direct, claim)
    blocked = two.start(lambda d: submit(d, flow, on_conflict))
    two.wait_until_blocked_by(one)
    one.commit() if commits else one.rollback()
    second = blocked.result(TIMEOUT)
    assert second["created"] is (commits or on_conflict == "replace")
    assert flow.state == ("completed" if commits else "cancelling" if on_conflict == "replace" else "running")
    if not commits:
        finish(calls, claim)
        calls.rows("advance_workflows")


def test_of_two_replacements_one_run_is_left(calls: Calls, dsn: str) -> None:
    """Both have read whose key it is when the first of them takes it away."""
    flow = Flow(calls, [step("a")], options=KEY)
    with interleave(dsn) as actor:
        holder, one, two = actor(), actor(), actor()
        holder.begin()
        holder.conn.execute("select from hwqueue.run where run_id = %s for update", [flow.run])
        blocked = []
        for session in (one, two):
            blocked.append(session.start(lambda d: submit(d, flow, "replace")))
            session.wait_until_parked()
        holder.commit()
        rows = [each.result(TIMEOUT) for each in blocked]
    calls.rows("advance_workflows")
    assert [row["created"] for row in rows] == [True, True]
    assert len(running(calls, flow)) == 1
