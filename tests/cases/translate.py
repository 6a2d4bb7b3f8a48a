"""Puts a case into hwqueue's terms, by what its stages ask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cases import fleet, kubernetes, kubernetes_leases, kubernetes_taints, nomad, nomad_leases
from tests.cases.model import Adopted, Case, Item, Translated, identity, lease_id, node_id

Placement = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Stage:
    """What a stage asks: parts of the lease's placement, of a running lease's, of a node's spec."""

    asks: tuple[Callable[[Case], Placement], ...]
    held: Callable[[Case, Item], Placement] = lambda case, lease: {}
    labels: Callable[[Item], Mapping[str, Any]] = lambda node: node.get("labels") or {}
    taints: Callable[[Item], list[dict[str, str]]] = lambda node: []
    is_score: bool = field(default=False, kw_only=True)


def _both(name: str, stage: Stage) -> dict[str, Stage]:
    """A stage that filters, and its twin that scores."""
    score = Stage(stage.asks, stage.held, stage.labels, stage.taints, is_score=True)
    return {name: stage, f"score:{name}": score}


# A spread counts nodes by what the lease requires of them: its stage takes in the other filters.
_SPREAD = (kubernetes.required_node_affinity, kubernetes_taints.tolerations, kubernetes_leases.spread)
STAGES: Mapping[str, Stage] = {
    **_both("node_affinity", Stage((kubernetes.node_affinity,))),
    "score:node_affinity:raw": Stage((kubernetes.node_affinity,), is_score=True),
    **_both("taints", Stage((kubernetes_taints.tolerations,), taints=kubernetes_taints.taints)),
    **_both("lease_affinity", Stage((kubernetes_leases.lease_affinity,), held=kubernetes_leases.held)),
    **_both("spread", Stage(_SPREAD, taints=kubernetes_taints.taints)),
    "constraints": Stage((nomad.constraints,), labels=nomad.labels),
    "distinct_hosts": Stage((nomad_leases.distinct_hosts,)),
    "distinct_property": Stage((nomad_leases.distinct_property,)),
    "score:nomad_affinity": Stage((nomad.constraints,), labels=nomad.labels, is_score=True),
    "score:nomad_spread": Stage((nomad_leases.spread_targets,), is_score=True),
    "score:nomad_job_anti_affinity": Stage((nomad_leases.job_anti_affinity,), is_score=True),
    "score:nomad_penalty": Stage((nomad_leases.penalty,), is_score=True),
    "fleet": Stage((fleet.unit,), held=fleet.held),
}


def translate(case: Case) -> Translated:
    """The case as nodes, what runs, and one lease; raises KeyError for a stage not known here."""
    stages = [STAGES[name] for name in case.stages]
    asks = dict.fromkeys(part for stage in stages for part in stage.asks)
    nodes = {
        node["name"]: (node_id(node.get("machine_id") or node["name"]), _spec(stages, node))
        for node in case.nodes
    }
    return Translated(
        nodes=nodes,
        placement=_joined([part(case) for part in asks]),
        lease=identity(case.lease),
        running=tuple(
            _adopted(case, stages, position)
            for position, lease in enumerate(case.running)
            if lease.get("node") in nodes
        ),
    )


def _spec(stages: list[Stage], node: Item) -> dict[str, Any]:
    labels = {key: value for stage in stages for key, value in stage.labels(node).items()}
    taints = [taint for stage in stages for taint in stage.taints(node)]
    distinct = [taint for i, taint in enumerate(taints) if taint not in taints[:i]]
    spec = {"name": node["name"], "instance_id": "case", "labels": labels}
    return spec | ({"taints": distinct} if distinct else {})


def _adopted(case: Case, stages: list[Stage], position: int) -> Adopted:
    lease = case.running[position]
    placement = _joined([stage.held(case, lease) for stage in stages])
    if any(node.get("taints") for node in case.nodes if node["name"] == lease["node"]):
        placement["tolerate"] = [kubernetes_taints.TOLERATE_ALL]
    name = lease.get("name")
    is_first = name not in [earlier.get("name") for earlier in case.running[:position]]
    known_as = name if name and is_first else f"{position}:{name}"
    options = identity(lease) | {"lease_id": str(lease_id(known_as)), "placement": placement}
    return Adopted(lease["node"], options, bool(lease.get("terminating")))


def _joined(parts: list[Placement]) -> dict[str, list[Any]]:
    joined: dict[str, list[Any]] = {}
    for part in parts:
        for key, listed in part.items():
            if listed:
                joined[key] = joined.get(key, []) + listed
    return joined
