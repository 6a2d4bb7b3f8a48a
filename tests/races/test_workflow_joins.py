"""Settlements of steps that meet: none waits, and no release is lost, early or doubled."""

from collections.abc import Callable

import psycopg
import pytest

from tests.calls import Calls, Row
from tests.direct import Direct
from tests.flows import Flow, broken, each, fail, finish, finish_all, step, sweeps
from tests.patience import looks
from tests.races.interleave import TIMEOUT, Actor
from tests.races.test_workflow_operators import submit_again
from tests.sql.api import outlive, read_refusal, refusing

pytestmark = pytest.mark.thorough

JOIN = [step("a"), step("b"), step("c", "a", "b")]
MANY = 300  # runs: more than a sweep looks at


@pytest.mark.parametrize("commits", [True, False])
def test_two_parents_end_at_once(direct: Direct, one: Actor, commits: bool) -> None:
    flow = Flow(direct, JOIN)
    claims = flow.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])  # finds the tally held
    assert flow.states()["c"] == "waiting"
    assert broken(direct) == []
    one.end(commits)
    assert flow.states()["c"] == "waiting"
    direct.rows("advance_workflows")
    if not commits:
        assert flow.states()["c"] == "waiting"
        finish(direct, claims["a"])
    flow.end_with("c")


@pytest.mark.parametrize("commits", [True, False])
def test_a_run_appears_with_all_that_comes_after(direct: Direct, one: Actor, commits: bool) -> None:
    """Nobody sees a step of an open submission: no parent ends before its children are there."""
    flow = Flow(direct, [step("x")])
    flow.complete("x")
    spec = flow.spec | {"steps": JOIN}
    flow.run = one.direct.row("submit_spec", spec=spec)["run_id"]
    assert flow.claims() == {}
    direct.rows("advance_workflows")
    if not commits:
        one.rollback()
        assert flow.claims() == {}
        return
    one.commit()
    flow.complete("a", "b")
    flow.end_with("c")


def test_a_settler_that_stays_open_holds_up_nobody(direct: Direct, one: Actor) -> None:
    flow, other = Flow(direct, JOIN), Flow(direct, JOIN)
    claims, others = flow.claims(), other.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])
    for claim in others.values():
        finish(direct, claim)
    direct.rows("advance_workflows")
    direct.rows("reap")
    other.complete("c")
    assert (flow.state, other.state) == ("running", "completed")
    one.commit()
    direct.rows("reap")
    flow.end_with("c")


def test_releases_near_one_step_do_not_wait_for_the_class(direct: Direct, one: Actor) -> None:
    """Both find no class of that place: each writes its own."""
    near = {"step": "a", "mode": "require"}
    steps = [step("a"), step("b", "a"), step("c", "a")]
    steps += [step(n, p, near=near, task="near") for n, p in (("d", "b"), ("e", "c"))]
    flow = Flow(direct, steps)
    finish(direct, flow.claims()["a"])
    claims = flow.claims()
    finish(one.direct, claims["b"])
    finish(direct, claims["c"])
    assert flow.states()["e"] == "running"
    one.commit()
    assert flow.steps()["d"]["placement"] == flow.steps()["e"]["placement"]
    flow.end_with("d", "e")


def test_the_next_parent_folds_what_was_left(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b"), step("x"), step("c", "a", "b", "x")])
    claims = flow.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])
    one.commit()
    finish(direct, claims["x"])
    assert flow.states()["c"] == "running"


def test_a_batch_leaves_one_arrival(direct: Direct, one: Actor) -> None:
    """Parents of a join that one call completes are counted once, with their sum."""
    names = [f"p{number}" for number in range(6)]
    flow = Flow(direct, [*(step(name) for name in names), step("c", *names)])
    claims = flow.claims()
    finish(one.direct, claims.pop("p0"))
    finish_all(direct, claims.values())
    left = "select arrived from hwqueue.arrival where run_id = %s and step_no > 0"
    assert direct.conn.execute(left, [flow.run]).fetchall() == [(5,)]
    assert broken(direct) == []
    one.commit()
    direct.rows("advance_workflows")
    flow.end_with("c")


def test_any_is_released_while_another_parent_stays_open(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b"), step("c", "a", "b", join="any")])
    claims = flow.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])
    direct.rows("advance_workflows")
    flow.complete("c")
    one.commit()
    direct.rows("advance_workflows")
    assert flow.state == "completed"


