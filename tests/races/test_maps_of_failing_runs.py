"""Maps that are expanded while another step of their run fails: no item is forgotten, or left."""

from collections.abc import Callable

import pytest

from tests.calls import Calls, Row
from tests.direct import Direct
from tests.flows import Flow, broken, each, fail, finish, step, sweeps
from tests.patience import looks
from tests.races.interleave import Actor
from tests.sql.api import outlive

pytestmark = pytest.mark.thorough

ITEMS = [1, 2, 3, 4, 5]
WINDOW = 2


@pytest.fixture(params=["finish_running", "fail_fast"])
def flow(direct: Direct, request: pytest.FixtureRequest) -> Flow:
    """A map over what a step returns, beside a step that fails."""
    steps = [step("a"), step("x"), each("m", {"$result": "a"}, max_parallel=WINDOW), step("b", "m")]
    return Flow(direct, steps, on_failure=request.param)


def expand(direct: Direct, claims: Row) -> None:
    """End the step before the map: its first items are spawned."""
    finish(direct, claims["a"], result=ITEMS)


def fail_sibling(direct: Direct, claims: Row) -> None:
    """Let the step beside the map fail: the run fails."""
    fail(direct, claims["x"])


def sweep(flow: Flow) -> None:
    """Sweep until the change of the run's state has reached all that it is for."""
    outlive(flow.calls.conn)
    sweeps(flow.calls, 4)


def assert_fails(flow: Flow) -> None:
    """The run fails; of the map the items in its window run, unless these are asked to stop."""
    assert flow.state == ("failing" if flow.spec["on_failure"] == "finish_running" else "failed")
    if flow.state == "failing":
        claims = flow.items()
        assert list(claims) == [0, 1]
        flow.settle_each(claims.values())
        sweep(flow)
    assert flow.items() == {}
    assert flow.states() == {"a": "completed", "x": "failed", "m": "cancelled", "b": "skipped"}
    assert flow.reasons() == {"m": "run_stopped", "b": "run_failed"}
    assert flow.state == "failed"
    retried = flow.calls.value("retry_workflow_run", run=flow.run)
    assert retried == "running"
    settle_all(flow)
    assert flow.state == "completed"


def settle_all(flow: Flow) -> None:
    """Complete whatever is released, until nothing is."""
    for _ in looks():
        claims = flow.items()
        flow.settle_each(claims.values())
        if not claims and flow.calls.row("advance_workflows")["released"] == 0:
            return


@pytest.mark.parametrize(("first", "second"), [(expand, fail_sibling), (fail_sibling, expand)])
def test_a_map_is_expanded_while_another_step_fails(
    direct: Direct,
    one: Actor,
    flow: Flow,
    first: Callable[[Calls, Row], None],
    second: Callable[[Calls, Row], None],
) -> None:
    """Each transaction has read the run before the other one has committed."""
    claims = flow.claims()
    first(one.direct, claims)
    second(direct, claims)
    direct.rows("advance_workflows")
    assert broken(direct) == []
    one.commit()
    sweep(flow)
    assert_fails(flow)


def test_a_failure_that_is_undone_after_a_map_was_expanded(direct: Direct, one: Actor, flow: Flow) -> None:
    claims = flow.claims()
    fail_sibling(one.direct, claims)
    expand(direct, claims)
    one.rollback()
    finish(direct, claims["x"])
    settle_all(flow)
    assert flow.state == "completed"
    assert flow.steps()["m"]["items_done"] == len(ITEMS)


def test_an_expansion_that_is_undone_after_another_step_has_failed(
    direct: Direct, one: Actor, flow: Flow
) -> None:
    """The handler completes once more: what comes after its step is not released any more."""
    claims = flow.claims()
    expand(one.direct, claims)
    fail_sibling(direct, claims)
    direct.rows("advance_workflows")
    one.rollback()
    expand(direct, claims)
    sweep(flow)
    assert flow.items() == {}
    assert flow.reasons() == {"m": "run_failed", "b": "run_failed"}
    assert flow.state == "failed"


def test_an_item_is_let_in_while_another_step_fails(direct: Direct, one: Actor, flow: Flow) -> None:
    """The settlement of an item has read the run before, and fills the window."""
    claims = flow.claims()
    expand(direct, claims)
    items = flow.items()
    flow.settle(items[0], one.direct)
    fail_sibling(direct, claims)
    direct.rows("advance_workflows")
    one.commit()
    sweep(flow)
    flow.settle(items[1])
    sweep(flow)
    let_in = flow.items()
    assert list(let_in) == ([2] if flow.spec["on_failure"] == "finish_running" else [])
    flow.settle_each(let_in.values())
    sweep(flow)
    assert flow.items() == {}
    assert (flow.state, flow.steps()["m"]["state"]) == ("failed", "cancelled")
