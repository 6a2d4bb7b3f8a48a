"""Adding steps beside what else goes on: no run below is left alone, and no step ends early."""

from copy import copy
from typing import Any

import pytest

from tests.calls import Calls, Row
from tests.flows import Flow, fail, finish, step
from tests.nests import sweep
from tests.races.interleave import TIMEOUT, Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough


def adding(claim: Row, *steps: Row, name: str = "more") -> Row:
    spec = {"name": name, "steps": list(steps or [step("x")])}
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "spec": spec}


def added(calls: Calls, flow: Flow, claim: Row, *steps: Row) -> Flow:
    made = copy(flow)
    made.run = calls.row("add_steps", **adding(claim, *steps))["run_id"]
    return made


def began(calls: Calls) -> tuple[Flow, Row]:
    flow = Flow(calls, [step("a"), step("b", "a")])
    return flow, flow.claims()["a"]


def settled(flow: Flow) -> None:
    """Sweep until nothing of a run that stops can come any more."""
    outlive(flow.calls.conn)
    for _ in range(3):
        sweep(flow.calls)


def test_adding_and_the_end_in_one_transaction(calls: Calls, two: list[Actor]) -> None:
    flow, own = began(calls)
    two[0].begin()
    more = added(two[0].direct, flow, own)
    finish(two[0].direct, own)
    sweep(calls)
    assert flow.states()["a"] == "running"
    two[0].commit()
    sweep(calls)
    assert flow.states()["a"] == "running"
    more.complete("x")
    sweep(calls)
    assert flow.states()["a"] == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_an_adding_that_stays_open(calls: Calls, two: list[Actor], commits: bool) -> None:
    """An item adds, when all else of the step has ended."""
    flow, own = began(calls)
    items: list[Any] = [{"name": "i"}]
    calls.rows("add_items", lease=own["lease_id"], token=own["claim_token"], items=items)
    sweep(calls)
    item = flow.items()[0]
    flow.settle(own)
    two[0].begin()
    more = added(two[0].direct, flow, item)
    sweep(calls)
    if commits:
        two[0].commit()
    else:
        two[0].rollback()
    flow.settle(item)
    sweep(calls)
    assert flow.states()["a"] == ("running" if commits else "completed")
    if commits:
        more.complete("x")
        sweep(calls)
    assert flow.states()["a"] == "completed"


def test_the_last_lease_and_the_last_run_end_at_once(calls: Calls, two: list[Actor]) -> None:
    """Neither sees the other's end; the arrival of the second finds both."""
    flow, own = began(calls)
    more = added(calls, flow, own)
    [claim] = more.claims().values()
    two[0].begin()
    flow.settle(own, two[0].direct)
    two[1].begin()
    finish(two[1].direct, claim)
    two[0].commit()
    sweep(calls)
    assert flow.states()["a"] == "running"
    two[1].commit()
    sweep(calls)
    assert flow.states()["a"] == "completed"


@pytest.mark.parametrize("call", ["cancel_workflow_run", "pause_workflow_run"])
def test_a_run_changes_its_state_while_a_step_adds(calls: Calls, two: list[Actor], call: str) -> None:
    """Neither waits for the other, nor sees it: what was added is told when both have committed."""
    flow, own = began(calls)
    two[0].begin()
    more = added(two[0].direct, flow, own)
    state = calls.value(call, run=flow.run)
    sweep(calls)
    two[0].commit()
    assert more.state == "running"
    settled(flow)
    assert more.state == ("paused" if state == "paused" else "cancelled")
    if state == "paused":
        calls.rows("resume_workflow_run", run=flow.run)
        settled(flow)
        more.complete("x")
        flow.settle(own)
        sweep(calls)
        assert flow.states()["a"] == "completed"
    else:
        fail(calls, own)
        settled(flow)
        assert (flow.state, flow.states()["a"]) == ("cancelled", "cancelled")


def test_a_run_fails_while_a_step_adds(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [step("a"), step("c")], on_failure="fail_fast")
    claims = flow.claims()
    two[0].begin()
    more = added(two[0].direct, flow, claims["a"])
    fail(calls, claims["c"])
    sweep(calls)
    two[0].commit()
    settled(flow)
    assert more.state == "cancelled"
    fail(calls, claims["a"])
    settled(flow)
    assert flow.state == "failed"


def test_one_claim_adds_twice(calls: Calls, two: list[Actor]) -> None:
    flow, own = began(calls)
    two[0].begin()
    first = two[0].direct.row("add_steps", **adding(own))
    again = two[1].start(lambda session: session.row("add_steps", **adding(own)))
    two[1].wait_until_parked()
    two[0].commit()
    second = again.result(TIMEOUT)
    assert (second["run_id"], second["created"]) == (first["run_id"], False)
    assert len(calls.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)})) == 1


def test_a_retry_that_cannot_lock_the_run_below_goes_on_later(calls: Calls, two: list[Actor]) -> None:
    flow, own = began(calls)
    more = added(calls, flow, own)
    flow.settle(own)
    more.fail("x")
    sweep(calls)
    assert flow.state == "failed"
    calls.rows("retry_workflow_run", run=flow.run)
    two[0].begin()
    two[0].direct.conn.execute("select from hwqueue.run where run_id = %s for update", [more.run])
    for _ in range(3):
        calls.rows("advance_workflows")
    assert (more.state, flow.state) == ("failed", "running")
    two[0].commit()
    sweep(calls)
    more.complete("x")
    sweep(calls)
    flow.complete("b")
    assert flow.state == "completed"
