"""What is told of runs: reports, totals, traces, results of steps."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, fail, finish, step
from tests.sql.api import NOBODY, Api, count_all, refusing, settlement, token
from tests.sql.logins import WORKER, Logins

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


SECOND = timedelta(seconds=1)
TOTALS = """
  select labels ->> 'outcome', value::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_runs_finished_total' and labels ->> 'workflow' = %s
"""
BUCKETS = """
  select (labels ->> 'le')::float8, value::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_run_seconds_bucket' and labels ->> 'outcome' = %s order by 1
"""
NAMED = """
  select labels ->> 'workflow', sum(value)::int from hwqueue.metrics()
  where name = 'hwqueue_workflow_runs_finished_total' group by 1
"""
INSTANT = {"kind": "sleep", "for": 0, "name": "s"}


def totals(conn: psycopg.Connection[Any], workflow: str) -> dict[str, int]:
    """How many of its runs have ended how, as counted."""
    count_all(conn)
    return dict(conn.execute(TOTALS, [workflow]).fetchall())


def named(conn: psycopg.Connection[Any]) -> dict[str, int]:
    """How many runs of each workflow have ended, as counted."""
    count_all(conn)
    return dict(conn.execute(NAMED).fetchall())


def begin(conn: psycopg.Connection[Any], clock: Clock) -> int:
    """Let the names of other tests go; how many runs they have left without one."""
    clock.freeze()
    clock.advance(timedelta(days=31))
    count_all(conn)
    Api(conn).rows("prune")
    left = named(conn)
    assert left.keys() <= {"(other)"}
    return left.get("(other)", 0)


def end(api: Api, *names: str) -> None:
    """End an ad hoc run of each name."""
    api.rows("create_queue", queue="totals")
    for name in names:
        spec = {"name": name, "queue": "totals", "steps": [{"name": "s", "task": "t"}]}
        api.rows("cancel_workflow_run", run=api.row("submit_spec", spec=spec)["run_id"])


def test_each_outcome_and_how_long_it_took(conn: psycopg.Connection[Any], clock: Clock) -> None:
    clock.freeze()
    flow = Flow(Api(conn), [step("a")])
    clock.advance(7 * SECOND)
    flow.complete("a")
    clock.advance(SECOND)
    for _ in range(2):
        assert totals(conn, flow.queue) == {"completed": 1, "failed": 0, "cancelled": 0}
    buckets = dict(conn.execute(BUCKETS, ["completed"]).fetchall())
    assert (buckets[5.0], buckets[10.0], buckets[float("inf")]) == (0, 1, 1)


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_retried_run_counts_at_each_of_its_ends(
    conn: psycopg.Connection[Any], clock: Clock, is_counted: bool
) -> None:
    """Whether or not its first end was counted before the retry."""
    clock.freeze()
    flow = Flow(Api(conn), [step("a")])
    clock.advance(SECOND)
    flow.fail("a")
    clock.advance(SECOND)
    if is_counted:
        assert totals(conn, flow.queue)["failed"] == 1
    flow.calls.rows("retry_workflow_run", run=flow.run)
    flow.complete("a")
    clock.advance(SECOND)
    assert totals(conn, flow.queue) == {"completed": 1, "failed": 1, "cancelled": 0}
    clock.advance(SECOND)
    count_all(conn)
    assert conn.execute("select count(*) from hwqueue.undone_end").fetchall() == [(0,)]
    assert totals(conn, flow.queue)["failed"] == 1


@pytest.mark.thorough
def test_the_first_workflows_have_counters_of_their_own(conn: psycopg.Connection[Any], clock: Clock) -> None:
    """Ad hoc names past 50 share one; a defined workflow still gets its own, and all stay."""
    other = begin(conn, clock)
    api = Api(conn)
    names = [f"w{number:02}" for number in range(52)]
    end(api, *names)
    clock.advance(SECOND)
    assert named(conn) == dict.fromkeys(names[:50], 1) | {"(other)": other + 2}
    api.rows("define_workflow", spec={"name": "late", "queue": "totals", "steps": [INSTANT]})
    api.rows("submit_workflow", workflow="late")
    end(api, "w00", "w51")
    clock.advance(SECOND)
    more = {"w00": 2, "late": 1, "(other)": other + 3}
    assert named(conn) == dict.fromkeys(names[1:50], 1) | more


def test_a_workflow_that_ends_nothing_for_30_days_leaves_its_place(
    conn: psycopg.Connection[Any], clock: Clock
) -> None:
    begin(conn, clock)
    api = Api(conn)
    end(api, "old", "new")
    clock.advance(timedelta(days=29))
    end(api, "new")
    clock.advance(timedelta(days=1))
    count_all(conn)
    api.rows("prune")
    assert named(conn).keys() >= {"new", "old"}
    api.prune_after(clock, SECOND)
    assert "new" in (left := named(conn))
    assert "old" not in left


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


def test_traces_that_are_refused(api: Api) -> None:
    for limit in (0, 1001):
        assert api.fault("take_ended_runs", limit=limit) == "p_limit"
    flow = Flow(api, [step("a")])
    claim = flow.claims()["a"]
    for wrong in (7, "x" * 201):
        with refusing("QHA01"):
            settle(flow, settlement(claim, traceparent=wrong))


def test_a_step_has_the_result_of_its_lease(api: Api) -> None:
    """And tells where it ran."""
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b")], input={"n": 1})
    lease = flow.steps()["a"]["lease_id"]
    flow.complete("a", result={"uri": "s3://x"})
    released = api.row("step_results", run=flow.run, step="b")
    assert (released["lease_state"], released["node_id"]) == ("pending", None)
    flow.fail("b")
    a, b, c = (api.row("step_results", run=flow.run, step=name) for name in "abc")
    assert [row["item"] for row in (a, b, c)] == [0, 0, 0]
    assert (a["state"], a["result"]) == ("completed", {"uri": "s3://x"})
    assert (b["state"], b["error"]["message"]) == ("failed", "broken")
    assert (c["state"], c["result"]) == ("skipped", None)
    assert (a["lease_id"], a["lease_state"]) == (lease, "completed")
    assert (a["node_id"], a["attempt"]) == (flow.node, 1)
    assert a["claimed_at"] <= a["finished_at"]
    assert api.rows("step_results", run=flow.run, step="a", after=0) == []
    assert api.value("run_input", run=flow.run) == {"n": 1}


STORED = """
  select count(*), sum(octet_length(t.row))
  from hwqueue.run r join hwqueue.step s using (run_id),
    lateral (
      select l::text from hwqueue.lease l where l.lease_id = s.lease_id
      union all select o::text from hwqueue.outcome o where o.lease_id = s.lease_id
      union all select s::text
      union all select r::text) t(row)
  where r.run_id = %s
