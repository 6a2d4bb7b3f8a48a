"""Items that steps add to themselves: a step ends when all its leases have ended."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Calls, Row
from tests.flows import Flow, each, fail, finish, step, sweeps
from tests.sql.api import Api, count_all, outlive
from tests.sql.test_added_steps import began, one_of_two, settle_all, stop, work_off

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def item(name: str, **more: Any) -> Row:
    return {"name": name} | more


def add(calls: Calls, claim: Row, *names: str, **more: Any) -> dict[str, tuple[int, bool]]:
    """Add items of these names; the number of each, and whether it is new."""
    rows = calls.rows("add_items", **adding(claim, [item(name, **more) for name in names]))
    return {row["name"]: (row["item"], row["created"]) for row in rows}


def adding(claim: Row, items: Any) -> Row:
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "items": items}


def opened(api: Api, flow: Flow) -> dict[Any, Row]:
    """Claim what a sweep lets in."""
    api.rows("advance_workflows")
    return flow.items()


def busy(
    api: Api, names: str, *steps: Row, params: Any = None, **began_with: Any
) -> tuple[Flow, Row, dict[Any, Row]]:
    """A run whose step has added items, named by letters; it, the step's claim, and what is claimed then."""
    flow, claim = began(api, *steps, **began_with)
    add(api, claim, *names, **{"params": params} if params else {})
    return flow, claim, opened(api, flow)


def test_a_step_ends_when_its_lease_and_its_items_have_ended(api: Api) -> None:
    flow, claim = began(api, step("b", params={"of": {"$result": "a"}}))
    assert add(api, claim, "x", "y", params={"n": 1}) == {"x": (0, True), "y": (1, True)}
    assert flow.counts("a") == (2, 0, 0)
    claims = opened(api, flow)
    assert {n: claims[n]["params"] for n in claims} == {0: {"n": 1}, 1: {"n": 1}}
    flow.settle(claims[1], result="of y")
    flow.settle(claim, result="own")
    assert flow.counts("a") == (2, 1, 0)
    assert flow.steps()["a"]["headline"] == "1 of 2 items have ended"
    assert flow.states() == {"a": "running", "b": "waiting"}
    flow.settle(claims[0])
    [child] = flow.claims().values()
    assert child["params"] == {"of": "own"}
    row = flow.steps()["a"]
    assert (row["state"], row["result"], flow.counts("a")) == ("completed", "own", (2, 2, 0))
    finish(api, child)
    assert flow.state == "completed"


def test_the_own_lease_may_end_last(api: Api) -> None:
    flow, claim = began(api)
    add(api, claim, "x")
    finish(api, opened(api, flow)[0])
    api.rows("advance_workflows")
    assert flow.states() == {"a": "running"}
    flow.settle(claim)
    assert (flow.state, flow.counts("a")) == ("completed", (1, 1, 0))


def test_a_task_of_its_own(api: Api) -> None:
    api.rows("set_task", task="fetch", defaults={"max_attempts": 7})
    flow, claim = began(api, own={"options": {"delay": 0, "priority": 3}})
    add(api, claim, "x")
    add(api, claim, "y", task="fetch")
    add(api, claim, "z")
    claims = opened(api, flow)
    own = claim["task_name"]
    assert [claims[n]["task_name"] for n in range(3)] == [own, "fetch", own]
    leases = [api.lease(claims[n]["lease_id"]) for n in range(3)]
    assert [one["max_attempts"] for one in leases] == [1, 7, 1]
    assert {one["priority"] for one in leases} == {3}


def test_what_a_step_waits_before_it_starts_is_not_for_its_items(api: Api, clock: Clock) -> None:
    flow = Flow(api, [step("a", options={"delay": 60})])
    clock.advance(timedelta(minutes=1))
    [claim] = flow.claims().values()
    add(api, claim, "x")
    assert sorted(opened(api, flow)) == [0]


def test_items_add_items(api: Api) -> None:
    flow, claim = began(api)
    add(api, claim, "x")
    first = opened(api, flow)[0]
    finish(api, claim)
    assert add(api, first, "y", "x") == {"y": (1, True), "x": (0, False)}
    flow.settle(first)
    assert flow.states() == {"a": "running"}
    flow.settle(opened(api, flow)[1])
    assert flow.state == "completed"


