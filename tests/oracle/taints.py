"""Taints and tolerations, as Kubernetes has them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.facts import Node, Taint

HARD = ("no_schedule", "no_execute")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def keeps_out(tolerations: Sequence[Mapping[str, Any]], node: Node) -> bool:
    """Whether a hard taint of the node is not tolerated."""
    return any(taint.effect in HARD for taint in _untolerated(tolerations, node))


def soft_taints(tolerations: Sequence[Mapping[str, Any]], node: Node) -> int:
    """How many of the node's soft taints are not tolerated."""
    return sum(taint.effect not in HARD for taint in _untolerated(tolerations, node))


def _untolerated(tolerations: Sequence[Mapping[str, Any]], node: Node) -> list[Taint]:
    return [taint for taint in node.taints if not any(tolerates(t, taint) for t in tolerations)]


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Whether one toleration covers one taint; no key is every key, no effect every effect."""
    if toleration.get("key", taint.key) != taint.key:
        return False
    if toleration.get("effect", taint.effect) != taint.effect:
        return False
    op = toleration.get("op", "equal")
    if op == "exists":
        return True
    if op == "equal":
        return bool(taint.value == toleration.get("value", ""))
    if not _INTEGER.fullmatch(taint.value):
        return False
    limit = int(toleration["value"])
    return int(taint.value) > limit if op == "gt" else int(taint.value) < limit
