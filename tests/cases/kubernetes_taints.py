"""Kubernetes taints and tolerations in hwqueue's grammar.

A toleration that by Kubernetes' rules tolerates nothing is left out: Gt and Lt while their gate is
off, or beside something that is no integer. The value of an Exists is not looked at.
"""

import re
from typing import Any

from tests.cases.model import Case, Item

EFFECTS = {"NoSchedule": "no_schedule", "PreferNoSchedule": "prefer_no_schedule", "NoExecute": "no_execute"}
# Gives running leases leave to stay, whatever the node's taints: the case says that they run.
TOLERATE_ALL = {"op": "exists"}
_OPS = {"Equal": "equal", "Exists": "exists", "Gt": "gt", "Lt": "lt"}
_INTEGER = re.compile(r"[+-]?[0-9]+")


def taints(node: Item) -> list[dict[str, str]]:
    """The node's taints, as register_node takes them."""
    return [
        {
            "key": item["key"],
            "value": item.get("value") or "",
            "effect": EFFECTS.get(item["effect"], item["effect"]),
        }
        for item in node.get("taints") or []
    ]


def tolerations(case: Case) -> dict[str, list[Any]]:
    """The lease's tolerations."""
    is_gated = not case.options.get("taint_comparison_operators")
    return {
        "tolerate": [
            _toleration(item)
            for item in case.lease.get("tolerations") or []
            if not (_compares(item) and (is_gated or not _INTEGER.fullmatch(_value(item))))
        ]
    }


def _toleration(item: Item) -> dict[str, str]:
    op: str = item.get("op") or "Equal"
    translated: dict[str, str] = {"op": _OPS.get(op, op)}
    if item.get("key"):
        translated["key"] = item["key"]
    if _compares(item):
        translated["value"] = str(int(_value(item)))
    elif op != "Exists":
        translated["value"] = _value(item)
    if item.get("effect"):
        effect: str = item["effect"]
        translated["effect"] = EFFECTS.get(effect, effect)
    return translated


def _compares(item: Item) -> bool:
    return item.get("op") in ("Gt", "Lt")


def _value(item: Item) -> str:
    value: str | None = item.get("value")
    return value or ""
