"""Runs that are updated, signalled, pruned or submitted while another session is at them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, broken, each, finish, step
from tests.patience import looks
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet
from tests.sql.api import count_all, outlive, refusing

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


DEFINITIONS = "select workflow_id from hwqueue.workflow where name = %s"
DAYS = timedelta(days=8)  # the retention of a run that has completed is 7


@pytest.fixture
def flow(direct: Direct, clock: Clock) -> Flow:
    """One of two runs of one ad hoc definition, both past their retention."""
    flow = Flow(direct, [step("a")])
    submit_again(flow)
    flow.settle_each(claim_all(flow))
    count_all(direct.conn)
    clock.advance(DAYS)
    direct.rows("heartbeat_node", node=flow.node, epoch=flow.epoch, claims=[])
    return flow


@pytest.mark.parametrize("commits", [True, False])
def test_two_prunes_of_one_definition(actor: Actors, direct: Direct, flow: Flow, commits: bool) -> None:
    """Each deletes a run and sees the other one's: the definition goes in the end."""
    one, two = actor().begin(), actor()
    one.direct.rows("prune", limit=1)
    two.begin().direct.rows("prune", limit=1)
    one.end(commits)
    two.commit()
    for _ in looks():
        outlive(direct.conn)
        direct.rows("prune")
        if definitions(flow) == 0:
            break
    assert (runs(flow), definitions(flow)) == (0, 0)


@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_beside_the_prune_of_its_definition(
    actor: Actors, direct: Direct, flow: Flow, commits: bool
) -> None:
    """It has found the definition: neither waits, and its run keeps it."""
    one = actor().begin()
    one.direct.rows("prune")
    run = submit_again(flow)
    one.end(commits)
    for _ in range(3):
        outlive(direct.conn)
        direct.rows("prune")
    assert direct.row("get_workflow_run", run=run)["state"] == "running"
    assert definitions(flow) == 1
    flow.complete("a")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_submission_with_an_old_snapshot(
    actor: Actors, direct: Direct, flow: Flow, isolation: str, is_gone: bool
) -> None:
    """It sees a definition that is deleted by now, or retired. Another run keeps the class."""
    other = flow.spec | {"name": "other"}
    direct.rows("submit_spec", spec=other)
    one = actor().begin(isolation)
    one.conn.execute("select count(*) from hwqueue.workflow")
    for _ in looks():
        direct.rows("prune")
        if not is_gone or definitions(flow) == 0:
            break
        outlive(direct.conn)
    if is_gone:
        with pytest.raises(psycopg.errors.SerializationFailure):
            submit_again(flow, one.direct)
        one.rollback()
        flow.run = submit_again(flow)
    else:
        flow.run = submit_again(flow, one.direct)
        one.commit()
    for _ in range(3):
        outlive(direct.conn)
        direct.rows("prune")
    flow.settle_each(claim_all(flow))
    assert flow.state == "completed"


def submit_again(flow: Flow, direct: Direct | None = None) -> UUID:
    """Another run of the same definition."""
    submitted = (direct or flow.calls).row("submit_spec", spec=flow.spec, input={}, options={})
    run: UUID = submitted["run_id"]
    return run


def claim_all(flow: Flow) -> list[Row]:
    """Claims of the first steps of all runs of the flow's queue."""
    return flow.calls.rows("claim_task", queues=[flow.queue], node=flow.node, epoch=flow.epoch, qty=10)


def runs(flow: Flow) -> int:
    """How many runs of the definition there are."""
    return len(flow.calls.rows("list_workflow_runs", filter={"workflow": flow.queue}))


def definitions(flow: Flow) -> int:
    """How many definitions have the name of the flow."""
    return len(flow.calls.conn.execute(DEFINITIONS, [flow.queue]).fetchall())


WAIT = [step("a"), {"name": "w", "kind": "wait", "signal": "go", "after": ["a"]}]


