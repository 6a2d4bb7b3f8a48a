"""Updates of steps that others release: each asks what it asked before, or what the update says."""

from typing import Any

import pytest

from tests.calls import Calls, Row
from tests.flows import Flow, each, finish, step
from tests.races.interleave import TIMEOUT, Actor, interleave
from tests.sql.api import refusing

pytestmark = pytest.mark.thorough

PREFERS = {"placement": {"prefer": [{"weight": 10, "when": {"rack": [7]}}]}}


def update(flow: Flow, calls: Calls, **more: Any) -> dict[str, Row]:
    """Update steps; the rows by step."""
    rows = calls.rows("update_steps", run=flow.run, changes=PREFERS, **more)
    return {row["step"]: row for row in rows}


def placement(calls: Calls, claim: Row) -> Row:
    """What the lease of a claim asks."""
    found = calls.row("get_lease", lease=claim["lease_id"])["placement"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_that_meets_an_update_leaves_it_to_the_sweep(
    calls: Calls, two: list[Actor], commits: bool
) -> None:
    flow = Flow(calls, [step("a"), step("b", "a")])
    claims = flow.claims()
    two[0].begin()
    assert update(flow, two[0].direct)["b"]["changed"]
    flow.settle(claims["a"])  # waits for nobody
    assert flow.states() == {"a": "completed", "b": "waiting"}
    calls.rows("advance_workflows")
    assert flow.claims() == {}
    if commits:
        two[0].commit()
    else:
        two[0].rollback()
    calls.rows("advance_workflows")
    [claim] = flow.claims().values()
    assert bool(placement(calls, claim)) is commits
    flow.settle(claim)
    assert flow.state == "completed"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_an_update_waits_for_a_release_that_is_open(
    calls: Calls, two: list[Actor], commits: bool, named: bool
) -> None:
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    one, other = two
    one.begin()
    flow.settle(claims["a"], one.direct)
    steps = {"steps": ["b"]} if named else {}
    started = other.start(lambda direct: update(flow, direct, **steps))
    other.wait_until_blocked_by(one)
    if not commits:
        one.rollback()
        found = started.result(TIMEOUT)
        assert set(found) == ({"b"} if named else {"b", "c"})
        flow.settle(claims["a"])
        assert placement(calls, flow.claims()["b"])
        return
    one.commit()
    if named:
        with refusing("QHF04"):
            started.result(TIMEOUT)
    else:
        assert set(started.result(TIMEOUT)) == {"c"}
    assert flow.steps()["b"]["placement"] == placement(calls, flow.claims()["b"]) == {}


def test_an_update_does_not_wait_for_ever(calls: Calls, two: list[Actor]) -> None:
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    two[0].begin()
    flow.settle(claims["a"], two[0].direct)
    with refusing("QHL09"):
        update(flow, calls)
    assert update(flow, calls, steps=["c"])["c"]["changed"]
    two[0].commit()


def test_items_are_spawned_as_before_the_update_or_after_it(calls: Calls, two: list[Actor]) -> None:
    """A settlement that is open has let the second item in; the third comes after the update."""
    flow = Flow(calls, [each("m", [1, 2, 3], max_parallel=1)])
    first = flow.items()[0]
    one, other = two
    one.begin()
    flow.settle(first, one.direct)
    started = other.start(lambda direct: update(flow, direct))
    other.wait_until_blocked_by(one)
    one.commit()
    assert started.result(TIMEOUT)["m"]["changed"]
    second = flow.items()[1]
    other.begin()
    assert not update(flow, other.direct)["m"]["changed"]  # holds the items all the same
    flow.settle(second)
    assert flow.items() == {}
    other.commit()
    calls.rows("advance_workflows")
    third = flow.items()[2]
    assert placement(calls, second) == {}
    assert placement(calls, third) == flow.steps()["m"]["placement"] != {}
    flow.settle(third)


def test_a_map_that_begins_while_an_update_waits_for_it(calls: Calls, two: list[Actor]) -> None:
    """Its first items are spawned; the update holds the others before it changes anything."""
    flow = Flow(calls, [step("a"), each("m", list(range(3)), after=["a"], max_parallel=1)])
    claims = flow.claims()
    one, other = two
    one.begin()
    flow.settle(claims["a"], one.direct)
    started = other.start(lambda direct: update(flow, direct))
    other.wait_until_blocked_by(one)
    one.commit()
    assert started.result(TIMEOUT)["m"]["state"] == "running"
    first = flow.items()[0]
    assert placement(calls, first) == {}
    flow.settle(first)
    assert placement(calls, flow.items()[1]) == flow.steps()["m"]["placement"]


def test_an_update_that_stays_open_holds_no_step_that_was_released(calls: Calls, two: list[Actor]) -> None:
    """It has waited for that step, and leaves it out: who runs it settles meanwhile."""
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    one, other = two
    one.begin()
    flow.settle(claims["a"], one.direct)
    other.begin()
    started = other.start(lambda direct: update(flow, direct))
    other.wait_until_blocked_by(one)
    one.commit()
    assert set(started.result(TIMEOUT)) == {"c"}
    flow.settle(flow.claims()["b"])  # waits for nobody
    other.commit()
    calls.rows("advance_workflows")
    assert placement(calls, flow.claims()["c"])


def test_an_update_that_waits_holds_no_step(calls: Calls, dsn: str) -> None:
    """It waits for two releases in turn; what the first released, the second session settles."""
    flow = Flow(calls, [step("a"), step("b"), step("c", "a"), step("d", "b"), step("e", "c", "d")])
    claims = flow.claims()
    with interleave(dsn) as actor:
        one, two, other = actor(), actor(), actor()
        other.begin()
        for session, name in ((one, "a"), (two, "b")):
            session.begin()
            finish(session.direct, claims[name])
        started = other.start(lambda direct: update(flow, direct))
        other.wait_until_blocked_by(one)
        one.commit()
        other.wait_until_blocked_by(two)
        finish(two.direct, flow.claims()["c"])  # waits for nobody: else both wait for each other
        two.commit()
        assert set(started.result(TIMEOUT)) == {"e"}
        other.commit()
    flow.complete("d")
    calls.rows("advance_workflows")
    assert placement(calls, flow.claims()["e"])
