"""Handlers add items and steps to their step while it ends, stops or is retried."""

from copy import copy
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, each, fail, finish, step, sweeps
from tests.nests import sweep
from tests.races.interleave import TIMEOUT, Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough


def adding(claim: Row, *names: str) -> Row:
    items = [{"name": name} for name in names]
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "items": items}


def opened(flow: Flow) -> dict[Any, Row]:
    """Claim what a sweep lets in."""
    flow.calls.rows("advance_workflows")
    return flow.items()


def stopped(flow: Flow) -> None:
    """Sweep until nothing of a run that stops can come any more."""
    outlive(flow.calls.conn)
    sweeps(flow.calls, 3)


@pytest.mark.parametrize("commits", [True, False])
def test_the_last_item_ends_while_another_adds(direct: Direct, one: Actor, commits: bool) -> None:
    """The adding is open when all that was there before has ended, but for who adds."""
    flow = Flow(direct, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x", "y"))
    claims = opened(flow)
    one.direct.rows("add_items", **adding(claims[0], "late"))
    flow.settle(own)
    flow.settle(claims[1])
    direct.rows("advance_workflows")
    assert flow.states() == {"a": "running", "b": "waiting"}
    one.end(commits)
    flow.settle(claims[0])
    late = opened(flow)
    if commits:
        assert (flow.states()["a"], sorted(late)) == ("running", [2])
        flow.settle(late[2])
        late = flow.claims()
    finish(direct, late["b"])
    assert flow.state == "completed"


def test_adding_and_the_end_in_one_transaction(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    finish(one.direct, own, result=1)
    direct.rows("advance_workflows")
    assert flow.states()["a"] == "running"
    one.commit()
    assert flow.states()["a"] == "running"
    flow.settle(opened(flow)[0])
    assert flow.states() == {"a": "completed", "b": "running"}


def test_a_claim_does_not_expire_while_it_adds(direct: Direct, one: Actor, clock: Clock) -> None:
    flow = Flow(direct, [step("a", options={"max_attempts": 2})])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    clock.advance(timedelta(hours=1))
    direct.rows("reap")
    assert direct.row("get_lease", lease=own["lease_id"])["state"] == "claimed"
    one.commit()
    direct.rows("reap")
    assert direct.row("get_lease", lease=own["lease_id"])["state"] != "claimed"
    assert flow.steps()["a"]["items"] == 1


@pytest.mark.parametrize("has_items", [False, True])
def test_a_run_is_cancelled_while_a_step_adds(direct: Direct, one: Actor, has_items: bool) -> None:
    """The cancellation does not see that the step has items; what it asks to stop is all of it."""
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    if has_items:
        direct.rows("add_items", **adding(own, "before"))
    one.direct.rows("add_items", **adding(own, "x"))
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    direct.rows("advance_workflows")
    one.commit()
    sweeps(direct, 2)
    assert direct.row("get_lease", lease=own["lease_id"])["stop_reason"] == "cancelled"
    assert flow.items() == {}
    fail(direct, own)
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_run_is_cancelled_while_an_item_is_let_in(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    one.direct.rows("advance_workflows")
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    one.commit()
    stopped(flow)
    fail(direct, own)
    stopped(flow)
    assert (flow.state, flow.steps()["a"]["items_done"]) == ("cancelled", 1)


def test_a_lease_that_waits_is_stopped_while_an_item_adds(direct: Direct, one: Actor) -> None:
    """Its step has an item that runs: it is counted as one of them, and ends no step."""
    flow = Flow(direct, [step("a", options={"max_attempts": 2, "retry": {"base": 3600}})])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    claims = opened(flow)
    flow.settle(own, outcome="fail", error={})
    one.direct.rows("add_items", **adding(claims[0], "y"))
    direct.rows("cancel_workflow_run", run=flow.run)
    assert direct.row("get_lease", lease=own["lease_id"])["state"] == "cancelled"
    assert (flow.state, flow.states()) == ("cancelling", {"a": "running"})
    one.commit()
    fail(direct, claims[0])
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_retry_begins_while_a_stale_run_adds(direct: Direct, one: Actor) -> None:
    """What a lost claim adds is refused, also when its step runs again."""
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    flow.settle(own, outcome="fail", retry=False)
    direct.rows("advance_workflows")
    assert flow.state == "failed"
    one.direct.rows("retry_workflow_run", run=flow.run)
    for _ in range(2):
        with pytest.raises(psycopg.Error) as refused:
            direct.rows("add_items", **adding(own, "late"))
        assert refused.value.sqlstate in ("QHL01", "QHL03")
        one.commit()
    again = opened(flow)
    assert sorted(map(str, again)) == ["0", "a"]
    direct.rows("add_items", **adding(again["a"], "x"))
    flow.settle_each(again.values())
    assert (flow.state, flow.steps()["a"]["items"]) == ("completed", 1)


def test_two_items_add_to_one_step(direct: Direct, one: Actor, two: Actor) -> None:
    """The second waits for the first, numbers its items behind, and finds the names."""
    flow = Flow(direct, [each("m", [1, 2])])
    claims = flow.items()
    one.direct.rows("add_items", **adding(claims[0], "x", "y"))
    added = two.parked(lambda session: session.rows("add_items", **adding(claims[1], "z", "y")))
    one.commit()
    rows = added.result(TIMEOUT)
    assert [(row["name"], row["item"], row["created"]) for row in rows] == [("z", 4, True), ("y", 3, False)]
    flow.settle_each([*claims.values(), *opened(flow).values()])
    assert flow.state == "completed"


def test_one_claim_adds_twice_for_the_first_time(direct: Direct, one: Actor, two: Actor) -> None:
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    added = two.parked(lambda session: session.rows("add_items", **adding(own, "y")))
    one.commit()
    assert [row["item"] for row in added.result(TIMEOUT)] == [1]
    flow.settle_each([own, *opened(flow).values()])
    assert flow.state == "completed"


def test_an_adding_that_stays_open_holds_up_no_window(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [each("m", list(range(5)), max_parallel=2)])
    claims = flow.items()
    one.direct.rows("add_items", **adding(claims.pop(0), "x"))
    done = 0
    while claims:
        for claim in claims.values():
            flow.settle(claim)
            done += 1
        claims = opened(flow)
    assert done == 4
    one.rollback()


def adding_steps(claim: Row, *steps: Row, name: str = "more") -> Row:
    spec = {"name": name, "steps": list(steps or [step("x")])}
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "spec": spec}


def added(direct: Direct, flow: Flow, claim: Row, *steps: Row) -> Flow:
    made = copy(flow)
    made.run = direct.row("add_steps", **adding_steps(claim, *steps))["run_id"]
    return made


def began(direct: Direct) -> tuple[Flow, Row]:
    flow = Flow(direct, [step("a"), step("b", "a")])
    return flow, flow.claims()["a"]


def settled(flow: Flow) -> None:
    """Sweep until nothing of a run that stops can come any more."""
    outlive(flow.calls.conn)
    for _ in range(3):
        sweep(flow.calls)


def test_adding_steps_and_the_end_in_one_transaction(direct: Direct, one: Actor) -> None:
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
    first = one.direct.row("add_steps", **adding_steps(own))
    again = two.parked(lambda session: session.row("add_steps", **adding_steps(own)))
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
