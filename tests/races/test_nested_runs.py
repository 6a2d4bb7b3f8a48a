"""Nested runs and parents that change at once: neither waits, no end is lost or doubled."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import Flow, broken, finish, step
from tests.nests import below, define, nested, sweep
from tests.races.interleave import Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough


def submitted(direct: Direct, *after: str) -> Flow:
    """A run of a nested run and a step after it."""
    flow = Flow(direct, [*map(step, after), nested("n", "child", *after), step("b", "n")])
    define(flow, "child", step("c"))
    return flow


@pytest.mark.parametrize("first", ["end", "cancel"])
def test_it_ends_while_its_parent_is_cancelled(direct: Direct, one: Actor, first: str) -> None:
    flow = submitted(direct)
    sweep(direct)
    child, claims = below(flow, "n"), flow.claims()
    if first == "end":
        finish(one.direct, claims["c"])
        assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
        direct.rows("advance_workflows")
    else:
        one.direct.rows("cancel_workflow_run", run=flow.run)
        finish(direct, claims["c"])
    assert broken(direct) == []
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    assert (child.state, flow.state) == ("completed", "cancelled")
    assert flow.states()["n"] == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_it_ends_while_an_operator_holds_the_step(direct: Direct, one: Actor, commits: bool) -> None:
    flow = submitted(direct)
    sweep(direct)
    child, claims = below(flow, "n"), flow.claims()
    one.direct.rows("skip_step", run=flow.run, step="n", result=1)
    finish(direct, claims["c"], result=2)
    assert (child.state, flow.states()["n"]) == ("completed", "running")
    assert broken(direct) == []
    one.end(commits)
    sweep(direct)
    assert flow.reasons() == ({"n": "operator"} if commits else {})
    flow.end_with("b")


def test_it_ends_in_a_transaction_that_stays_open(direct: Direct, one: Actor) -> None:
    """Its parent can be changed meanwhile, and other steps of it end."""
    flow = Flow(direct, [nested("n", "child"), step("x"), step("y", "x"), step("z", "n", "y")])
    define(flow, "child", step("c"))
    sweep(direct)
    claims = flow.claims()
    finish(one.direct, claims["c"])
    finish(direct, claims["x"])
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    direct.rows("resume_workflow_run", run=flow.run)
    flow.complete("y")
    assert flow.states() == {"n": "running", "x": "completed", "y": "completed", "z": "waiting"}
    one.commit()
    sweep(direct)
    flow.end_with("z")


@pytest.mark.parametrize("ends", ["cancel", "rollback"])
def test_it_is_opened_while_its_parent_is_cancelled(direct: Direct, one: Actor, ends: str) -> None:
    """The sweep has read the parent before; the arrival of the change stays until it has ended."""
    flow = submitted(direct)
    one.direct.rows("advance_workflows")
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    direct.rows("advance_workflows")
    assert flow.steps()["n"]["nested_run_id"] is None
    assert broken(direct) == []
    if ends == "rollback":
        one.rollback()
        sweep(direct)
        assert flow.reasons() == {"n": "run_stopped", "b": "cancelled"}
    else:
        one.commit()
        outlive(direct.conn)
        sweep(direct)
        assert below(flow, "n").state == "cancelled"
    assert flow.state == "cancelled"


def test_it_is_opened_while_its_parent_is_paused_and_resumed(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    one.direct.rows("advance_workflows")
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    child = below(flow, "n")
    assert child.state == "paused"
    one.begin()
    direct.rows("resume_workflow_run", run=flow.run)
    one.direct.rows("advance_workflows")
    assert child.state == "paused"
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    direct.rows("resume_workflow_run", run=flow.run)
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    assert child.state == "running"
    flow.complete("c")
    flow.end_with("b")


def test_a_pause_that_meets_a_resume_below(direct: Direct, one: Actor) -> None:
    """A sweep has read the parent as paused, and pauses the run after the parent was resumed."""
    flow = submitted(direct)
    sweep(direct)
    child = below(flow, "n")
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.direct.rows("advance_workflows")  # holds the run below, paused
    direct.rows("resume_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.commit()
    assert child.get()["reason"] == "parent_paused"
    outlive(direct.conn)
    sweep(direct)
    assert child.state == "running"


def test_two_sweeps_open_it_once(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    assert one.direct.row("advance_workflows")["released"] == 1
    assert direct.row("advance_workflows")["released"] == 0
    one.commit()
    sweep(direct)
    below_it = direct.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)})
    assert [row["run_id"] for row in below_it] == [below(flow, "n").run]


def test_it_ends_while_the_row_of_its_parent_is_held(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    one.direct.rows("pause_workflow_run", run=flow.run)
    flow.complete("c")
    assert flow.states()["n"] == "completed"
    one.rollback()
    sweep(direct)
    flow.end_with("b")


def test_it_fails_while_the_row_of_its_parent_is_held(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    one.direct.rows("pause_workflow_run", run=flow.run)
    flow.fail("c")
    one.commit()
    sweep(direct)
    assert (flow.state, flow.reasons()["n"]) == ("failed", "nested_failed")


def test_a_retry_while_another_session_holds_what_is_below(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    flow.fail("c")
    child = below(flow, "n")
    direct.rows("retry_workflow_run", run=flow.run)
    one.conn.execute("select 1 from hwqueue.run where run_id = %s for update", [child.run])
    direct.rows("advance_workflows")
    assert (child.state, flow.states()["n"]) == ("failed", "running")
    assert broken(direct) == []
    one.commit()
    sweep(direct)
    flow.complete("c")
    flow.end_with("b")


def test_it_is_kept_until_its_step_has_read_its_end(direct: Direct, one: Actor, clock: Clock) -> None:
    """Although its retention is over."""
    flow = Flow(direct, [nested("n", "child"), step("b", params={"x": {"$result": "n"}})])
    define(flow, "child", step("c"), result={"$result": "c"}, retain={"completed": "1 s"})
    sweep(direct)
    claim = flow.claims()["c"]
    one.conn.execute("select 1 from hwqueue.step where run_id = %s for update", [flow.run])
    finish(direct, claim, result=7)
    clock.advance(timedelta(hours=2))
    direct.rows("prune")
    one.commit()
    sweep(direct)
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": 7}
    direct.rows("prune")
    assert direct.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)}) == []
