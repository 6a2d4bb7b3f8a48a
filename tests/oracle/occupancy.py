"""Rules about who runs where: toward, away both ways, first of a group; and what breaks them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from tests.oracle.affinity import strength
from tests.oracle.cluster import Cluster, Lease, Running, Service, names, place_of
from tests.oracle.expressions import Expr, expr_holds
from tests.oracle.facts import Node
from tests.oracle.spread import breaks_max_per_domain, breaks_max_skew, crowded
from tests.oracle.taints import may_come, softened

TARGETS = ("lease", "service", "leases")


class Rule(StrEnum):
    """A hard rule that can be broken."""

    NODE = "require, of what the node is"
    TAINT = "taint"
    TOWARD = "toward"
    AWAY = "away"
    KEPT_OUT = "away, of a lease that runs"
    EITHER = "any"
    MAX_SKEW = "max_skew"
    MAX_PER_DOMAIN = "max_per_domain"


@dataclass(frozen=True)
class Broken:
    """A hard rule that the claims of one instant break, whose lease, and all that take part."""

    rule: Rule
    lease_id: UUID
    because: str
    among: frozenset[UUID] = field(default=frozenset(), compare=False)


def may_run(lease: Lease, node: Node, cluster: Cluster) -> set[Rule]:
    """The hard rules that forbid the node to run the lease now; capacity is not looked at.

    The lease itself must not be among what runs.
    """
    terms = required(lease, cluster)
    broken = set()
    for rule, exprs in _by_rule(terms).items():
        if not _hold(exprs, lease, node, cluster, may_start=True):
            broken.add(rule)
    if not may_come(lease.placement.get("tolerate", []), node.taints):
        broken.add(Rule.TAINT)
    if any(_keeps_out(claim, lease, node, cluster) for claim in cluster.running):
        broken.add(Rule.KEPT_OUT)
    if breaks_max_skew(lease, node, cluster):
        broken.add(Rule.MAX_SKEW)
    if breaks_max_per_domain(lease, node, cluster):
        broken.add(Rule.MAX_PER_DOMAIN)
    return broken


def still_holds(expr: Expr, lease: Lease, node: Node, cluster: Cluster) -> bool:
    """Whether the only requirement of a lease that runs on the node holds, so that it may go on.

    The lease itself must not be among what runs. What is leaving breaks nothing any more.
    """
    staying = replace(cluster, running=tuple(cluster.staying()))
    return _hold([expr], lease, node, staying, may_start=True)


def broken_now(cluster: Cluster) -> set[Broken]:
    """The rules that must hold at every instant between node edits, and do not.

    Away holds for every pair, leaving or not. max_per_domain limits those that carry it: the last
    of them to come has seen the others. Adopted work may break both from the start.
    """
    broken = set()
    for claim in cluster.running:
        for other in cluster.running:
            at = cluster.nodes.get(other.node_id)
            if other is not claim and _keeps_out(claim, other.lease, at, cluster):
                because = f"{other.lease.lease_id} runs in the same place"
                both = frozenset({claim.lease.lease_id, other.lease.lease_id})
                broken.add(Broken(Rule.AWAY, claim.lease.lease_id, because, both))
    for claim, because, among in crowded(cluster):
        broken.add(Broken(Rule.MAX_PER_DOMAIN, claim.lease.lease_id, because, among))
    return broken


def preference(lease: Lease, node: Node, cluster: Cluster) -> float:
    """100 x matched signed sum / sum of absolute weights; a term is met or not, not how often.

    A soft taint that is not tolerated is one more preference against the node. The strength counts
    for all of them.
    """
    preferences = lease.placement.get("prefer", [])
    total = sum(abs(item.get("weight", 100)) for item in preferences)
    matched = 0.0
    for item in preferences:
        when = item["when"] if isinstance(item["when"], list) else [item["when"]]
        # only required terms must be met by one and the same lease
        if all(_hold([expr], lease, node, cluster, may_start=False) for expr in when):
            matched += item.get("weight", 100)
    affinity = 100 * matched / total if total else 0.0
    tolerate = lease.placement.get("tolerate", [])
    return strength(lease.placement) / 100 * softened(affinity, tolerate, node.taints)


def required(lease: Lease, cluster: Cluster) -> list[Expr]:
    """The lease's required expressions, and what its service keeps away from."""
    own = cluster.services.get(lease.service_id, Service()) if lease.service_id else Service()
    policy = [{"service": str(service), "away": True} for service in own.away_from]
    return [*lease.placement.get("require", []), *policy]


