"""Nested runs, gangs and lost steps: ends that meet each other."""

from datetime import timedelta
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, broken, fail, finish, gang, step
from tests.nests import below, define, nested, sweep
from tests.races.cluster import Node
from tests.races.interleave import Actor
from tests.races.test_gangs import gpu_nodes
from tests.sql.api import outlive, settlement

pytestmark = pytest.mark.thorough


def submitted(direct: Direct, *after: str) -> Flow:
    """A run of a nested run and a step after it."""
    flow = Flow(direct, [*map(step, after), nested("n", "child", *after), step("b", "n")])
    define(flow, "child", step("c"))
    return flow


@pytest.mark.parametrize("first", ["end", "cancel"])
def test_it_ends_while_its_parent_is_cancelled(direct: Direct, one: Actor, first: str) -> None:
    flow = submitted(direct)
    sweep(direct)
    child, claims = below(flow, "n"), flow.claims()
    if first == "end":
        finish(one.direct, claims["c"])
        assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
        direct.rows("advance_workflows")
    else:
        one.direct.rows("cancel_workflow_run", run=flow.run)
        finish(direct, claims["c"])
    assert broken(direct) == []
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    assert (child.state, flow.state) == ("completed", "cancelled")
    assert flow.states()["n"] == "completed"


@pytest.mark.parametrize("commits", [True, False])
def test_it_ends_while_an_operator_holds_the_step(direct: Direct, one: Actor, commits: bool) -> None:
    flow = submitted(direct)
    sweep(direct)
    child, claims = below(flow, "n"), flow.claims()
    one.direct.rows("skip_step", run=flow.run, step="n", result=1)
    finish(direct, claims["c"], result=2)
    assert (child.state, flow.states()["n"]) == ("completed", "running")
    assert broken(direct) == []
    one.end(commits)
    sweep(direct)
    assert flow.reasons() == ({"n": "operator"} if commits else {})
    flow.end_with("b")


def test_it_ends_in_a_transaction_that_stays_open(direct: Direct, one: Actor) -> None:
    """Its parent can be changed meanwhile, and other steps of it end."""
    flow = Flow(direct, [nested("n", "child"), step("x"), step("y", "x"), step("z", "n", "y")])
    define(flow, "child", step("c"))
    sweep(direct)
    claims = flow.claims()
    finish(one.direct, claims["c"])
    finish(direct, claims["x"])
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    direct.rows("resume_workflow_run", run=flow.run)
    flow.complete("y")
    assert flow.states() == {"n": "running", "x": "completed", "y": "completed", "z": "waiting"}
    one.commit()
    sweep(direct)
    flow.end_with("z")


@pytest.mark.parametrize("ends", ["cancel", "rollback"])
def test_it_is_opened_while_its_parent_is_cancelled(direct: Direct, one: Actor, ends: str) -> None:
    """The sweep has read the parent before; the arrival of the change stays until it has ended."""
    flow = submitted(direct)
    one.direct.rows("advance_workflows")
    assert direct.value("cancel_workflow_run", run=flow.run) == "cancelling"
    direct.rows("advance_workflows")
    assert flow.steps()["n"]["nested_run_id"] is None
    assert broken(direct) == []
    if ends == "rollback":
        one.rollback()
        sweep(direct)
        assert flow.reasons() == {"n": "run_stopped", "b": "cancelled"}
    else:
        one.commit()
        outlive(direct.conn)
        sweep(direct)
        assert below(flow, "n").state == "cancelled"
    assert flow.state == "cancelled"


