"""Changes of runs: cancelled, paused, retried, past their deadline, steps declared done, pruned."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, each, fail, finish, finish_all, step, sweeps
from tests.sql.api import Api, count_all, outlive, token

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def test_cancel_ends_what_waits_and_stops_what_runs(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", options={"delay": 3600}), step("c", "a")])
    [claim] = flow.claims().values()
    assert api.value("cancel_workflow_run", run=flow.run, reason="not needed") == "cancelling"
    assert flow.states() == {"a": "running", "b": "cancelled", "c": "waiting"}
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    fail(api, claim)
    assert flow.states() == {"a": "cancelled", "b": "cancelled", "c": "skipped"}
    assert flow.state == "cancelled"
    assert flow.get()["detail"]["reason"] == "not needed"
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.every_variant
def test_finally_steps_of_a_cancelled_run_are_not_stopped(api: Api, waits: bool) -> None:
    """What the cancel has left is worked off when they run; a run that waits is cancelled at once."""
    flow = Flow(api, [step("a"), step("z", **{"finally": "cancelled"})])
    claims = [] if waits else flow.claims().values()
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelling"
    for claim in claims:
        fail(api, claim)
    [last] = flow.claims().values()
    api.rows("advance_workflows")
    assert asked(flow) == 0
    finish(api, last)
    assert flow.state == "cancelled"
    assert api.refused("QHF04", "pause_workflow_run", run=flow.run).detail["state"] == "cancelled"


def test_what_was_declared_completed_in_a_cancelled_run_stays(api: Api) -> None:
    """Nobody has counted the parent that ended then, nor does a retry, since the step has ended."""
    flow = Flow(api, [step("a"), step("b"), step("c", "a", "b", join="any")])
    claims = flow.claims()
    api.rows("cancel_workflow_run", run=flow.run)
    api.rows("skip_step", run=flow.run, step="c")
    finish(api, claims["a"])
    fail(api, claims["b"])
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.states() == {"a": "completed", "b": "running", "c": "completed"}
    assert broken(api) == []
    flow.complete("b")
    api.rows("advance_workflows")
    assert (flow.states()["c"], flow.state) == ("completed", "completed")


def asked(flow: Flow) -> int:
    """How many claims of a run were asked to stop."""
    rows = flow.calls.rows("node_claims", node=flow.node, limit=1000)
    return sum(row["stop_reason"] == "cancelled" for row in rows)


@pytest.mark.parametrize("late", [False, True])
def test_finally_steps_are_stopped_by_a_later_cancel(api: Api, clock: Clock, late: bool) -> None:
    """All of them, in steps, and the items of their maps; none of a map's that waits is let in."""
    last = [step(f"z{n}", **{"finally": "ended"}) for n in range(250)]
    items = each("m", list(range(400)), max_parallel=300, **{"finally": "ended"})
    flow = Flow(api, [step("a"), *last, items], deadline="5 s" if late else None)
    flow.complete("a")
    claims = flow.items()
    assert len(claims) == 550
    if late:
        api.reap_after(clock, timedelta(seconds=6))
    else:
        assert api.value("cancel_workflow_run", run=flow.run) == "cancelling"
        assert asked(flow) <= 200
    sweeps(api, 4)
    assert asked(flow) == 550
    for claim in claims.values():
        fail(api, claim)
    api.rows("advance_workflows")
    assert flow.state == ("failed" if late else "cancelled")
    assert flow.steps()["m"]["items_done"] == 300
    left = "select kind from hwqueue.arrival where run_id = %s"
    assert api.conn.execute(left, [flow.run]).fetchall() == []