def test_the_last_two_steps_of_a_run_end_at_once(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b")])
    claims = flow.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])
    one.commit()
    assert flow.state == "running"
    direct.rows("advance_workflows")
    assert flow.state == "completed"


@pytest.mark.parametrize("how", ["cancel", "fail_fast"])
def test_a_step_that_is_released_while_its_run_stops(direct: Direct, one: Actor, how: str) -> None:
    """The settlement has read the run before; what it releases is stopped after that."""
    flow = Flow(direct, [step("a"), step("b", "a"), step("x")], on_failure="fail_fast")
    claims = flow.claims()
    finish(one.direct, claims["a"])
    if how == "cancel":
        assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
        finish(direct, claims["x"])
    else:
        fail(direct, claims["x"])
        direct.rows("advance_workflows")
    direct.rows("advance_workflows")
    one.commit()
    outlive(direct.conn)
    sweeps(direct, 2)
    assert flow.states()["b"] == "cancelled"
    assert flow.state == ("cancelled" if how == "cancel" else "failed")
    assert count_arrivals(direct) == 0


def test_a_stopping_run_is_left_alone_once_all_are_asked(direct: Direct) -> None:
    """Sweeps look at it no more while its handlers take their time."""
    flow = Flow(direct, [step("a"), step("b"), step("c", "a", "b")])
    claims = flow.claims()
    direct.rows("cancel_workflow_run", run=flow.run)
    for _ in looks():
        direct.rows("advance_workflows")
        if count_arrivals(direct) == 0:
            break
    assert count_arrivals(direct) == 0
    assert all(asked_to_stop(direct, claim) for claim in claims.values())
    finish(direct, claims["a"])
    fail(direct, claims["b"])
    assert flow.state == "cancelled"


