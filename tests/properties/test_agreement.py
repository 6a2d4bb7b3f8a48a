"""match_nodes, explain_lease, claim_task and the oracle answer alike, for any nodes and load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.direct import Direct
from tests.oracle.affinity import affinity
from tests.oracle.capacity import check_claims, eligible
from tests.oracle.expressions import holds
from tests.oracle.facts import Claim, Node
from tests.properties.cluster import CONTRADICTORY, Specs, clusters, registered
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
