"""Taints and tolerations, by the rules of Kubernetes: what may come and what must go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Item = Mapping[str, str | int]

HARD = ("no_schedule", "no_execute")
INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Stay:
    """How long a lease may run beside taints: `seconds`, 0 for not at all; None: for ever."""

    seconds: int | None


def matches(toleration: Item, taint: Item) -> bool:
    """Whether a toleration (absent effect: all; absent key: all) is about the taint."""
    for part in ("effect", "key"):
        if part in toleration and toleration[part] != taint[part]:
            return False
    op = toleration.get("op", "equal")
    if op == "exists":
        return True
    wanted, there = (str(item.get("value", "")) for item in (toleration, taint))
    if op == "equal":
        return wanted == there
    bound, number = _integer(wanted), _integer(there)
    if bound is None or number is None:
        return False
    return number > bound if op == "gt" else number < bound


def untolerated(tolerations: Sequence[Item], taints: Sequence[Item]) -> list[Item]:
    """The taints that no toleration is about."""
    return [t for t in taints if not any(matches(each, t) for each in tolerations)]


def may_come(tolerations: Sequence[Item], taints: Sequence[Item]) -> bool:
    """Whether a lease may be placed beside the taints."""
    return not any(taint["effect"] in HARD for taint in untolerated(tolerations, taints))


def softened(affinity: float, tolerations: Sequence[Item], taints: Sequence[Item]) -> float:
    """The affinity score (-100..100) after the soft taints that are not tolerated."""
    total, weight = affinity, 1
    for taint in untolerated(tolerations, taints):
        if taint["effect"] == "prefer_no_schedule":
            total, weight = total - 100, weight + 1
    return total / weight


def stay(tolerations: Sequence[Item], taints: Sequence[Item]) -> Stay:
    """How long what runs may stay once the taints are there."""
    evicting = [taint for taint in taints if taint["effect"] == "no_execute"]
    if untolerated(tolerations, evicting):
        return Stay(0)
    bounds = [
        int(each["seconds"])
        for taint in evicting
        for each in tolerations
        if matches(each, taint) and "seconds" in each
    ]
    return Stay(min(bounds, default=None))


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    canonical = digits.isascii() and digits.isdigit() and str(int(digits)) == digits
    if not canonical or text == "-0" or int(text) not in INT64:
        return None
    return int(text)