def test_items_of_a_map_add_to_the_map(api: Api) -> None:
    last = step("b", params={"all": {"$results": "m"}, "sum": {"$result": "m"}})
    flow = Flow(api, [each("m", ["p", "q"], params={"v": {"$item": []}}, max_parallel=2), last])
    claims = flow.items()
    assert add(api, claims[1], "x", "y", params={"v": "r"}) == {"x": (2, True), "y": (3, True)}
    assert flow.counts() == (4, 0, 0)
    flow.settle(claims[0], result=0)
    flow.settle(claims[1], result=1)
    late = flow.items()
    assert {n: claim["params"] for n, claim in late.items()} == {2: {"v": "r"}, 3: {"v": "r"}}
    for number in (3, 2):
        flow.settle(late[number], result=number)
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": [0, 1, 2, 3], "sum": {"items": 4, "failed": 0}}


@pytest.mark.parametrize("has_room", [True, False])
def test_items_are_let_in_while_others_of_their_step_run(api: Api, has_room: bool) -> None:
    """An end that finds no room leaves them to the next one."""
    flow = Flow(api, [each("m", list(range(40)), max_parallel=64 if has_room else 40)])
    claims = flow.items()
    add(api, claims[0], "x")
    if not has_room:
        api.rows("advance_workflows")
        assert flow.items() == {}
    flow.settle(claims[1])
    assert sorted(flow.items()) == [40]


def test_many_items_keep_to_a_window(api: Api) -> None:
    flow, claim = began(api)
    add(api, claim, *(f"x{n}" for n in range(1_500)))
    sweeps(api, 3)
    claims = flow.items()
    assert sorted(claims) == list(range(999))  # its own lease has a place in the window
    finish(api, claim)
    for n in range(70):
        flow.settle(claims[n])
    assert min(flow.items()) == 999


def test_a_name_has_one_content(api: Api) -> None:
    """And is added once."""
    flow, claim = began(api)
    add(api, claim, "x", params={"n": 1})
    assert add(api, claim, "x", "y", "y", params={"n": 1}) == {"x": (0, False), "y": (1, False)}
    assert api.rows("add_items", **adding(claim, [])) == []
    for other in (item("x"), item("x", params={"n": 2}), item("x", params={"n": 1}, task="other")):
        refusal = api.refused("QHT01", "add_items", **adding(claim, [item("new"), other]))
        assert refusal.detail["name"] == "x"
    assert flow.counts("a") == (2, 0, 0)


def test_the_next_attempt_adds_nothing_twice(api: Api, clock: Clock) -> None:
    """A worker that is killed after it has added: its claim expires, and the lease runs again."""
    flow, claim = began(api, own={"options": {"max_attempts": 3}})
    add(api, claim, "x", "y")
    api.rows("advance_workflows")
    api.reap_after(clock, timedelta(hours=1))
    clock.advance(timedelta(hours=1))
    flow.epoch = flow.register("second")
    claims = flow.items()
    again = claims.pop("a")
    assert again["lease_id"] == claim["lease_id"]
    api.refused("QHL01", "add_items", **adding(claim, [item("late")]))
    assert add(api, again, "y", "x", "z") == {"y": (1, False), "x": (0, False), "z": (2, True)}
    api.rows("advance_workflows")
    settle_all(flow, again, *claims.values())
    assert (flow.state, flow.counts("a")) == ("completed", (3, 3, 0))


def test_an_attempt_that_fails_keeps_what_it_has_added(api: Api) -> None:
    flow, claim = began(api, own={"options": {"max_attempts": 2, "retry": {"base": 0}}})
    add(api, claim, "x")
    flow.settle(claim, outcome="fail", error={"message": "no"})
    claims = opened(api, flow)
    assert add(api, claims["a"], "x") == {"x": (0, False)}
    settle_all(flow, *claims.values())
    assert flow.state == "completed"


def test_a_lease_that_fails_while_its_items_run(api: Api) -> None:
    flow, claim, claims = busy(api, "x", step("b", "a"))
    flow.settle(claim, outcome="fail", error={"message": "no"})
    api.rows("advance_workflows")
    assert (flow.state, flow.states()["a"]) == ("failing", "running")
    flow.settle(claims[0])
    row = flow.steps()["a"]
    assert (flow.state, row["state"], row["error"]["message"]) == ("failed", "failed", "no")
    assert row["reason"] is None


def test_an_item_that_fails_fails_the_step(api: Api) -> None:
    flow, claim, claims = busy(api, "xy", step("b", {"step": "a", "on": "failed"}))
    flow.settle(claims[0], outcome="fail", error={"message": "no"})
    flow.settle(claims[1])
    flow.settle(claim, result=1)
    row = flow.steps()["a"]
    assert (row["state"], row["reason"]) == ("failed", "items_failed")
    assert row["error"] == {"items": 2, "failed": 1, "tolerated": 0, "first_error": "item 0: no"}