def test_a_completion_that_arrives_first_wins_but_releases_nothing(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a")])
    [claim] = flow.claims().values()
    api.rows("cancel_workflow_run", run=flow.run)
    finish(api, claim)
    assert flow.states() == {"a": "completed", "b": "skipped"}
    assert flow.state == "cancelled"


def test_a_run_that_goes_on_is_not_retried(api: Api) -> None:
    """And one that has completed is not cancelled."""
    flow = Flow(api, [step("a")])
    assert api.refused("QHF04", "retry_workflow_run", run=flow.run).detail["state"] == "running"
    flow.complete("a")
    for function in ("retry_workflow_run", "cancel_workflow_run"):
        assert api.refused("QHF04", function, run=flow.run).detail["state"] == "completed"
    refusal = api.refused("QHF06", "retry_workflow_run", run=flow.run, options={"steps": ["x"]})
    assert refusal.detail["step"] == "x"


def test_a_paused_run_holds_what_becomes_due(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b")])
    assert api.value("pause_workflow_run", run=flow.run) == "paused"
    flow.complete("a")
    assert flow.states() == {"a": "completed", "b": "waiting", "c": "waiting"}
    assert flow.reasons() == {"b": "run_paused"}
    assert broken(api) == []
    assert api.value("resume_workflow_run", run=flow.run) == "running"
    flow.complete("b")
    flow.end_with("c")


def test_a_change_from_another_server_is_over(api: Api) -> None:
    """No transaction here waits for an id that is above all of this server's."""
    flow = Flow(api, [step("a")])
    api.rows("pause_workflow_run", run=flow.run)
    api.conn.execute("update hwqueue.arrival set after_xid = '9000000000' where run_id = %s", [flow.run])
    api.reap()
    assert api.one("select count(*) from hwqueue.arrival where run_id = %s", flow.run) == 0
    assert flow.state == "paused"


def test_a_cancel_or_a_failure_of_a_paused_run_drops_what_was_held(api: Api) -> None:
    flow, failing = (Flow(api, [step("a"), *more, step("b", "a")]) for more in ([], [step("x")]))
    for each_flow in (flow, failing):
        api.rows("pause_workflow_run", run=each_flow.run)
    flow.complete("a")
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelled"
    assert flow.states() == {"a": "completed", "b": "skipped"}
    claims = failing.claims()
    finish(api, claims["a"])
    fail(api, claims["x"])
    api.rows("advance_workflows")
    assert (failing.state, failing.reasons()["b"]) == ("failed", "run_failed")


def test_a_run_past_its_deadline_fails(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", "a")], deadline="1 hour")
    wait = {"name": "w", "kind": "wait", "signal": "go"}
    api.rows("define_workflow", spec={"name": "late", "deadline": 3600, "steps": [wait]})
    above = Flow(api, [{"name": "n", "kind": "workflow", "workflow": "late"}], deadline="61 minutes")
    api.rows("advance_workflows")
    api.reap_after(clock, timedelta(hours=2))
    assert above.state == "failed"  # by the end of its step, which the same call has brought
    assert flow.state == "failed"
    assert flow.get()["reason"] == "deadline_exceeded"
    assert flow.states() == {"a": "cancelled", "b": "skipped"}


def test_a_retry_runs_what_failed_under_the_same_ids(api: Api) -> None:
    joins = [step("d", "a", "c"), step("kept", "a", "e")]
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b"), step("e"), *joins])
    flow.complete("a", "e", result={"n": 1})
    claims = flow.claims()
    finish(api, claims["kept"])
    fail(api, claims["b"])
    before = flow.steps()
    assert api.value("retry_workflow_run", run=flow.run) == "running"
    assert flow.get()["attempt"] == 2
    done = dict.fromkeys(("a", "e", "kept"), "completed")
    assert flow.states() == {"b": "running", "c": "waiting", "d": "waiting"} | done
    assert broken(api) == []
    claims = flow.claims()
    assert (claims["b"]["lease_id"], claims["b"]["attempt"]) == (before["b"]["lease_id"], 1)
    assert claims["b"]["claim_token"] > api.lease(before["a"]["lease_id"])["claim_token"]
    finish(api, claims["b"])
    flow.complete("c")
    flow.end_with("d")
    assert [a["outcome"] for a in api.lease(before["b"]["lease_id"])["attempts"]] == ["failed"]


def test_a_retry_binds_params_again(api: Api) -> None:
    """And skips again what has no edge."""
    bound = step("a", params={"x": {"$input": []}})
    flow = Flow(api, [bound, step("b"), step("c", {"step": "a", "on": "failed"})], input=1)
    claims = flow.claims()
    finish(api, claims["a"])
    fail(api, claims["b"])
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.reasons() == {"c": "parent_completed"}
    flow.end_with("b")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all", "input": 2})
    assert flow.claims()["a"]["params"] == {"x": 2}


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({}, {"b", "c"}),
        ({"mode": "failed_and_downstream"}, {"b", "c", "any"}),
        ({"mode": "all"}, {"a", "b", "c", "any", "e", "all"}),
        ({"steps": ["a"]}, {"a", "b", "c", "any", "all"}),
    ],
)
def test_what_a_retry_runs_again(api: Api, options: Any, again: set[str]) -> None:
    steps = [step("a"), step("b", on_failure="continue"), step("c", {"step": "b", "on": "ended"}), step("e")]
    join = step("any", "a", {"step": "b", "on": "ended"}, join="any")
    flow = Flow(api, [*steps, join, step("all", "a", "e")])
    claims = flow.claims()
    flow.settle(claims["e"])
    flow.settle(claims["a"])
    fail(api, claims["b"])
    flow.complete("any", "c", "all")
    assert flow.state == "failed"
    before = flow.steps()
    api.rows("retry_workflow_run", run=flow.run, options=options)
    assert broken(api) == []
    ran: set[str] = set()
    while flow.state == "running":
        for name, claim in flow.claims().items():
            ran.add(name)
            flow.settle(claim)
        api.rows("advance_workflows")
    assert ran == again
    assert flow.state == "completed"
    ids = {name: row["lease_id"] for name, row in flow.steps().items()}
    assert ids == {name: row["lease_id"] for name, row in before.items()}


def test_an_operator_declares_a_step_done(api: Api) -> None:
    """One that is released, and a join that waits."""
    steps = [step("a"), step("b", params={"x": {"$result": "a"}}), step("c", "a", "b"), step("d", "c")]
    flow = Flow(api, steps)
    api.rows("skip_step", run=flow.run, step="c")
    assert broken(api) == []
    api.rows("skip_step", run=flow.run, step="a", result={"n": 1}, reason="done by hand")
    claims = flow.claims()
    assert claims["b"]["params"] == {"x": {"n": 1}}
    assert flow.reasons() == {"a": "operator", "c": "operator"}
    assert flow.states()["a"] == "completed"
    for name in ("b", "d"):
        finish(api, claims[name])
    assert flow.state == "completed"


def test_a_held_step_is_declared_done(api: Api) -> None:
    """But one that is claimed is not."""
    flow = Flow(api, [step("a"), step("b", "a")])
    api.rows("pause_workflow_run", run=flow.run)
    [claim] = flow.claims().values()
    api.refused("QHL07", "skip_step", run=flow.run, step="a")
    finish(api, claim)
    assert api.value("skip_step", run=flow.run, step="b") == "completed"


def test_a_run_goes_with_the_leases_of_its_steps(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", "a")], retain={"completed": 3600})
    api.rows("set_queue_policy", queue=flow.queue, policy={"retain_completed": 1})
    flow.complete("a")
    flow.complete("b")
    leases = [row["lease_id"] for row in flow.steps().values()]
    count_all(api.conn)
    api.prune_after(clock, timedelta(minutes=30))
    assert [api.state(lease) for lease in leases] == ["completed", "completed"]
    api.prune_after(clock, timedelta(hours=2))
    api.refused("QHF03", "get_workflow_run", run=flow.run)
    api.refused("QHL04", "get_lease", lease=leases[0])
    for _ in range(2):  # the definition is retired, then deleted
        outlive(api.conn)
        api.rows("prune")
    assert api.one("select count(*) from hwqueue.workflow where name = %s", flow.queue) == 0


def test_classes_of_waiting_steps_are_kept(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", "a", affinity_tags={"only": "b-alone"})])
    clock.advance(timedelta(hours=2))
    for _ in range(4):
        outlive(api.conn)
        api.rows("prune")
    api.rows("heartbeat_node", node=flow.node, epoch=flow.epoch, claims=[])
    flow.complete("a")
    assert flow.steps()["b"]["placement"] is not None
    retired = api.one(
        "select c.retired_at from hwqueue.placement_class c join hwqueue.step s using (class_id)"
        " where s.run_id = %s and s.step_no = 2",
        flow.run,
    )
    assert retired is None
    assert flow.steps()["b"]["lease_state"] == "pending"


def test_runs_are_listed(api: Api) -> None:
    flow = Flow(api, [step("a")], options={"labels": {"team": "vision"}, "tenant": "acme"})
    mine = {"workflow": flow.queue}
    for wanted in (mine, {"labels": {"team": "vision"}, "tenant": "acme"}):
        [row] = api.rows("list_workflow_runs", filter=wanted)
        assert (row["run_id"], row["state"], row["version"]) == (flow.run, "running", None)
        assert row["labels"] == {"team": "vision"}
    assert api.rows("list_workflow_runs", filter=mine | {"state": "failed"}) == []


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"placement": {"resources": {"gpu": 1}}}, "placement", "options.steps.NAME.placement"),
        ({"wire": "AQ=="}, "wire", "options.steps.NAME.placement"),
        ({"labels": {"a": "b"}, "priority": 1}, "labels", "options.steps.NAME.options.labels"),
        ({"queue": "other"}, "queue", "a definition that names the other queue"),
    ],
)
def test_a_step_runs_where_its_run_says(api: Api, changes: Row, field: str, hint: str) -> None:
    changes = changes | ({"queue": api.queue()} if "queue" in changes else {})
    flow = Flow(api, [step("a")])
    lease = flow.steps()["a"]["lease_id"]
    refusal = api.refused("QHF05", "update_lease", lease=lease, changes=changes)
    assert (refusal.field, refusal.detail["run_id"]) == (f"changes.{field}", str(flow.run))
    assert hint in refusal.hint
    assert f"cancel_workflow_run(p_run => '{flow.run}')" in refusal.hint


