"""Steps that handlers add to their step: a nested run, which the step waits for."""

from copy import copy
from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, fail, step
from tests.nests import sweep
from tests.sql.api import Api, count_all, outlive, refusing
from tests.sql.logins import WORKER, Logins

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def adding(claim: Row, *steps: Row, name: str = "more", **spec: Any) -> Row:
    given = {"name": name, "steps": list(steps)} | spec
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "spec": given}


def added(flow: Flow, claim: Row, *steps: Row, name: str = "more", **spec: Any) -> Flow:
    """Add a run of these steps, which must be new, and return it as a flow."""
    row = flow.calls.row("add_steps", **adding(claim, *steps, name=name, **spec))
    assert row["created"]
    made = copy(flow)
    made.run = row["run_id"]
    return made


def began(api: Api, *steps: Row, own: Row | None = None, **spec: Any) -> tuple[Flow, Row]:
    """A run whose first step `a`, with these keys of its own, is claimed."""
    flow = Flow(api, [step("a", **own or {}), *steps], **spec)
    return flow, flow.claims()["a"]


def settle_all(flow: Flow, *claims: Row) -> None:
    """Complete these claims, and what can be claimed beside."""
    flow.settle_each([*claims, *flow.items().values()])


def work_off(api: Api) -> None:
    """Work off all that a cancellation or a failure leads to."""
    outlive(api.conn)
    for _ in range(3):
        sweep(api)


def test_a_step_waits_for_the_steps_that_it_has_added(api: Api) -> None:
    last = step("z", params={"of": {"$result": "a"}})
    flow, own = began(api, last, input={"n": 7})
    more = added(flow, own, step("x"), step("y", params={"n": {"$input": ["n"]}}, after=["x"]))
    assert (more.get()["parent_run_id"], more.get()["root_run_id"]) == (flow.run, flow.run)
    flow.settle(own, result="own")
    more.complete("x")
    sweep(api)
    assert flow.states() == {"a": "running", "z": "waiting"}
    [claim] = more.claims().values()
    assert claim["params"] == {"n": 7}
    more.settle(claim)
    assert more.state == "completed"
    sweep(api)
    [claim] = flow.claims().values()
    assert claim["params"] == {"of": "own"}
    flow.settle(claim)
    assert flow.state == "completed"


def test_the_own_lease_may_end_last(api: Api) -> None:
    """After steps that have ended at once, too."""
    flow, own = began(api)
    skipped = added(flow, own, step("s", run_if=[{"input": ["x"], "op": "exists"}]), name="skipped")
    assert skipped.state == "completed"
    more = added(flow, own, step("x"))
    more.complete("x")
    sweep(api)
    assert flow.states() == {"a": "running"}
    flow.settle(own)
    assert flow.state == "completed"


def test_items_and_steps(api: Api) -> None:
    flow, own = began(api)
    api.rows("add_items", lease=own["lease_id"], token=own["claim_token"], items=[{"name": "i"}])
    more = added(flow, own, step("x"))
    flow.settle(own)
    sweep(api)
    claims = flow.items()
    flow.settle(claims["x"])
    sweep(api)
    assert (more.state, flow.states()) == ("completed", {"a": "running"})
    flow.settle(claims[0])
    assert flow.state == "completed"


def test_an_item_of_a_map_adds_steps(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2], tolerate=1), step("b", "m")])
    claims = flow.items()
    more = added(flow, claims[0], step("x"))
    flow.settle_each(claims.values())
    assert flow.states()["m"] == "running"
    more.fail("x")
    sweep(api)
    row = flow.steps()["m"]
    assert (row["state"], row["result"]) == ("completed", {"items": 2, "failed": 1})
    flow.complete("b")


def test_each_name_is_added_once(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    again = api.row("add_steps", **adding(own, step("x", options={})))
    assert (again["run_id"], again["created"], again["state"]) == (more.run, False, "running")
    refusal = api.refused("QHT01", "add_steps", **adding(own, step("other")))
    assert refusal.detail["run_id"] == str(more.run)
    added(flow, own, step("x"), name="other")
    assert len(api.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)})) == 2


def test_the_next_attempt_adds_nothing_twice(api: Api, clock: Clock) -> None:
    flow, own = began(api, own={"options": {"max_attempts": 3}})
    more = added(flow, own, step("x"))
    api.reap_after(clock, timedelta(hours=1))
    clock.advance(timedelta(hours=1))
    flow.epoch = more.epoch = flow.register("second")
    claims = flow.claims()
    api.refused("QHL01", "add_steps", **adding(own, step("y"), name="late"))
    assert not api.row("add_steps", **adding(claims["a"], step("x")))["created"]
    flow.settle_each(claims.values())
    sweep(api)
    assert (more.state, flow.state) == ("completed", "completed")


