"""Steps that sleep: when they end, and what changes of their run do to them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, finish, step
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("sound")

HOUR = timedelta(hours=1)


def sleep(name: str, *after: Any, **more: Any) -> Row:
    """A step that sleeps for an hour unless it says otherwise."""
    span = {} if "until" in more else {"for": "1 hour"}
    return {"name": name, "kind": "sleep", "after": list(after)} | span | more


@pytest.mark.parametrize("call", ["reap", "advance_workflows"])
def test_a_sleep_ends_when_it_is_due(api: Api, clock: Clock, call: str) -> None:
    flow = Flow(api, [step("a"), sleep("s", "a"), step("b", "s")])
    flow.complete("a")
    row = flow.steps()["s"]
    assert (row["kind"], row["state"], row["lease_id"]) == ("sleep", "running", None)
    assert row["headline"] == f"sleeps until {row['due_at']:%Y-%m-%dT%H:%M:%SZ}"
    clock.advance(HOUR - timedelta(seconds=1))
    api.rows(call)
    assert flow.states() == {"a": "completed", "s": "running", "b": "waiting"}
    clock.advance(timedelta(seconds=1))
    api.rows(call)
    assert flow.states() == {"a": "completed", "s": "completed", "b": "running"}
    assert flow.steps()["s"]["headline"] is None
    flow.end_with("b")


def test_only_what_is_due_ends(api: Api, clock: Clock) -> None:
    flow = Flow(api, [sleep("s"), sleep("t", **{"for": "2 hours"})])
    api.reap_after(clock, HOUR)
    assert flow.states() == {"s": "completed", "t": "running"}
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"


@pytest.mark.parametrize(
    ("until", "state", "reason"),
    [
        ("2001-01-01T00:00:00Z", "completed", None),
        ({"$input": ["at"]}, "completed", None),
        ({"$input": ["later"]}, "running", None),
        ({"$input": ["none"]}, "failed", "binding_missing"),
        ({"$input": ["word"]}, "failed", "no_time"),
    ],
)
def test_a_sleep_until_a_time(api: Api, until: Any, state: str, reason: str | None) -> None:
    given = {"at": "2001-01-01T00:00:00Z", "later": "2999-01-01T00:00:00+01:00", "word": "soon"}
    flow = Flow(api, [sleep("s", until=until)], input=given)
    row = flow.steps()["s"]
    assert (row["state"], row["reason"]) == (state, reason)
    if state == "running":
        assert row["due_at"] == datetime(2998, 12, 31, 23, tzinfo=UTC)
    else:
        assert flow.state == state


def test_a_sleep_of_no_time_ends_with_the_submission(api: Api) -> None:
    """One whose condition does not hold is skipped."""
    condition = {"input": ["fast"], "op": "in", "values": [False]}
    steps = [sleep("s", **{"for": 0}), step("b", "s"), sleep("t", run_if=[condition])]
    flow = Flow(api, steps, input={"fast": True})
    assert flow.reasons() == {"t": "condition"}
    flow.end_with("b")


def test_many_sleeps_end_over_several_calls(api: Api, clock: Clock) -> None:
    flow = Flow(api, [sleep(f"s{n}") for n in range(5)])
    clock.advance(HOUR)
    more = []
    while flow.state == "running":
        more.append(api.row("advance_workflows", limit=2)["more"])
    assert more == [True, True, False]


def test_a_paused_run_goes_on_sleeping_and_holds_what_follows(api: Api, clock: Clock) -> None:
    flow = Flow(api, [sleep("s"), sleep("t", "s")])
    api.rows("pause_workflow_run", run=flow.run)
    api.reap_after(clock, HOUR)
    assert flow.states() == {"s": "completed", "t": "waiting"}
    assert flow.reasons() == {"t": "run_paused"}
    api.rows("resume_workflow_run", run=flow.run)
    assert flow.states()["t"] == "running"
    api.reap_after(clock, HOUR)
    assert flow.state == "completed"


def test_a_cancel_or_a_deadline_ends_a_sleep(api: Api, clock: Clock) -> None:
    flow, late = Flow(api, [sleep("s"), step("b", "s")]), Flow(api, [sleep("s")], deadline="30 min")
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"
    assert flow.states() == {"s": "cancelled", "b": "skipped"}
    assert flow.steps()["s"]["due_at"] is None
    api.reap_after(clock, HOUR / 2)
    assert (late.state, late.get()["reason"]) == ("failed", "deadline_exceeded")


@pytest.mark.parametrize("policy", ["finish_running", "fail_fast"])
def test_a_run_that_fails_does_not_sleep_on(api: Api, policy: str) -> None:
    flow = Flow(api, [sleep("s"), step("a")], on_failure=policy)
    flow.fail("a")
    api.rows("advance_workflows")
    assert flow.state == "failed"
    assert flow.reasons() == {"s": "run_stopped"}


def test_a_retry_sleeps_again(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("x"), sleep("s"), step("b", "s")])
    flow.fail("x")
    api.rows("advance_workflows")
    clock.advance(HOUR)
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.states() == {"x": "running", "s": "running", "b": "waiting"}
    api.reap_after(clock, HOUR)
    flow.end_with("b", "x")


def test_an_operator_wakes_a_sleep(api: Api, clock: Clock) -> None:
    """A finally step sleeps, too."""
    last = sleep("last", **{"finally": "ended"}) | {"after": []}
    flow = Flow(api, [sleep("s"), step("b", params={"x": {"$result": "s"}}), last])
    api.rows("skip_step", run=flow.run, step="s", result={"n": 1})
    assert flow.steps()["s"]["due_at"] is None
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": {"n": 1}}
    finish(api, claim)
    assert flow.state == "running"
    api.reap_after(clock, HOUR)
    assert flow.state == "completed"