def test_a_step_that_is_released_while_its_run_is_paused(direct: Direct, one: Actor) -> None:
    """It runs, as one that was released before; what comes after it is held."""
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    finish(one.direct, claims["a"])
    assert direct.value("pause_workflow_run", run=flow.run) == "paused"
    direct.rows("advance_workflows")
    one.commit()
    direct.rows("advance_workflows")
    flow.complete("b")
    outlive(direct.conn)
    direct.rows("advance_workflows")
    assert (flow.claims(), flow.states()["c"], flow.state) == ({}, "waiting", "paused")
    direct.rows("resume_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    flow.end_with("c")


def test_a_step_that_is_held_while_its_run_is_resumed(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b", "a")])
    claims = flow.claims()
    direct.rows("pause_workflow_run", run=flow.run)
    finish(one.direct, claims["a"])
    assert direct.value("resume_workflow_run", run=flow.run) == "running"
    direct.rows("advance_workflows")
    one.commit()
    assert flow.states()["b"] == "waiting"
    direct.rows("advance_workflows")
    flow.end_with("b")


@pytest.mark.parametrize("commits", [True, False])
def test_a_held_step_is_declared_done_while_its_run_is_resumed(
    direct: Direct, one: Actor, commits: bool
) -> None:
    """It is open work once, whoever ends or releases it."""
    flow = Flow(direct, [step("a"), step("b", "a"), step("c")])
    claims = flow.claims()
    direct.rows("pause_workflow_run", run=flow.run)
    finish(one.direct, claims["a"])
    direct.rows("resume_workflow_run", run=flow.run)
    one.commit()
    one.begin()
    one.direct.rows("skip_step", run=flow.run, step="b")
    direct.rows("advance_workflows")
    one.end(commits)
    sweeps(direct, 3)
    assert flow.state == "running"
    assert broken(direct) == []
    finish(direct, claims["c"])
    if not commits:
        flow.complete("b")
    assert flow.state == "completed"


def test_a_join_beside_changes_of_many_runs(direct: Direct, one: Actor, two: Actor) -> None:
    """An old transaction keeps the changes of more runs than one sweep looks at."""
    flows, other = [Flow(direct, JOIN) for _ in range(8)], Flow(direct, [step("a")])
    claims = [flow.claims() for flow in flows]
    runs = [submit_again(other) for _ in range(MANY)]
    one.conn.execute("select pg_current_xact_id()")
    for run in runs:
        direct.rows("pause_workflow_run", run=run)
        direct.rows("resume_workflow_run", run=run)
    sweeps(direct, 2)
    two.begin()
    for claim in claims:
        finish(two.direct, claim["a"])
        finish(direct, claim["b"])
    two.commit()
    for _ in flows:  # chance would find some
        assert direct.row("advance_workflows", limit=1)["released"] == 1
    for flow in flows:
        flow.complete("c")
    one.commit()
    outlive(direct.conn)
    for _ in range(MANY // 100):
        direct.rows("advance_workflows")
    assert count_arrivals(direct) == 0


@pytest.mark.parametrize("limit", [1, 2])
def test_a_join_beside_a_join_with_many_arrivals(direct: Direct, one: Actor, two: Actor, limit: int) -> None:
    """An open transaction holds a tally that has more arrivals than one sweep reads."""
    names = [f"p{number}" for number in range(25)]
    wide = Flow(direct, [*(step(name) for name in names), step("j", *names)])
    flow = Flow(direct, JOIN)
    parents, claims = wide.claims(), flow.claims()
    finish(one.direct, parents.pop("p0"))
    for claim in parents.values():
        finish(direct, claim)
    finish(two.begin().direct, claims["a"])
    finish(direct, claims["b"])
    two.commit()
    for _ in looks():
        direct.rows("advance_workflows", limit=limit)
        if flow.states()["c"] == "running":
            break
    flow.complete("c")
    one.commit()
    direct.rows("advance_workflows")
    wide.complete("j")


@pytest.mark.parametrize("limit", [1, 2])
def test_a_change_of_a_run_beside_a_join_with_many_arrivals(direct: Direct, one: Actor, limit: int) -> None:
    """It is carried out meanwhile, however few arrivals a sweep reads."""
    names = [f"p{number}" for number in range(10 * limit + 5)]
    wide = Flow(direct, [*(step(name) for name in names), step("j", *names)])
    flow = Flow(direct, [step("a"), step("x")], on_failure="fail_fast")
    parents, claims = wide.claims(), flow.claims()
    finish(one.direct, parents.pop("p0"))
    for claim in parents.values():
        finish(direct, claim)
    fail(direct, claims["a"])
    for _ in looks():
        direct.rows("advance_workflows", limit=limit)
        if asked_to_stop(direct, claims["x"]):
            break
    assert asked_to_stop(direct, claims["x"])
    one.commit()
    finish(direct, claims["x"])
    direct.rows("advance_workflows")
    wide.complete("j")
    assert (flow.state, count_arrivals(direct)) == ("failed", 0)


@pytest.mark.parametrize("held", [0, MANY])
def test_a_late_step_beside_changes_of_many_runs(direct: Direct, one: Actor, two: Actor, held: int) -> None:
    """It is found although an older transaction is open, and other runs' changes are kept."""
    flow, other = Flow(direct, [step("a"), step("b", "a")]), Flow(direct, [step("a")])
    claims = flow.claims()
    runs = [submit_again(other) for _ in range(held)]
    one.conn.execute("select pg_current_xact_id()")
    for run in [*runs, flow.run]:
        direct.rows("pause_workflow_run", run=run)
    finish(two.begin().direct, claims["a"])
    for run in [*runs, flow.run]:
        direct.rows("resume_workflow_run", run=run)
    direct.rows("advance_workflows")
    two.commit()
    for _ in looks():
        direct.rows("advance_workflows")
        if flow.states()["b"] == "running":
            break
    flow.end_with("b")


def test_reap_alone_ends_a_change_of_state(direct: Direct) -> None:
    """Where nobody calls advance_workflows, too, no change is kept for ever."""
    flow = Flow(direct, [step("a")])
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("resume_workflow_run", run=flow.run)
    for _ in looks():
        direct.rows("reap")
        if count_arrivals(direct) == 0:
            break
    assert count_arrivals(direct) == 0


def test_a_run_whose_row_is_held_ends_later(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a")])
    claims = flow.claims()
    one.direct.rows("pause_workflow_run", run=flow.run)
    finish(direct, claims["a"])
    assert flow.state == "running"
    one.commit()
    direct.rows("advance_workflows")
    assert flow.state == "completed"


def test_a_failure_of_a_run_whose_row_is_held(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b"), step("c", "b"), step("d", "a")])
    claims = flow.claims()
    one.direct.rows("pause_workflow_run", run=flow.run)
    fail(direct, claims["a"])
    one.rollback()
    direct.rows("advance_workflows")
    assert flow.state == "failing"
    finish(direct, claims["b"])
    assert flow.state == "failed"
    assert flow.states()["c"] == "skipped"


@pytest.mark.parametrize("commits", [True, False])
def test_a_child_that_an_operator_holds(direct: Direct, one: Actor, commits: bool) -> None:
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    one.direct.rows("skip_step", run=flow.run, step="b")
    finish(direct, claims["a"])
    assert broken(direct) == []
    one.end(commits)
    direct.rows("advance_workflows")
    if not commits:
        flow.complete("b")
    flow.end_with("c")


@pytest.mark.parametrize("ends", [finish, fail])
@pytest.mark.parametrize("join", ["all", "any"])
def test_a_join_is_declared_done_while_a_parent_stays_open(
    direct: Direct, one: Actor, join: str, ends: Callable[[Calls, Row], None]
) -> None:
    steps = [step("a"), step("b"), step("c", "a", "b", join=join), step("d", "c")]
    flow = Flow(direct, steps, on_failure="continue")
    claims = flow.claims()
    finish(one.direct, claims["a"])
    assert direct.value("skip_step", run=flow.run, step="c") == "running"
    assert broken(direct) == []
    one.commit()
    direct.rows("advance_workflows")
    ends(direct, claims["b"])
    direct.rows("advance_workflows")
    assert flow.states()["c"] == "completed"
    flow.complete("d")
    assert flow.state == ("completed" if ends is finish else "failed")


def test_a_step_that_an_open_settlement_has_released(direct: Direct, one: Actor) -> None:
    """An operator who declares it done does not wait for ever, and may call again."""
    steps = [step("a"), step("b", "a"), each("m", [1], after=["a"]), step("c", "b", "m")]
    flow = Flow(direct, steps)
    claims = flow.claims()
    finish(one.direct, claims["a"])
    direct.conn.execute("set lock_timeout = '100ms'")
    for name in ("b", "m"):
        with refusing("QHL09"):
            direct.rows("skip_step", run=flow.run, step=name)
    one.commit()
    direct.conn.execute("set lock_timeout = 0")
    with direct.conn.transaction():
        for name in ("b", "m"):
            direct.rows("skip_step", run=flow.run, step=name)
        assert direct.conn.execute("show lock_timeout").fetchone() == ("0",)
    flow.end_with("c")


def test_two_retries(direct: Direct, one: Actor, two: Actor) -> None:
    flow = Flow(direct, [step("a")])
    flow.fail("a")
    one.direct.rows("retry_workflow_run", run=flow.run)
    second = two.parked(lambda d: d.rows("retry_workflow_run", run=flow.run), behind=one)
    one.commit()
    with pytest.raises(psycopg.Error) as caught:
        second.result(TIMEOUT)
    assert read_refusal(caught.value).code == "QHF04"
    assert flow.get()["attempt"] == 2
    flow.complete("a")


def test_two_sweeps(direct: Direct, one: Actor, two: Actor) -> None:
    flow = Flow(direct, JOIN)
    claims = flow.claims()
    finish(one.direct, claims["a"])
    finish(direct, claims["b"])
    one.commit()
    one.begin()
    assert one.direct.row("advance_workflows")["released"] == 1
    two.begin()
    assert two.direct.row("advance_workflows")["released"] == 0
    two.commit()
    one.commit()
    flow.end_with("c")


def test_an_aborted_settlement_leaves_nothing(direct: Direct, one: Actor) -> None:
    flow = Flow(direct, [step("a"), step("b", "a"), step("c", {"step": "a", "on": "failed"})])
    claims = flow.claims()
    fail(one.direct, claims["a"])
    one.rollback()
    assert flow.states() == {"a": "running", "b": "waiting", "c": "waiting"}
    finish(direct, claims["a"])
    flow.end_with("b")


def asked_to_stop(direct: Direct, claim: Row) -> bool:
    """Whether the claim is asked to stop because its run has."""
    found = direct.row("get_lease", lease=claim["lease_id"])["stop_reason"]
    return bool(found == "cancelled")


def count_arrivals(direct: Direct) -> int:
    """How many there are in the whole database."""
    [(number,)] = direct.conn.execute("select count(*) from hwqueue.arrival").fetchall()
    return int(number)