def test_a_lease_that_is_cancelled(api: Api) -> None:
    flow, claim, claims = busy(api, "x")
    api.rows("cancel_lease", lease=claim["lease_id"])
    fail(api, claim)
    fail(api, claims[0])
    api.rows("advance_workflows")
    assert (flow.state, flow.states()) == ("failed", {"a": "cancelled"})


@pytest.mark.parametrize("how", ["cancel", "fail_fast", "deadline"])
def test_a_run_that_stops_takes_what_was_added_along(api: Api, how: str, clock: Clock) -> None:
    flow, claims = one_of_two(api, clock)
    add(api, claims["a"], "x", "y")
    late = opened(api, flow)
    api.rows("release_lease", lease=late[1]["lease_id"], token=late[1]["claim_token"])
    stop(api, clock, flow, claims, how)
    assert api.lease(late[1]["lease_id"])["state"] == "cancelled"
    assert api.lease(late[0]["lease_id"])["stop_reason"] == "cancelled"
    assert api.lease(claims["a"]["lease_id"])["stop_reason"] == "cancelled"
    add(api, claims["a"], "z")
    assert opened(api, flow) == {}
    for one in [late[0], *claims.values()]:
        fail(api, one)
    work_off(api)
    assert flow.state == ("cancelled" if how == "cancel" else "failed")
    assert flow.states()["a"] == "cancelled"


def test_a_lease_that_waits_for_its_next_attempt_is_stopped(api: Api) -> None:
    flow, claim = began(api, own={"options": {"max_attempts": 3, "retry": {"base": 3600}}})
    add(api, claim, "x")
    flow.settle(claim, outcome="fail", error={"message": "no"})
    api.rows("cancel_workflow_run", run=flow.run)
    work_off(api)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_paused_run_lets_no_items_in(api: Api) -> None:
    flow, claim = began(api)
    api.rows("pause_workflow_run", run=flow.run)
    add(api, claim, "x")
    flow.settle(claim)
    assert opened(api, flow) == {}
    assert flow.states() == {"a": "running"}
    api.rows("resume_workflow_run", run=flow.run)
    flow.settle(opened(api, flow)[0])
    assert flow.state == "completed"


def test_a_retry_runs_what_has_not_completed(api: Api) -> None:
    flow, claim, claims = busy(api, "xyz", step("b", "a"), params={"n": 1})
    flow.settle(claim, result="own")
    flow.settle(claims[0])
    flow.settle(claims[1], outcome="fail", retry=False)
    flow.settle(claims[2])
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    assert flow.counts("a") == (3, 2, 0)
    again = opened(api, flow)
    assert {n: claim["lease_id"] for n, claim in again.items()} == {1: claims[1]["lease_id"]}
    assert again[1]["params"] == {"n": 1}
    assert flow.steps()["a"]["result"] == "own"
    flow.settle(again[1])
    assert (flow.counts("a"), flow.steps()["a"]["result"]) == ((3, 3, 0), "own")
    flow.end_with("b")


def test_a_retry_of_a_lease_that_failed_finds_its_items(api: Api) -> None:
    """The lease of the step runs again; what it added and completed stays."""
    flow, claim, claims = busy(api, "xy", own={"params": {"p": {"$input": ["p"]}}}, input={"p": 7})
    flow.settle(claims[0])
    flow.settle(claim, outcome="fail", retry=False)
    flow.settle(claims[1], outcome="fail", retry=False)
    api.rows("advance_workflows")
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    again = opened(api, flow)
    assert sorted(str(n) for n in again) == ["1", "a"]
    assert (again["a"]["lease_id"], again["a"]["params"]) == (claim["lease_id"], {"p": 7})
    assert add(api, again["a"], "x", "w") == {"x": (0, False), "w": (2, True)}
    api.rows("advance_workflows")
    settle_all(flow, *again.values())
    assert (flow.state, flow.counts("a")) == ("completed", (3, 3, 0))


@pytest.mark.parametrize("mode", [{"mode": "all"}, {"steps": ["a"]}])
def test_a_retry_of_the_whole_step_adds_again(api: Api, mode: Row) -> None:
    flow, claim, claims = busy(api, "xy")
    settle_all(flow, claim, *claims.values())
    api.rows("retry_workflow_run", run=flow.run, options=mode)
    row = flow.steps()["a"]
    assert (row["items"], row["lease_id"]) == (None, claim["lease_id"])
    [again] = opened(api, flow).values()
    assert add(api, again, "y", params={"other": 1}, task="fetch") == {"y": (0, True)}
    [late] = opened(api, flow).values()
    assert (late["lease_id"], late["task_name"]) == (claims[0]["lease_id"], "fetch")
    assert late["params"] == {"other": 1}
    settle_all(flow, again, late)
    assert (flow.state, flow.counts("a")) == ("completed", (1, 1, 0))
    rows = api.rows("step_results", run=flow.run, step="a")
    assert [(row["item"], row["name"]) for row in rows] == [(0, "y")]


