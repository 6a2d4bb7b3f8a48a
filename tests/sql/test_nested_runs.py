"""Steps that are runs of another workflow; what operators change in them."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, each, fail, step, sweeps
from tests.nests import below, define, nested, opened, sweep
from tests.sql.api import Api

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


HOUR = timedelta(hours=1)


@pytest.mark.parametrize("call", ["reap", "advance_workflows"])
def test_a_nested_run_begins_and_ends_between_its_neighbours(api: Api, call: str) -> None:
    steps = [
        step("a"),
        nested("n", "child", input={"x": {"$result": "a", "path": ["x"]}, "y": {"$input": ["y"]}}),
        step("b", params={"got": {"$result": "n"}}),
    ]
    flow = Flow(api, steps, input={"y": 2})
    define(flow, "child", step("c", params={"all": {"$input": []}}), result={"$result": "c"})
    flow.complete("a", result={"x": 1})
    row = flow.steps()["n"]
    assert (row["kind"], row["state"], row["nested_run_id"]) == ("workflow", "running", None)
    assert row["headline"] == "is about to submit a run of workflow child"
    assert broken(api) == []
    api.rows(call)
    assert flow.steps()["n"]["headline"] == "waits for a run of workflow child"
    child = below(flow, "n")
    assert child.get()["input"] == {"x": 1, "y": 2}
    [claim] = child.claims().values()
    assert claim["params"] == {"all": {"x": 1, "y": 2}}
    assert claim["headers"]["workflow_run_id"] == str(child.run)
    assert claim["headers"]["root_run_id"] == str(flow.run)
    child.settle(claim, result={"z": 3})
    assert (child.state, flow.steps()["n"]["result"]) == ("completed", {"z": 3})
    [claim] = flow.claims().values()
    assert claim["params"] == {"got": {"z": 3}}
    flow.settle(claim)
    assert flow.state == "completed"


def test_the_runs_know_each_other(api: Api) -> None:
    flow, child = opened(api, step("c"))
    other = Flow(api, [step("x")])
    assert child.get()["parent_run_id"] == child.get()["root_run_id"] == flow.run
    assert (flow.get()["parent_run_id"], flow.get()["root_run_id"]) == (None, flow.run)

    def listed(**given: Any) -> set[Any]:
        return {row["run_id"] for row in api.rows("list_workflow_runs", filter=given)}

    assert listed(parent_run_id=str(flow.run)) == listed(root_run_id=str(flow.run)) == {child.run}
    assert listed(parent_run_id=str(child.run)) == set()
    assert child.run in listed(is_nested=True)
    assert flow.run not in listed(is_nested=True)
    assert listed(is_nested=False) >= {flow.run, other.run}
    assert child.run not in listed(is_nested=False)


def test_two_levels(api: Api) -> None:
    """The end of the lowest run ends all above at once where nothing comes after it."""
    flow = Flow(api, [nested("n", "middle"), nested("q", "other", "n")])
    define(flow, "middle", step("m"), nested("o", "inner", "m"), step("p", "o"))
    define(flow, "other", nested("o", "inner"))
    define(flow, "inner", step("i"))
    sweep(api)
    flow.complete("m")
    sweep(api)
    inner = below(flow, "n", "o")
    assert inner.get()["root_run_id"] == flow.run
    assert inner.get()["parent_run_id"] == below(flow, "n").run
    found = api.rows("list_workflow_runs", filter={"root_run_id": str(flow.run)})
    assert {row["run_id"] for row in found} == {inner.run, below(flow, "n").run}
    for name in "ip":
        flow.complete(name)
    sweep(api)
    flow.end_with("i")


def test_a_nested_run_without_work_ends_when_it_is_opened(api: Api) -> None:
    never = {"input": ["x"], "op": "exists"}
    flow, child = opened(api, step("c", run_if=[never]))
    assert (flow.state, child.state) == ("completed", "completed")


def test_a_nested_run_has_what_its_parent_has(api: Api, clock: Clock) -> None:
    """Its deadline holds below as well, where that of the nested run is later."""
    deadline = (clock.now() + HOUR).isoformat()
    options = {
        "tenant": "acme",
        "priority": 7,
        "deadline": deadline,
        "headers": {"traceparent": "00-1"},
        "affinity_tags": {"region": "us-east"},
        "labels": {"team": "a"},
    }
    flow = Flow(api, [nested("n", "child"), nested("soon", "sooner")], options=options)
    define(flow, "child", step("c", affinity_tags={"gpu": True}), priority=3, deadline="2 hours")
    define(flow, "sooner", step("d"), deadline="1 minute")
    sweep(api)
    child, parent = below(flow, "n"), flow.get()
    found = child.get()
    assert (found["tenant"], found["priority"]) == ("acme", 7)
    assert found["headers"] == {"traceparent": "00-1"}
    assert below(flow, "soon").get()["deadline"] < parent["deadline"]
    assert found["labels"] == {}
    require = child.steps()["c"]["placement"]["require"]
    assert {(item["label"], *item["values"]) for item in require} == {("region", "us-east"), ("gpu", True)}
    api.reap_after(clock, HOUR)
    sweep(api)
    assert (child.state, child.get()["reason"]) == ("failed", "deadline_exceeded")
    assert (flow.state, flow.get()["reason"]) == ("failed", "deadline_exceeded")


@pytest.mark.parametrize(
    ("more", "after", "ends"),
    [
        ({}, None, "failed"),
        ({"on_failure": "ignore"}, "n", "completed"),
        ({}, {"step": "n", "on": "failed"}, "failed"),
    ],
    ids=["ends the run", "is ignored", "is picked up"],
)
def test_its_failure_is_the_failure_of_the_step(api: Api, more: Row, after: Any, ends: str) -> None:
    within = [nested("n", "child", **more), *([step("b", after)] if after else [])]
    flow, child = opened(api, step("c"), within=within)
    flow.fail("c")
    row = flow.steps()["n"]
    assert (row["state"], row["reason"]) == ("failed", "nested_failed")
    assert row["error"] == {
        "run_id": str(child.run),
        "workflow": "child",
        "reason": "step_failed",
        "detail": {"step": "c"},
        "first_error": "step c: broken",
    }
    if after:
        flow.complete("b")
    else:
        assert flow.get()["detail"] == {"step": "n"}
    assert flow.state == ends


WHOLE: Row = {"$input": []}
REFUSED: dict[str, tuple[Row, Row, Row, str, str]] = {
    "unknown": ({}, {}, {"workflow": "nowhere"}, "QHF01", "nowhere"),
    "version": ({}, {}, {"version": 999999}, "QHF01", "version 999999"),
    "tenant": ({"tenant": "other"}, {}, {}, "QHF01", 'workflow "child" does not exist'),
    "placement": ({"affinity_tags": {"gpu": False}}, {}, {}, "QHC04", "gpu"),
    "placement of a step": ({}, {"affinity_tags": {"gpu": False}}, {}, "QHC04", "gpu"),
    "input": ({}, {}, {"input": [WHOLE] * 3}, "QHA01", ""),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_submission_would_refuse_fails_the_step(api: Api, what: str) -> None:
    spec, child, more, code, names = REFUSED[what]
    asks: Row = {"affinity_tags": {"gpu": True}, "tenant": "acme"}
    large = {"x": "x" * 500_000} if what == "input" else {}
    flow = Flow(api, [nested("n", "child") | more], input=large, **asks)
    define(flow, "child", step("c", **child), **spec)
    sweep(api)
    row = flow.steps()["n"]
    assert (row["state"], row["reason"]) == ("failed", "nested_refused")
    assert row["error"]["code"] == code
    assert names in row["error"]["message"]
    assert (flow.state, row["nested_run_id"]) == ("failed", None)
    assert api.rows("list_workflow_runs", filter={"root_run_id": str(flow.run)}) == []


def test_an_input_that_lacks_a_value_fails_the_step(api: Api) -> None:
    flow, _ = opened(api, step("c"), within=[nested("n", "child", input={"x": {"$input": ["none"]}})])
    row = flow.steps()["n"]
    assert (row["reason"], row["error"]) == ("binding_missing", {"binding": {"$input": ["none"]}})


def test_a_dropped_queue_fails_the_step(api: Api) -> None:
    flow = Flow(api, [nested("n", "child", on_failure="ignore"), step("b", "n")])
    define(flow, "child", step("c"), queue=(queue := api.queue()))
    api.rows("drop_queue", queue=queue)
    sweep(api)
    assert flow.steps()["n"]["error"]["code"] == "QHQ01"
    flow.end_with("b")


def test_a_condition_that_does_not_hold_skips_it(api: Api) -> None:
    condition = {"input": ["load"], "op": "in", "values": [True]}
    flow = Flow(api, [nested("n", "child", run_if=[condition]), step("b")], input={"load": False})
    assert flow.reasons() == {"n": "condition"}
    flow.end_with("b")


def test_runs_nest_eight_deep(api: Api) -> None:
    flow = Flow(api, [nested("n", "self")])
    define(flow, "self", nested("n", "self", on_failure="ignore"))
    sweep(api)
    deepest = below(flow, *["n"] * 8)
    row = deepest.steps()["n"]
    assert (row["state"], row["reason"]) == ("failed", "nested_too_deep")
    assert flow.state == "completed"


def test_ten_thousand_runs_below_one(api: Api) -> None:
    flow = Flow(api, [step("a"), *(nested(name, "child", "a") for name in "nm")])
    define(flow, "child", step("c"))
    api.conn.execute(
        """
        insert into hwqueue.run
        select r.* from hwqueue.run o
        cross join generate_series(1, 9999) n
        cross join jsonb_populate_record(o, jsonb_build_object('run_id', md5(n::text),
          'parent_run_id', o.run_id, 'state', 'completed', 'finished_at', now())) r
        where o.run_id = %s
        """,
        [flow.run],
    )
    flow.complete("a")
    sweep(api)
    rows = flow.steps()
    assert {(rows[name]["state"], rows[name]["reason"]) for name in "nm"} == {
        ("running", None),
        ("failed", "too_many_nested"),
    }


def test_a_session_for_another_tenant_opens_it(api: Api) -> None:
    flow = Flow(api, [nested("n", "child")], tenant="acme")
    define(flow, "child", step("c"))
    api.conn.execute("set hwqueue.tenant = 'other'")
    sweep(api)
    found = api.conn.execute("show hwqueue.tenant").fetchone()
    api.conn.execute("reset hwqueue.tenant")
    assert found == ("other",)
    assert below(flow, "n").get()["tenant"] == "acme"


def test_a_run_without_a_tenant_is_told_that_the_workflow_has_one(api: Api) -> None:
    flow, _ = opened(api, step("c"), name="theirs", tenant="other")
    error = flow.steps()["n"]["error"]
    assert error["code"] == "QHA03"
    assert error["message"].startswith('workflow "theirs" has tenant "other"')


def test_a_cancel_goes_down(api: Api) -> None:
    flow = Flow(api, [nested("n", "middle"), step("b", "n")])
    define(flow, "middle", nested("o", "inner"), step("m"))
    define(flow, "inner", step("i"))
    sweep(api)
    inner = below(flow, "n", "o")
    claims = flow.claims()
    api.rows("cancel_workflow_run", run=flow.run)
    assert flow.state == "cancelling"
    sweep(api)
    for claim in claims.values():
        assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
        flow.settle(claim, outcome="fail")
    assert (inner.state, below(flow, "n").state, flow.state) == ("cancelled",) * 3
    assert flow.states() == {"n": "cancelled", "b": "skipped"}
    assert flow.reasons()["n"] == "nested_cancelled"


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_a_run_that_ends_before_it_is_opened_opens_none(api: Api, dsn: str, ends: str) -> None:
    flow = Flow(api, [step("x"), *(nested(f"n{number}", "child") for number in range(1001))])
    define(flow, "child", step("c"))
    if ends == "failed":
        flow.fail("x")
    else:
        api.rows("cancel_workflow_run", run=flow.run)
    with psycopg.connect(dsn) as other:
        Api(other).rows("advance_workflows", limit=1)  # the first that it looks at takes the others with it
        api.rows("advance_workflows", limit=10000)
    states, reasons = flow.states(), flow.reasons()
    ended = {(states[name], reasons.get(name)) for name in states if name != "x"}
    assert (flow.state, ended) == (ends, {("cancelled", "run_stopped")})
    assert api.rows("list_workflow_runs", filter={"root_run_id": str(flow.run)}) == []


@pytest.mark.parametrize("policy", ["fail_fast", "finish_running"])
def test_a_failure_beside_it(api: Api, policy: str) -> None:
    flow = Flow(api, [nested("n", "child"), step("x")], on_failure=policy)
    define(flow, "child", step("c"), step("d", "c"))
    sweep(api)
    claims, child = flow.claims(), below(flow, "n")
    flow.settle(claims["x"], outcome="fail", retry=False)
    sweeps(api, 3)
    if policy == "finish_running":
        assert child.state == "running"
        flow.settle(claims["c"])
        flow.complete("d")
        assert (child.state, flow.states()["n"]) == ("completed", "completed")
    else:
        assert child.state == "cancelling"
        flow.settle(claims["c"], outcome="fail")
    sweep(api)
    assert flow.state == "failed"


def test_an_operator_cancels_it_directly(api: Api) -> None:
    flow, child = opened(api, step("c"))
    assert api.value("cancel_workflow_run", run=child.run) == "cancelled"
    assert (flow.state, flow.reasons()) == ("failed", {"n": "nested_cancelled"})


def test_a_finally_step_is_a_nested_run(api: Api) -> None:
    flow = Flow(api, [step("a"), nested("n", "child", **{"finally": "ended"}) | {"after": []}])
    define(flow, "child", step("c"))
    api.rows("cancel_workflow_run", run=flow.run)
    sweep(api)
    assert (flow.state, below(flow, "n").state) == ("cancelling", "running")
    flow.complete("c")
    assert flow.state == "cancelled"


def test_the_newest_version_counts_unless_the_step_names_one(api: Api) -> None:
    """Many are opened over several calls."""
    steps = [nested(f"n{number}", "twice") for number in range(4)]
    flow = Flow(api, [*steps, nested("old", "twice", version=1)])
    define(flow, "twice", step("one"))
    define(flow, "twice", step("two"))
    assert [api.row("advance_workflows", limit=2)["released"] for _ in range(3)] == [2, 2, 1]
    assert below(flow, "n0").get()["version"] == 2
    assert below(flow, "old").get()["version"] == 1


BAD: list[tuple[Row, str, str]] = [
    ({"workflow": None}, "spec.steps[0].workflow", "QHA01"),
    ({"version": 0}, "spec.steps[0].version", "QHF02"),
    ({"input": {"$nothing": 1}}, "spec.steps[0].input", "QHF02"),
    ({"task": "t"}, "spec.steps[0].task", "QHF02"),
    ({"kind": "task", "task": "t"}, "spec.steps[0].workflow", "QHF02"),
]


@pytest.mark.parametrize(("more", "field", "code"), BAD)
def test_what_a_nested_run_may_not_say(api: Api, more: Row, field: str, code: str) -> None:
    """And other kinds of steps name no workflow."""
    spec = {"name": "w", "steps": [nested("n", "child") | more]}
    assert api.refused(code, "define_workflow", spec=spec).field == field


def test_a_map_below_is_stopped_with_the_parent(api: Api) -> None:
    flow, child = opened(api, each("m", list(range(5)), max_parallel=2))
    claims = child.items()
    assert flow.calls.value("cancel_workflow_run", run=flow.run) == "cancelling"
    sweep(api)
    for claim in claims.values():
        fail(api, claim)
    sweep(api)
    assert child.items() == {}
    assert (child.state, flow.state) == ("cancelled", "cancelled")


def test_a_map_over_what_a_nested_run_returned(api: Api) -> None:
    within = [nested("n", "child"), each("m", {"$result": "n"}), step("b", "m")]
    flow, child = opened(api, step("list"), within=within, result={"$result": "list"})
    child.complete("list", result=["x", "y"])
    sweep(api)
    items = flow.items()
    assert [items[number]["params"]["item"] for number in (0, 1)] == ["x", "y"]
    flow.settle_each(items.values())
    assert flow.states()["b"] == "running"


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
    assert flow.steps()["n"]["nested_run_id"] is None
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
