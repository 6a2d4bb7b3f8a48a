"""Nodes are judged in groups of those that are alike: what tells two nodes apart, what is counted.

tests/properties/test_match_fleet.py compares with the rules asked of each node by itself.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.calls import TASK, Row
from tests.sql.api import Api, Node


@pytest.fixture(autouse=True)
def _alone(api: Api) -> Iterator[None]:
    """A test counts all nodes: those of others go, and its own at the end."""
    leave(api)
    yield
    leave(api)


def leave(api: Api) -> None:
    """Take all nodes out."""
    for node in api.rows("list_nodes"):
        api.rows("deregister_node", node=node["node_id"])


def verdicts(api: Api, placement: Row) -> dict[Any, list[tuple[str, bool]]]:
    """The codes of the reasons by node, and whether they are permanent."""
    return {
        row["node_id"]: [(reason["code"], reason["permanent"]) for reason in row["reasons"]]
        for row in api.rows("match_nodes", placement=placement)
    }


def full(api: Api, node: Node, needs: Row) -> None:
    """Have a lease with these needs run on the node."""
    queue = api.queue()
    api.spawn(queue, placement={"require": [{"node": str(node.node_id)}], "resources": needs})
    assert api.claim(node, queue)


@pytest.mark.parametrize("amount", ["cpu_milli", "memory_mib", "license"])
def test_nodes_that_differ_in_one_amount(api: Api, amount: str) -> None:
    """Neither has two now; one never has."""
    small, large = (api.node(capacity={amount: many}) for many in (1, 3))
    full(api, large, {amount: 3})
    assert verdicts(api, {"resources": {amount: 2}}) == {
        small.node_id: [("insufficient_capacity", True)],
        large.node_id: [("insufficient_capacity", False)],
    }


def test_nodes_that_lack_others_of_two_countables(api: Api) -> None:
    """The words name what is lacking: the nodes have the same, and others use up what differs."""
    nodes = [api.node(capacity={"license": 1, "tape": 1}) for _ in range(2)]
    for node, custom in zip(nodes, ("license", "tape"), strict=True):
        full(api, node, {custom: 1})
    rows = api.rows("match_nodes", placement={"resources": {"license": 1, "tape": 1}})
    told = {row["node_id"]: row["reasons"][0]["message"] for row in rows}
    for node, custom in zip(nodes, ("license", "tape"), strict=True):
        assert told[node.node_id] == f"not enough {custom}: in use by running leases"


def test_nodes_that_one_of_several_ways_suits(api: Api) -> None:
    """What runs in a node's zone decides, though no expression looks at the label."""
    here, there = (api.node(labels={"zone": zone}) for zone in "ab")
    queue = api.queue()
    api.spawn(queue, labels={"app": "x"})
    assert api.claim(here, queue)
    near = {"leases": {"labels": {"app": "x"}}, "domain": "label:zone"}
    other = {"label": "gone", "op": "exists"}
    assert verdicts(api, {"require": [{"any": [[near], [other]]}]}) == {
        here.node_id: [],
        there.node_id: [("required_affinity_unsatisfiable", False)],
    }


def test_a_code_counts_once_for_a_node(api: Api) -> None:
    api.node(labels={"zone": "a", "model": "T4"})
    api.node(labels={"zone": "b", "model": "T4"})
    require = [{"label": key, "op": "in", "values": ["c"]} for key in ("zone", "model")]
    page = api.row("match_page", placement={"require": require})
    assert page["reasons"] == {"label_mismatch": 2}
    [group] = api.rows("match_groups", placement={"require": require})
    assert (group["codes"], group["nodes"]) == (["label_mismatch", "label_mismatch"], 2)


def test_groups_that_could_run_it_come_first_then_the_largest(api: Api) -> None:
    """In each the best node first: names alone tell these nodes apart."""
    names: dict[str, list[str]] = {}
    for zone in ("b", "c", "b", "a", "c", "b"):
        node = api.node(labels={"zone": zone}, capacity={"cpu_milli": 1000 if zone != "b" else 1})
        names.setdefault(zone, []).append(node.name)
    wanted = {
        "require": [{"label": "zone", "op": "not_in", "values": ["c"]}],
        "resources": {"cpu_milli": 100},
    }
    assert api.rows("match_groups", placement=wanted) == [
        group([], False, names["a"]),
        group(["insufficient_capacity"], True, names["b"]),
        group(["label_mismatch"], True, names["c"]),
    ]


def group(codes: list[str], permanent: bool, names: list[str]) -> Row:
    """A row of match_groups."""
    return {
        "eligible": not codes,
        "codes": codes,
        "permanent": permanent,
        "nodes": len(names),
        "node_names": sorted(names),
    }


def test_a_node_that_was_silent_or_whose_queue_is_paused(api: Api) -> None:
    node, queue = api.node(), api.queue()
    api.conn.execute("update hwqueue.node_state set seen_at = '2000-01-01'")
    api.rows("pause_queue", queue=queue)
    options = {"queue": queue, "task": TASK}
    [row] = api.rows("match_groups", placement={}, options=options)
    assert row["node_names"] == [node.name]
    assert (row["eligible"], row["permanent"]) == (False, False)
    assert row["codes"] == ["node_not_live", "queue_paused"]
    [match] = api.rows("match_nodes", placement={}, options=options)
    assert [reason["code"] for reason in match["reasons"]] == row["codes"]


def test_nodes_that_are_asked_for(api: Api) -> None:
    """What is told of them is what is told of them among all."""
    small, large = api.node(capacity={"cpu_milli": 1000}), api.node(capacity={"cpu_milli": 4000})
    api.node()
    wanted = {"resources": {"cpu_milli": 2000}}
    told = {row["node_name"]: row for row in api.rows("match_nodes", placement=wanted)}
    names = [api.row("list_nodes", node=node.node_id)["name"] for node in (small, large)]
    options = {"nodes": [*names, "nobody"]}
    rows = api.rows("match_nodes", placement=wanted, options=options)
    assert rows == [told[name] for name in reversed(names)]
    assert api.rows("match_nodes", placement=wanted, options={"nodes": []}) == []
    counted = api.row("match_page", placement=wanted, options=options)
    assert (counted["nodes"], counted["eligible"]) == (2, 1)


@pytest.mark.parametrize("names", ["n-1", [1], [["n-1"]], ["n"] * 10_001])
def test_nodes_are_a_list_of_names(api: Api, names: Any) -> None:
    refusal = api.refused("QHA01", "match_nodes", placement={}, options={"nodes": names})
    assert refusal.field == "options.nodes"
