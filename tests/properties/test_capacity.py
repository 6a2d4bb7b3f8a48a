"""Nodes fill up as the documents say: who still has room, and what each claim is given."""

from typing import Any

import psycopg
from hypothesis import event, given
from hypothesis import strategies as st

from tests.direct import Direct
from tests.oracle.capacity import check_claims, eligible
from tests.oracle.facts import Claim, Node
from tests.properties.cluster import Specs, clusters, registered
from tests.properties.strategies import competing


@given(specs=clusters, asked=st.lists(competing, min_size=3, max_size=10), turns=st.randoms())
def test_nodes_fill_up(
    conn: psycopg.Connection, specs: Specs, asked: list[dict[str, Any]], turns: Any
) -> None:
    """One lease after another is claimed by a node that has room for it, until none has."""
    direct = Direct(conn)
    with registered(direct, specs) as (queue, epochs):
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, specs, strict=True)]
        running: list[Claim] = []
        for placement in asked:
            expected = {node.node_id for node in nodes if eligible(placement, node, running)}
            rows = direct.match(placement, {"queue": queue})
            assert {row["node_id"] for row in rows if row["eligible"]} == expected
            lease = direct.spawn(queue, {"placement": placement})["lease_id"]
            for node in turns.sample(sorted(epochs), len(epochs)):
                claims = direct.claim(queue, node, epochs[node])
                if claims:
                    running.append(Claim(lease, node, placement, claims[0]["assignment"]))
                    assert node in expected
                    break
            else:
                assert expected == set()
                direct.cancel(lease)
            assert check_claims(nodes, running) == []
        event(f"{len(running)} of {len(asked)} run")
