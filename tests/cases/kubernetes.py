"""Kubernetes node selectors and node affinity in hwqueue's grammar.

Label values are text. Required terms become one `any`, a list of node names becomes `node`.
Kubernetes voids a term that is empty or malformed by its own syntax: the term matches nothing, the
others still count. Its counterpart is to leave the branch out; when none is left, the empty `any`
goes to the queue as it is, which refuses it. What is a legal label value is Kubernetes' syntax, not
hwqueue's, and is therefore checked here.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.cases.model import Case, node_id

Expr = dict[str, Any]
Placement = dict[str, list[Any]]
Term = Mapping[str, Any]

_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE = re.compile(rf"({_NAME})?")
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_OPS = {
    "In": "in",
    "NotIn": "not_in",
    "Exists": "exists",
    "DoesNotExist": "does_not_exist",
    "Gt": "gt",
    "Lt": "lt",
}


class VoidError(ValueError):
    """The term is void: by Kubernetes' rules it matches no node."""


def node_affinity(case: Case) -> Placement:
    """The case's node selector, node affinity and queue affinity as one placement."""
    affinities = [
        affinity
        for affinity in (case.lease.get("node_affinity"), case.options.get("queue_affinity"))
        if affinity
    ]
    require = [_in(key, [value]) for key, value in (case.lease.get("node_selector") or {}).items()]
    prefer = []
    for affinity in affinities:
        if affinity.get("required") is not None:
            require.append({"any": list(_branches(affinity["required"]))})
        for preference in affinity.get("preferred") or []:
            # upstream skips a preference that weighs nothing before it looks at its term
            if preference["weight"] != 0:
                prefer += [
                    {"weight": preference["weight"], "when": branch}
                    for branch in _branches([preference["term"]])
                ]
    return {"require": require, "prefer": prefer}


def required_node_affinity(case: Case) -> Placement:
    """The part of it that decides which nodes a spread counts."""
    return {"require": node_affinity(case)["require"]}


def _branches(terms: Iterable[Term]) -> Iterable[list[Expr]]:
    for term in terms:
        try:
            branch = [_label(item) for item in term.get("labels") or []]
            branch += [_field(item) for item in term.get("fields") or []]
        except VoidError:
            continue
        if branch:
            yield branch


def _label(item: Term) -> Expr:
    key, op, values = item["key"], item["op"], item.get("values") or []
    if op not in _OPS or not is_legal(key, values):
        raise VoidError(f"not a legal requirement: {item}")
    if op in ("Exists", "DoesNotExist"):
        if values:
            raise VoidError(f"{op} takes no values")
        return {"label": key, "op": _OPS[op]}
    if op in ("Gt", "Lt"):
        if len(values) != 1 or not _INTEGER.fullmatch(values[0]):
            raise VoidError(f"{op} takes one integer")
        return {"label": key, "op": _OPS[op], "values": [int(values[0])]}
    if not values:
        raise VoidError(f"{op} needs values")
    return {"label": key, "op": _OPS[op], "values": list(values)}


def is_legal(key: str, values: Iterable[str]) -> bool:
    """Whether key and values may stand in a Kubernetes label."""
    return bool(_KEY.fullmatch(key)) and all(map(_VALUE.fullmatch, values))


def _field(item: Term) -> Expr:
    values = item.get("values") or []
    if item["key"] != "metadata.name" or item["op"] not in ("In", "NotIn") or len(values) != 1:
        raise VoidError(f"a field is metadata.name, In or NotIn, with one value: {item}")
    target: Expr = {"node": str(node_id(values[0]))}
    return target if item["op"] == "In" else target | {"away": True}


def _in(key: str, values: list[str]) -> Expr:
    return {"label": key, "op": "in", "values": values}
