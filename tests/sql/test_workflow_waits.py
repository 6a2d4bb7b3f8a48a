"""Steps that wait for signals: which they take, when they time out, what is refused."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import Api, count_all

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]

HOUR = timedelta(hours=1)


def wait(name: str, *after: Any, signal: str = "go", **more: Any) -> Row:
    """A step that waits for a signal."""
    return {"name": name, "kind": "wait", "signal": signal, "after": list(after)} | more


def send(api: Api, flow: Flow, payload: Any = None, name: str = "go", **more: Any) -> Row:
    return api.row("signal_workflow_run", run=flow.run, name=name, payload=payload, **more)


def test_a_signal_ends_the_wait_with_its_payload(api: Api) -> None:
    flow = Flow(api, [step("a"), wait("w", "a"), step("b", params={"by": {"$result": "w"}})])
    flow.complete("a")
    row = flow.steps()["w"]
    assert (row["state"], row["headline"]) == ("running", "waits for signal go")
    assert send(api, flow, "ann")["created"]
    [claim] = flow.claims().values()
    assert claim["params"] == {"by": "ann"}
    assert flow.steps()["w"]["result"] == "ann"


def test_each_wait_takes_one_signal_oldest_first(api: Api) -> None:
    """A signal may come before the wait."""
    flow = Flow(api, [step("a"), wait("w", "a"), wait("v", "w"), wait("u", "v")])
    for number in (1, 2):
        send(api, flow, number)
    assert flow.states()["w"] == "waiting"
    flow.complete("a")
    steps = flow.steps()
    assert [(steps[name]["state"], steps[name]["result"]) for name in "wvu"] == [
        *(("completed", 1), ("completed", 2), ("running", None))
    ]
    send(api, flow, 3)
    assert flow.state == "completed"


def test_a_signal_goes_to_one_of_the_waits_that_are_open(api: Api) -> None:
    flow = Flow(api, [wait("v"), wait("w"), wait("other", signal="stop")])
    send(api, flow)
    assert flow.states() == {"v": "completed", "w": "running", "other": "running"}
    send(api, flow, name="stop")
    send(api, flow)
    assert flow.state == "completed"


def test_a_key_sends_once(api: Api) -> None:
    flow = Flow(api, [wait("v"), wait("w")])
    for payload, key, created, state in (
        ({"n": 1}, "click", True, "running"),
        ({"n": 2}, "click", False, "running"),
        (None, "other", True, "completed"),
        (None, "click", False, "completed"),
    ):
        assert send(api, flow, payload, key=key) == {"created": created, "state": state}
        assert flow.states() == {"v": "completed", "w": state}


@pytest.mark.parametrize(
    ("on_timeout", "ends", "found"),
    [
        ({}, "failed", {"w": "failed", "b": "skipped"}),
        ({"on_timeout": "fail"}, "failed", {"w": "failed", "b": "skipped"}),
        ({"on_timeout": "skip"}, "completed", {"w": "skipped", "b": "skipped"}),
        ({"on_timeout": "continue"}, "running", {"w": "completed", "b": "running"}),
    ],
)
def test_a_timeout(api: Api, clock: Clock, on_timeout: Row, ends: str, found: Row) -> None:
    flow = Flow(api, [wait("w", timeout="1 hour", **on_timeout), step("b", "w")])
    row = flow.steps()["w"]
    until = f"{row['due_at']:%Y-%m-%dT%H:%M:%SZ}"
    assert row["headline"] == f"waits for signal go until {until}"
    api.reap_after(clock, HOUR)
    assert flow.state == ends
    assert flow.states() == found
    assert flow.reasons()["w"] == "timeout"


def test_a_wait_takes_no_signal_after_its_timeout(api: Api, clock: Clock) -> None:
    flow = Flow(api, [wait("w", timeout=60, on_timeout="continue"), step("b", "w"), wait("v", "b")])
    api.reap_after(clock, HOUR)
    send(api, flow, 1)
    flow.complete("b")
    assert flow.steps()["w"]["result"] is None
    assert flow.steps()["v"]["result"] == 1


def test_cancel_skip_and_retry(api: Api) -> None:
    flow = Flow(api, [wait("w"), wait("v", "w"), wait("u", "v")])
    send(api, flow, 1)
    api.rows("skip_step", run=flow.run, step="v", result=2)
    assert flow.states() == {"w": "completed", "v": "completed", "u": "running"}
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.states() == {"w": "completed", "v": "completed", "u": "running"}
    send(api, flow, 3)
    assert flow.state == "completed"


def test_a_paused_run_takes_signals(api: Api) -> None:
    """A wait of a run that fails is given up."""
    flow = Flow(api, [wait("w"), step("b", "w"), wait("v", signal="other")])
    api.rows("pause_workflow_run", run=flow.run)
    send(api, flow)
    assert flow.reasons() == {"b": "run_paused"}
    api.rows("resume_workflow_run", run=flow.run)
    flow.fail("b")
    api.rows("advance_workflows")
    assert (flow.state, flow.states()["v"]) == ("failed", "cancelled")


def test_what_send_signal_refuses(api: Api) -> None:
    flow = Flow(api, [wait("w")])
    refusal = api.refused("QHF06", "signal_workflow_run", run=flow.run, name="og")
    assert "its signals are: go" in refusal.hint
    api.refused("QHA01", "signal_workflow_run", run=flow.run, name="go", payload="x" * 1048576)
    api.refused("QHA01", "signal_workflow_run", run=flow.run, name="go", key="")
    assert flow.state == "running"
    send(api, flow)
    refusal = api.refused("QHF04", "signal_workflow_run", run=flow.run, name="go")
    assert refusal.detail["state"] == "completed"


def test_a_run_keeps_a_thousand_signals(api: Api) -> None:
    flow = Flow(api, [step("a"), wait("w", "a")])
    for number in range(1000):
        send(api, flow, number)
    api.refused("QHA01", "signal_workflow_run", run=flow.run, name="go")
    flow.complete("a")
    assert (flow.state, flow.steps()["w"]["result"]) == ("completed", 0)


def test_signals_go_with_their_run(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), wait("w", "a")], retain={"completed": 60})
    for key in (None, "k"):
        send(api, flow, key=key)
    flow.complete("a")
    count_all(api.conn)
    api.prune_after(clock, timedelta(hours=2))
    assert api.one("select count(*) from hwqueue.run_signal where run_id = %s", flow.run) == 0
