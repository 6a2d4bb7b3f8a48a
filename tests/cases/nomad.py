"""Nomad constraints and affinities in hwqueue's grammar.

Attributes are text. An operand that spells a number is given to the order operators as a JSON
number; any other goes to the queue as the text it is. The set operators work on arrays in hwqueue
and on comma lists in Nomad, so every node also registers each label as an array, under a key of its
own. An undefined right side is a label that no node has.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cases.model import Case, Item

SET_SUFFIX = ".as-set"
UNDEFINED = "undefined.right.side"
ORDER_OPS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
RANGE_OPS = {"version": "version", "semver": "semver", "regexp": "regexp"}
SET_OPS = {
    "set_contains": "contains_all",
    "set_contains_all": "contains_all",
    "set_contains_any": "contains_any",
}
_EQUALITY_OPS = {"=": "in", "==": "in", "is": "in", "!=": "not_in", "not": "not_in"}
_PRESENCE_OPS = {"is_set": "exists", "is_not_set": "does_not_exist"}
_OPS = ORDER_OPS | RANGE_OPS | SET_OPS | _EQUALITY_OPS | _PRESENCE_OPS
_NUMBER = re.compile(r"([+-]?)0*([0-9]+(?:\.[0-9]+)?)")


def constraints(case: Case) -> dict[str, list[Any]]:
    """The case's constraints, ANDed, and its affinities as preferences of the same weights."""
    require = [_constraint(item) for item in case.lease.get("constraints") or []]
    prefer = [
        {"weight": item["weight"], "when": _constraint(item)} for item in case.lease.get("affinities") or []
    ]
    return {"require": require, "prefer": prefer}


def labels(node: Item) -> dict[str, Any]:
    """The node's attributes, and each as the set that a comma list spells."""
    attributes: Mapping[str, str] = node.get("labels") or {}
    sets = {key + SET_SUFFIX: members(value) for key, value in attributes.items()}
    return dict(attributes) | sets


def number(text: str) -> int | float | None:
    """The JSON number that the text spells, else None."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value: int | float = json.loads(match[1].replace("+", "") + match[2])
    return value


def members(text: str) -> list[str]:
    """A comma list as Nomad reads it: split, trimmed."""
    return [item.strip() for item in text.split(",")]


def _constraint(item: Mapping[str, Any]) -> dict[str, Any]:
    op = _OPS[item["op"]]
    if item["op"] in _PRESENCE_OPS:
        return {"label": item["key"], "op": op}
    suffix = SET_SUFFIX if item["op"] in SET_OPS else ""
    expr = {"label": item["key"] + suffix, "op": op}
    if item.get("value") is None:
        return expr | {"other_label": item.get("value_key", UNDEFINED) + suffix}
    return expr | {"values": _values(item["op"], item["value"])}


def _values(op: str, value: str) -> list[Any]:
    if op in SET_OPS:
        return members(value)
    if op in ORDER_OPS:
        as_number = number(value)
        return [value if as_number is None else as_number]
    return [value]
