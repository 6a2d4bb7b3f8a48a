"""Kubernetes affinity between leases and topology spread in hwqueue's grammar.

A namespace is a tenant. A namespace selector is resolved here, over the namespaces of the case.
A topology key is a label; the host name is the node itself where it tells nodes apart. The null
selector, and a term whose namespace selector finds none, select nothing: an expression that cannot
hold. A requirement that is malformed by Kubernetes' syntax becomes one without values, which the
queue refuses as Kubernetes does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.cases.kubernetes import Placement, is_legal
from tests.cases.model import NOTHING, Case, Item, namespace_of

HOSTNAME = "kubernetes.io/hostname"
_OPS = {"In": "in", "NotIn": "not_in", "Exists": "exists", "DoesNotExist": "does_not_exist"}


def lease_affinity(case: Case) -> Placement:
    """What the incoming lease asks of others."""
    return held(case, case.lease)


def held(case: Case, lease: Item) -> Placement:
    """What a lease, running or not, asks of others: terms ANDed, preferences with their weights."""
    require = []
    prefer = []
    for field, away in (("lease_affinity", {}), ("lease_anti_affinity", {"away": True})):
        affinity = lease.get(field) or {}
        require += [_term(case, lease, term) | away for term in affinity.get("required") or []]
        for preference in affinity.get("preferred") or []:
            if preference["weight"] != 0:
                when = _term(case, lease, preference["term"]) | away
                prefer.append({"weight": preference["weight"], "when": when})
    return {"require": require, "prefer": prefer}


def spread(case: Case) -> Placement:
    """The lease's spread constraints; min_domains means nothing to a soft one, 1 is the default."""
    return {"spread": [_spread(case, item) for item in case.lease.get("spread") or []]}


def domain(case: Case, topology_key: str) -> str:
    """The topology key as a domain."""
    if topology_key == HOSTNAME:
        hosts = [(node.get("labels") or {}).get(HOSTNAME) for node in case.nodes]
        if None not in hosts and len(set(hosts)) == len(hosts):
            return "node"
    return f"label:{topology_key}"


def selector(given: Item | None) -> Mapping[str, Any]:
    """A label selector: null selects nothing, an empty one everything."""
    if given is None:
        return NOTHING
    exprs = [
        _requirement({"key": key, "op": "In", "values": [value]})
        for key, value in (given.get("labels") or {}).items()
    ]
    exprs += [_requirement(item) for item in given.get("exprs") or []]
    return {"exprs": exprs} if exprs else {"labels": {}}


def _requirement(item: Item) -> dict[str, Any]:
    key, op, values = item["key"], item["op"], item.get("values") or []
    takes_values = op in ("In", "NotIn")
    if op not in _OPS or not is_legal(key, values) or takes_values != bool(values):
        return {"label": key, "op": "in", "values": []}
    translated = {"label": key, "op": _OPS[op]}
    return translated | {"values": list(values)} if takes_values else translated


def _term(case: Case, owner: Item, term: Item) -> dict[str, Any]:
    translated = {"leases": selector(term.get("selector")), "domain": domain(case, term["topology_key"])}
    listed, chosen = term.get("namespaces") or [], term.get("namespace_selector")
    if chosen is None:
        # no namespace field at all: the owner's own, which is hwqueue's default, too
        return translated | ({"tenants": sorted(listed)} if listed else {})
    if not (chosen.get("labels") or chosen.get("exprs")):
        return translated | {"tenants": "*"}
    tenants = sorted({*listed, *_chosen(case, chosen)})
    return translated | ({"tenants": tenants} if tenants else {"leases": NOTHING})


def _chosen(case: Case, chosen: Item) -> Iterator[str]:
    """The namespaces with labels that the selector selects; those a lease is in exist, too."""
    named: dict[str, Mapping[str, str]] = {namespace_of(lease): {} for lease in (case.lease, *case.running)}
    for namespace, labels in (named | dict(case.namespaces)).items():
        if all(labels.get(k) == v for k, v in (chosen.get("labels") or {}).items()) and all(
            _holds(item, labels) for item in chosen.get("exprs") or []
        ):
            yield namespace


def _holds(item: Item, labels: Mapping[str, str]) -> bool:
    key: str = item["key"]
    op: str = item["op"]
    if op in ("Exists", "DoesNotExist"):
        return (key in labels) == (op == "Exists")
    is_one_of: bool = key in labels and labels[key] in item["values"]
    return is_one_of == (op == "In")


def _spread(case: Case, item: Item) -> dict[str, Any]:
    is_soft = item.get("when") == "ScheduleAnyway"
    translated = {
        "domain": domain(case, item["topology_key"]),
        "max_skew": item["max_skew"],
        "select": selector(item.get("selector")),
    }
    if is_soft:
        translated["when"] = "prefer"
    elif (item.get("min_domains") or 1) > 1:
        translated["min_domains"] = item["min_domains"]
    counted = {}
    if (item.get("node_affinity_policy") or "honor").lower() == "ignore":
        counted["affinity"] = "ignore"
    if (item.get("node_taints_policy") or "ignore").lower() == "honor":
        counted["taints"] = "honor"
    return translated | ({"count_nodes": counted} if counted else {})
