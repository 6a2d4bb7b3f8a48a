"""Gang steps whose members end, are lost and put back while other sessions hold what they need."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.calls import Calls, Row
from tests.flows import Flow, broken, fail, finish, gang, step
from tests.races.interleave import Actor, interleave
from tests.races.test_gangs import gpu_nodes
from tests.sql.api import settlement

pytestmark = pytest.mark.thorough

GPU: Row = {"placement": {"resources": {"gpu": 1}}}


@pytest.fixture
def other(dsn: str, calls: Calls) -> Iterator[Actor]:
    """A session that stays open; whoever waits for it runs into a lock_timeout."""
    with interleave(dsn) as actor:
        calls.conn.execute("set lock_timeout = '200ms'")
        yield actor()


def started(flow: Flow, nodes: list[tuple[UUID, int]]) -> dict[int, tuple[Row, Row]]:
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
def test_a_member_ends_while_another_one_is_lost(calls: Calls, other: Actor, commits: bool) -> None:
    """The step goes on until the lost one has run again, whichever upkeep sees first."""
    nodes = gpu_nodes(calls.conn, 2)
    flow = Flow(calls, [gang("train", 2, **GPU), step("b", "train")])
    claims = started(flow, nodes)
    node, claim = claims[0]
    other.begin()
    other.direct.rows("settle_and_claim", settle=[settlement(claim)], qty=0, **node)
    _, lost = claims[1]
    calls.rows("release_lease", lease=lost["lease_id"], token=lost["claim_token"])
    for _ in range(2):
        calls.rows("reap")
    assert flow.states() == {"train": "running", "b": "waiting"}
    assert broken(calls) == []
    if commits:
        other.commit()
    else:
        other.rollback()
        finish(calls, claim)
    calls.rows("reap")
    calls.conn.execute("update hwqueue.gang set next_try_at = '-infinity'")
    [(_, again)] = started(flow, nodes).values()
    assert again["lease_id"] == lost["lease_id"]
    assert (flow.steps()["train"]["items_done"], flow.states()["train"]) == (1, "running")
    finish(calls, again)
    calls.rows("advance_workflows")
    flow.complete("b")
    assert flow.state == "completed"


def test_a_retry_while_upkeep_looks_at_the_gang(calls: Calls, other: Actor) -> None:
    """It waits for nobody: the next sweep puts all members back, once the gang is free."""
    nodes = gpu_nodes(calls.conn, 2)
    flow = Flow(calls, [gang("train", 2, **GPU)])
    claims = started(flow, nodes)
    finish(calls, claims[0][1])
    fail(calls, claims[1][1])
    calls.rows("advance_workflows")
    assert flow.state == "failed"
    other.begin()
    other.direct.rows("reap")
    calls.rows("retry_workflow_run", run=flow.run)
    calls.rows("advance_workflows")
    assert flow.states() == {"train": "running"}
    leases = [row["lease_state"] for row in calls.rows("step_results", run=flow.run, step="train")]
    assert leases == ["completed", "failed"]
    other.commit()
    calls.rows("advance_workflows")
    for _, claim in started(flow, nodes).values():
        finish(calls, claim)
    calls.rows("advance_workflows")
    assert flow.state == "completed"
