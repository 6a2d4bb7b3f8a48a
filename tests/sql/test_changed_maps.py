"""Maps of runs that are retried, cancelled, paused, or whose steps are declared done."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, broken, each, fail, finish_all, step, sweeps
from tests.sql.api import Api

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


def settle_all(flow: Flow, claims: dict[Any, Row]) -> None:
    """Complete these claims, one by one."""
    flow.settle_each(claims.values())


def test_a_retry_runs_only_the_items_that_failed(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(6)), max_parallel=3), step("b", "m")])
    first = flow.items()
    flow.settle(first[0])
    flow.settle(first[1], outcome="fail", retry=False)
    api.rows("advance_workflows")
    rest = flow.items()
    flow.settle_each([first[2], *rest.values()])
    assert flow.state == "failed"
    spawned = set(first) | set(rest)
    assert api.value("retry_workflow_run", run=flow.run) == "running"
    assert broken(api) == []
    again: dict[int, Row] = {}
    while flow.states()["m"] == "running":
        claims = flow.items()
        again |= claims
        settle_all(flow, claims)
    assert set(again) == {1} | (set(range(6)) - spawned)
    assert (again[1]["lease_id"], again[1]["params"]) == (first[1]["lease_id"], first[1]["params"])
    assert flow.counts() == (6, 6, 0)
    flow.end_with("b")


def test_a_retry_with_another_list_runs_all_items(api: Api) -> None:
    """What the former list has left is not kept, shown or bound for items that have not begun since."""
    ended, of_m = {"step": "m", "on": "ended"}, {"$results": "m"}
    steps = [each("m", {"$input": []}, max_parallel=1), each("n", of_m, after=[ended])]
    flow = Flow(api, [*steps, step("z", ended, params={"all": of_m})], input=["a", "b", "c"])
    before: list[Row] = []
    while flow.states()["m"] == "running":
        before += flow.items().values()
        flow.settle(before[-1], result="old")
    settle_all(flow, flow.items())
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all", "input": ["d", "e"]})
    [claim] = flow.items().values()
    assert (claim["params"], claim["lease_id"]) == ({"item": "d"}, before[0]["lease_id"])
    flow.settle(claim, outcome="fail", retry=False)
    claims = flow.items()
    assert [claims[n]["params"] for n in (0, 1, "z")] == [{"item": None}] * 2 + [{"all": [None, None]}]
    settle_all(flow, claims)
    assert [row["item"] for row in api.rows("step_results", run=flow.run, step="m")] == [0]
    api.rows("retry_workflow_run", run=flow.run)
    flow.settle(flow.items()[0])
    assert flow.items()[1]["params"] == {"item": "e"}


def test_an_item_that_a_retry_cannot_bind_has_failed(api: Api) -> None:
    """However the item with its number ended before."""
    words = each("m", {"$input": []}, params={"x": {"$item": ["x"]}}, tolerate=1)
    flow = Flow(api, [words, step("z", params={"all": {"$results": "m"}})], input=[{"x": 1}, {"x": 2}])
    for claim in flow.items().values():
        flow.settle(claim, result="old")
    flow.complete("z")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all", "input": [{"x": 3}, {}]})
    assert broken(api) == []
    [claim] = flow.items().values()
    flow.settle(claim, result="new")
    assert flow.counts() == (2, 2, 1)
    [claim] = flow.claims().values()
    assert claim["params"] == {"all": ["new", None]}
    flow.settle(claim)


@pytest.mark.parametrize("name", ["a", "m"])
def test_a_retry_of_named_steps_runs_the_map_again(api: Api, name: str) -> None:
    flow = Flow(api, [step("a"), each("m", {"$result": "a"})])
    flow.complete("a", result=[1, 2])
    settle_all(flow, flow.items())
    api.rows("retry_workflow_run", run=flow.run, options={"steps": [name]})
    if name == "a":
        flow.complete("a", result=[3])
    claims = flow.items()
    assert len(claims) == (1 if name == "a" else 2)
    settle_all(flow, claims)
    assert flow.state == "completed"


def test_cancel_costs_nothing_for_items_that_were_not_spawned(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(5_000)), max_parallel=4)])
    claims = flow.items(qty=2)
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelling"
    assert api.lease(claims[0]["lease_id"])["stop_reason"] == "cancelled"
    assert flow.items() == {}
    for claim in claims.values():
        fail(api, claim)
    api.rows("advance_workflows")
    assert (flow.state, flow.states()) == ("cancelled", {"m": "cancelled"})
    assert flow.counts() == (5_000, 4, 4)


def test_cancel_goes_on_over_a_large_window(api: Api) -> None:
    flow = Flow(api, [each("m", list(range(2_400)), max_parallel=5_000)])
    sweeps(api, 2)
    assert flow.lease_count() == 2_400
    api.rows("cancel_workflow_run", run=flow.run)
    sweeps(api, 4)
    assert flow.state == "cancelled"


def test_pause_holds_the_window(api: Api) -> None:
    """And with nothing open it is cancelled all the same."""
    flow = Flow(api, [each("m", list(range(6)), max_parallel=2)])
    claims = flow.items()
    api.rows("pause_workflow_run", run=flow.run)
    settle_all(flow, claims)
    assert flow.items() == {}
    assert (flow.state, flow.states()) == ("paused", {"m": "running"})
    assert broken(api) == []
    api.rows("resume_workflow_run", run=flow.run)
    claims = flow.items()
    assert sorted(claims) == [2, 3]
    api.rows("pause_workflow_run", run=flow.run)
    settle_all(flow, claims)
    api.rows("cancel_workflow_run", run=flow.run)
    api.rows("advance_workflows")
    assert (flow.state, flow.states()) == ("cancelled", {"m": "cancelled"})


def test_a_deadline_stops_a_map(api: Api, clock: Clock) -> None:
    flow = Flow(api, [each("m", list(range(9)), max_parallel=2)], deadline="1 hour")
    clock.advance(timedelta(hours=2))
    for _ in range(2):
        api.rows("reap")
    assert (flow.state, flow.get()["reason"]) == ("failed", "deadline_exceeded")
    assert flow.states() == {"m": "cancelled"}


def test_an_operator_declares_a_waiting_map_done(api: Api) -> None:
    of_m = {"$results": "m"}
    flow = Flow(api, [step("a"), each("m", {"$result": "a"}), each("n", of_m), step("b", params={"x": of_m})])
    api.rows("skip_step", run=flow.run, step="m", result=[7, 8])
    claims = flow.claims()
    assert claims["b"]["params"] == {"x": [7, 8]}
    assert flow.counts("n") == (2, 0, 0)


@pytest.mark.parametrize("how", [{}, {"outcome": "fail", "retry": False}])
def test_an_operator_declares_a_map_done_of_which_nothing_is_claimed(api: Api, how: Row) -> None:
    """A run that has begun to fail does so all the same: what is left of it was given up."""
    flow = Flow(api, [each("m", list(range(4)), max_parallel=2), step("b", "m")], on_failure="finish_running")
    claims = flow.items(qty=1)
    api.refused("QHL07", "skip_step", run=flow.run, step="m")
    flow.settle(claims[0], **how)
    state = api.value("skip_step", run=flow.run, step="m", reason="enough")
    left = "select count(*) from hwqueue.ready join hwqueue.lease l using (lease_id) where l.run_id = %s"
    assert api.one(left + " and l.item_no is not null", flow.run) == 0
    assert (state, flow.states()["m"]) == ("failed" if how else "running", "completed")


def test_a_cancellation_of_many_maps_ends_200_items_at_most(api: Api) -> None:
    names = [f"m{number}" for number in range(12)]
    flow = Flow(api, [each(name, list(range(50))) for name in names])
    assert api.value("cancel_workflow_run", run=flow.run) == "cancelling"
    left = [
        row["lease_id"]
        for row in api.rows("list_leases", filter={"queue": flow.queue}, limit=1000)
        if row["state"] == "pending"
    ]
    assert 400 <= len(left) < 600
    sweeps(api, 10)
    assert flow.items() == {}
    assert flow.state == "cancelled"


def test_a_retry_passes_what_has_completed_a_portion_a_call(api: Api) -> None:
    """A call looks at 2,000 items, and says that there are more."""
    flow = Flow(api, [each("m", list(range(4_100)), max_parallel=5_000)])
    while api.row("advance_workflows")["more"]:
        pass
    claims: dict[int, Row] = {}
    while portion := flow.items():
        claims |= portion
    assert len(claims) == 4_100
    last = claims.pop(4_099)
    done = list(claims.values())
    for number in range(0, len(done), 1_000):
        finish_all(api, done[number : number + 1_000])
    fail(api, last)
    api.rows("advance_workflows")
    assert flow.state == "failed"
    api.rows("retry_workflow_run", run=flow.run)
    assert (flow.items(), flow.counts()) == ({}, (4_100, 2_000, 0))
    assert api.row("advance_workflows")["more"]
    assert (flow.items(), flow.counts()) == ({}, (4_100, 4_000, 0))
    api.rows("advance_workflows")
    [claim] = flow.items().values()
    assert claim["lease_id"] == last["lease_id"]
    flow.settle(claim)
    assert flow.state == "completed"
