"""Runs of workflows: what is released when a step ends, and how a run ends."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, fail, finish, finish_all, step
from tests.sql.api import NOBODY, Api, nested, outlive, refusing, token

pytestmark = pytest.mark.usefixtures("sound")


def test_a_chain_releases_one_step_after_the_other(api: Api) -> None:
    """And returns what its definition says."""
    total = {"total": {"$result": "c", "path": ["n"]}}
    flow = Flow(api, [step("c", "b"), step("a"), step("b", "a")], result=total)
    assert flow.states() == {"a": "running", "b": "waiting", "c": "waiting"}
    assert flow.steps()["b"]["waits_for"] == ["a"]
    assert flow.steps()["b"]["lease_id"] is None
    for name in "abc":
        assert flow.state == "running"
        flow.complete(name, result={"n": name})
    run = flow.get()
    assert (run["state"], run["step_counts"]) == ("completed", {"completed": 3})
    assert run["finished_at"] is not None
    assert run["result"] == {"total": "c"}


def test_the_ids_of_the_run_are_in_the_headers_and_not_in_the_class(api: Api) -> None:
    flow = Flow(api, [step("a")], options={"headers": {"traceparent": "00-1"}})
    [claim] = flow.claims().values()
    assert claim["headers"] == {
        "traceparent": "00-1",
        "workflow_run_id": str(flow.run),
        "root_run_id": str(flow.run),
        "workflow": flow.queue,
        "step": "a",
    }
    assert api.lease(claim["lease_id"])["labels"] == {}


def test_completions_leave_the_row_of_the_run_alone(api: Api) -> None:
    """It would be a row that all settlements of a run write, and wait for."""
    items = each("m", [1, 2, 3], max_parallel=2)
    flow = Flow(api, [step("a"), step("b", "a"), items, step("end", "b", "m")])
    row = "select ctid, xmin::text, xmax::text from hwqueue.run where run_id = %s"
    before = api.conn.execute(row, [flow.run]).fetchone()
    while claims := flow.items():
        if "end" in claims:
            break
        flow.settle_each(claims.values())
    assert api.conn.execute(row, [flow.run]).fetchone() == before
    flow.settle(claims["end"])
    assert flow.state == "completed"
    assert api.conn.execute(row, [flow.run]).fetchone() != before


def test_a_join_waits_for_all_of_its_parents(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b"), step("c", "a", "b")])
    claims = flow.claims()
    finish(api, claims["a"])
    assert flow.states()["c"] == "waiting"
    flow.settle(claims["b"])
    flow.end_with("c")


def test_a_batch_of_steps_and_other_leases_of_several_runs(api: Api) -> None:
    flows = [Flow(api, [step("a"), step("b"), step("c", "a"), step("d", "a", "b")]) for _ in "12"]
    plain = api.running(api.queue())
    finish_all(api, [plain, *(claim for flow in flows for claim in flow.claims().values())])
    assert api.state(plain["lease_id"]) == "completed"
    for flow in flows:
        flow.end_with("c", "d")


def test_any_is_released_by_the_first_edge_that_holds(api: Api) -> None:
    """Without one it is skipped."""
    steps = [step("a"), step("b"), step("c", "a", "b", join="any")]
    flow, failing = Flow(api, steps), Flow(api, steps, on_failure="continue")
    claims = flow.claims()
    flow.settle(claims["b"])
    assert flow.states()["c"] == "running"
    flow.complete("c")
    assert flow.state == "running"
    flow.settle(claims["a"])
    assert flow.state == "completed"
    for claim in failing.claims().values():
        failing.settle(claim, outcome="fail", retry=False)
    api.rows("advance_workflows")
    assert failing.states()["c"] == "skipped"
    assert failing.reasons() == {"c": "parent_failed"}
    assert failing.state == "failed"


def test_a_failure_lets_what_runs_end_and_releases_nothing(api: Api) -> None:
    """But an attempt that is tried again is no end."""
    again = {"max_attempts": 2, "retry": {"kind": "fixed", "base": 0}}
    flow = Flow(api, [step("a", options=again), step("b"), step("c", "b"), step("d", "a")])
    claims = flow.claims()
    api.rows("fail_lease", **token(claims["a"]), error={}, retry=True)
    assert (flow.state, flow.states()["a"]) == ("running", "running")
    claims |= flow.claims()
    fail(api, claims["a"])
    assert flow.state == "failing"
    finish(api, claims["b"])
    assert flow.state == "failed"
    assert flow.states() == {"a": "failed", "b": "completed", "c": "skipped", "d": "skipped"}
    assert flow.reasons() == {"c": "run_failed", "d": "run_failed"}
    assert (flow.get()["reason"], flow.get()["detail"]) == ("step_failed", {"step": "a"})


def test_with_continue_other_branches_go_on(api: Api) -> None:
    flow = Flow(
        api, [step("a"), step("b"), step("c", "a"), step("d", "c"), step("e", "b")], on_failure="continue"
    )
    claims = flow.claims()
    fail(api, claims["a"])
    assert flow.reasons() == {"c": "parent_failed", "d": "parent_skipped"}
    finish(api, claims["b"])
    flow.complete("e")
    assert flow.state == "failed"


def test_fail_fast_stops_what_runs(api: Api) -> None:
    """And cancels what waits for a node."""
    steps = [step("a"), step("b"), step("c", "b"), step("d", options={"delay": 3600})]
    flow = Flow(api, steps, on_failure="fail_fast")
    claims = flow.claims()
    fail(api, claims["a"])
    api.rows("advance_workflows")
    assert api.lease(claims["b"]["lease_id"])["stop_reason"] == "cancelled"
    assert flow.states()["d"] == "cancelled"
    fail(api, claims["b"])
    assert flow.states() == {"a": "failed", "b": "cancelled", "c": "skipped", "d": "cancelled"}
    assert flow.state == "failed"


@pytest.mark.parametrize("wants", ["failed", "ended"])
def test_an_edge_for_failures_picks_one_up(api: Api, wants: str) -> None:
    flow = Flow(api, [step("a"), step("b", "a"), step("c", {"step": "a", "on": wants})])
    flow.fail("a")
    assert flow.states() == {"a": "failed", "b": "skipped", "c": "running"}
    flow.complete("c")
    assert flow.state == "failed"


def test_an_edge_for_failures_is_skipped_after_success(api: Api) -> None:
    """An ignored failure counts as success."""
    failed = step("c", {"step": "a", "on": "failed"})
    flow = Flow(api, [step("a"), failed, step("d", "c"), step("x", on_failure="ignore"), step("y", "x")])
    claims = flow.claims()
    finish(api, claims["a"])
    fail(api, claims["x"])
    assert flow.reasons() == {"c": "parent_completed", "d": "parent_skipped"}
    flow.end_with("y")
    assert (flow.states()["x"], flow.states()["y"]) == ("failed", "completed")


def test_ended_holds_for_skipped_parents(api: Api) -> None:
    steps = [step("a"), step("b", "a"), step("c", {"step": "b", "on": "ended"})]
    flow = Flow(api, steps, on_failure="continue")
    flow.fail("a")
    flow.complete("c")
    assert flow.states() == {"a": "failed", "b": "skipped", "c": "completed"}


def test_params_are_bound_at_release(api: Api) -> None:
    """Lists and objects keep what is no binding."""
    whole = {"$result": "a"}
    params: Row = {
        "uri": whole | {"path": ["files", 0, "uri"]},
        "all": whole,
        "who": {"$input": ["user", "name"]},
        "else": {"$input": ["none"], "default": [1]},
        "run": {"$run": "id"},
        "as_is": {"$literal": {"$input": []}},
        "nested": [{"deep": {"$input": []}}],
        "list": [None, 1, "s", [], {}, [None, whole], {"k": None}],
        "deep": {"x": [whole]},
        **{"object": {}, "none": None},
    }
    flow = Flow(api, [step("a"), step("b", params=params)], input={"user": {"name": "ann"}})
    result = {"files": [{"uri": "s3://x"}], "r": None}
    flow.complete("a", result=result)
    [claim] = flow.claims().values()
    assert claim["params"] == {
        "uri": "s3://x",
        "all": result,
        "who": "ann",
        "else": [1],
        "run": str(flow.run),
        "as_is": {"$input": []},
        "nested": [{"deep": {"user": {"name": "ann"}}}],
        "list": [None, 1, "s", [], {}, [None, result], {"k": None}],
        "deep": {"x": [result]},
        **{"object": {}, "none": None},
    }


def test_a_binding_that_lacks_its_value_fails_the_step(api: Api) -> None:
    """And so do params that are too large."""
    missing, large = {"$result": "a", "path": ["y"]}, {"$result": "a", "path": ["x"]}
    steps = [step("a"), step("b", params={"x": missing}), step("c", params={"x": large})]
    flow = Flow(api, steps, on_failure="continue")
    api.rows("set_queue_policy", queue=flow.queue, policy={"max_params_bytes": 100})
    flow.complete("a", result={"x": "x" * 200})
    assert flow.state == "failed"
    assert flow.reasons() == {"b": "binding_missing", "c": "params_too_large"}
    assert flow.steps()["b"]["error"] == {"binding": missing}
    assert flow.steps()["b"]["lease_id"] is None


def test_a_result_that_is_bound_often_lets_its_step_complete(api: Api) -> None:
    often = [{"$result": "a"}] * 300
    flow = Flow(api, [step("a"), step("b", params={"x": often}), step("c", "a")], result=often)
    flow.complete("a", result="x" * 1_000_000)
    assert flow.reasons() == {"b": "params_too_large"}
    flow = Flow(api, [step("a")], result=often)
    flow.complete("a", result="x" * 1_000_000)
    assert flow.get()["state"] == "completed"
    assert flow.get()["reason"] == "result_too_large"


@pytest.mark.thorough
def test_results_that_are_too_large_together_fail_the_step(api: Api) -> None:
    """Postgres has no JSON of 256 MiB; the last parent completes all the same."""
    names = ["a", "b", "c"]
    some = {name: {"$result": name, "path": ["no"], "default": 0} for name in names}
    steps = [*map(step, names), step("d", params=some), step("e", *names)]
    flow = Flow(api, steps, on_failure="continue")
    claims = flow.claims()
    last = claims.pop("c")
    finish_all(api, claims.values())
    api.conn.execute(  # as if their queue allowed that
        "update hwqueue.outcome set result = to_jsonb(repeat('x', 70000000)) where lease_id = any (%s)",
        [[claim["lease_id"] for claim in claims.values()]],
    )
    finish(api, last)
    found = api.conn.execute(  # not the results as well
        "select state, reason from hwqueue.step where run_id = %s order by step_no", [flow.run]
    ).fetchall()
    assert found[3:] == [("failed", "params_too_large"), ("running", None)]


@pytest.mark.thorough
def test_an_input_that_is_nested_too_deep_is_refused(api: Api) -> None:
    """A deep one let the settlement fail that was to bind it."""
    arguments = {"spec": {"name": "deep", "queue": api.queue(), "steps": [step("a")]}}
    refusal = api.refused("QHA01", "submit_spec", **arguments, input=nested(6001))
    assert (refusal.field, refusal.detail["limit"]) == ("input", 6000)
    assert api.row("submit_spec", **arguments, input=nested(6000))["created"]


@pytest.mark.parametrize(("score", "state"), [(0.95, "running"), (0.5, "skipped"), (None, "skipped")])
def test_a_condition_decides_at_release(api: Api, score: float | None, state: str) -> None:
    """One on the input may skip every step."""
    condition = {"step": "a", "path": ["score"], "op": "gt", "values": [0.9]}
    flow = Flow(api, [step("a"), step("b", run_if=[condition]), step("c", "b")])
    flow.complete("a", result={"score": score})
    assert flow.states()["b"] == state
    if state == "skipped":
        assert flow.reasons() == {"b": "condition", "c": "parent_skipped"}
        assert flow.state == "completed"
    condition = {"input": ["score"], "op": "in", "values": [0.95]}
    flow = Flow(api, [step("a", run_if=[condition]), step("b", "a")], input={"score": score})
    assert flow.state == ("running" if state == "running" else "completed")
    assert (set(flow.states().values()) == {"skipped"}) == (state == "skipped")


@pytest.mark.parametrize(("fails", "ran"), [(False, {"always", "good"}), (True, {"always", "bad"})])
def test_finally_steps_run_when_all_else_has_ended(api: Api, fails: bool, ran: set[str]) -> None:
    ends = {"always": "ended", "good": "completed", "bad": "failed", "gone": "cancelled"}
    last = [step(name, **{"finally": when}) for name, when in ends.items()]
    flow = Flow(api, [step("a"), *last])
    (flow.fail if fails else flow.complete)("a")
    assert flow.get()["finished_at"] is None
    flow.complete(*ran)
    assert flow.state == ("failed" if fails else "completed")
    assert {name for name, state in flow.states().items() if state == "completed"} >= ran


def test_a_claim_that_expires_ends_its_step(api: Api, clock: Clock) -> None:
    """And so it lets the run fail, as a finally step does."""
    flow = Flow(
        api, [step("a"), step("b", {"step": "a", "on": "ended"}), step("z", **{"finally": "completed"})]
    )
    flow.complete("a")
    flow.complete("b")
    flow.claims()
    api.reap_after(clock, timedelta(minutes=5))
    assert flow.states() == {"a": "completed", "b": "completed", "z": "failed"}
    assert flow.state == "failed"


def test_a_worker_that_starts_again_strands_no_run(api: Api) -> None:
    """A deployment: its claims end when it registers, and the attempts after that go on."""
    more = {"options": {"max_attempts": 3}}
    flow = Flow(api, [step("a", **more), step("b", **more), step("c", "a", "b")])
    before = flow.claims()
    flow.epoch = flow.register("second")
    after = flow.claims()
    assert {n: c["lease_id"] for n, c in before.items()} == {n: c["lease_id"] for n, c in after.items()}
    with refusing("QHL01"):
        finish(api, before["a"])
    finish_all(api, after.values())
    flow.end_with("c")


def test_a_worker_that_starts_again_ends_more_steps_than_one_setting_lists(api: Api) -> None:
    names = [f"s{n}" for n in range(400)]
    flow = Flow(api, [*map(step, names), step("z", *({"step": name, "on": "ended"} for name in names))])
    assert len(flow.claims()) == 400
    flow.epoch = flow.register("second")
    flow.complete("z")
    assert flow.get()["step_counts"] == {"completed": 1, "failed": 400}


@pytest.mark.thorough
def test_a_wide_fan_out_is_released_in_portions(api: Api) -> None:
    """A settlement writes 1,000 leases at most; another run does not wait for the rest."""
    wide = Flow(api, [step("a"), *(step(f"c{n}", "a", task="c") for n in range(1_100))])
    other = Flow(api, [step("a"), step("b", "a")])
    wide.complete("a")
    assert wide.get()["step_counts"] == {"completed": 1, "running": 1_000, "waiting": 100}
    other.complete("a")
    other.end_with("b")
    api.rows("advance_workflows")
    assert wide.get()["step_counts"] == {"completed": 1, "running": 1_100}


def test_a_cancelled_lease_ends_its_step(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", {"step": "a", "on": "failed"}), step("c", "a")])
    api.rows("cancel_lease", lease=flow.steps()["a"]["lease_id"])
    assert flow.states() == {"a": "cancelled", "b": "running", "c": "skipped"}


@pytest.mark.thorough
def test_a_dropped_queue_ends_the_steps_that_wait_there(api: Api) -> None:
    """A step for it fails."""
    other = api.queue()
    flow = Flow(
        api, [step("a", queue=other), step("b", {"step": "a", "on": "ended"}), step("c", "b", queue=other)]
    )
    api.rows("drop_queue", queue=other, force=True)
    for _ in range(2):  # its transactions end, then its rows go
        outlive(api.conn)
        api.rows("prune")
    assert flow.states()["a"] == "cancelled"
    flow.complete("b")
    assert flow.reasons()["c"] == "queue_dropped"
    assert flow.state == "failed"


@pytest.mark.thorough
def test_a_completed_step_stays_where_its_queue_keeps_nothing(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", params={"x": {"$result": "a"}})])
    api.rows("set_queue_policy", queue=flow.queue, policy={"retain_completed": 0})
    flow.complete("a", result=1)
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": 1}


@pytest.mark.thorough
def test_the_lease_of_a_step_is_not_requeued_by_itself(api: Api) -> None:
    flow = Flow(api, [step("a")])
    flow.fail("a")
    lease = flow.steps()["a"]["lease_id"]
    assert str(flow.run) in api.refused("QHF05", "requeue_lease", lease=lease).hint
    [page] = api.rows("requeue_leases", filter={"queue": flow.queue, "state": "failed"})
    assert (page["changed"], page["skipped"]) == ([], [lease])
    assert api.value("requeue_failed", queue=flow.queue) == 0
    api.refused("QHF03", "get_workflow_run", run=NOBODY)