def test_added_steps_that_fail_fail_the_step(api: Api) -> None:
    flow, own = began(api, step("b", {"step": "a", "on": "failed"}), on_failure="continue")
    more = added(flow, own, step("x"))
    more.fail("x")
    sweep(api)
    assert flow.states()["a"] == "running"
    flow.settle(own)
    row = flow.steps()["a"]
    assert (row["state"], row["reason"], row["error"]["failed"]) == ("failed", "items_failed", 1)
    flow.complete("b")


def test_a_failure_is_known_before_the_others_end(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    more.fail("x")
    sweep(api)
    assert (flow.state, flow.states()) == ("failing", {"a": "running"})
    api.refused("QHF04", "add_steps", **adding(own, step("x"), name="late"))
    flow.settle(own)
    assert (flow.state, flow.states()) == ("failed", {"a": "failed"})


def one_of_two(api: Api, clock: Clock) -> tuple[Flow, dict[str, Row]]:
    """A run of two steps, both claimed, that fails fast and has 10 s."""
    options = {"deadline": (clock.now() + timedelta(seconds=10)).isoformat()}
    flow = Flow(api, [step("a"), step("c")], on_failure="fail_fast", options=options)
    return flow, flow.claims()


def stop(api: Api, clock: Clock, flow: Flow, claims: dict[str, Row], how: str) -> None:
    """Let that run stop: its second step fails, or it is cancelled, or its time is over."""
    if how == "cancel":
        api.rows("cancel_workflow_run", run=flow.run)
    elif how == "fail_fast":
        fail(api, claims.pop("c"))
    else:
        api.reap_after(clock, timedelta(seconds=20))
    for _ in range(2):
        sweep(api)


@pytest.mark.parametrize("how", ["cancel", "fail_fast", "deadline"])
def test_a_run_that_stops_stops_what_was_added(api: Api, how: str, clock: Clock) -> None:
    flow, claims = one_of_two(api, clock)
    more = added(flow, claims["a"], step("x"), step("y", "x"))
    [late] = more.claims().values()
    stop(api, clock, flow, claims, how)
    assert api.lease(late["lease_id"])["stop_reason"] == "cancelled"
    assert api.lease(claims["a"]["lease_id"])["stop_reason"] == "cancelled"
    for claim in [late, *claims.values()]:
        fail(api, claim)
    work_off(api)
    assert flow.state == ("cancelled" if how == "cancel" else "failed")
    assert more.state in ("cancelled", "failed")
    assert flow.states()["a"] in ("cancelled", "failed")


def test_pause_and_resume_reach_what_was_added(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    api.rows("pause_workflow_run", run=flow.run)
    sweep(api)
    assert (more.state, more.get()["reason"]) == ("paused", "parent_paused")
    late = added(flow, own, step("y"), name="late")
    assert late.state == "paused"
    api.rows("resume_workflow_run", run=flow.run)
    sweep(api)
    assert (more.state, late.state) == ("running", "running")
    sweep(api)
    settle_all(flow, own)
    sweep(api)
    assert flow.state == "completed"


def test_a_retry_runs_what_failed_in_added_steps(api: Api) -> None:
    """The same run again: what completed in it, and the lease of the step, stay as they are."""
    flow, own = began(api, step("b", "a"))
    more = added(flow, own, step("x"), step("y", "x"))
    other = added(flow, own, step("w"), name="other")
    flow.settle(own, result="own")
    claims = flow.claims()
    flow.settle(claims["w"])
    flow.settle(claims["x"])
    more.fail("y")
    sweep(api)
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    for _ in range(2):
        sweep(api)
    assert (flow.state, more.state, other.state) == ("running", "running", "completed")
    assert more.get()["attempt"] == 2
    more.complete("y")
    sweep(api)
    assert flow.steps()["a"]["result"] == "own"
    flow.end_with("b")


def test_a_retry_that_is_cancelled_before_it_goes_down(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    flow.settle(own)
    more.fail("x")
    sweep(api)
    api.rows("retry_workflow_run", run=flow.run)
    api.rows("cancel_workflow_run", run=flow.run)
    work_off(api)
    assert (flow.state, more.state) == ("cancelled", "failed")


def test_a_retry_of_the_whole_step_adds_again(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    settle_all(flow, own)
    sweep(api)
    assert flow.state == "completed"
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    own = flow.claims()["a"]
    again = added(flow, own, step("other"))
    assert again.run != more.run
    settle_all(flow, own)
    sweep(api)
    assert flow.state == "completed"


def test_a_step_that_is_declared_done_cancels_what_it_added(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    flow.settle(own)
    api.rows("skip_step", run=flow.run, step="a")
    assert flow.state == "completed"
    sweep(api)
    assert more.state == "cancelled"
    sweep(api)
    api.rows("retry_workflow_run", run=flow.run, options={"steps": ["a"]})
    own = flow.claims()["a"]
    flow.settle(own)
    assert flow.state == "completed"


def test_a_run_that_was_left_behind_ends_nothing(api: Api) -> None:
    """It stops late, while its step runs again, which has added something else by then."""
    flow, own = began(api)
    more = added(flow, own, step("x"))
    flow.settle(own)
    [late] = more.claims().values()
    api.rows("skip_step", run=flow.run, step="a")
    work_off(api)
    api.rows("retry_workflow_run", run=flow.run, options={"steps": ["a"]})
    own = flow.claims()["a"]
    api.rows("add_items", lease=own["lease_id"], token=own["claim_token"], items=[{"name": "i"}])
    fail(api, late)
    work_off(api)
    assert (more.state, flow.states()) == ("cancelled", {"a": "running"})
    settle_all(flow, own)
    assert flow.state == "completed"


def test_added_steps_in_added_steps(api: Api) -> None:
    flow, own = began(api)
    more = added(flow, own, step("x"))
    flow.settle(own)
    [claim] = more.claims().values()
    deeper = added(more, claim, step("y"))
    more.settle(claim)
    assert (deeper.get()["root_run_id"], more.state) == (flow.run, "running")
    deeper.complete("y")
    for _ in range(2):
        sweep(api)
    assert (deeper.state, more.state, flow.state) == ("completed", "completed", "completed")


def test_prune_keeps_them_as_long_as_their_parent(api: Api, clock: Clock) -> None:
    spec = {"retain": {"completed": "30 d"}}
    flow, own = began(api, **spec)
    more = added(flow, own, step("x"), retain={"completed": "1 d"})
    settle_all(flow, own)
    sweep(api)
    assert flow.state == "completed"
    clock.advance(timedelta(days=2))
    count_all(api.conn)
    api.rows("prune")
    assert more.state == "completed"
    clock.advance(timedelta(days=30))
    for _ in range(2):  # it goes after its parent, which prune looks at again after an hour
        count_all(api.conn)
        api.rows("prune")
        clock.advance(timedelta(hours=1))
    count_all(api.conn)
    api.rows("prune")
    for table in ("run", "added", "map", "step", "lease"):
        count = f"select count(*) from hwqueue.{table} where run_id = any (%s)"
        assert api.conn.execute(count, [[flow.run, more.run]]).fetchone() == (0,), table


def test_who_adds_nothing(api: Api, logins: Logins) -> None:
    """Another login, and the lease of no run; neither steps nor items."""
    _, worker = logins.api(WORKER)
    _, other = logins.api(WORKER)
    flow = Flow(api, [step("a")])
    [claim] = worker.claim(worker.node(), flow.queue)

    def calls(claim: Row) -> list[tuple[str, Row]]:
        items = {"lease": claim["lease_id"], "token": claim["claim_token"], "items": [{"name": "x"}]}
        return [("add_items", items), ("add_steps", adding(claim, step("x")))]

    for function, arguments in calls(claim):
        with api.unchanged(), refusing("QHL08"):
            other.rows(function, **arguments)
        assert worker.row(function, **arguments)["created"]
    for function, arguments in calls(api.running(api.queue())):
        api.refused("QHF06", function, **arguments)


def test_specifications_that_are_none(api: Api) -> None:
    """Nor may they contradict the run."""
    _, own = began(api, own={"affinity": "replace"}, affinity_tags={"gpu": True})
    call = {"lease": own["lease_id"], "token": own["claim_token"]}
    cycle = [step("x", "y"), step("y", "x")]
    wrong: list[Any] = [None, [], {"name": "more"}, {"name": "more", "steps": cycle}]
    for none in wrong:
        api.refused("QHF02", "add_steps", **call, spec=none)
    refused: list[tuple[str, Row]] = [("QHQ01", {"queue": "nowhere"}), ("QHA03", {"tenant": "other"})]
    for code, more in [*refused, ("QHC04", {"affinity_tags": {"gpu": False}})]:
        api.refused(code, "add_steps", **adding(own, step("x"), **more))
