"""Prunes that meet prunes or submissions: definitions of ad hoc runs go, and not too early."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, step
from tests.patience import looks
from tests.races.interleave import Actors
from tests.sql.api import count_all, outlive

pytestmark = pytest.mark.thorough

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
