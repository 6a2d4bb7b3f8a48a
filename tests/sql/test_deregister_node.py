"""deregister_node: out of the fleet, its claims back in line."""

from tests.sql.api import NOBODY, Api, token


def test_its_claims_end_at_once(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    api.rows("deregister_node", node=node.node_id)
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    assert [a["outcome"] for a in lease["attempts"]] == ["superseded"]
    assert api.claimed(api.node(), queue) == [claim["lease_id"]]
    api.refused("QHL01", "complete_lease", **token(claim))


def test_it_is_seen_nowhere(api: Api) -> None:
    node = api.node()
    api.rows("deregister_node", node=node.node_id)
    assert api.rows("list_nodes", name=node.name) == []
    assert node.node_id not in [r["node_id"] for r in api.rows("match_nodes", placement={})]
    for function in ("claim_task", "heartbeat_node"):
        arguments = {"queues": [api.queue()]} if function == "claim_task" else {}
        api.refused("QHN01", function, **node.who, **arguments)


def test_the_second_time_there_is_no_node(api: Api) -> None:
    node = api.node()
    api.rows("deregister_node", node=node.node_id)
    refusal = api.refused("QHN01", "deregister_node", node=node.node_id)
    assert refusal.detail["node_id"] == str(node.node_id)
    api.refused("QHN01", "deregister_node", node=NOBODY)
