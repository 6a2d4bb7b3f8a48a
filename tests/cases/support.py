"""Which cases this version runs, how, and what the others wait for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cases import fleet, kubernetes, nomad
from tests.cases.model import Case, Translated


@dataclass(frozen=True)
class Stage:
    """A stage this version answers; `waits_for` names what a case of it may still lack."""

    translate: Callable[[Case], Translated]
    is_score: bool = False
    waits_for: Callable[[Case], str | None] = lambda case: None


def _fleet_waits_for(case: Case) -> str | None:
    if set(case.lease.get("fleet") or {}) - fleet.NODE_FACTS or case.running:
        return "requirements about other leases"
    return None


SUPPORTED = {
    "node_affinity": Stage(kubernetes.translate),
    "score:node_affinity": Stage(kubernetes.translate, is_score=True),
    "score:node_affinity:raw": Stage(kubernetes.translate, is_score=True),
    "constraints": Stage(nomad.translate),
    "score:nomad_affinity": Stage(nomad.translate, is_score=True),
    "fleet": Stage(fleet.translate, waits_for=_fleet_waits_for),
}

DEFERRED = {
    "taints": "taints and tolerations",
    "score:taints": "taints and tolerations",
    "lease_affinity": "requirements about other leases",
    "score:lease_affinity": "requirements about other leases",
    "score:nomad_job_anti_affinity": "requirements about other leases",
    "spread": "spread",
    "score:spread": "spread",
    "score:nomad_spread": "spread",
    "distinct_hosts": "spread",
    "distinct_property": "spread",
    "score:nomad_penalty": "preferences for nodes where the lease has not failed",
    "gang_admit": "gangs",
    "gang_permit": "gangs",
    "gang_resources": "gangs",
    "gang_give_up": "gangs",
}

# How the grammar writes a feature that is not built yet.
WRITTEN: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "taints and tolerations": [{"tolerate": [{"key": "dedicated", "op": "exists"}]}],
    "requirements about other leases": [
        {"require": [{"leases": {"labels": {"app": "web"}}, "domain": "node", "away": True}]},
        {"require": [{"leases": {"labels": {"app": "web"}}, "domain": "rack"}]},
    ],
    "spread": [
        {"spread": [{"domain": "label:zone", "max_skew": 1, "select": {"labels": {}}}]},
        {"spread": [{"domain": "node", "max_per_domain": 1, "select": {"same": "service"}}]},
    ],
}


def waits_for(case: Case) -> str | None:
    """The feature a case needs that is not built yet, None if it runs now.

    Raises KeyError for a stage that neither table knows: a new kind of case is not passed over.
    """
    for stage in case.stages:
        missing = SUPPORTED[stage].waits_for(case) if stage in SUPPORTED else DEFERRED[stage]
        if missing is not None:
            return missing
    return None
