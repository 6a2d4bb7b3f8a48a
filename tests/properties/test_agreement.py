"""Matches, explanations, claims and the oracle answer alike: any fleet, every operator, every value."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.direct import Direct
from tests.oracle.affinity import affinity
from tests.oracle.capacity import check_claims, eligible
from tests.oracle.expressions import expr_holds, holds
from tests.oracle.facts import Claim, Node
from tests.properties.cluster import (
    CONTRADICTORY,
    ONLY_AFFINITY,
    OPERANDS,
    ManyNodes,
    Specs,
    clusters,
    register_many,
    registered,
)
from tests.properties.strategies import NODE_IDS, labels, placements, resources


@given(specs=clusters, load=st.lists(resources, max_size=4), placement=placements)
def test_match_claim_and_oracle_agree(
    conn: psycopg.Connection, specs: Specs, load: list[dict[str, int]], placement: dict[str, Any]
) -> None:
    """Eligibility and score of every node, with other leases running."""
    direct = Direct(conn)
    with registered(direct, specs) as (queue, epochs):
        running = start_load(direct, queue, epochs, load)
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, specs, strict=True)]
        check_agreement(direct, Cluster(queue, epochs, nodes, running), placement)


@given(specs=clusters, relabelled=labels, placement=placements)
def test_a_relabel_counts_at_once(
    conn: psycopg.Connection, specs: Specs, relabelled: dict[str, Any], placement: dict[str, Any]
) -> None:
    """Judged before, the lease is judged anew after the node has changed its labels."""
    direct = Direct(conn)
    with registered(direct, specs) as (queue, epochs):
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, specs, strict=True)]
        check_agreement(direct, Cluster(queue, epochs, nodes), placement)
        changed = [specs[0] | {"labels": relabelled}, *specs[1:]]
        assert direct.register(NODE_IDS[0], changed[0]) == epochs[NODE_IDS[0]]
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, changed, strict=True)]
        check_agreement(direct, Cluster(queue, epochs, nodes), placement)


@dataclass(frozen=True)
class Cluster:
    """The nodes of one example and what runs on them."""

    queue: str
    epochs: Mapping[UUID, int]
    nodes: Sequence[Node]
    running: Sequence[Claim] = ()


def check_agreement(direct: Direct, cluster: Cluster, placement: Mapping[str, Any]) -> None:
    """Spawn the lease and compare the answers; it is cancelled at the end."""
    try:
        lease = direct.spawn(cluster.queue, {"placement": placement})["lease_id"]
    except psycopg.DatabaseError as error:
        if error.sqlstate != CONTRADICTORY:
            raise
        event("contradictory")
        assert not any(holds(placement["require"], node) for node in cluster.nodes)
        return
    expected = {node.node_id: eligible(placement, node, cluster.running) for node in cluster.nodes}
    event(f"eligible on {sum(expected.values())}")
    matched = {row["node_id"]: row for row in direct.match(placement, {"queue": cluster.queue})}
    assert {node: row["eligible"] for node, row in matched.items()} == expected
    assert all(bool(row["reasons"]) != row["eligible"] for row in matched.values())
    assert direct.could_take(lease) == {node for node, able in expected.items() if able}
    for node in cluster.nodes:
        with direct.conn.transaction(force_rollback=True):
            rows = direct.claim(cluster.queue, node.node_id, cluster.epochs[node.node_id])
            assert [row["lease_id"] for row in rows] == [lease] * expected[node.node_id]
            for row in rows:
                assert row["score"] == pytest.approx(affinity(placement, node))
                claim = Claim(lease, node.node_id, placement, row["assignment"])
                assert check_claims(cluster.nodes, [*cluster.running, claim]) == []
        if expected[node.node_id]:
            score = matched[node.node_id]["score"]
            assert score == pytest.approx(affinity(placement, node))
    direct.cancel(lease)


def start_load(
    direct: Direct, queue: str, epochs: Mapping[UUID, int], load: Sequence[Mapping[str, int]]
) -> list[Claim]:
    """Have each of the load's leases claimed by the first node that takes it."""
    running = []
    for asked in load:
        placement = {"resources": asked}
        lease = direct.spawn(queue, {"placement": placement})["lease_id"]
        for node, epoch in epochs.items():
            rows = direct.claim(queue, node, epoch)
            if rows:
                assert rows[0]["lease_id"] == lease
                running.append(Claim(lease, node, placement, rows[0]["assignment"]))
                break
        else:
            direct.cancel(lease)
    return running


QUEUE = "scores"


def expressions(op: str) -> Iterator[dict[str, Any]]:
    """Every expression of one operator, on a label that nodes have."""
    for values in OPERANDS[op]:
        yield {"label": "v", "op": op, "values": values}


def other_label_expressions() -> Iterator[dict[str, Any]]:
    """Every operator that compares two labels of a node."""
    ops = ["in", "not_in", "gt", "gte", "lt", "lte", "contains_all", "contains_any"]
    for op, (label, other) in product(ops, [("v", "zone"), ("zone", "v"), ("v", "gone")]):
        yield {"label": label, "op": op, "other_label": other}


@pytest.fixture
def nodes(conn: psycopg.Connection) -> ManyNodes:
    """The fixed cluster, and a queue whose score is the affinity alone."""
    Direct(conn).create_queue(QUEUE, ONLY_AFFINITY)
    return register_many(Direct(conn))


@pytest.mark.parametrize("op", sorted(OPERANDS))
def test_operator(conn: psycopg.Connection, nodes: ManyNodes, op: str) -> None:
    """The operator with each of its operands."""
    assert differences(conn, nodes, expressions(op)) == []


def test_presence(conn: psycopg.Connection, nodes: ManyNodes) -> None:
    """A label that is there, whatever its value, and one that is not."""
    asked = product(["exists", "does_not_exist"], ["v", "zone", "gone"])
    found = ({"label": label, "op": op} for op, label in asked)
    assert differences(conn, nodes, found) == []


def test_two_labels(conn: psycopg.Connection, nodes: ManyNodes) -> None:
    """One label of a node against another."""
    assert differences(conn, nodes, other_label_expressions()) == []


def differences(conn: psycopg.Connection, nodes: ManyNodes, asked: Iterable[dict[str, Any]]) -> list[str]:
    """Where match_nodes and the oracle part, node by node."""
    direct = Direct(conn)
    found = []
    for expr in asked:
        rows = direct.match({"require": [expr]})
        matched = {row["node_id"] for row in rows if row["eligible"]}
        found += [
            f"{expr} on {dict(node.labels)}: match_nodes says {node.node_id in matched}"
            for node in nodes.by_id.values()
            if expr_holds(expr, node) != (node.node_id in matched)
        ]
    return found