@pytest.mark.parametrize("first", ["wait", "signal"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_signal_is_sent_while_its_wait_begins(
    direct: Direct, one: Actor, commits: bool, first: str
) -> None:
    """Whichever is first stays open: the other does not see it, and does not wait for it."""
    flow = Flow(direct, WAIT)
    [claim] = flow.claims().values()

    def begin(direct: Direct) -> None:
        finish(direct, claim)

    def send(direct: Direct) -> None:
        direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)

    held, other = (begin, send) if first == "wait" else (send, begin)
    held(one.direct)
    other(direct)
    direct.rows("advance_workflows")
    assert broken(direct) == []
    one.end(commits)
    direct.rows("advance_workflows")
    if not commits:
        assert flow.states()["w"] == ("waiting" if first == "wait" else "running")
        held(direct)
    assert flow.steps()["w"]["result"] == 1
    assert flow.state == "completed"


def test_a_signal_that_a_beginning_wait_leaves(direct: Direct, one: Actor) -> None:
    """A second wait begins while the only signal is taken, by a transaction that fails."""
    flow = Flow(direct, [*WAIT, step("b"), {**WAIT[1], "name": "v", "after": ["b"]}])
    claims = flow.claims()
    direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
    direct.rows("advance_workflows")  # no wait is open
    finish(one.direct, claims["a"])  # w begins, and takes it
    finish(direct, claims["b"])  # v begins, and finds the signal held
    assert flow.states()["v"] == "running"
    one.rollback()
    direct.rows("advance_workflows")
    assert flow.steps()["v"]["result"] == 1
    finish(direct, claims["a"])
    direct.rows("skip_step", run=flow.run, step="w")
    assert flow.state == "completed"


def test_a_signal_that_was_left_comes_before_the_timeout(direct: Direct, one: Actor, clock: Clock) -> None:
    flow = Flow(direct, [step("a"), WAIT[1] | {"timeout": 60}])
    [claim] = flow.claims().values()
    finish(one.direct, claim)
    direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
    one.commit()
    clock.advance(timedelta(minutes=2))
    direct.rows("reap")  # ends what is due before it works off arrivals
    assert flow.steps()["w"]["result"] == 1
    assert flow.state == "completed"


@pytest.mark.parametrize("first", ["signal", "timeout"])
def test_a_signal_is_sent_while_its_wait_times_out(
    direct: Direct, one: Actor, clock: Clock, first: str
) -> None:
    flow = Flow(direct, [{**WAIT[1], "after": [], "timeout": 60, "on_timeout": "continue"}])
    clock.advance(timedelta(minutes=2))
    if first == "signal":
        one.direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
        direct.rows("advance_workflows")
        one.commit()
    else:
        one.direct.rows("advance_workflows")
        direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
        one.commit()
        direct.rows("advance_workflows")
    assert flow.state == "completed"
    assert flow.steps()["w"]["result"] == (1 if first == "signal" else None)


@pytest.mark.parametrize("commits", [True, False])
def test_a_signal_is_sent_while_its_run_is_retried(
    direct: Direct, one: Actor, clock: Clock, commits: bool
) -> None:
    """The wait has ended when the sender looks, and begins again before the sender commits."""
    flow = Flow(direct, [{**WAIT[1], "after": [], "timeout": 60, "on_failure": "continue"}, step("b")])
    clock.advance(timedelta(minutes=2))
    direct.rows("reap")
    one.direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
    flow.complete("b")
    assert flow.state == "failed"
    direct.rows("retry_workflow_run", run=flow.run)
    if commits:
        one.commit()
    else:
        one.rollback()
        assert broken(direct) == []
        direct.rows("signal_workflow_run", run=flow.run, name="go", payload=1)
    direct.rows("advance_workflows")
    assert flow.steps()["w"]["result"] == 1
    assert flow.state == "completed"


def submit(direct: Direct, flow: Flow, on_conflict: str) -> Row:
    unique = {"unique": {"key": "k", "on_conflict": on_conflict}}
    return direct.row("submit_spec", spec=flow.spec, options=unique)


def running(direct: Direct, flow: Flow) -> set[Any]:
    rows = direct.rows("list_workflow_runs", filter={"workflow": flow.spec["name"]})
    return {row["run_id"] for row in rows if row["state"] == "running"}


KEY = {"unique": {"key": "k"}}


@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_waits_for_one_with_its_key(direct: Direct, meet: Meet, commits: bool) -> None:
    flow = Flow(direct, [step("a")])
    first, blocked = meet(
        lambda d: submit(d, flow, "keep"), lambda d: submit(d, flow, "keep"), commits=commits
    )
    second = blocked.result(TIMEOUT)
    assert second["created"] is not commits
    assert (second["run_id"] == first["run_id"]) is commits


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_submission_meets_the_end_of_the_run(
    direct: Direct, meet: Meet, commits: bool, on_conflict: str
) -> None:
    flow = Flow(direct, [step("a")], options=KEY)
    claim = flow.claims()["a"]
    _, blocked = meet(lambda d: finish(d, claim), lambda d: submit(d, flow, on_conflict), commits=commits)
    second = blocked.result(TIMEOUT)
    assert second["created"] is (commits or on_conflict == "replace")
    assert flow.state == ("completed" if commits else "cancelling" if on_conflict == "replace" else "running")
    if not commits:
        finish(direct, claim)
        direct.rows("advance_workflows")


def test_of_two_replacements_one_run_is_left(actor: Actors, direct: Direct) -> None:
    """Both have read whose key it is when the first of them takes it away."""
    flow = Flow(direct, [step("a")], options=KEY)
    holder, one, two = actor().begin(), actor(), actor()
    holder.conn.execute("select from hwqueue.run where run_id = %s for update", [flow.run])
    blocked = [session.parked(lambda d: submit(d, flow, "replace")) for session in (one, two)]
    holder.commit()
    rows = [each.result(TIMEOUT) for each in blocked]
    direct.rows("advance_workflows")
    assert [row["created"] for row in rows] == [True, True]
    assert len(running(direct, flow)) == 1
