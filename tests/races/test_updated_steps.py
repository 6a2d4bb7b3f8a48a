"""Updates of steps that others release: each asks what it asked before, or what the update says."""

from typing import Any

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, each, finish, step
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet
from tests.sql.api import refusing

pytestmark = pytest.mark.thorough

PREFERS = {"placement": {"prefer": [{"weight": 10, "when": {"rack": [7]}}]}}


def update(flow: Flow, direct: Direct, **more: Any) -> dict[str, Row]:
    rows = direct.rows("update_steps", run=flow.run, changes=PREFERS, **more)
    return {row["step"]: row for row in rows}


def placement(direct: Direct, claim: Row) -> Row:
    """What the lease of a claim asks."""
    found = direct.row("get_lease", lease=claim["lease_id"])["placement"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_that_meets_an_update_leaves_it_to_the_sweep(
    direct: Direct, one: Actor, commits: bool
) -> None:
    flow = Flow(direct, [step("a"), step("b", "a")])
    claims = flow.claims()
    assert update(flow, one.direct)["b"]["changed"]
    flow.settle(claims["a"])  # waits for nobody
    assert flow.states() == {"a": "completed", "b": "waiting"}
    direct.rows("advance_workflows")
    assert flow.claims() == {}
    one.end(commits)
    direct.rows("advance_workflows")
    [claim] = flow.claims().values()
    assert bool(placement(direct, claim)) is commits
    flow.settle(claim)
    assert flow.state == "completed"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_an_update_waits_for_a_release_that_is_open(
    direct: Direct, one: Actor, two: Actor, commits: bool, named: bool
) -> None:
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    flow.settle(claims["a"], one.direct)
    steps = {"steps": ["b"]} if named else {}
    started = two.parked(lambda direct: update(flow, direct, **steps), behind=one)
    if not commits:
        one.rollback()
        found = started.result(TIMEOUT)
        assert set(found) == ({"b"} if named else {"b", "c"})
        flow.settle(claims["a"])
        assert placement(direct, flow.claims()["b"])
        return
    one.commit()
    if named:
        with refusing("QHF04"):
            started.result(TIMEOUT)
    else:
        assert set(started.result(TIMEOUT)) == {"c"}
    assert flow.steps()["b"]["placement"] == placement(direct, flow.claims()["b"]) == {}


def test_an_update_does_not_wait_for_ever(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    flow.settle(claims["a"], one.direct)
    direct.conn.execute("set lock_timeout = '100ms'")
    with refusing("QHL09"):
        update(flow, direct)
    assert update(flow, direct, steps=["c"])["c"]["changed"]
    one.commit()


def test_items_are_spawned_as_before_the_update_or_after_it(direct: Direct, one: Actor, two: Actor) -> None:
    """A settlement that is open has let the second item in; the third comes after the update."""
    flow = Flow(direct, [each("m", [1, 2, 3], max_parallel=1)])
    first = flow.items()[0]
    flow.settle(first, one.direct)
    started = two.parked(lambda direct: update(flow, direct), behind=one)
    one.commit()
    assert started.result(TIMEOUT)["m"]["changed"]
    second = flow.items()[1]
    two.begin()
    assert not update(flow, two.direct)["m"]["changed"]  # holds the items all the same
    flow.settle(second)
    assert flow.items() == {}
    two.commit()
    direct.rows("advance_workflows")
    third = flow.items()[2]
    assert placement(direct, second) == {}
    assert placement(direct, third) == flow.steps()["m"]["placement"] != {}
    flow.settle(third)


def test_a_map_that_begins_while_an_update_waits_for_it(direct: Direct, meet: Meet) -> None:
    """Its first items are spawned; the update holds the others before it changes anything."""
    flow = Flow(direct, [step("a"), each("m", list(range(3)), after=["a"], max_parallel=1)])
    claims = flow.claims()
    _, started = meet(lambda d: flow.settle(claims["a"], d), lambda direct: update(flow, direct))
    assert started.result(TIMEOUT)["m"]["state"] == "running"
    first = flow.items()[0]
    assert placement(direct, first) == {}
    flow.settle(first)
    assert placement(direct, flow.items()[1]) == flow.steps()["m"]["placement"]


def test_an_update_that_stays_open_holds_no_step_that_was_released(
    direct: Direct, one: Actor, two: Actor
) -> None:
    """It has waited for that step, and leaves it out: who runs it settles meanwhile."""
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    flow.settle(claims["a"], one.direct)
    two.begin()
    started = two.parked(lambda direct: update(flow, direct), behind=one)
    one.commit()
    assert set(started.result(TIMEOUT)) == {"c"}
    flow.settle(flow.claims()["b"])  # waits for nobody
    two.commit()
    direct.rows("advance_workflows")
    assert placement(direct, flow.claims()["c"])


def test_an_update_that_waits_holds_no_step(direct: Direct, actor: Actors) -> None:
    """It waits for two releases in turn; what the first released, the second session settles."""
    flow = Flow(direct, [step("a"), step("b"), step("c", "a"), step("d", "b"), step("e", "c", "d")])
    claims = flow.claims()
    one, two, other = (actor().begin() for _ in range(3))
    for session, name in ((one, "a"), (two, "b")):
        finish(session.direct, claims[name])
    started = other.parked(lambda direct: update(flow, direct), behind=one)
    one.commit()
    other.wait_until_behind(started, two)
    finish(two.direct, flow.claims()["c"])  # waits for nobody: else both wait for each other
    two.commit()
    assert set(started.result(TIMEOUT)) == {"e"}
    other.commit()
    flow.complete("d")
    direct.rows("advance_workflows")
    assert placement(direct, flow.claims()["e"])
