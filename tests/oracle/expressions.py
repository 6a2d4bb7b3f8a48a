"""The grammar's EXPR, judged for one node, and the malformed documents that must be refused."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.oracle import versions
from tests.oracle.facts import Node
from tests.oracle.values import as_number, contains, equal, is_number, is_scalar

Expr = Mapping[str, Any]

MAX_PATTERN = 200
MAX_BOUND = 32
MAX_MATCHED_LABEL = 256
_ABSENT = object()
_ORDER: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
}


class RefusedError(ValueError):
    """The document is malformed: the queue must refuse it, not treat it as a non-match."""


def holds(exprs: Sequence[Expr], node: Node) -> bool:
    """Whether the node meets every expression of the list."""
    return all(expr_holds(expr, node) for expr in exprs)


def expr_holds(expr: Expr, node: Node) -> bool:
    """Whether the node meets one expression; assumes that `check` let it pass."""
    away = bool(expr.get("away", False))
    if "label" in expr:
        return _label_holds(expr, node.labels)
    if "tags" in expr:
        return contains(dict(node.labels), expr["tags"] or {})
    if "trust" in expr:
        return expr["trust"] in node.trusts
    if "any" in expr:
        return any(holds(branch, node) for branch in expr["any"])
    if "rack" in expr and node.rack is None:
        return bool(expr.get("unknown", "pass" if away else "fail") == "pass")
    return _is_target(expr, node) != away


def check(exprs: Sequence[Expr]) -> None:
    """Raise RefusedError for what the grammar calls malformed, as far as the tests write it."""
    for expr in exprs:
        if "any" in expr:
            if not expr["any"] or not all(expr["any"]):
                raise RefusedError("empty any or inner list")
            for branch in expr["any"]:
                check(branch)
        elif "label" in expr and "other_label" in expr:
            if expr["op"] == "regexp":
                raise RefusedError("a pattern from a label cannot be checked at submit")
        elif "label" in expr and expr["op"] not in ("exists", "does_not_exist"):
            _check_values(expr["op"], expr.get("values"))
        elif "leases" in expr:
            check_selector(expr["leases"])
        elif any(expr.get(kind) == [] for kind in ("node", "rack")):
            raise RefusedError("empty list of targets")


def check_selector(selector: Mapping[str, Any]) -> None:
    """Raise RefusedError for a malformed selector of leases: keys and values are text."""
    for expr in selector.get("exprs", []):
        values = expr.get("values", [])
        if expr["op"] in ("in", "not_in"):
            well_formed = bool(values) and all(isinstance(value, str) for value in values)
        else:
            well_formed = expr["op"] in ("exists", "does_not_exist") and not values
        if not well_formed:
            raise RefusedError(f"{expr['op']} with values {values} selects no leases")


def _is_target(expr: Expr, node: Node) -> bool:
    if "node" in expr:
        return node.node_id in [UUID(item) for item in _listed(expr["node"])]
    if "rack" in expr:
        return node.rack in _listed(expr["rack"])
    return any(node.owns(UUID(item)) for item in _listed(expr["resource"]))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _label_holds(expr: Expr, labels: Mapping[str, Any]) -> bool:
    op: str = expr["op"]
    label = labels.get(expr["label"], _ABSENT)
    if op in ("exists", "does_not_exist"):
        return (label is not _ABSENT) == (op == "exists")
    if label is _ABSENT:
        return op == "not_in"
    if "other_label" not in expr:
        return _compare(op, label, expr["values"])
    other = labels.get(expr["other_label"], _ABSENT)
    if other is _ABSENT:
        return op == "not_in"
    if op in ("contains_all", "contains_any"):
        return isinstance(other, list) and _compare(op, label, other)
    return _compare(op, label, [other])


def _compare(op: str, label: Any, values: Sequence[Any]) -> bool:
    if op in ("in", "not_in"):
        return (is_scalar(label) and any(equal(label, v) for v in values)) == (op == "in")
    if op in _ORDER:
        left, right = as_number(label), as_number(values[0])
        return left is not None and right is not None and _ORDER[op](left, right)
    if op == "regexp":
        short = isinstance(label, str) and len(label) <= MAX_MATCHED_LABEL
        return short and re.search(values[0], label, re.ASCII) is not None
    if op in ("version", "semver"):
        return _in_range(label, values[0], op)
    found = [isinstance(label, list) and any(equal(v, item) for item in label) for v in values]
    return all(found) and isinstance(label, list) if op == "contains_all" else any(found)


def _in_range(label: Any, version_range: Any, kind: str) -> bool:
    if not isinstance(version_range, str) or not (isinstance(label, str) or is_number(label)):
        return False
    try:
        return versions.in_range(str(label), version_range, kind)
    except versions.BadRangeError:  # only another label's text gets here unchecked
        return False


def _check_values(op: str, values: Any) -> None:
    if not isinstance(values, list) or not values or not all(map(is_scalar, values)):
        raise RefusedError("values must be a list of scalars, not empty")
    if op in _ORDER and not (len(values) == 1 and is_number(values[0])):
        raise RefusedError("order operators take one JSON number")
    if op in ("regexp", "version", "semver"):
        if len(values) != 1 or not isinstance(values[0], str):
            raise RefusedError(f"{op} takes one text")
        if op == "regexp":
            _check_pattern(values[0])
        else:
            _check_range(values[0], op)


def _check_range(version_range: str, kind: str) -> None:
    try:
        versions.in_range("1", version_range, kind)
    except versions.BadRangeError as error:
        raise RefusedError(str(error)) from error


def _check_pattern(pattern: str) -> None:
    bounds = [int(n) for pair in re.findall(r"\{(\d+)(?:,(\d*))?\}", pattern) for n in pair if n]
    refused = (
        len(pattern) > MAX_PATTERN
        or pattern.startswith("***")
        or "(?" in pattern
        or re.search(r"\\[1-9]", pattern)
        or re.search(r"\}[^()]*\)\{", pattern)
        or any(bound > MAX_BOUND for bound in bounds)
    )
    if refused:
        raise RefusedError("the pattern is beyond the limits that keep matching bounded")
    try:
        re.compile(pattern)
    except re.error as error:
        raise RefusedError(str(error)) from error
