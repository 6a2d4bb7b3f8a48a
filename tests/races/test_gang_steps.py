"""Gang steps whose members end, are lost and put back while other sessions hold what they need."""

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, broken, fail, finish, gang, step
from tests.races.cluster import Node
from tests.races.interleave import Actor
from tests.races.test_gangs import gpu_nodes
from tests.sql.api import settlement

pytestmark = pytest.mark.thorough

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