def _by_rule(terms: Sequence[Expr]) -> dict[Rule, list[Expr]]:
    sorted_out: dict[Rule, list[Expr]] = {}
    for term in terms:
        if "any" in term:
            rule = Rule.EITHER
        elif not any(kind in term for kind in TARGETS):
            rule = Rule.NODE
        else:
            rule = Rule.AWAY if term.get("away") else Rule.TOWARD
        sorted_out.setdefault(rule, []).append(term)
    return sorted_out


def _hold(exprs: Sequence[Expr], lease: Lease, node: Node, cluster: Cluster, *, may_start: bool) -> bool:
    """Whether all expressions hold; those toward `leases` must be met by the same leases."""
    group = []
    for expr in exprs:
        if "any" in expr:
            holds = any(_hold(branch, lease, node, cluster, may_start=may_start) for branch in expr["any"])
        elif not any(kind in expr for kind in TARGETS):
            holds = expr_holds(expr, node)
        elif expr.get("away"):
            holds = _is_away(expr, lease, node, cluster)
        elif "leases" in expr:
            group.append(expr)
            continue
        else:
            holds = _meets([expr], lease, node, cluster, may_start=may_start)
        if not holds:
            return False
    return not group or _meets(group, lease, node, cluster, may_start=may_start)


def _meets(terms: Sequence[Expr], lease: Lease, node: Node, cluster: Cluster, *, may_start: bool) -> bool:
    places = [place_of(term, lease, node, cluster) for term in terms]
    if any(
        here is None and term.get("unknown", "fail") == "fail"
        for term, here in zip(terms, places, strict=True)
    ):
        return False
    at = [cluster.nodes.get(node_id) for node_id in _members(terms, lease, cluster)]
    if not at and may_start and all(names(term, lease, lease) for term in terms):
        return "lease" not in terms[0]
    return all(
        here is None or any(place_of(term, lease, there, cluster) == here for there in at)
        for term, here in zip(terms, places, strict=True)
    )


def _members(terms: Sequence[Expr], lease: Lease, cluster: Cluster) -> list[UUID]:
    """The nodes of the leases that every term names; a lease that ended is where it succeeded."""
    found = [
        claim.node_id for claim in cluster.staying() if all(names(term, lease, claim.lease) for term in terms)
    ]
    if "lease" in terms[0]:
        target = UUID(terms[0]["lease"])
        runs = any(claim.lease.lease_id == target for claim in cluster.running)
        if target in cluster.succeeded and not runs:
            found.append(cluster.succeeded[target])
    return found


def _is_away(term: Expr, lease: Lease, node: Node, cluster: Cluster) -> bool:
    here = place_of(term, lease, node, cluster)
    if here is None:
        return bool(term.get("unknown", "pass") == "pass")
    return not any(
        names(term, lease, claim.lease)
        and place_of(term, lease, cluster.nodes.get(claim.node_id), cluster) == here
        for claim in cluster.running
    )


def _keeps_out(claim: Running, other: Lease, node: Node | None, cluster: Cluster) -> bool:
    """Whether a required away of the claim forbids the other lease to be on the node."""
    at = cluster.nodes.get(claim.node_id)
    for term in _away_terms(claim.lease, cluster):
        there = place_of(term, claim.lease, at, cluster)
        if (
            there is not None
            and there == place_of(term, claim.lease, node, cluster)
            and names(term, claim.lease, other)
        ):
            return True
    return False


def _away_terms(lease: Lease, cluster: Cluster) -> Iterator[Expr]:
    for term in required(lease, cluster):
        if term.get("away") and any(kind in term for kind in TARGETS):
            yield term
