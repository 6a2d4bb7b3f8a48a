"""Every operator against every kind of label value, exhaustively.

One node per label value; each expression is one question to all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pytest

from tests.direct import Direct
from tests.oracle.expressions import expr_holds
from tests.oracle.facts import Node
from tests.properties.strategies import IDS, PATTERNS, RANGES, TEXTS, VERSIONS

OTHER_TEXTS = ("abc", "a,b", "-", "1.", ".5", "00", "v2", "x" * 256, "x" * 257, "12.5 ", "1_0")
OTHER_VERSIONS = ("1.2", "1.2.4", "2.0.0", "2.0.0-beta", "1.2.3-rc.10", "1.2.3-alpha", "0.9", "v")
OTHER_VALUES = (0, 1, 1.0, 10, -12.5, 206, 1.2, True, False, [], ["a", "b"], [1, True], ["1"], {})
VALUES: Sequence[Any] = (*TEXTS, *OTHER_TEXTS, *VERSIONS, *OTHER_VERSIONS, *OTHER_VALUES)
OPERANDS: dict[str, Sequence[list[Any]]] = {
    "in": [["a"], [1], [1.0, "b"], [True], ["true"], [""], ["10"], [10]],
    "contains_all": [["a"], ["a", "b"], [1], [True], ["1", 1], ["b", "c"]],
    "contains_any": [["a"], ["z", "b"], [1.0], [False], ["1", 2]],
    "gt": [[0], [10], [-12.5], [206], [0.1]],
    "regexp": [[pattern] for pattern in PATTERNS],
    "version": [[bounds] for bounds in RANGES],
    "semver": [[bounds] for bounds in RANGES if "~>" not in bounds],
}
OPERANDS |= {"not_in": OPERANDS["in"]} | {op: OPERANDS["gt"] for op in ("gte", "lt", "lte")}


def expressions(op: str) -> Iterator[dict[str, Any]]:
    """Every expression of one operator, on a label that nodes have."""
    for values in OPERANDS[op]:
        yield {"label": "v", "op": op, "values": values}


def other_label_expressions() -> Iterator[dict[str, Any]]:
    """Every operator that compares two labels of a node."""
    ops = ["in", "not_in", "gt", "gte", "lt", "lte", "contains_all", "contains_any"]
    for op, (label, other) in product(ops, [("v", "w"), ("w", "v"), ("v", "gone")]):
        yield {"label": label, "op": op, "other_label": other}


@pytest.fixture
def nodes(conn: psycopg.Connection) -> dict[UUID, Node]:
    """A node for each value, one that lacks the label, and neighbours to compare labels with."""
    labels: list[dict[str, Any]] = [{"v": value, "w": 10} for value in VALUES]
    labels += [{}, {"v": "a", "w": "a"}, {"v": [1, "a"], "w": ["a"]}, {"v": 1, "w": "1"}]
    direct = Direct(conn)
    found = {}
    for number, node_labels in enumerate(labels):
        node = uuid5(IDS, f"operators-{number}")
        spec = {"name": f"n{number}", "instance_id": "first", "labels": node_labels}
        direct.register(node, spec)
        found[node] = Node.from_spec(node, spec)
    return found


@pytest.mark.parametrize("op", sorted(OPERANDS))
def test_operator(conn: psycopg.Connection, nodes: dict[UUID, Node], op: str) -> None:
    """The operator with each of its operands."""
    assert differences(conn, nodes, expressions(op)) == []


def test_presence(conn: psycopg.Connection, nodes: dict[UUID, Node]) -> None:
    """A label that is there, whatever its value, and one that is not."""
    asked = product(["exists", "does_not_exist"], ["v", "w", "gone"])
    exprs = ({"label": label, "op": op} for op, label in asked)
    assert differences(conn, nodes, exprs) == []


def test_two_labels(conn: psycopg.Connection, nodes: dict[UUID, Node]) -> None:
    """One label of a node against another."""
    assert differences(conn, nodes, other_label_expressions()) == []


def differences(
    conn: psycopg.Connection, nodes: dict[UUID, Node], exprs: Iterable[dict[str, Any]]
) -> list[str]:
    """Where match_nodes and the oracle part, node by node."""
    direct = Direct(conn)
    found = []
    for expr in exprs:
        rows = direct.match({"require": [expr]})
        matched = {row["node_id"] for row in rows if row["eligible"]}
        found += [
            f"{expr} on {dict(node.labels)}: match_nodes says {node.node_id in matched}"
            for node in nodes.values()
            if expr_holds(expr, node) != (node.node_id in matched)
        ]
    return found
