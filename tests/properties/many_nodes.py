"""A fixed cluster with a node for every kind of label value: one question meets them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from tests.direct import Direct
from tests.oracle.facts import Node
from tests.properties.strategies import IDS, NODE_IDS, PATTERNS, RANGES, RESOURCE_IDS, TEXTS, VERSIONS

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