def test_it_is_opened_while_its_parent_is_paused_and_resumed(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    one.direct.rows("advance_workflows")
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    child = below(flow, "n")
    assert child.state == "paused"
    one.begin()
    direct.rows("resume_workflow_run", run=flow.run)
    one.direct.rows("advance_workflows")
    assert child.state == "paused"
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    direct.rows("resume_workflow_run", run=flow.run)
    one.commit()
    outlive(direct.conn)
    sweep(direct)
    assert child.state == "running"
    flow.complete("c")
    flow.end_with("b")


def test_a_pause_that_meets_a_resume_below(direct: Direct, one: Actor) -> None:
    """A sweep has read the parent as paused, and pauses the run after the parent was resumed."""
    flow = submitted(direct)
    sweep(direct)
    child = below(flow, "n")
    direct.rows("pause_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.direct.rows("advance_workflows")  # holds the run below, paused
    direct.rows("resume_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    one.commit()
    assert child.get()["reason"] == "parent_paused"
    outlive(direct.conn)
    sweep(direct)
    assert child.state == "running"


def test_two_sweeps_open_it_once(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    assert one.direct.row("advance_workflows")["released"] == 1
    assert direct.row("advance_workflows")["released"] == 0
    one.commit()
    sweep(direct)
    below_it = direct.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)})
    assert [row["run_id"] for row in below_it] == [below(flow, "n").run]


def test_it_ends_while_the_row_of_its_parent_is_held(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    one.direct.rows("pause_workflow_run", run=flow.run)
    flow.complete("c")
    assert flow.states()["n"] == "completed"
    one.rollback()
    sweep(direct)
    flow.end_with("b")


def test_it_fails_while_the_row_of_its_parent_is_held(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    one.direct.rows("pause_workflow_run", run=flow.run)
    flow.fail("c")
    one.commit()
    sweep(direct)
    assert (flow.state, flow.reasons()["n"]) == ("failed", "nested_failed")


def test_a_retry_while_another_session_holds_what_is_below(direct: Direct, one: Actor) -> None:
    flow = submitted(direct)
    sweep(direct)
    flow.fail("c")
    child = below(flow, "n")
    direct.rows("retry_workflow_run", run=flow.run)
    one.conn.execute("select 1 from hwqueue.run where run_id = %s for update", [child.run])
    direct.rows("advance_workflows")
    assert (child.state, flow.states()["n"]) == ("failed", "running")
    assert broken(direct) == []
    one.commit()
    sweep(direct)
    flow.complete("c")
    flow.end_with("b")


def test_it_is_kept_until_its_step_has_read_its_end(direct: Direct, one: Actor, clock: Clock) -> None:
    """Although its retention is over."""
    flow = Flow(direct, [nested("n", "child"), step("b", params={"x": {"$result": "n"}})])
    define(flow, "child", step("c"), result={"$result": "c"}, retain={"completed": "1 s"})
    sweep(direct)
    claim = flow.claims()["c"]
    one.conn.execute("select 1 from hwqueue.step where run_id = %s for update", [flow.run])
    finish(direct, claim, result=7)
    clock.advance(timedelta(hours=2))
    direct.rows("prune")
    one.commit()
    sweep(direct)
    [claim] = flow.claims().values()
    assert claim["params"] == {"x": 7}
    direct.rows("prune")
    assert direct.rows("list_workflow_runs", filter={"parent_run_id": str(flow.run)}) == []


LATE = timedelta(minutes=5)  # later than a claim lives


@pytest.fixture(params=["ended", "completed"])
def wants(request: pytest.FixtureRequest) -> str:
    """What the join wants of the parent whose worker died."""
    return str(request.param)


def joined(direct: Direct, wants: str) -> Flow:
    """A join of a step whose worker dies, and of one that completes."""
    dead = {"step": "a", "on": wants}
    steps = [step("a"), step("b"), step("c", dead, "b"), step("d", {"step": "c", "on": "ended"})]
    return Flow(direct, steps, on_failure="continue")


def claims_of(flow: Flow, clock: Clock) -> Row:
    """The claim of a, which has expired, and that of b."""
    claims = flow.items(qty=1)
    clock.advance(LATE)
    claims |= flow.items(qty=1)
    assert list(claims) == ["a", "b"]
    return claims


@pytest.mark.parametrize("first", ["settlement", "reap"])
@pytest.mark.parametrize("commits", [True, False])
def test_one_parent_expires_while_the_other_one_is_settled(
    direct: Direct, one: Actor, clock: Clock, wants: str, *, commits: bool, first: str
) -> None:
    """Whichever is first stays open, and the join waits for it."""
    flow = joined(direct, wants)
    claims = claims_of(flow, clock)

    def settle(direct: Direct) -> None:
        finish(direct, claims["b"])

    def reap(direct: Direct) -> None:
        assert direct.row("reap")["expired"] == 1

    held, other = (settle, reap) if first == "settlement" else (reap, settle)
    held(one.direct)
    other(direct)
    seen = {"a": "failed"} if other is reap else {"b": "completed"}
    assert flow.states().items() >= (seen | {"c": "waiting"}).items()
    assert broken(direct) == []
    one.end(commits)
    if not commits:
        direct.rows("advance_workflows")
        assert flow.states()["c"] == "waiting"
        held(direct)
    direct.rows("reap")
    assert flow.states()["a"] == "failed"
    if wants == "ended":
        flow.complete("c")
    assert flow.reasons() == ({} if wants == "ended" else {"c": "parent_failed"})
    flow.complete("d")
    assert flow.state == "failed"


def test_both_parents_are_lost_at_once(direct: Direct, one: Actor, clock: Clock, wants: str) -> None:
    """One expires in a reap that stays open; the worker of the other one begins again meanwhile."""
    flow = joined(direct, wants)
    flow.items(qty=1)
    clock.advance(LATE)
    assert one.direct.row("reap")["expired"] == 1
    node, spec = uuid4(), {"name": f"{flow.queue}-other"}
    epoch = direct.value("register_node", node=node, spec=spec | {"instance_id": "first"})
    claim = direct.row("claim_task", queues=[flow.queue], node=node, epoch=epoch)
    direct.rows("register_node", node=node, spec=spec | {"instance_id": "second"})
    assert direct.row("get_lease", lease=claim["lease_id"])["state"] == "failed"
    assert broken(direct) == []
    one.commit()
    direct.rows("reap")
    assert flow.reasons() == {"c": "parent_failed"}
    flow.complete("d")
    assert flow.state == "failed"


GPU: Row = {"placement": {"resources": {"gpu": 1}}}


def started(flow: Flow, nodes: list[Node]) -> dict[int, tuple[Row, Row]]:
    """What upkeep reserves, fetched: the node that has it and the claim, by rank."""
    for _ in range(3):
        flow.calls.rows("reap")
    fetched = {}
    for node, epoch in nodes:
        who = {"node": node, "epoch": epoch, "queues": [flow.queue]}
        for claim in flow.calls.rows("claim_task", **who):
            fetched[claim["headers"]["gang_rank"]] = who, claim
    return fetched


@pytest.mark.parametrize("commits", [True, False])
def test_a_member_ends_while_another_one_is_lost(direct: Direct, one: Actor, commits: bool) -> None:
    """The step goes on until the lost one has run again, whichever upkeep sees first."""
    nodes = gpu_nodes(direct, 2)
    flow = Flow(direct, [gang("train", 2, **GPU), step("b", "train")])
    claims = started(flow, nodes)
    node, claim = claims[0]
    one.direct.rows("settle_and_claim", settle=[settlement(claim)], qty=0, **node)
    _, lost = claims[1]
    direct.rows("release_lease", lease=lost["lease_id"], token=lost["claim_token"])
    for _ in range(2):
        direct.rows("reap")
    assert flow.states() == {"train": "running", "b": "waiting"}
    assert broken(direct) == []
    if commits:
        one.commit()
    else:
        one.rollback()
        finish(direct, claim)
    direct.rows("reap")
    direct.conn.execute("update hwqueue.gang set next_try_at = hwqueue.clock()")
    [(_, again)] = started(flow, nodes).values()
    assert again["lease_id"] == lost["lease_id"]
    assert (flow.steps()["train"]["items_done"], flow.states()["train"]) == (1, "running")
    finish(direct, again)
    direct.rows("advance_workflows")
    flow.end_with("b")


def test_a_retry_while_upkeep_looks_at_the_gang(direct: Direct, one: Actor) -> None:
    """It waits for nobody: the next sweep puts all members back, once the gang is free."""
    nodes = gpu_nodes(direct, 2)
    flow = Flow(direct, [gang("train", 2, **GPU)])
    claims = started(flow, nodes)
    finish(direct, claims[0][1])
    fail(direct, claims[1][1])
    direct.rows("advance_workflows")
    assert flow.state == "failed"
    one.direct.rows("reap")
    direct.rows("retry_workflow_run", run=flow.run)
    direct.rows("advance_workflows")
    assert flow.states() == {"train": "running"}
    leases = [row["lease_state"] for row in direct.rows("step_results", run=flow.run, step="train")]
    assert leases == ["completed", "failed"]
    one.commit()
    direct.rows("advance_workflows")
    for _, claim in started(flow, nodes).values():
        finish(direct, claim)
    direct.rows("advance_workflows")
    assert flow.state == "completed"
