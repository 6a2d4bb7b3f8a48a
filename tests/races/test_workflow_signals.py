"""A signal and a wait that meet: whichever commits first, the wait gets the signal."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import Flow, broken, finish, step
from tests.races.interleave import Actor

pytestmark = pytest.mark.thorough

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
