"""cordon_node and uncordon_node: nothing new while an operator holds the node."""

import pytest

from tests.sql.api import NOBODY, Api, token


def test_a_cordoned_node_gets_nothing_new(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    api.rows("cordon_node", node=node.node_id)
    waiting = api.spawn(queue)
    assert api.claimed(node, queue) == []
    assert api.used(node)["cordoned"]
    assert api.value("complete_lease", **token(claim)) == "completed"
    api.rows("uncordon_node", node=node.node_id)
    assert not api.used(node)["cordoned"]
    assert api.claimed(node, queue) == [waiting]


def test_others_go_on(api: Api) -> None:
    queue, held, other = api.queue(), api.node(), api.node()
    api.rows("cordon_node", node=held.node_id)
    lease = api.spawn(queue)
    assert api.claimed(other, queue) == [lease]


@pytest.mark.parametrize("function", ["cordon_node", "uncordon_node"])
def test_twice_is_once(api: Api, function: str) -> None:
    node = api.node()
    api.rows("cordon_node", node=node.node_id)
    api.rows(function, node=node.node_id)
    before = api.contents()
    api.rows(function, node=node.node_id)
    assert api.contents() == before


@pytest.mark.parametrize("function", ["cordon_node", "uncordon_node", "drain_node"])
@pytest.mark.thorough
def test_unknown_nodes(api: Api, function: str) -> None:
    assert api.refused("QHN01", function, node=NOBODY).detail["node_id"] == str(NOBODY)
    gone = api.node()
    api.rows("deregister_node", node=gone.node_id)
    api.refused("QHN01", function, node=gone.node_id)
