"""What is kept for traces of runs: attempts that ended steps, and ends of traced runs."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import psycopg

from hwqueue.testing import Clock
from tests.flows import Flow, fail, step
from tests.sql.api import Api, refusing, settlement

TRACED: dict[str, Any] = {"headers": {"traceparent": "of the submission"}}
LEFT = "select count(*) from hwqueue.traced_run where run_id = %s"


def settle(flow: Flow, *ends: dict[str, Any]) -> None:
    """Settle claims in one call, as a worker does."""
    who = {"node": flow.node, "epoch": flow.epoch}
    flow.calls.rows("settle_and_claim", **who, settle=list(ends), queues=[flow.queue], qty=0)


def parents(claim: dict[str, Any]) -> Any:
    """The spans that the header names."""
    return claim["headers"].get("parent_traceparents")


def test_each_attempt_of_a_batch_keeps_its_own(conn: psycopg.Connection[Any], api: Api) -> None:
    """One that has none gets none from the one before it, nor does a later call, be it in one transaction."""
    steps = [step("a"), step("b"), step("c"), step("d"), step("join", "a", "b", "c")]
    for is_one in (False, True):
        flow = Flow(api, [*steps, step("last", "d")], options=TRACED)
        claims = flow.claims()
        batch = sorted((claims[name] for name in "abc"), key=lambda claim: str(claim["lease_id"]))
        last: dict[str, Any] = {"traceparent": "3"} | ({"result": 7} if is_one else {})
        given: list[dict[str, Any]] = [{"traceparent": "1"}, {}, last]
        ends = (settlement(claim, **more) for claim, more in zip(batch, given, strict=True))
        with conn.transaction() if is_one else nullcontext():
            settle(flow, *ends)
            api.complete(claims["d"])
        again = flow.claims()
        assert sorted(parents(again["join"])) == ["1", "3"]
        assert parents(again["last"]) is None


def test_settings_of_a_session_are_cut(conn: psycopg.Connection[Any], api: Api) -> None:
    """Any login may set them: the leases behind the step repeat the one, the other ends no step."""
    flow = Flow(api, [step("a"), step("b", "a"), step("c")], options=TRACED)
    claims, ended = flow.claims(), "select set_config('hwqueue.ended', '  completed step ' || %s, true)"
    with conn.transaction():
        conn.execute("select set_config('hwqueue.traceparent', repeat('x', 9000), true)")
        conn.execute(ended, [str(claims["c"]["lease_id"])])
        api.complete(claims["a"])
    assert parents(flow.claims()["b"]) == ["x" * 200]
    assert flow.states()["c"] == "running"


def test_a_failed_attempt_counts_if_it_was_the_last(api: Api) -> None:
    after = {"after": [{"step": "a", "on": "failed"}]}
    flow = Flow(api, [step("a", on_failure="continue"), step("b") | after], options=TRACED)
    settle(flow, settlement(flow.claims()["a"], "fail", traceparent="1", error={}))
    assert parents(flow.claims()["b"]) == ["1"]


def test_a_retry_forgets_what_runs_again(api: Api) -> None:
    """And a run that is not traced has no such header."""
    for options in (TRACED, {}):
        flow = Flow(api, [step("a"), step("b", "a")], options=options)
        settle(flow, settlement(flow.claims()["a"], traceparent="1"))
        claim = flow.claims()["b"]
        assert ("parent_traceparents" in claim["headers"]) == (options is TRACED)
        fail(api, claim)
        flow.calls.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
        flow.complete("a")
        assert parents(flow.claims()["b"]) is None


def test_at_most_32_parents_are_named(api: Api) -> None:
    names = [f"p{number:02}" for number in range(40)]
    flow = Flow(api, [*map(step, names), step("join", *names)], options=TRACED)
    claims = flow.claims()
    settle(flow, *(settlement(claims[name], traceparent=name) for name in names))
    assert parents(flow.claims()["join"]) == names[:32]


def test_the_end_of_a_traced_run_is_handed_over_once(api: Api, clock: Clock) -> None:
    """Each end of a run that is retried, and none of a run that was not traced."""
    api.rows("take_ended_runs")  # of other tests
    Flow(api, [step("a")]).complete("a")
    flow = Flow(api, [step("a")], options=TRACED)
    submitted_at = clock.now()
    clock.advance(timedelta(seconds=3))
    flow.fail("a")
    flow.calls.rows("retry_workflow_run", run=flow.run)
    flow.complete("a")
    failed, completed = sorted(api.rows("take_ended_runs"), key=lambda run: run["attempt"])
    assert failed == {
        "run_id": flow.run,
        "workflow": flow.queue,
        "attempt": 1,
        "state": "failed",
        "reason": "step_failed",
        "traceparent": "of the submission",
        "submitted_at": submitted_at,
        "finished_at": clock.now(),
    }
    assert (completed["attempt"], completed["state"]) == (2, "completed")
    assert api.rows("take_ended_runs") == []


def test_prune_deletes_what_nobody_takes(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a")], options=TRACED)
    flow.complete("a")
    api.prune_after(clock, timedelta(hours=1))
    assert api.one(LEFT, flow.run) == 1
    api.prune_after(clock, timedelta(seconds=1))
    assert api.one(LEFT, flow.run) == 0


def test_what_is_refused(api: Api) -> None:
    for limit in (0, 1001):
        assert api.fault("take_ended_runs", limit=limit) == "p_limit"
    flow = Flow(api, [step("a")])
    claim = flow.claims()["a"]
    for wrong in (7, "x" * 201):
        with refusing("QHA01"):
            settle(flow, settlement(claim, traceparent=wrong))
