"""Adding items beside what else goes on with the step: nothing is lost, and no step ends early."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Calls, Row
from tests.flows import Flow, each, fail, finish, step
from tests.races.interleave import TIMEOUT, Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough


def adding(claim: Row, *names: str) -> Row:
    items = [{"name": name} for name in names]
    return {"lease": claim["lease_id"], "token": claim["claim_token"], "items": items}


def opened(flow: Flow) -> dict[Any, Row]:
    """Claim what a sweep lets in."""
    flow.calls.rows("advance_workflows")
    return flow.items()


def stopped(flow: Flow) -> None:
    """Sweep until nothing of a run that stops can come any more."""
    outlive(flow.calls.conn)
    for _ in range(3):
        flow.calls.rows("advance_workflows")


@pytest.mark.parametrize("commits", [True, False])
def test_the_last_item_ends_while_another_adds(calls: Calls, two: list[Actor], commits: bool) -> None:
    """The adding is open when all that was there before has ended, but for who adds."""
    flow = Flow(calls, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    calls.rows("add_items", **adding(own, "x", "y"))
    claims = opened(flow)
    two[0].begin()
    two[0].direct.rows("add_items", **adding(claims[0], "late"))
    flow.settle(own)
    flow.settle(claims[1])
    calls.rows("advance_workflows")
    assert flow.states() == {"a": "running", "b": "waiting"}
    if commits:
        two[0].commit()
    else:
        two[0].rollback()
    flow.settle(claims[0])
    late = opened(flow)
    if commits:
        assert (flow.states()["a"], sorted(late)) == ("running", [2])
        flow.settle(late[2])
        late = flow.claims()
    finish(calls, late["b"])
    assert flow.state == "completed"


def test_adding_and_the_end_in_one_transaction(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    two[0].begin()
    two[0].direct.rows("add_items", **adding(own, "x"))
    finish(two[0].direct, own, result=1)
    calls.rows("advance_workflows")
    assert flow.states()["a"] == "running"
    two[0].commit()
    assert flow.states()["a"] == "running"
    flow.settle(opened(flow)[0])
    assert flow.states() == {"a": "completed", "b": "running"}


def test_a_claim_does_not_expire_while_it_adds(calls: Calls, two: list[Actor], clock: Clock) -> None:
    flow = Flow(calls, [step("a", options={"max_attempts": 2})])
    [own] = flow.claims().values()
    two[0].begin()
    two[0].direct.rows("add_items", **adding(own, "x"))
    clock.advance(timedelta(hours=1))
    calls.rows("reap")
    assert calls.row("get_lease", lease=own["lease_id"])["state"] == "claimed"
    two[0].commit()
    calls.rows("reap")
    assert calls.row("get_lease", lease=own["lease_id"])["state"] != "claimed"
    assert flow.steps()["a"]["items"] == 1


@pytest.mark.parametrize("has_items", [False, True])
def test_a_run_is_cancelled_while_a_step_adds(calls: Calls, two: list[Actor], has_items: bool) -> None:
    """The cancellation does not see that the step has items; what it asks to stop is all of it."""
    flow = Flow(calls, [step("a")])
    [own] = flow.claims().values()
    if has_items:
        calls.rows("add_items", **adding(own, "before"))
    two[0].begin()
    two[0].direct.rows("add_items", **adding(own, "x"))
    assert calls.value("cancel_workflow_run", run=flow.run) == "cancelling"
    calls.rows("advance_workflows")
    two[0].commit()
    for _ in range(2):
        calls.rows("advance_workflows")
    assert calls.row("get_lease", lease=own["lease_id"])["stop_reason"] == "cancelled"
    assert flow.items() == {}
    fail(calls, own)
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_run_is_cancelled_while_an_item_is_let_in(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [step("a")])
    [own] = flow.claims().values()
    calls.rows("add_items", **adding(own, "x"))
    two[0].begin()
    two[0].direct.rows("advance_workflows")
    assert calls.value("cancel_workflow_run", run=flow.run) == "cancelling"
    two[0].commit()
    stopped(flow)
    fail(calls, own)
    stopped(flow)
    assert (flow.state, flow.steps()["a"]["items_done"]) == ("cancelled", 1)


def test_a_lease_that_waits_is_stopped_while_an_item_adds(calls: Calls, two: list[Actor]) -> None:
    """Its step has an item that runs: it is counted as one of them, and ends no step."""
    flow = Flow(calls, [step("a", options={"max_attempts": 2, "retry": {"base": 3600}})])
    [own] = flow.claims().values()
    calls.rows("add_items", **adding(own, "x"))
    claims = opened(flow)
    flow.settle(own, outcome="fail", error={})
    two[0].begin()
    two[0].direct.rows("add_items", **adding(claims[0], "y"))
    calls.rows("cancel_workflow_run", run=flow.run)
    assert calls.row("get_lease", lease=own["lease_id"])["state"] == "cancelled"
    assert (flow.state, flow.states()) == ("cancelling", {"a": "running"})
    two[0].commit()
    fail(calls, claims[0])
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_retry_begins_while_a_stale_run_adds(calls: Calls, two: list[Actor]) -> None:
    """What a lost claim adds is refused, also when its step runs again."""
    flow = Flow(calls, [step("a")])
    [own] = flow.claims().values()
    calls.rows("add_items", **adding(own, "x"))
    flow.settle(own, outcome="fail", retry=False)
    calls.rows("advance_workflows")
    assert flow.state == "failed"
    two[0].begin()
    two[0].direct.rows("retry_workflow_run", run=flow.run)
    for _ in range(2):
        with pytest.raises(psycopg.Error) as refused:
            calls.rows("add_items", **adding(own, "late"))
        assert refused.value.sqlstate in ("QHL01", "QHL03")
        two[0].commit()
    again = opened(flow)
    assert sorted(map(str, again)) == ["0", "a"]
    calls.rows("add_items", **adding(again["a"], "x"))
    for claim in again.values():
        flow.settle(claim)
    assert (flow.state, flow.steps()["a"]["items"]) == ("completed", 1)


def test_two_items_add_to_one_step(calls: Calls, two: list[Actor]) -> None:
    """The second waits for the first, numbers its items behind, and finds the names."""
    flow = Flow(calls, [each("m", [1, 2])])
    claims = flow.items()
    two[0].begin()
    two[0].direct.rows("add_items", **adding(claims[0], "x", "y"))
    added = two[1].start(lambda session: session.rows("add_items", **adding(claims[1], "z", "y")))
    two[1].wait_until_parked()
    two[0].commit()
    rows = added.result(TIMEOUT)
    assert [(row["name"], row["item"], row["created"]) for row in rows] == [
        ("z", 4, True),
        ("y", 3, False),
    ]
    for claim in [*claims.values(), *opened(flow).values()]:
        flow.settle(claim)
    assert flow.state == "completed"


def test_one_claim_adds_twice_for_the_first_time(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [step("a")])
    [own] = flow.claims().values()
    two[0].begin()
    two[0].direct.rows("add_items", **adding(own, "x"))
    added = two[1].start(lambda session: session.rows("add_items", **adding(own, "y")))
    two[1].wait_until_parked()
    two[0].commit()
    assert [row["item"] for row in added.result(TIMEOUT)] == [1]
    for claim in [own, *opened(flow).values()]:
        flow.settle(claim)
    assert flow.state == "completed"


def test_an_adding_that_stays_open_holds_up_no_window(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [each("m", list(range(5)), max_parallel=2)])
    claims = flow.items()
    two[0].begin()
    two[0].direct.rows("add_items", **adding(claims.pop(0), "x"))
    done = 0
    while claims:
        for claim in claims.values():
            flow.settle(claim)
            done += 1
        claims = opened(flow)
    assert done == 4
    two[0].rollback()