def test_the_items_of_a_map_run_where_their_run_says(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2])])
    leases = [row["lease_id"] for row in api.rows("list_leases", filter={"queue": flow.queue})]
    for lease in leases:
        api.refused("QHF05", "update_lease", lease=lease, changes={"placement": {}})
    mine = api.spawn(flow.queue)
    other = api.queue()
    for changes in ({"labels": {"a": "b"}}, {"queue": other}):
        [page] = api.rows("update_leases", filter={"queue": flow.queue}, changes=changes)
        assert (page["changed"], set(page["skipped"])) == ([mine], set(leases))
    assert api.lease(mine)["queue"] == other
    assert set(flow.items()) == {0, 1}


def test_priority_and_times_of_a_step_may_change(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b"), step("c", "a", "b")])
    leases = {name: row["lease_id"] for name, row in flow.steps().items()}
    api.rows("update_lease", lease=leases["b"], changes={"priority": 5})
    [(name, first)] = flow.items(qty=1).items()
    assert name == "b"
    finish(api, first)
    changes = {"available_at": str(clock.now() + timedelta(hours=1))}
    [page] = api.rows("update_leases", filter={"queue": flow.queue}, changes=changes)
    assert (page["changed"], page["skipped"]) == ([leases["a"]], [])
    assert flow.claims() == {}
    clock.advance(timedelta(hours=2))
    flow.epoch = flow.register("second")
    flow.complete("a")
    flow.end_with("c")


def test_a_step_past_its_own_deadline_fails_and_is_retried_without_it(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a"), step("b", "a")])
    lease = flow.steps()["a"]["lease_id"]
    changes = {"deadline": str(clock.now() + timedelta(hours=1))}
    api.rows("update_lease", lease=lease, changes=changes)
    api.reap_after(clock, timedelta(hours=2))
    assert flow.states() == {"a": "failed", "b": "skipped"}
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    assert api.lease(lease)["deadline"] is None
    flow.epoch = flow.register("second")
    flow.complete("a")
    flow.end_with("b")


@pytest.mark.parametrize("counted_before", [False, True])
def test_a_completed_attempt_that_runs_again_stays_on_record(
    api: Api, clock: Clock, counted_before: bool
) -> None:
    flow = Flow(api, [step("a"), each("m", [7], after=["a"])])
    claims = flow.claims()
    clock.advance(timedelta(seconds=20))
    finish(api, claims["a"], result=1)
    claims |= flow.claims()
    flow.settle(claims["m"])
    clock.advance(timedelta(seconds=1))
    if counted_before:
        count_all(api.conn)
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    lease = claims["a"]["lease_id"]
    [attempt] = api.lease(lease)["attempts"]
    assert (attempt["outcome"], attempt["attempt"], attempt["error"]) == ("completed", 1, None)
    assert attempt["claim_token"] == claims["a"]["claim_token"]
    assert attempt["node_id"] == str(flow.node)
    detail = next(d for d in api.rows("list_step_details", run=flow.run) if d["step"] == "a")
    assert [attempt["outcome"] for attempt in detail["attempts"]] == ["completed"]
    history = api.rows("lease_history", lease=lease)
    assert [row["event"] for row in history] == ["spawned", "claimed", "completed", "ready"]
    assert history[1]["lasted"] == timedelta(seconds=20)
    flow.epoch = flow.register("second")
    flow.complete("a", result=2)
    flow.complete("m")
    for claim in claims.values():  # the item of the map, too
        ended = api.lease(claim["lease_id"])
        assert [one["outcome"] for one in ended["attempts"]] == ["completed"]
        assert ended["claim_token"] > claim["claim_token"]
    clock.advance(timedelta(seconds=1))
    count_all(api.conn)
    of_queue = [row for row in api.rows("metrics") if (row["labels"] or {}).get("queue") == flow.queue]
    done = [row for row in of_queue if row["labels"].get("outcome", "completed") == "completed"]
    figures = {row["name"].removeprefix("hwqueue_"): row["value"] for row in done}
    assert figures["claims_ended_total"] == figures["run_seconds_count"] == 4
    assert figures["run_seconds_sum"] == 20
    api.prune_after(clock, timedelta(days=60))
    assert api.rows("list_leases", filter={"queue": flow.queue}) == []


def test_a_step_of_a_retry_that_was_held_runs_again(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a")])
    flow.complete("a")
    flow.complete("b")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    claims = flow.claims()
    api.rows("pause_workflow_run", run=flow.run)
    finish(api, claims["a"])
    api.rows("advance_workflows")
    api.rows("resume_workflow_run", run=flow.run)
    api.rows("advance_workflows")
    flow.end_with("b")


def test_a_step_that_a_retry_cannot_bind_is_retried_again(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", params={"x": {"$result": "a", "path": ["x"]}})])
    flow.complete("a", result={"x": 1})
    flow.complete("b", result="of the first attempt")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    assert flow.steps()["b"]["result"] is None
    flow.complete("a", result={})
    assert flow.reasons() == {"b": "binding_missing"}
    assert api.row("step_results", run=flow.run, step="b")["result"] is None
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    flow.complete("a", result={"x": 2})
    flow.end_with("b", result="of the last")
    assert flow.steps()["b"]["result"] == "of the last"


def test_a_step_that_is_declared_done_in_a_retry_has_no_old_result(api: Api) -> None:
    reads = {"x": {"$result": "b", "default": "none"}}
    flow = Flow(api, [step("a"), step("b", "a"), step("c", params=reads)])
    flow.complete("a")
    flow.complete("b", result="old")
    flow.complete("c")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    api.rows("skip_step", run=flow.run, step="b")
    claims = flow.claims()
    assert claims["c"]["params"] == {"x": "none"}
    assert flow.steps()["b"]["result"] is None
    finish_all(api, claims.values())


def test_what_a_handler_has_saved_is_for_a_retry_of_the_same_work(api: Api) -> None:
    """Not for a step that had completed, nor for other params."""
    flow = Flow(api, [step("a"), step("b", params={"x": {"$input": []}})], input=1)

    def save_and_end(*ends: Any) -> dict[str, list[str]]:
        found, claims = {}, flow.claims()
        for name, end in zip(sorted(claims), ends, strict=True):
            at = token(claims[name])
            found[name] = [row["name"] for row in api.rows("checkpoints", **at)]
            api.rows("save_checkpoint", **at, name="half", state=Jsonb(1))
            end(api, claims[name])
        return found

    assert save_and_end(finish, fail) == {"a": [], "b": []}
    api.rows("retry_workflow_run", run=flow.run)
    assert save_and_end(fail) == {"b": ["half"]}
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all", "input": 2})
    assert save_and_end(finish, finish) == {"a": [], "b": []}
