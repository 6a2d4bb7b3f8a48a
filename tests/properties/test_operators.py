"""Every operator against every kind of label value, and random placements against all of them."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from tests.direct import Direct
from tests.oracle.expressions import expr_holds
from tests.properties.cluster import ONLY_AFFINITY
from tests.properties.many_nodes import OPERANDS, ManyNodes, register_many

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