def test_a_retry_of_a_run_that_was_cancelled(api: Api) -> None:
    flow, claim = began(api)
    add(api, claim, "x", "y")
    flow.settle(claim)
    late = flow.items()
    flow.settle(late[0])
    api.rows("cancel_workflow_run", run=flow.run)
    fail(api, late[1])
    work_off(api)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})
    api.rows("retry_workflow_run", run=flow.run)
    [again] = opened(api, flow).values()
    assert again["lease_id"] == late[1]["lease_id"]
    flow.settle(again)
    assert (flow.state, flow.counts("a")) == ("completed", (2, 2, 0))


def test_a_step_with_items_is_declared_done(api: Api) -> None:
    flow, claim, claims = busy(api, "xy", step("b", params={"of": {"$result": "a"}}))
    flow.settle(claim)
    api.refused("QHL07", "skip_step", run=flow.run, step="a")
    for one in claims.values():
        api.rows("release_lease", lease=one["lease_id"], token=one["claim_token"])
    api.rows("skip_step", run=flow.run, step="a", result=5)
    assert api.lease(claims[0]["lease_id"])["state"] == "cancelled"
    [child] = flow.claims().values()
    assert child["params"] == {"of": 5}


def test_results_by_number_and_name(api: Api) -> None:
    flow, claim, claims = busy(api, "xy")
    flow.settle(claim, result="own")
    flow.settle(claims[1], result="of y")

    def page(**more: int) -> list[tuple[int, str | None, str, Any]]:
        rows = api.rows("step_results", run=flow.run, step="a", **more)
        return [(row["item"], row["name"], row["state"], row["result"]) for row in rows]

    assert page() == [(0, "x", "running", None), (1, "y", "completed", "of y")]
    assert page(after=0) == [(1, "y", "completed", "of y")]
    assert page(after=-2) == [(-1, None, "running", "own")]


def test_its_queue_may_be_dropped(api: Api) -> None:
    flow, claim, claims = busy(api, "xy")
    api.rows("release_lease", lease=claims[1]["lease_id"], token=claims[1]["claim_token"])
    for one in (claim, claims[0]):
        fail(api, one)
    api.rows("drop_queue", queue=flow.queue, force=True)
    for _ in range(2):  # its transactions end, then its rows go
        outlive(api.conn)
        api.rows("prune")
    sweeps(api, 3)
    assert (flow.state, flow.states()) == ("failed", {"a": "failed"})


def test_prune_removes_what_was_added(api: Api, clock: Clock) -> None:
    flow, claim = began(api)
    add(api, claim, "x")
    api.rows("advance_workflows")
    settle_all(flow, claim)
    clock.advance(timedelta(days=8))
    count_all(api.conn)
    api.rows("prune")
    for table in ("added", "map", "tally", "arrival", "lease", "step"):
        count = f"select count(*) from hwqueue.{table} where run_id = %s"
        assert api.conn.execute(count, [flow.run]).fetchone() == (0,), table


def test_items_that_are_none(api: Api) -> None:
    _, claim = began(api)
    wrong: list[tuple[Any, str]] = [
        ({"name": "x"}, "p_items"),
        (["x"], "p_items[0]"),
        ([item("x"), {}], "p_items[1].name"),
        ([item("x" * 201)], "p_items[0].name"),
        ([item("x", task="a b")], "p_items[0].task"),
        ([item("x", queue="q")], "p_items[0]"),
        ([item("x", params={"t": "x" * 2_000_000})], "p_items[0].params"),
        ([item(str(n)) for n in range(10_001)], "p_items"),
    ]
    for items, field in wrong:
        assert (api.fault("add_items", **adding(claim, items)) or "").startswith(field)


def test_a_step_has_a_hundred_thousand_items_at_most(api: Api) -> None:
    flow = Flow(api, [each("m", {"$input": ["l"]})], input={"l": [0] * 99_999})
    claim = flow.items(1)[0]
    refusal = api.refused("QHF07", "add_items", **adding(claim, [item("x"), item("y")]))
    assert refusal.detail["limit"] == 100_000
    assert add(api, claim, "x") == {"x": (99_999, True)}
