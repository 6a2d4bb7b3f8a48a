"""Adding steps beside what else goes on: no run below is left alone, and no step ends early."""

from copy import copy
from typing import Any

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, fail, finish, step, sweeps
from tests.nests import sweep
from tests.races.interleave import TIMEOUT, Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough


def adding(claim: Row, *steps: Row, name: str = "more") -> Row:
    spec = {"name": name, "steps": list(steps or [step("x")])}
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "spec": spec}


def added(direct: Direct, flow: Flow, claim: Row, *steps: Row) -> Flow:
    made = copy(flow)
    made.run = direct.row("add_steps", **adding(claim, *steps))["run_id"]
    return made


def began(direct: Direct) -> tuple[Flow, Row]:
    flow = Flow(direct, [step("a"), step("b", "a")])
    return flow, flow.claims()["a"]


def settled(flow: Flow) -> None:
    """Sweep until nothing of a run that stops can come any more."""
    outlive(flow.calls.conn)
    for _ in range(3):
        sweep(flow.calls)


def test_adding_and_the_end_in_one_transaction(direct: Direct, one: Actor) -> None:
    flow, own = began(direct)
    more = added(one.direct, flow, own)
    finish(one.direct, own)
    sweep(direct)
    assert flow.states()["a"] == "running"
    one.commit()
    sweep(direct)
    assert flow.states()["a"] == "running"
    more.complete("x")
    sweep(direct)
    assert flow.states()["a"] == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_an_adding_that_stays_open(direct: Direct, one: Actor, commits: bool) -> None:
    """An item adds, when all else of the step has ended."""
    flow, own = began(direct)
    items: list[Any] = [{"name": "i"}]
    direct.rows("add_items", lease=own["lease_id"], token=own["claim_token"], items=items)
    sweep(direct)
    item = flow.items()[0]
    flow.settle(own)
    more = added(one.direct, flow, item)
    sweep(direct)
    one.end(commits)
    flow.settle(item)
    sweep(direct)
    assert flow.states()["a"] == ("running" if commits else "completed")
    if commits:
        more.complete("x")
        sweep(direct)
    assert flow.states()["a"] == "completed"


def test_the_last_lease_and_the_last_run_end_at_once(direct: Direct, one: Actor, two: Actor) -> None:
    """Neither sees the other's end; the arrival of the second finds both."""
    flow, own = began(direct)
    more = added(direct, flow, own)
    [claim] = more.claims().values()
    flow.settle(own, one.direct)
    two.begin()
    finish(two.direct, claim)
    one.commit()
    sweep(direct)
    assert flow.states()["a"] == "running"
    two.commit()
    sweep(direct)
    assert flow.states()["a"] == "completed"


@pytest.mark.parametrize("call", ["cancel_workflow_run", "pause_workflow_run"])
def test_a_run_changes_its_state_while_a_step_adds(direct: Direct, one: Actor, call: str) -> None:
    """Neither waits for the other, nor sees it: what was added is told when both have committed."""
    flow, own = began(direct)
    more = added(one.direct, flow, own)
    state = direct.value(call, run=flow.run)
    sweep(direct)
    one.commit()
    assert more.state == "running"
    settled(flow)
    assert more.state == ("paused" if state == "paused" else "cancelled")
    if state == "paused":
        direct.rows("resume_workflow_run", run=flow.run)
        settled(flow)
        more.complete("x")
        flow.settle(own)
        sweep(direct)
        assert flow.states()["a"] == "completed"
    else:
        fail(direct, own)
        settled(flow)
        assert (flow.state, flow.states()["a"]) == ("cancelled", "cancelled")


def test_a_run_fails_while_a_step_adds(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("c")], on_failure="fail_fast")
    claims = flow.claims()
    more = added(one.direct, flow, claims["a"])
    fail(direct, claims["c"])
    sweep(direct)
    one.commit()
    settled(flow)
    assert more.state == "cancelled"
    fail(direct, claims["a"])
    settled(flow)
    assert flow.state == "failed"


def test_one_claim_adds_twice(direct: Direct, one: Actor, two: Actor) -> None:
    flow, own = began(direct)
    first = one.direct.row("add_steps", **adding(own))
    again = two.parked(lambda session: session.row("add_steps", **adding(own)))
    one.commit()
    second = again.result(TIMEOUT)
    assert (second["run_id"], second["created"]) == (first["run_id"], False)
    assert len(direct.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)})) == 1


def test_a_retry_that_cannot_lock_the_run_below_goes_on_later(direct: Direct, one: Actor) -> None:
    flow, own = began(direct)
    more = added(direct, flow, own)
    flow.settle(own)
    more.fail("x")
    sweep(direct)
    assert flow.state == "failed"
    direct.rows("retry_workflow_run", run=flow.run)
    one.direct.conn.execute("select from hwqueue.run where run_id = %s for update", [more.run])
    sweeps(direct, 3)
    assert (more.state, flow.state) == ("failed", "running")
    one.commit()
    sweep(direct)
    more.complete("x")
    sweep(direct)
    flow.end_with("b")
