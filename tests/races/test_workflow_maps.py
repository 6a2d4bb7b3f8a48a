"""Maps whose items end, fail, and are let in at once."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.calls import Calls, Row
from tests.direct import Direct
from tests.flows import Flow, broken, each, fail, finish, step, sweeps
from tests.patience import looks
from tests.races.interleave import TIMEOUT, Actor
from tests.sql.api import outlive, settlement

pytestmark = pytest.mark.thorough


def settle_all(flow: Flow, claims: dict[int, Row]) -> None:
    """Settle what is claimed and what that lets in, until nothing is left."""
    while claims:
        flow.settle_each(claims.values())
        flow.calls.rows("advance_workflows")
        claims = flow.items()


def on_a_node_of_its_own(flow: Flow, number: int) -> tuple[Row, Row]:
    """A node that settles by itself, and the item that it has claimed."""
    node = {"node": uuid4(), "queues": [flow.queue]}
    spec = {"name": f"{flow.queue}-{number}", "instance_id": "first"}
    node["epoch"] = flow.calls.value("register_node", node=node["node"], spec=spec)
    return node, flow.calls.row("claim_task", qty=1, **node)


def test_a_settlement_that_stays_open_holds_up_nobody(direct: Direct, one: Actor) -> None:
    """A handler that completes its item in a transaction of its own, from the first item on."""
    flow = Flow(direct, [each("m", list(range(40)), max_parallel=3), step("b", "m")])
    claims = flow.items()
    finish(one.direct, claims.pop(0))
    settle_all(flow, claims)
    row = flow.steps()["m"]
    assert (row["items_done"], row["state"]) == (39, "running")
    assert broken(direct) == []
    one.commit()
    assert flow.states()["b"] == "waiting"
    direct.rows("advance_workflows")
    flow.end_with("b")


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_that_stays_open(direct: Direct, one: Actor, commits: bool) -> None:
    flow = Flow(direct, [step("a"), each("m", {"$result": "a"})])
    [claim] = flow.claims().values()
    finish(one.direct, claim, result=[1, 2])
    direct.rows("advance_workflows")
    assert flow.items() == {}
    if commits:
        one.commit()
    else:
        one.rollback()
        finish(direct, claim, result=[1, 2])
    settle_all(flow, flow.items())
    assert flow.state == "completed"


def test_an_item_that_is_let_in_while_its_run_is_cancelled(direct: Direct, one: Actor) -> None:
    """The settlement has read the run before; what it lets in is stopped after that."""
    flow = Flow(direct, [each("m", list(range(9)), max_parallel=2)])
    claims = flow.items()
    flow.settle(claims[0], one.direct)
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    direct.rows("advance_workflows")
    fail(direct, claims[1])
    one.commit()
    outlive(direct.conn)
    sweeps(direct, 3)
    assert (flow.state, flow.states()) == ("cancelled", {"m": "cancelled"})
    left = direct.conn.execute(
        "select count(*) from hwqueue.arrival where run_id = %s", [flow.run]
    ).fetchone()
    assert left == (0,)


def test_a_window_that_empties_while_its_run_is_resumed(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [each("m", list(range(3)), max_parallel=1)])
    claims = flow.items()
    direct.rows("pause_workflow_run", run=flow.run)
    flow.settle(claims[0], one.direct)
    assert direct.value("resume_workflow_run", run=flow.run) == "running"
    direct.rows("advance_workflows")
    one.commit()
    assert flow.items() == {}
    direct.rows("advance_workflows")
    settle_all(flow, flow.items())
    assert flow.state == "completed"


def test_two_sweeps_fill_one_window(direct: Direct, one: Actor, two: Actor) -> None:
    flow = Flow(direct, [each("m", list(range(1_200)), max_parallel=1_100)])
    assert one.direct.row("advance_workflows")["released"] == 600
    two.begin()
    assert two.direct.row("advance_workflows")["released"] == 0
    two.commit()
    one.commit()
    assert len(flow.items() | flow.items()) == 1_100


def test_a_map_that_is_declared_done_while_an_item_ends(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [each("m", list(range(4)), max_parallel=2), step("b", "m")])
    claims = flow.items(qty=1)
    flow.settle(claims[0])
    one.direct.rows("skip_step", run=flow.run, step="m")
    assert flow.items() == {}
    direct.rows("advance_workflows")
    one.commit()
    flow.end_with("b")


def test_an_item_ends_while_the_tally_is_renewed(direct: Direct, one: Actor) -> None:
    """The 64th end puts the tally into a new row, which nobody else sees before it commits."""
    flow = Flow(direct, [each("m", list(range(66))), step("b", "m")])
    node, other = on_a_node_of_its_own(flow, 1)
    claims = list(flow.items().values())
    flow.settle_each(claims[:63])
    flow.settle(claims[63], one.direct)
    direct.rows("settle_and_claim", settle=[settlement(other)], qty=0, **node)
    assert broken(direct) == []
    one.commit()
    assert broken(direct) == []
    flow.settle(claims[64])
    assert flow.states() == {"m": "completed", "b": "running"}


def test_a_map_that_is_declared_done_while_its_tally_is_renewed(
    direct: Direct, one: Actor, two: Actor
) -> None:
    """The row that skip_step waits for is gone when it gets its turn: it takes the one after it."""
    flow = Flow(direct, [each("m", list(range(500)), max_parallel=70), step("b", "m")])
    claims = flow.items(qty=64)
    for number in range(63):
        flow.settle(claims[number])
    flow.settle(claims[63], one.direct)
    two.begin()
    skipped = two.parked(lambda direct: direct.rows("skip_step", run=flow.run, step="m"), behind=one)
    one.commit()
    skipped.result(TIMEOUT)
    of_it = {"run": flow.run, "step": 1}
    assert direct.value("hold_items", **of_it) is None
    two.commit()
    assert direct.value("hold_items", **of_it) == 2
    assert flow.states() == {"m": "completed", "b": "running"}


def test_a_run_is_cancelled_beside_an_item_that_stays_open(direct: Direct, one: Actor) -> None:
    """An item that cannot be asked to stop does not keep the others of its map from that."""
    flow = Flow(direct, [each("m", list(range(1_500)), max_parallel=1_500)])
    direct.rows("advance_workflows")
    claims = flow.items(qty=1)
    finish(one.direct, claims[0])
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    sweeps(direct, 4)
    assert flow.items() == {}
    row = flow.steps()["m"]
    assert (row["items_done"], row["state"]) == (1_499, "running")
    one.rollback()
    sweeps(direct, 4)
    stopped = direct.conn.execute(
        "select stop_reason from hwqueue.claim where lease_id = %s", [claims[0]["lease_id"]]
    ).fetchone()
    assert stopped == ("cancelled",)
    fail(direct, claims[0])
    direct.rows("advance_workflows")
    assert flow.state == "cancelled"


def test_maps_near_the_items_of_one_map_do_not_wait_for_the_class(
    direct: Direct, one: Actor, two: Actor
) -> None:
    """Both spawn items near those of the first map: each writes the classes of the places."""
    asked = {"step": "load", "mode": "require", "match": "item"}
    steps = [each("load", [1, 2]), step("b", "load"), step("c", "load")]
    for name, after in (("d", "b"), ("e", "c")):
        steps.append(each(name, [1, 2], after=[after], near=asked) | {"task": "use"})
    flow = Flow(direct, steps)
    flow.settle_each(flow.items().values())
    direct.rows("advance_workflows")
    claimed = [on_a_node_of_its_own(flow, number) for number in range(2)]
    assert [claim["headers"]["step"] for _, claim in claimed] == ["b", "c"]
    for (node, claim), session in zip(claimed, (one, two.begin()), strict=True):
        session.direct.rows("settle_and_claim", settle=[settlement(claim)], qty=0, **node)
    for session, name in ((one, "d"), (two, "e")):
        session.commit()
        assert [row["headers"]["step"] for row in flow.items().values()] == [name, name]
    leases = direct.rows("list_leases", filter={"queue": flow.queue, "task": "use"})
    assert len({str(row["placement"]) for row in leases}) == 1


def test_a_retry_that_is_open_does_not_hold_up_items_near_others(direct: Direct, one: Actor) -> None:
    """The places of items are read without a lock, so what another session holds is no matter."""
    asked = {"step": "load", "mode": "require", "match": "item"}
    use = each("use", [1, 2], after=["load"], near=asked, max_parallel=1)
    flow = Flow(direct, [each("load", [1, 2]), use])
    flow.settle_each(flow.items().values())
    direct.rows("advance_workflows")
    [(number, claim)] = flow.items().items()
    loaded = direct.rows("list_leases", filter={"queue": flow.queue, "task": "load"})
    for row in loaded:
        one.direct.conn.execute(
            "select from hwqueue.outcome where lease_id = %s for update", [row["lease_id"]]
        )
    flow.settle(claim)
    [(second, claim)] = flow.items().items()
    assert (number, second) == (0, 1)
    flow.settle(claim)
    assert flow.state == "completed"
    one.commit()


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
    end_all(flow)
    assert flow.state == "completed"


def end_all(flow: Flow) -> None:
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
    end_all(flow)
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
