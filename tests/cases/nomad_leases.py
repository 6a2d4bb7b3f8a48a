"""Nomad's rules about other allocations in hwqueue's grammar.

A job and a group are labels that the runner gives to the leases; a job of another namespace is
another job, as a selector's default is the lease's own tenant.
"""

from typing import Any

from tests.cases.model import GROUP, JOB, Case, node_id

# What Go reads as false; anything else that Nomad cannot read means on.
_OFF = ("0", "f", "F", "FALSE", "false", "False")
_WEIGHT = 100


def distinct_hosts(case: Case) -> dict[str, list[Any]]:
    """At most one of the job, or of the group, on a node."""
    rule = case.lease.get("distinct_hosts")
    if rule is None or rule.get("value") in _OFF:
        return {}
    selected = _selected(case, rule.get("scope"))
    return {"spread": [{"domain": "node", "max_per_domain": 1, "select": selected}]}


def distinct_property(case: Case) -> dict[str, list[Any]]:
    """At most `limit` of the job, or of the group, where the property has one value."""
    return {
        "spread": [
            {
                "domain": f"label:{rule['key']}",
                "max_per_domain": _limit(rule.get("limit")),
                "select": _selected(case, rule.get("scope")),
            }
            for rule in case.lease.get("distinct_property") or []
        ]
    }


def spread_targets(case: Case) -> dict[str, list[Any]]:
    """Percent targets of the group's allocations; what is not listed shares the rest, as in Nomad.

    hwqueue knows no desired count: its shares are of what runs.
    """
    return {
        "spread": [
            {
                "domain": f"label:{rule['key']}",
                "targets": [
                    {"value": target["value"], "percent": target["percent"]}
                    for target in rule.get("targets") or []
                    if target["value"] != "*"
                ],
                "weight": rule.get("weight") or _WEIGHT,
                "select": _selected(case, "group"),
            }
            for rule in case.lease.get("spread_targets") or []
        ]
    }


def job_anti_affinity(case: Case) -> dict[str, list[Any]]:
    """Rather not on a node that has an allocation of the group."""
    when = {"leases": _selected(case, "group"), "domain": "node", "away": True}
    return {"prefer": [{"weight": _WEIGHT, "when": when}]}


def penalty(case: Case) -> dict[str, list[Any]]:
    """Rather not on a node where it has failed."""
    nodes = [str(node_id(name)) for name in case.lease.get("penalty_nodes") or []]
    return {"prefer": [{"weight": -_WEIGHT, "when": {"node": nodes}}] if nodes else []}


def _limit(given: Any) -> Any:
    """The limit, 1 unless given; what spells no number goes to the queue as it is."""
    text = "1" if given in (None, "") else str(given)
    return int(text) if text.isdecimal() else text


def _selected(case: Case, scope: str | None) -> dict[str, Any]:
    labels = {JOB: case.lease.get("job") or ""}
    if scope == "group":
        labels[GROUP] = case.lease.get("group") or ""
    return {"labels": labels}