"""


def test_a_result_is_not_copied_to_the_steps_after_it(api: Api) -> None:
    """Fifty steps and a join read it where it is; what one of them binds is a copy of that part."""
    size = 100_000
    names = [f"b{n}" for n in range(50)]
    part = {"x": {"$result": "a", "path": ["n"]}}
    flow = Flow(api, [step("a"), *(step(n, "a", params=part) for n in names), step("c", *names)])
    flow.complete("a", result={"n": 7, "rest": "x" * size})
    flow.complete(*names, result="y" * 1_000)
    [claim] = flow.claims().values()
    assert claim["params"] == {}
    [(rows, stored)] = api.conn.execute(STORED, [flow.run]).fetchall()
    assert rows > 150
    assert size < stored < 3 * size
    assert len(api.row("step_results", run=flow.run, step="a")["result"]["rest"]) == size


def test_what_an_operator_declared_is_the_result(api: Api) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"})])
    api.rows("skip_step", run=flow.run, step="m", result=[7, None])
    assert api.rows("step_results", run=flow.run, step="m", state="failed") == []
    rows = api.rows("step_results", run=flow.run, step="m", state="completed")
    assert [(row["item"], row["result"], row["lease_id"]) for row in rows] == [(0, 7, None), (1, None, None)]
    api.rows("skip_step", run=flow.run, step="a", result=7)
    assert api.row("step_results", run=flow.run, step="a")["result"] == 7


def test_results_that_are_refused(api: Api) -> None:
    flow = Flow(api, [step("a")])
    api.refused("QHF06", "step_results", run=flow.run, step="b")
    api.refused("QHF03", "step_results", run=uuid4(), step="a")
    api.refused("QHA01", "step_results", run=flow.run, step="a", limit=0)
    api.refused("QHF03", "run_input", run=uuid4())


@pytest.mark.parametrize(("read", "more"), [("step_results", {"step": "a"}), ("run_input", {})])
def test_a_worker_reads_the_run_of_a_lease_that_it_has_claimed(
    api: Api, logins: Logins, read: str, more: Row
) -> None:
    worker, other, producer = (logins.api(role)[1] for role in (WORKER, WORKER, "hwqueue_producer"))
    flow, foreign = Flow(api, [step("a"), step("b")]), Flow(api, [step("a")])
    node = worker.node()
    lease = worker.claim(node, flow.queue)[0]["lease_id"]
    [unclaimed] = [row["lease_id"] for row in flow.steps().values() if row["lease_id"] != lease]
    assert worker.rows(read, run=flow.run, lease=lease, **more)
    assert producer.rows(read, run=flow.run, **more)
    for code, calls, who in (
        ("QHL01", worker, {"run": flow.run}),
        ("QHL01", worker, {"run": foreign.run, "lease": lease}),
        ("QHN04", other, {"run": flow.run, "lease": lease}),
        ("QHL01", worker, {"run": flow.run, "lease": unclaimed}),
    ):
        with refusing(code):
            calls.rows(read, **who, **more)


def test_items_tell_where_they_ran(api: Api) -> None:
    """Of three the first has completed, the second failed, the third is claimed; then some wait."""
    flow = Flow(api, [each("m", list(range(3))), step("b", "m")])
    claims = flow.items()
    flow.settle(claims[0], result={"n": 0})
    flow.settle(claims[1], outcome="fail", retry=False)
    rows = api.rows("step_results", run=flow.run, step="m")
    assert [row["item"] for row in rows] == [0, 1, 2]
    assert [row["lease_state"] for row in rows] == ["completed", "failed", "claimed"]
    for row in rows:
        lease = api.lease(row["lease_id"])
        shown = ("node_id", "attempt", "claimed_at", "finished_at")
        assert [row[name] for name in shown] == [lease[name] for name in shown]
        assert (row["node_id"], row["node_name"]) == (flow.node, f"flow-node-{flow.node}")
        assert (row["attempt"], row["claimed_at"] is None) == (1, False)
    assert [row["finished_at"] is None for row in rows] == [False, False, True]
    for name, after in (("b", -1), ("m", -2)):  # what is not released has no lease
        row = api.row("step_results", run=flow.run, step=name, after=after)
        assert (row["lease_id"], row["lease_state"], row["finished_at"]) == (None, None, None)
    waiting = Flow(api, [each("m", [1])])
    row = api.row("step_results", run=waiting.run, step="m")
    assert (row["state"], row["lease_state"], row["attempt"]) == ("running", "pending", 0)
    assert (row["node_id"], row["node_name"], row["claimed_at"]) == (None, None, None)


def test_items_in_a_state_come_in_pages(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(6)), tolerate=6)])
    claims = flow.items()
    fail(api, Flow(api, [each("m", [0])]).items()[0])  # of another run
    for number in (1, 3, 4):
        flow.settle(claims[number], outcome="fail", retry=False)
    flow.settle(claims[5])

    def page(state: str, step: str = "m", **more: int) -> list[int]:
        rows = api.rows("step_results", run=flow.run, step=step, state=state, **more)
        assert {row["state"] for row in rows} <= {state}
        return [row["item"] for row in rows]

    assert page("failed", limit=2) == [1, 3]
    assert page("failed", after=3) == [4]
    assert (page("running"), page("completed"), page("cancelled")) == ([0, 2], [5], [])
    assert (page("running", after=-2), page("failed", after=-2)) == ([-1], [])
    api.refused("QHA01", "step_results", run=flow.run, step="m", state="pending")
