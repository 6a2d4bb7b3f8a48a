"""Adding items beside what else goes on with the step: nothing is lost, and no step ends early."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, each, fail, finish, step, sweeps
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
    sweeps(flow.calls, 3)


@pytest.mark.parametrize("commits", [True, False])
def test_the_last_item_ends_while_another_adds(direct: Direct, one: Actor, commits: bool) -> None:
    """The adding is open when all that was there before has ended, but for who adds."""
    flow = Flow(direct, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x", "y"))
    claims = opened(flow)
    one.direct.rows("add_items", **adding(claims[0], "late"))
    flow.settle(own)
    flow.settle(claims[1])
    direct.rows("advance_workflows")
    assert flow.states() == {"a": "running", "b": "waiting"}
    one.end(commits)
    flow.settle(claims[0])
    late = opened(flow)
    if commits:
        assert (flow.states()["a"], sorted(late)) == ("running", [2])
        flow.settle(late[2])
        late = flow.claims()
    finish(direct, late["b"])
    assert flow.state == "completed"


def test_adding_and_the_end_in_one_transaction(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b", "a")])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    finish(one.direct, own, result=1)
    direct.rows("advance_workflows")
    assert flow.states()["a"] == "running"
    one.commit()
    assert flow.states()["a"] == "running"
    flow.settle(opened(flow)[0])
    assert flow.states() == {"a": "completed", "b": "running"}


def test_a_claim_does_not_expire_while_it_adds(direct: Direct, one: Actor, clock: Clock) -> None:
    flow = Flow(direct, [step("a", options={"max_attempts": 2})])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    clock.advance(timedelta(hours=1))
    direct.rows("reap")
    assert direct.row("get_lease", lease=own["lease_id"])["state"] == "claimed"
    one.commit()
    direct.rows("reap")
    assert direct.row("get_lease", lease=own["lease_id"])["state"] != "claimed"
    assert flow.steps()["a"]["items"] == 1


@pytest.mark.parametrize("has_items", [False, True])
def test_a_run_is_cancelled_while_a_step_adds(direct: Direct, one: Actor, has_items: bool) -> None:
    """The cancellation does not see that the step has items; what it asks to stop is all of it."""
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    if has_items:
        direct.rows("add_items", **adding(own, "before"))
    one.direct.rows("add_items", **adding(own, "x"))
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    direct.rows("advance_workflows")
    one.commit()
    sweeps(direct, 2)
    assert direct.row("get_lease", lease=own["lease_id"])["stop_reason"] == "cancelled"
    assert flow.items() == {}
    fail(direct, own)
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_run_is_cancelled_while_an_item_is_let_in(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    one.direct.rows("advance_workflows")
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    one.commit()
    stopped(flow)
    fail(direct, own)
    stopped(flow)
    assert (flow.state, flow.steps()["a"]["items_done"]) == ("cancelled", 1)


def test_a_lease_that_waits_is_stopped_while_an_item_adds(direct: Direct, one: Actor) -> None:
    """Its step has an item that runs: it is counted as one of them, and ends no step."""
    flow = Flow(direct, [step("a", options={"max_attempts": 2, "retry": {"base": 3600}})])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    claims = opened(flow)
    flow.settle(own, outcome="fail", error={})
    one.direct.rows("add_items", **adding(claims[0], "y"))
    direct.rows("cancel_workflow_run", run=flow.run)
    assert direct.row("get_lease", lease=own["lease_id"])["state"] == "cancelled"
    assert (flow.state, flow.states()) == ("cancelling", {"a": "running"})
    one.commit()
    fail(direct, claims[0])
    stopped(flow)
    assert (flow.state, flow.states()) == ("cancelled", {"a": "cancelled"})


def test_a_retry_begins_while_a_stale_run_adds(direct: Direct, one: Actor) -> None:
    """What a lost claim adds is refused, also when its step runs again."""
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    direct.rows("add_items", **adding(own, "x"))
    flow.settle(own, outcome="fail", retry=False)
    direct.rows("advance_workflows")
    assert flow.state == "failed"
    one.direct.rows("retry_workflow_run", run=flow.run)
    for _ in range(2):
        with pytest.raises(psycopg.Error) as refused:
            direct.rows("add_items", **adding(own, "late"))
        assert refused.value.sqlstate in ("QHL01", "QHL03")
        one.commit()
    again = opened(flow)
    assert sorted(map(str, again)) == ["0", "a"]
    direct.rows("add_items", **adding(again["a"], "x"))
    flow.settle_each(again.values())
    assert (flow.state, flow.steps()["a"]["items"]) == ("completed", 1)


def test_two_items_add_to_one_step(direct: Direct, one: Actor, two: Actor) -> None:
    """The second waits for the first, numbers its items behind, and finds the names."""
    flow = Flow(direct, [each("m", [1, 2])])
    claims = flow.items()
    one.direct.rows("add_items", **adding(claims[0], "x", "y"))
    added = two.parked(lambda session: session.rows("add_items", **adding(claims[1], "z", "y")))
    one.commit()
    rows = added.result(TIMEOUT)
    assert [(row["name"], row["item"], row["created"]) for row in rows] == [("z", 4, True), ("y", 3, False)]
    flow.settle_each([*claims.values(), *opened(flow).values()])
    assert flow.state == "completed"


def test_one_claim_adds_twice_for_the_first_time(direct: Direct, one: Actor, two: Actor) -> None:
    flow = Flow(direct, [step("a")])
    [own] = flow.claims().values()
    one.direct.rows("add_items", **adding(own, "x"))
    added = two.parked(lambda session: session.rows("add_items", **adding(own, "y")))
    one.commit()
    assert [row["item"] for row in added.result(TIMEOUT)] == [1]
    flow.settle_each([own, *opened(flow).values()])
    assert flow.state == "completed"


def test_an_adding_that_stays_open_holds_up_no_window(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [each("m", list(range(5)), max_parallel=2)])
    claims = flow.items()
    one.direct.rows("add_items", **adding(claims.pop(0), "x"))
    done = 0
    while claims:
        for claim in claims.values():
            flow.settle(claim)
            done += 1
        claims = opened(flow)
    assert done == 4
    one.rollback()
