"""The preference score: 100 x matched signed sum / sum of absolute weights."""

from collections.abc import Mapping
from typing import Any

from tests.oracle.expressions import Expr, RefusedError, check, holds
from tests.oracle.facts import Node


def check_placement(placement: Mapping[str, Any]) -> None:
    """Raise RefusedError if `require` or `prefer` is malformed."""
    check(placement.get("require", []))
    for preference in placement.get("prefer", []):
        terms = _terms(preference)
        if not terms:
            raise RefusedError("empty when")
        check(terms)


def affinity(placement: Mapping[str, Any], node: Node) -> float:
    """How well the node meets the preferences, -100..100; 0 when there are none that weigh."""
    preferences = placement.get("prefer", [])
    total: float = sum(abs(preference["weight"]) for preference in preferences)
    if total == 0:
        return 0.0
    matched: float = sum(p["weight"] for p in preferences if holds(_terms(p), node))
    return 100.0 * matched / total


def _terms(preference: Mapping[str, Any]) -> list[Expr]:
    when = preference["when"]
    return when if isinstance(when, list) else [when]
