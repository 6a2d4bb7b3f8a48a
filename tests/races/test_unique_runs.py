"""Submissions of runs with one unique key that meet each other, or the end of the run."""

from typing import Any

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, finish, step
from tests.races.interleave import TIMEOUT, Actors, Meet

pytestmark = pytest.mark.thorough


def submit(direct: Direct, flow: Flow, on_conflict: str) -> Row:
    unique = {"unique": {"key": "k", "on_conflict": on_conflict}}
    return direct.row("submit_spec", spec=flow.spec, options=unique)


def running(direct: Direct, flow: Flow) -> set[Any]:
    rows = direct.rows("list_workflow_runs", filter={"workflow": flow.spec["name"]})
    return {row["run_id"] for row in rows if row["state"] == "running"}


KEY = {"unique": {"key": "k"}}


@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_waits_for_one_with_its_key(direct: Direct, meet: Meet, commits: bool) -> None:
    flow = Flow(direct, [step("a")])
    first, blocked = meet(
        lambda d: submit(d, flow, "keep"), lambda d: submit(d, flow, "keep"), commits=commits
    )
    second = blocked.result(TIMEOUT)
    assert second["created"] is not commits
    assert (second["run_id"] == first["run_id"]) is commits


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_meets_the_end_of_the_run(
    direct: Direct, meet: Meet, commits: bool, on_conflict: str
) -> None:
    flow = Flow(direct, [step("a")], options=KEY)
    claim = flow.claims()["a"]
    _, blocked = meet(lambda d: finish(d, claim), lambda d: submit(d, flow, on_conflict), commits=commits)
    second = blocked.result(TIMEOUT)
    assert second["created"] is (commits or on_conflict == "replace")
    assert flow.state == ("completed" if commits else "cancelling" if on_conflict == "replace" else "running")
    if not commits:
        finish(direct, claim)
        direct.rows("advance_workflows")


def test_of_two_replacements_one_run_is_left(actor: Actors, direct: Direct) -> None:
    """Both have read whose key it is when the first of them takes it away."""
    flow = Flow(direct, [step("a")], options=KEY)
    holder, one, two = actor().begin(), actor(), actor()
    holder.conn.execute("select from hwqueue.run where run_id = %s for update", [flow.run])
    blocked = [session.parked(lambda d: submit(d, flow, "replace")) for session in (one, two)]
    holder.commit()
    rows = [each.result(TIMEOUT) for each in blocked]
    direct.rows("advance_workflows")
    assert [row["created"] for row in rows] == [True, True]
    assert len(running(direct, flow)) == 1
