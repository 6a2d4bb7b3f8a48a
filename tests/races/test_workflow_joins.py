"""Settlements of steps that meet: none waits, and no release is lost, early or doubled."""

from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest

from tests.calls import Calls, Row
from tests.flows import Flow, broken, each, fail, finish, finish_all, step
from tests.patience import looks
from tests.races.interleave import TIMEOUT, Actor, interleave
from tests.sql.api import outlive, read_refusal

pytestmark = pytest.mark.thorough

JOIN = [step("a"), step("b"), step("c", "a", "b")]
MANY = 300  # runs: more than a sweep looks at


@pytest.mark.parametrize("commits", [True, False])
def test_two_parents_end_at_once(calls: Calls, one: Actor, commits: bool) -> None:
    flow = Flow(calls, JOIN)
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    finish(calls, claims["b"])  # finds the tally held
    assert flow.states()["c"] == "waiting"
    assert broken(calls) == []
    if commits:
        one.commit()
    else:
        one.rollback()
    assert flow.states()["c"] == "waiting"
    calls.rows("advance_workflows")
    if not commits:
        assert flow.states()["c"] == "waiting"
        finish(calls, claims["a"])
    flow.complete("c")
    assert flow.state == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_a_run_appears_with_all_that_comes_after(calls: Calls, one: Actor, commits: bool) -> None:
    """Nobody sees a step of an open submission: no parent ends before its children are there."""
    flow = Flow(calls, [step("x")])
    flow.complete("x")
    spec = flow.spec | {"steps": JOIN}
    one.begin()
    flow.run = one.direct.row("submit_spec", spec=spec)["run_id"]
    assert flow.claims() == {}
    calls.rows("advance_workflows")
    if not commits:
        one.rollback()
        assert flow.claims() == {}
        return
    one.commit()
    flow.complete("a", "b")
    flow.complete("c")
    assert flow.state == "completed"


def test_a_settler_that_stays_open_holds_up_nobody(calls: Calls, one: Actor) -> None:
    flow, other = Flow(calls, JOIN), Flow(calls, JOIN)
    claims, others = flow.claims(), other.claims()
    one.begin()
    finish(one.direct, claims["a"])
    finish(calls, claims["b"])
    for claim in others.values():
        finish(calls, claim)
    calls.rows("advance_workflows")
    calls.rows("reap")
    other.complete("c")
    assert (flow.state, other.state) == ("running", "completed")
    one.commit()
    calls.rows("reap")
    flow.complete("c")
    assert flow.state == "completed"


def test_releases_near_one_step_do_not_wait_for_the_class(calls: Calls, one: Actor) -> None:
    """Both find no class of that place: each writes its own."""
    near = {"step": "a", "mode": "require"}
    steps = [step("a"), step("b", "a"), step("c", "a")]
    steps += [step(n, p, near=near, task="near") for n, p in (("d", "b"), ("e", "c"))]
    flow = Flow(calls, steps)
    finish(calls, flow.claims()["a"])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["b"])
    finish(calls, claims["c"])
    assert flow.states()["e"] == "running"
    one.commit()
    assert flow.steps()["d"]["placement"] == flow.steps()["e"]["placement"]
    flow.complete("d", "e")
    assert flow.state == "completed"


def test_the_next_parent_folds_what_was_left(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b"), step("x"), step("c", "a", "b", "x")])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    finish(calls, claims["b"])
    one.commit()
    finish(calls, claims["x"])
    assert flow.states()["c"] == "running"


def test_a_batch_leaves_one_arrival(calls: Calls, one: Actor) -> None:
    """Parents of a join that one call completes are counted once, with their sum."""
    names = [f"p{number}" for number in range(6)]
    flow = Flow(calls, [*(step(name) for name in names), step("c", *names)])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims.pop("p0"))
    finish_all(calls, claims.values())
    left = "select arrived from hwqueue.arrival where run_id = %s and step_no > 0"
    assert calls.conn.execute(left, [flow.run]).fetchall() == [(5,)]
    assert broken(calls) == []
    one.commit()
    calls.rows("advance_workflows")
    flow.complete("c")
    assert flow.state == "completed"


