"""What operators do to runs and the runs below them: pauses, retries, ends that they declare."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.flows import Flow, broken, each, fail, step, sweeps
from tests.nests import below, define, nested, opened, sweep
from tests.sql.api import Api

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def test_pause_and_resume_go_down(api: Api) -> None:
    flow = Flow(api, [nested("n", "middle")])
    define(flow, "middle", nested("o", "inner"))
    define(flow, "inner", step("i"), step("j", "i"))
    sweep(api)
    inner = below(flow, "n", "o")
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    assert (inner.state, inner.get()["reason"]) == ("paused", "parent_paused")
    flow.complete("i")
    assert inner.reasons() == {"j": "run_paused"}
    api.rows("resume_workflow_run", run=flow.run)
    sweep(api)
    assert inner.state == "running"
    flow.end_with("j")


def test_it_opens_paused_while_its_parent_is(api: Api) -> None:
    flow = Flow(api, [nested("n", "child")])
    define(flow, "child", step("c"))
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    child = below(flow, "n")
    assert (child.state, child.reasons()) == ("paused", {"c": "run_paused"})
    api.rows("resume_workflow_run", run=flow.run)
    sweep(api)
    flow.end_with("c")


@pytest.mark.parametrize("when", ["before", "while paused", "as its parent goes on"])
def test_what_an_operator_has_paused_stays_so(api: Api, when: str) -> None:
    flow, child = opened(api, step("c"))
    if when == "before":
        api.rows("pause_workflow_run", run=child.run)
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    if when == "while paused":
        api.rows("pause_workflow_run", run=child.run)
    api.rows("resume_workflow_run", run=flow.run)
    if when == "as its parent goes on":
        api.rows("advance_workflows", limit=1)
        api.rows("pause_workflow_run", run=child.run)
    sweep(api)
    assert (flow.state, child.state) == ("running", "paused")
    api.rows("resume_workflow_run", run=child.run)
    flow.end_with("c")


def test_a_paused_parent_that_fails_lets_it_end(api: Api) -> None:
    flow, _ = opened(api, step("c"), step("d", "c"), within=[nested("n", "child"), step("x")])
    claims = flow.claims()
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    flow.settle(claims["c"])
    flow.settle(claims["x"], outcome="fail", retry=False)
    sweep(api)
    flow.complete("d")
    assert (flow.state, flow.states()["n"]) == ("failed", "completed")


def test_a_retry_runs_what_failed_below(api: Api) -> None:
    flow = Flow(api, [step("a"), nested("n", "child", "a"), step("b", "n")])
    define(flow, "child", step("c"), step("d", "c"))
    flow.complete("a")
    sweep(api)
    child = below(flow, "n")
    flow.complete("c")
    flow.fail("d")
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.steps()["n"]["headline"] == "is about to retry its run of workflow child"
    assert broken(api) == []
    sweep(api)
    assert below(flow, "n").run == child.run
    assert (child.state, child.get()["attempt"]) == ("running", 2)
    assert child.states() == {"c": "completed", "d": "running"}
    flow.complete("d")
    flow.end_with("b")


def test_a_retry_of_all_runs_all_below_with_its_input(api: Api) -> None:
    flow = Flow(api, [nested("n", "child", input={"x": {"$input": ["x"]}})], input={"x": 1})
    define(flow, "child", step("c"))
    sweep(api)
    child = below(flow, "n")
    flow.complete("c")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all", "input": {"x": 2}})
    sweep(api)
    assert (child.state, child.get()["input"]) == ("running", {"x": 2})
    flow.end_with("c")


def test_a_completed_run_after_what_is_retried_runs_as_a_whole(api: Api) -> None:
    flow = Flow(api, [step("a"), nested("n", "child", {"step": "a", "on": "ended"})])
    define(flow, "child", step("c"))
    flow.fail("a")
    sweep(api)
    flow.complete("c")
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    flow.complete("a")
    sweep(api)
    flow.end_with("c")


def test_a_run_that_is_pruned_is_submitted_again(api: Api, clock: Clock) -> None:
    within = [nested("n", "child"), step("x", "n")]
    flow, child = opened(api, step("c"), within=within, retain={"completed": "1 s"})
    flow.complete("c")
    api.prune_after(clock, timedelta(hours=2))
    assert flow.steps()["n"]["nested_run_id"] == child.run
    flow.fail("x")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    sweep(api)
    assert below(flow, "n").run != child.run
    flow.complete("c")
    flow.end_with("x")


def test_a_retry_with_pauses(api: Api) -> None:
    """Of the whole: a nested run is not retried by itself."""
    flow, child = opened(api, step("c"), step("d", "c"))
    flow.fail("c")
    refusal = api.refused("QHF04", "retry_workflow_run", run=child.run)
    assert str(flow.run) in refusal.hint
    assert refusal.detail["root_run_id"] == str(flow.run)
    api.rows("retry_workflow_run", run=flow.run)
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    assert child.state == "paused"
    flow.complete("c")
    assert child.reasons() == {"d": "run_paused"}
    api.rows("resume_workflow_run", run=flow.run)
    sweep(api)
    flow.end_with("d")


def test_an_operator_declares_it_done(api: Api) -> None:
    within = [nested("n", "child"), step("b", params={"x": {"$result": "n"}})]
    flow, child = opened(api, step("c"), within=within)
    api.rows("skip_step", run=flow.run, step="n", result=5)
    assert broken(api) == []
    sweep(api)
    assert child.state == "cancelled"
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": 5}
    flow.settle(claim)
    assert (flow.state, flow.states()["n"]) == ("completed", "completed")


def test_a_retry_while_the_former_run_still_stops_submits_another(api: Api) -> None:
    flow, child = opened(api, step("c"))
    claim = flow.claims()["c"]
    api.rows("skip_step", run=flow.run, step="n")
    assert flow.state == "completed"
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    sweep(api)
    assert below(flow, "n").run != child.run
    sweeps(api, 2)
    flow.settle(claim, outcome="fail")
    assert (child.state, flow.state) == ("cancelled", "running")
    flow.end_with("c")


def test_a_retry_runs_the_failed_items_of_a_map_below(api: Api) -> None:
    flow, child = opened(api, each("m", [7, 8, 9]), result={"$result": "m"})
    claims = child.items()
    child.settle(claims[0])
    child.settle(claims[2])
    fail(api, claims[1])
    sweep(api)
    assert (child.state, flow.state) == ("failed", "failed")
    api.rows("retry_workflow_run", run=flow.run)
    sweep(api)
    again = child.items()
    assert {number: claim["params"] for number, claim in again.items()} == {1: {"item": 8}}
    child.settle(again[1])
    sweep(api)
    assert flow.state == "completed"
    assert flow.steps()["n"]["result"] == {"items": 3, "failed": 0}
