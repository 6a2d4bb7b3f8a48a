"""The preference score: 100 x matched signed sum / sum of absolute weights, times the strength."""

from collections.abc import Mapping
from typing import Any

from tests.oracle.expressions import Expr, RefusedError, check, check_selector, holds
from tests.oracle.facts import Node


def check_placement(placement: Mapping[str, Any]) -> None:
    """Raise RefusedError if the placement is malformed, as far as the tests write such."""
    check(placement.get("require", []))
    for preference in placement.get("prefer", []):
        terms = _terms(preference)
        if not terms:
            raise RefusedError("empty when")
        check(terms)
    if strength(placement) not in range(1, 101):
        raise RefusedError("a strength outside 1..100")
    for spread in placement.get("spread", []):
        check_selector(spread["select"])
        limit = spread.get("max_per_domain", spread.get("max_skew", 1))
        if not isinstance(limit, int) or limit < 1:
            raise RefusedError(f"a limit of {limit} leases")
    for toleration in placement.get("tolerate", []):
        if "key" not in toleration and toleration.get("op", "equal") != "exists":
            raise RefusedError("a toleration without a key needs exists")


def affinity(placement: Mapping[str, Any], node: Node) -> float:
    """How well the node meets the preferences, -100..100; 0 when there are none that weigh.

    A lease of strength 20 has a fifth of it.
    """
    preferences = placement.get("prefer", [])
    total: float = sum(abs(preference["weight"]) for preference in preferences)
    if total == 0:
        return 0.0
    matched: float = sum(p["weight"] for p in preferences if holds(_terms(p), node))
    return strength(placement) * matched / total


def strength(placement: Mapping[str, Any]) -> float:
    """What the preferences count beside those of others, in percent."""
    asked: float | None = placement.get("strength")
    return 100 if asked is None else asked


def _terms(preference: Mapping[str, Any]) -> list[Expr]:
    when = preference["when"]
    return when if isinstance(when, list) else [when]
