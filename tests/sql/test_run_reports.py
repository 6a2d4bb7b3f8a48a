"""What pages show of workflows and runs: when steps were released, and how far runs are."""

from datetime import timedelta
from uuid import uuid4

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, finish, step
from tests.sql.api import NOBODY, Api, token

GPU = {"resources": {"gpu": 1}}
OTHERS: list[Row] = [
    {"name": "early", "kind": "wait", "signal": "go"},
    {"name": "any", "kind": "sleep", "for": "1 h", "after": ["a", "b"], "join": "any"},
    {"name": "all", "kind": "wait", "signal": "x", "after": ["a", "b"], "timeout": "1 h",
     "on_timeout": "skip"},
    each("map", [1], after=["b"]),
    {"name": "nested", "kind": "workflow", "workflow": "below", "after": ["b"],
     "on_failure": "ignore"},
    {"name": "late", "kind": "wait", "signal": "y", "after": ["map", "early"]},
    {"name": "never", "kind": "sleep", "for": "1 h", "after": [{"step": "map", "on": "failed"}]},
]  # fmt: skip


def test_a_run_knows_its_definition_whatever_is_defined_later(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", {"step": "a", "on": "ended"})])
    row = api.row("get_run_workflow", run=flow.run)
    assert (row["workflow"], row["version"], row["step_count"]) == (flow.queue, None, 2)
    assert row["spec"]["steps"][1]["after"] == {"a": "ended"}
    first = api.row("define_workflow", spec=flow.spec)
    run = api.row("submit_workflow", workflow=flow.queue)["run_id"]
    api.row("define_workflow", spec=flow.spec | {"steps": [step("a")]})
    row = api.row("get_run_workflow", run=run)
    assert (row["version"], row["step_count"]) == (first["version"], 2)
    api.refused("QHF03", "get_run_workflow", run=NOBODY)


def test_details_say_when_a_step_was_released_and_claimed(api: Api, clock: Clock) -> None:
    """And what became of its attempts; a step that is retried is due again."""
    retries = {"max_attempts": 2, "retry": {"kind": "fixed", "base": 0}}
    flow = Flow(api, [step("a", options=retries), step("b", "a", placement=GPU)])
    start = clock.now()
    clock.advance(timedelta(seconds=10))
    [claim] = flow.claims().values()
    clock.advance(timedelta(seconds=20))
    api.rows("fail_lease", **token(claim), error={})
    clock.advance(timedelta(seconds=5))
    [claim] = flow.claims().values()
    clock.advance(timedelta(seconds=7))
    finish(api, claim)
    a, b = api.rows("list_step_details", run=flow.run)
    assert (a["step_no"], a["step"], a["words"]) == (1, "a", "any node")
    times = [a[each] - start for each in ("released_at", "available_at", "claimed_at", "ended_at")]
    assert times == [timedelta(seconds=seconds) for seconds in (0, 30, 35, 42)]
    assert [attempt["outcome"] for attempt in a["attempts"]] == ["failed"]
    assert b["words"] == "1 GPU"
    assert b["released_at"] - start == timedelta(seconds=42)
    assert (b["claimed_at"], b["ended_at"], b["attempts"]) == (None, None, [])
    api.refused("QHF03", "list_step_details", run=NOBODY)


def test_a_retried_step_is_due_again(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a")])
    flow.fail("a")
    clock.advance(timedelta(minutes=3))
    api.value("retry_workflow_run", run=flow.run)
    [row] = api.rows("list_step_details", run=flow.run)
    assert row["available_at"] == clock.now()
    assert row["available_at"] - row["released_at"] == timedelta(minutes=3)
    assert (row["claimed_at"], row["ended_at"], len(row["attempts"])) == (None, None, 1)


def test_details_say_when_a_step_without_a_lease_began(api: Api, clock: Clock) -> None:
    last = {"name": "last", "kind": "sleep", "for": "9 s", "finally": "ended"}
    api.row("define_workflow", spec={"name": "below", "steps": [last | {"finally": None}]})
    flow = Flow(api, [step("a"), step("b", "a"), *OTHERS, last])
    start = clock.now()

    def times(name: str) -> tuple[float | None, ...]:
        [row] = [x for x in api.rows("list_step_details", run=flow.run) if x["step"] == name]
        found = (row["released_at"], row["ended_at"])
        assert row["claimed_at"] is None
        return tuple(at and (at - start).total_seconds() for at in found)

    assert times("early") == (0, None)
    assert [times(name) for name in ("any", "all", "map", "late")] == [(None, None)] * 4
    clock.advance(timedelta(seconds=10))
    flow.complete("a")
    api.rows("advance_workflows")
    assert times("any") == (10, None)
    assert times("all") == (None, None)
    clock.advance(timedelta(seconds=10))
    flow.complete("b")
    api.rows("advance_workflows")
    assert [times(name) for name in ("any", "all", "map")] == [(10, None), (20, None), (20, None)]
    clock.advance(timedelta(seconds=5))
    finish(api, flow.items()[0])
    api.rows("advance_workflows")
    assert times("map") == (20, 25)
    clock.advance(timedelta(seconds=5))
    api.value("skip_step", run=flow.run, step="late")
    clock.advance(timedelta(seconds=5))
    api.rows("signal_workflow_run", run=flow.run, name="go")
    assert (times("early"), times("late")) == ((0, 35), (None, 30))  # late: before its turn
    api.reap_after(clock, timedelta(hours=2))
    assert (times("any"), times("all")) == ((10, 7235), (20, 7235))
    assert times("never") == (None, 25)
    api.rows("advance_workflows")
    assert times("nested") == (20, 7235)
    assert times("last") == (7235, None)


def test_signals_say_who_took_them(api: Api, clock: Clock) -> None:
    waits = [
        {"name": name, "kind": "wait", "signal": signal, "after": after}
        for name, signal, after in (("first", "go", []), ("second", "go", ["first"]), ("x", "y", []))
    ]
    flow = Flow(api, [*waits, step("a")])
    assert api.rows("list_run_signals", run=flow.run) == []
    start = clock.now()
    for number, name in enumerate(("go", "y", "go", "go")):
        api.rows("signal_workflow_run", run=flow.run, name=name, payload={"n": number}, key=f"{number}")
        clock.advance(timedelta(seconds=1))
        api.rows("advance_workflows")
    rows = api.rows("list_run_signals", run=flow.run)
    found = [(row["name"], row["key"], row["taken_by"]) for row in rows]
    assert found == [("go", "0", "first"), ("y", "1", "x"), ("go", "2", "second"), ("go", "3", None)]
    assert [row["sent_at"] - start for row in rows] == [timedelta(seconds=n) for n in range(4)]
    assert [row["bytes"] is None for row in rows] == [True, True, True, False]
    assert len(api.rows("list_run_signals", run=flow.run, limit=2)) == 2
    assert api.fault("list_run_signals", run=flow.run, limit=0) == "p_limit"
    api.refused("QHF03", "list_run_signals", run=NOBODY)


def test_runs_are_summarised(api: Api) -> None:
    options = {"affinity_tags": {"zone": "west"}, "placement": GPU}
    flow = Flow(api, [step("a"), step("b", "a")], options=options, affinity_tags={"gpu": True})
    other = Flow(api, [step("a"), step("b", "a"), step("c", "b")])
    other.fail("a")
    rows = api.rows("summarise_runs", run_ids=[other.run, NOBODY, flow.run, flow.run])
    assert [row["run_id"] for row in rows] == sorted([flow.run, other.run])
    first, second = (next(row for row in rows if row["run_id"] == run) for run in (flow.run, other.run))
    assert first["step_counts"] == {"running": 1, "waiting": 1}
    assert (first["affinity_tags"], first["placement"]) == ({"gpu": True, "zone": "west"}, GPU)
    assert second["step_counts"] == {"failed": 1, "skipped": 2}
    assert (second["failed_steps"], second["affinity_tags"], second["placement"]) == (["a"], {}, {})
    assert api.rows("summarise_runs", run_ids=[]) == []
    assert api.fault("summarise_runs", run_ids=[uuid4() for _ in range(201)]) == "p_run_ids"


def test_a_preview_of_a_retry_says_what_the_retry_then_does(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b"), step("d")], on_failure="continue")
    api.refused("QHF04", "preview_retry", run=flow.run)
    claims = flow.claims()
    finish(api, claims["a"])
    finish(api, claims["d"])
    flow.fail("b")
    assert flow.state == "failed"
    before = api.contents()
    rows = api.rows("preview_retry", run=flow.run)
    assert [(row["step"], row["state"]) for row in rows] == [("b", "failed"), ("c", "skipped")]
    named = api.rows("preview_retry", run=flow.run, options={"steps": ["a"]})
    assert [row["step"] for row in named] == ["a", "b", "c"]
    whole = api.rows("preview_retry", run=flow.run, options={"mode": "all"})
    assert [row["step"] for row in whole] == ["a", "d", "b", "c"]
    api.refused("QHF06", "preview_retry", run=flow.run, options={"steps": ["x"]})
    assert api.contents() == before
    api.value("retry_workflow_run", run=flow.run)
    assert flow.states() == {"a": "completed", "b": "running", "c": "waiting", "d": "completed"}


def test_versions_count_their_runs(api: Api) -> None:
    flow = Flow(api, [step("a")])
    name = flow.queue
    api.row("define_workflow", spec=flow.spec)
    first = api.row("submit_workflow", workflow=name)["run_id"]
    api.row("cancel_workflow_run", run=first)
    api.row("define_workflow", spec=flow.spec | {"steps": [step("a"), step("b")]})
    api.row("submit_workflow", workflow=name)
    rows = api.rows("list_workflow_versions", workflows=[name, name, "nobody"])
    found = [(row["workflow"], row["version"], row["step_count"], row["run_counts"]) for row in rows]
    assert found == [
        (name, 2, 2, {"running": 1}),
        (name, 1, 1, {"cancelled": 1}),
        (name, None, None, {"running": 1}),
    ]
    assert api.fault("list_workflow_versions", workflows=["x"] * 101) == "p_workflows"
