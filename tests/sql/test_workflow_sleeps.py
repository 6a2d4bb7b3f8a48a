"""Runs that begin later, and steps that sleep."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, each, finish, step
from tests.nests import define, nested, sweep
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("sound")


HOUR = timedelta(hours=1)
LATER = {"delay": "1 hour"}


def test_first_steps_wait_for_their_time(api: Api, clock: Clock) -> None:
    begins = clock.now() + HOUR
    options = {"available_at": begins.isoformat()}
    flow = Flow(api, [step("a"), step("b"), step("c", "a", "b")], options=options)
    assert (flow.state, flow.claims()) == ("running", {})
    rows = flow.steps()
    assert [row["lease_state"] for row in rows.values()] == ["scheduled", "scheduled", None]
    assert api.row("get_lease", lease=rows["a"]["lease_id"])["available_at"] == begins
    clock.advance(HOUR)
    flow.complete("a", "b")
    flow.complete("c")
    assert (flow.state, broken(api)) == ("completed", [])


def test_a_delay_is_from_now_and_steps_delays_come_on_top(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", options={"delay": "10 min"})], options=LATER)
    clock.advance(HOUR)
    flow.complete("a")
    assert flow.claims() == {}
    clock.advance(timedelta(minutes=10))
    flow.complete("b")


def test_items_sleeps_and_waits_count_from_that_time(api: Api, clock: Clock) -> None:
    nap = {"name": "nap", "kind": "sleep", "for": "10 min"}
    wait = {"name": "ok", "kind": "wait", "signal": "go", "timeout": "10 min", "on_timeout": "skip"}
    flow = Flow(api, [each("m", [1, 2]), nap, wait], options=LATER)
    begins = clock.now() + HOUR
    assert flow.items() == {}
    due = {name: row["due_at"] for name, row in flow.steps().items() if row["due_at"]}
    assert set(due) == {"nap", "ok"}
    assert set(due.values()) == {begins + timedelta(minutes=10)}
    clock.advance(HOUR)
    assert sorted(flow.items()) == [0, 1]
    assert flow.states()["nap"] == "running"
    api.reap_after(clock, timedelta(minutes=11))
    # its items ended without a heartbeat, their only attempt
    assert flow.states() == {"m": "failed", "nap": "completed", "ok": "skipped"}


def test_what_a_condition_skips_begins_nothing_early(api: Api, clock: Clock) -> None:
    skipped = step("a", run_if=[{"input": ["no"], "op": "exists"}])
    after = step("b", {"step": "a", "on": "ended"})
    flow = Flow(api, [skipped, after], options=LATER)
    assert flow.states() == {"a": "skipped", "b": "running"}
    assert flow.claims() == {}
    clock.advance(HOUR)
    flow.complete("b")


def test_a_nested_run_begins_with_its_parent(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a")], options={})
    define(flow, "inner", step("i"))
    steps = [nested("n", "inner"), nested("late", "inner", "n")]
    spec = {"name": "outer", "queue": flow.queue, "steps": steps}
    run = api.row("submit_spec", spec=spec, options=LATER)["run_id"]
    sweep(api)
    flow.complete("a")
    clock.advance(HOUR)
    flow.complete("i")
    sweep(api)
    flow.complete("i")  # the second one has no time of its own to wait for
    sweep(api)
    assert api.row("get_workflow_run", run=run)["state"] == "completed"


def test_a_run_is_cancelled_before_its_time_and_retried_at_once(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", "a")], options=LATER)
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"
    clock.advance(2 * HOUR)
    assert (flow.claims(), broken(api)) == ({}, [])
    other = Flow(api, [step("a")], options=LATER)
    api.value("cancel_workflow_run", run=other.run)
    assert api.value("retry_workflow_run", run=other.run) == "running"
    other.complete("a")
    assert (other.state, broken(api)) == ("completed", [])


def test_a_run_that_is_paused_before_its_time_holds_what_comes_after(api: Api, clock: Clock) -> None:
    """Its first steps are released: their leases wait, as they would for a node."""
    flow = Flow(api, [step("a"), step("b", "a")], options=LATER)
    api.value("pause_workflow_run", run=flow.run)
    assert flow.claims() == {}
    clock.advance(HOUR)
    flow.complete("a")
    assert (flow.claims(), flow.reasons()) == ({}, {"b": "run_paused"})
    api.value("resume_workflow_run", run=flow.run)
    flow.end_with("b")


def test_a_deadline_and_keys_hold_from_the_submission_on(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a")], options=LATER, deadline="30 min")
    api.reap_after(clock, timedelta(minutes=31))
    assert (flow.state, flow.get()["reason"]) == ("failed", "deadline_exceeded")
    given = {"delay": 3600, "idempotency_key": "k"}
    first = api.row("submit_spec", spec=flow.spec, options=given)
    assert api.row("submit_spec", spec=flow.spec, options=given)["run_id"] == first["run_id"]
    other = given | {"delay": 60}
    api.refused("QHT01", "submit_spec", spec=flow.spec, options=other)
    alone = {"delay": 3600, "unique": {"key": "u"}}
    assert api.row("submit_spec", spec=flow.spec, options=alone)["created"]
    assert not api.row("submit_spec", spec=flow.spec, options=alone)["created"]


def test_times_that_are_none(api: Api) -> None:
    spec = {"name": "x", "queue": api.queue(), "steps": [step("a")]}
    both = {"delay": "1 h", "available_at": "2100-01-01T00:00:00Z"}
    assert api.fault("submit_spec", spec=spec, options=both) == "options.delay"
    assert api.fault("submit_spec", spec=spec, options={"available_at": "soon"})
    over = Flow(api, [step("a")], options={"available_at": "2000-01-01T00:00:00Z"})
    over.complete("a")  # a time that is over changes nothing


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