def test_any_is_released_while_another_parent_stays_open(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b"), step("c", "a", "b", join="any")])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    finish(calls, claims["b"])
    calls.rows("advance_workflows")
    flow.complete("c")
    one.commit()
    calls.rows("advance_workflows")
    assert flow.state == "completed"


def test_the_last_two_steps_of_a_run_end_at_once(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b")])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    finish(calls, claims["b"])
    one.commit()
    assert flow.state == "running"
    calls.rows("advance_workflows")
    assert flow.state == "completed"


@pytest.mark.parametrize("how", ["cancel", "fail_fast"])
def test_a_step_that_is_released_while_its_run_stops(calls: Calls, one: Actor, how: str) -> None:
    """The settlement has read the run before; what it releases is stopped after that."""
    flow = Flow(calls, [step("a"), step("b", "a"), step("x")], on_failure="fail_fast")
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    if how == "cancel":
        assert calls.value("cancel_workflow_run", run=flow.run) == "cancelling"
        finish(calls, claims["x"])
    else:
        fail(calls, claims["x"])
        calls.rows("advance_workflows")
    calls.rows("advance_workflows")
    one.commit()
    outlive(calls.conn)
    for _ in range(2):
        calls.rows("advance_workflows")
    assert flow.states()["b"] == "cancelled"
    assert flow.state == ("cancelled" if how == "cancel" else "failed")
    assert count_arrivals(calls) == 0


def test_a_stopping_run_is_left_alone_once_all_are_asked(calls: Calls) -> None:
    """Sweeps look at it no more while its handlers take their time."""
    flow = Flow(calls, [step("a"), step("b"), step("c", "a", "b")])
    claims = flow.claims()
    calls.rows("cancel_workflow_run", run=flow.run)
    for _ in looks():
        calls.rows("advance_workflows")
        if count_arrivals(calls) == 0:
            break
    assert count_arrivals(calls) == 0
    assert all(asked_to_stop(calls, claim) for claim in claims.values())
    finish(calls, claims["a"])
    fail(calls, claims["b"])
    assert flow.state == "cancelled"


def test_a_step_that_is_released_while_its_run_is_paused(calls: Calls, one: Actor) -> None:
    """It runs, as one that was released before; what comes after it is held."""
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    assert calls.value("pause_workflow_run", run=flow.run) == "paused"
    calls.rows("advance_workflows")
    one.commit()
    calls.rows("advance_workflows")
    flow.complete("b")
    outlive(calls.conn)
    calls.rows("advance_workflows")
    assert (flow.claims(), flow.states()["c"], flow.state) == ({}, "waiting", "paused")
    calls.rows("resume_workflow_run", run=flow.run)
    calls.rows("advance_workflows")
    flow.complete("c")
    assert flow.state == "completed"


def test_a_step_that_is_held_while_its_run_is_resumed(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b", "a")])
    claims = flow.claims()
    calls.rows("pause_workflow_run", run=flow.run)
    one.begin()
    finish(one.direct, claims["a"])
    assert calls.value("resume_workflow_run", run=flow.run) == "running"
    calls.rows("advance_workflows")
    one.commit()
    assert flow.states()["b"] == "waiting"
    calls.rows("advance_workflows")
    flow.complete("b")
    assert flow.state == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_a_held_step_is_declared_done_while_its_run_is_resumed(
    calls: Calls, one: Actor, commits: bool
) -> None:
    """It is open work once, whoever ends or releases it."""
    flow = Flow(calls, [step("a"), step("b", "a"), step("c")])
    claims = flow.claims()
    calls.rows("pause_workflow_run", run=flow.run)
    one.begin()
    finish(one.direct, claims["a"])
    calls.rows("resume_workflow_run", run=flow.run)
    one.commit()
    one.begin()
    one.direct.rows("skip_step", run=flow.run, step="b")
    calls.rows("advance_workflows")
    if commits:
        one.commit()
    else:
        one.rollback()
    for _ in range(3):
        calls.rows("advance_workflows")
    assert flow.state == "running"
    assert broken(calls) == []
    finish(calls, claims["c"])
    if not commits:
        flow.complete("b")
    assert flow.state == "completed"


def test_a_join_beside_changes_of_many_runs(calls: Calls, one: Actor, dsn: str) -> None:
    """An old transaction keeps the changes of more runs than one sweep looks at."""
    flow, other = Flow(calls, JOIN), Flow(calls, [step("a")])
    claims = flow.claims()
    runs = [submit_again(calls, other) for _ in range(MANY)]
    one.begin()
    one.conn.execute("select pg_current_xact_id()")
    for run in runs:
        calls.rows("pause_workflow_run", run=run)
        calls.rows("resume_workflow_run", run=run)
    for _ in range(2):
        calls.rows("advance_workflows")
    with interleave(dsn) as actor:
        two = actor()
        two.begin()
        finish(two.direct, claims["a"])
        finish(calls, claims["b"])
        two.commit()
    assert flow.states()["c"] == "waiting"
    assert calls.row("advance_workflows")["released"] == 1
    flow.complete("c")
    one.commit()
    outlive(calls.conn)
    for _ in range(MANY // 100):
        calls.rows("advance_workflows")
    assert count_arrivals(calls) == 0


@pytest.mark.parametrize("limit", [1, 2])
def test_a_join_beside_a_join_with_many_arrivals(calls: Calls, one: Actor, dsn: str, limit: int) -> None:
    """An open transaction holds a tally that has more arrivals than one sweep reads."""
    names = [f"p{number}" for number in range(25)]
    wide = Flow(calls, [*(step(name) for name in names), step("j", *names)])
    flow = Flow(calls, JOIN)
    parents, claims = wide.claims(), flow.claims()
    one.begin()
    finish(one.direct, parents.pop("p0"))
    for claim in parents.values():
        finish(calls, claim)
    with interleave(dsn) as actor:
        two = actor()
        two.begin()
        finish(two.direct, claims["a"])
        finish(calls, claims["b"])
        two.commit()
    for _ in looks():
        calls.rows("advance_workflows", limit=limit)
        if flow.states()["c"] == "running":
            break
    flow.complete("c")
    one.commit()
    calls.rows("advance_workflows")
    wide.complete("j")


@pytest.mark.parametrize("limit", [1, 2])
def test_a_change_of_a_run_beside_a_join_with_many_arrivals(calls: Calls, one: Actor, limit: int) -> None:
    """It is carried out meanwhile, however few arrivals a sweep reads."""
    names = [f"p{number}" for number in range(10 * limit + 5)]
    wide = Flow(calls, [*(step(name) for name in names), step("j", *names)])
    flow = Flow(calls, [step("a"), step("x")], on_failure="fail_fast")
    parents, claims = wide.claims(), flow.claims()
    one.begin()
    finish(one.direct, parents.pop("p0"))
    for claim in parents.values():
        finish(calls, claim)
    fail(calls, claims["a"])
    for _ in looks():
        calls.rows("advance_workflows", limit=limit)
        if asked_to_stop(calls, claims["x"]):
            break
    assert asked_to_stop(calls, claims["x"])
    one.commit()
    finish(calls, claims["x"])
    calls.rows("advance_workflows")
    wide.complete("j")
    assert (flow.state, count_arrivals(calls)) == ("failed", 0)


@pytest.mark.parametrize("held", [0, MANY])
def test_a_late_step_beside_changes_of_many_runs(calls: Calls, one: Actor, dsn: str, held: int) -> None:
    """It is found although an older transaction is open, and other runs' changes are kept."""
    flow, other = Flow(calls, [step("a"), step("b", "a")]), Flow(calls, [step("a")])
    claims = flow.claims()
    runs = [submit_again(calls, other) for _ in range(held)]
    one.begin()
    one.conn.execute("select pg_current_xact_id()")
    for run in [*runs, flow.run]:
        calls.rows("pause_workflow_run", run=run)
    with interleave(dsn) as actor:
        two = actor()
        two.begin()
        finish(two.direct, claims["a"])
        for run in [*runs, flow.run]:
            calls.rows("resume_workflow_run", run=run)
        calls.rows("advance_workflows")
        two.commit()
    for _ in looks():
        calls.rows("advance_workflows")
        if flow.states()["b"] == "running":
            break
    flow.complete("b")
    assert flow.state == "completed"


def test_reap_alone_ends_a_change_of_state(calls: Calls) -> None:
    """Where nobody calls advance_workflows, too, no change is kept for ever."""
    flow = Flow(calls, [step("a")])
    calls.rows("pause_workflow_run", run=flow.run)
    calls.rows("resume_workflow_run", run=flow.run)
    for _ in looks():
        calls.rows("reap")
        if count_arrivals(calls) == 0:
            break
    assert count_arrivals(calls) == 0


def test_a_run_whose_row_is_held_ends_later(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a")])
    claims = flow.claims()
    one.begin()
    one.direct.rows("pause_workflow_run", run=flow.run)
    finish(calls, claims["a"])
    assert flow.state == "running"
    one.commit()
    calls.rows("advance_workflows")
    assert flow.state == "completed"


def test_a_failure_of_a_run_whose_row_is_held(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b"), step("c", "b"), step("d", "a")])
    claims = flow.claims()
    one.begin()
    one.direct.rows("pause_workflow_run", run=flow.run)
    fail(calls, claims["a"])
    one.rollback()
    calls.rows("advance_workflows")
    assert flow.state == "failing"
    finish(calls, claims["b"])
    assert flow.state == "failed"
    assert flow.states()["c"] == "skipped"


@pytest.mark.parametrize("commits", [True, False])
def test_a_child_that_an_operator_holds(calls: Calls, one: Actor, commits: bool) -> None:
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", "b")])
    claims = flow.claims()
    one.begin()
    one.direct.rows("skip_step", run=flow.run, step="b")
    finish(calls, claims["a"])
    assert broken(calls) == []
    if commits:
        one.commit()
    else:
        one.rollback()
    calls.rows("advance_workflows")
    if not commits:
        flow.complete("b")
    flow.complete("c")
    assert flow.state == "completed"


@pytest.mark.parametrize("ends", [finish, fail])
@pytest.mark.parametrize("join", ["all", "any"])
def test_a_join_is_declared_done_while_a_parent_stays_open(
    calls: Calls, one: Actor, join: str, ends: Callable[[Calls, Row], None]
) -> None:
    steps = [step("a"), step("b"), step("c", "a", "b", join=join), step("d", "c")]
    flow = Flow(calls, steps, on_failure="continue")
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    assert calls.value("skip_step", run=flow.run, step="c") == "running"
    assert broken(calls) == []
    one.commit()
    calls.rows("advance_workflows")
    ends(calls, claims["b"])
    calls.rows("advance_workflows")
    assert flow.states()["c"] == "completed"
    flow.complete("d")
    assert flow.state == ("completed" if ends is finish else "failed")


def test_a_step_that_an_open_settlement_has_released(calls: Calls, one: Actor) -> None:
    """An operator who declares it done does not wait for ever, and may call again."""
    steps = [step("a"), step("b", "a"), each("m", [1], after=["a"]), step("c", "b", "m")]
    flow = Flow(calls, steps)
    claims = flow.claims()
    one.begin()
    finish(one.direct, claims["a"])
    for name in ("b", "m"):
        with pytest.raises(psycopg.Error) as refused:
            calls.rows("skip_step", run=flow.run, step=name)
        assert refused.value.sqlstate == "QHL09"
    one.commit()
    calls.conn.execute("set lock_timeout = 0")
    with calls.conn.transaction():
        for name in ("b", "m"):
            calls.rows("skip_step", run=flow.run, step=name)
        assert calls.conn.execute("show lock_timeout").fetchone() == ("0",)
    flow.complete("c")
    assert flow.state == "completed"


def test_two_retries(calls: Calls, one: Actor, dsn: str) -> None:
    flow = Flow(calls, [step("a")])
    flow.fail("a")
    with interleave(dsn) as actor:
        two = actor()
        one.begin()
        one.direct.rows("retry_workflow_run", run=flow.run)
        second = two.start(lambda d: d.rows("retry_workflow_run", run=flow.run))
        two.wait_until_blocked_by(one)
        one.commit()
        with pytest.raises(psycopg.Error) as caught:
            second.result(TIMEOUT)
    assert read_refusal(caught.value).code == "QHF04"
    assert flow.get()["attempt"] == 2
    flow.complete("a")


def test_two_sweeps(calls: Calls, one: Actor, dsn: str) -> None:
    flow = Flow(calls, JOIN)
    claims = flow.claims()
    with interleave(dsn) as actor:
        two = actor()
        one.begin()
        finish(one.direct, claims["a"])
        finish(calls, claims["b"])
        one.commit()
        one.begin()
        assert one.direct.row("advance_workflows")["released"] == 1
        two.begin()
        assert two.direct.row("advance_workflows")["released"] == 0
        two.commit()
        one.commit()
    flow.complete("c")
    assert flow.state == "completed"


def test_an_aborted_settlement_leaves_nothing(calls: Calls, one: Actor) -> None:
    flow = Flow(calls, [step("a"), step("b", "a"), step("c", {"step": "a", "on": "failed"})])
    claims = flow.claims()
    one.begin()
    fail(one.direct, claims["a"])
    one.rollback()
    assert flow.states() == {"a": "running", "b": "waiting", "c": "waiting"}
    finish(calls, claims["a"])
    flow.complete("b")
    assert flow.state == "completed"


def submit_again(calls: Calls, flow: Flow) -> UUID:
    """Another run of the same workflow."""
    run: UUID = calls.row("submit_spec", spec=flow.spec, input={}, options={})["run_id"]
    return run


def asked_to_stop(calls: Calls, claim: Row) -> bool:
    """Whether the claim is asked to stop because its run has."""
    found = calls.row("get_lease", lease=claim["lease_id"])["stop_reason"]
    return bool(found == "cancelled")


def count_arrivals(calls: Calls) -> int:
    """How many there are in the whole database."""
    row = calls.conn.execute("select count(*) from hwqueue.arrival").fetchone()
    assert row is not None
    return int(row[0])
