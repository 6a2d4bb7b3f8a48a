"""Clusters: a random one for an example, a fixed one with every kind of label, and each node by itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import psycopg
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.oracle.facts import Node
from tests.properties.strategies import (
    IDS,
    NODE_IDS,
    PATTERNS,
    RANGES,
    RESOURCE_IDS,
    TEXTS,
    VERSIONS,
    node_specs,
)

CONTRADICTORY = "QHC04"
# affinity alone, so that the score is the documented number
ONLY_AFFINITY = {"tuning": {"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0}, "patience": 0}

Specs = list[dict[str, Any]]
clusters: st.SearchStrategy[Specs] = st.tuples(*map(node_specs, range(3))).map(list)
_queues = count()


@contextmanager
def registered(direct: Direct, specs: Specs) -> Iterator[tuple[str, dict[UUID, int]]]:
    """Register the nodes and make a queue of this example's own; take both away at the end."""
    queue = f"example-{next(_queues)}"
    direct.create_queue(queue, ONLY_AFFINITY)
    epochs = {node: direct.register(node, spec) for node, spec in zip(NODE_IDS[:3], specs, strict=True)}
    try:
        yield queue, epochs
    finally:
        direct.drop_queue(queue)
        for node in epochs:
            direct.deregister(node)


_TEXTS = ("abc", "a,b", "-", "1.", ".5", "00", "v2", "x" * 256, "x" * 257, "12.5 ", "1_0")
_VERSIONS = ("1.2", "1.2.4", "2.0.0", "2.0.0-beta", "1.2.3-rc.10", "1.2.3-alpha", "0.9", "v")
_OTHERS: Sequence[Any] = (0, 1, 1.0, 10, -12.5, 206, 1.2, True, False)
_NESTED: Sequence[Any] = ([], ["a", "b"], [1, True], ["1"], {}, {"k": "a"}, {"k": ["a", 1]})
VALUES: Sequence[Any] = (*TEXTS, *_TEXTS, *VERSIONS, *_VERSIONS, *_OTHERS, *_NESTED)

OPERANDS: dict[str, Sequence[list[Any]]] = {
    "in": [["a"], [1], [1.0, "b"], [True], ["true"], [""], ["10"], [10]],
    "contains_all": [["a"], ["a", "b"], [1], [True], ["1", 1], ["b", "c"]],
    "contains_any": [["a"], ["z", "b"], [1.0], [False], ["1", 2]],
    "gt": [[0], [10], [-12.5], [206], [0.1]],
    "regexp": [[pattern] for pattern in PATTERNS],
    "version": [[bounds] for bounds in RANGES],
    "semver": [[bounds] for bounds in RANGES if "~>" not in bounds],
}
OPERANDS |= {"not_in": OPERANDS["in"]} | dict.fromkeys(("gte", "lt", "lte"), OPERANDS["gt"])


@dataclass(frozen=True)
class ManyNodes:
    """The cluster; kept out of reports of failing examples, where it would bury the example."""

    by_id: Mapping[UUID, Node] = field(repr=False)


def register_many(direct: Direct) -> ManyNodes:
    """A node for each value, some that lack the label, and some with labels to compare."""
    labels: list[dict[str, Any]] = [{"v": value, "zone": 10} for value in VALUES]
    labels += [{}, {"v": "a", "zone": "a"}, {"v": [1, "a"], "zone": ["a"]}, {"v": 1, "zone": "1"}]
    found = {}
    for number, node_labels in enumerate(labels):
        node = NODE_IDS[number] if number < len(NODE_IDS) else uuid5(IDS, f"many-{number}")
        spec: dict[str, Any] = {
            "name": f"many-{number}",
            "instance_id": "first",
            "labels": node_labels,
            "resources": RESOURCE_IDS[: number % 4],
        }
        if number % 3:
            spec["rack"] = number % 3
        direct.register(node, spec)
        found[node] = Node.from_spec(node, spec)
    return ManyNodes(found)


_DIFFERING = Path(__file__).with_name("node_by_node.sql").read_bytes()


def apart(
    conn: psycopg.Connection[Any], placement: dict[str, Any], options: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """The nodes of which the two say something else, with both."""
    values = {"placement": Jsonb(placement), "options": Jsonb(options)}
    return conn.execute(_DIFFERING, values).fetchall()
