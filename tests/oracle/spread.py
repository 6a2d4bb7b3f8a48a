"""Spread: the hard limits, and the order in which the soft ones put nodes."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import log
from typing import Any
from uuid import UUID

from tests.oracle.cluster import Cluster, Lease, Running, place, selects
from tests.oracle.expressions import Expr, expr_holds
from tests.oracle.facts import Node
from tests.oracle.taints import may_come

Spread = Mapping[str, Any]


def breaks_max_skew(lease: Lease, node: Node, cluster: Cluster) -> bool:
    """Whether the lease would put some spread out of balance, or the node has no domain for it."""
    hard = _hard(lease)
    for spread in hard:
        if "max_skew" not in spread:
            continue
        here = place(spread["domain"], node)
        if here is None:
            return True
        counts = _counts(spread, hard, lease, cluster)
        too_few = len(counts) < spread.get("min_domains", 1)
        lowest = 0 if too_few else min(counts.values(), default=0)
        own = selects(spread["select"], lease, lease)
        if counts.get(here, 0) + own - lowest > spread["max_skew"]:
            return True
    return False


def breaks_max_per_domain(lease: Lease, node: Node, cluster: Cluster) -> bool:
    """Whether the node's domain is full, or the node has none."""
    for spread in _limits(lease):
        here = place(spread["domain"], node)
        there = sum(
            selects(spread["select"], lease, claim.lease)
            and place(spread["domain"], cluster.nodes.get(claim.node_id)) == here
            for claim in (cluster.running if spread["domain"] == "fleet" else cluster.staying())
        )
        own = selects(spread["select"], lease, lease)
        if here is None or there + own > spread["max_per_domain"]:
            return True
    return False


def crowded(cluster: Cluster) -> Iterator[tuple[Running, str, frozenset[UUID]]]:
    """Claims whose domain holds more of those that carry and meet the same limit than it allows.

    With each why, and those leases.

    Matching leases that do not carry the limit may come later; they are not counted.
    """
    staying = cluster.staying()
    for claim in staying:
        for spread in _limits(claim.lease):
            here = place(spread["domain"], cluster.nodes.get(claim.node_id))
            carriers = frozenset(
                other.lease.lease_id
                for other in staying
                if spread in _limits(other.lease)
                and selects(spread["select"], claim.lease, other.lease)
                and place(spread["domain"], cluster.nodes.get(other.node_id)) == here
            )
            most = spread["max_per_domain"]
            if here is not None and len(carriers) > most:
                yield claim, f"{len(carriers)} of {most} in its {spread['domain']}", carriers


def spread_order(lease: Lease, nodes: Sequence[Node], cluster: Cluster) -> dict[UUID, float]:
    """A number for each node, the higher the better: it has an order, and no other meaning.

    Soft max_skew costs what Kubernetes computes: count x ln(domains + 2) + max_skew - 1, summed and
    rounded. Targets gain target / (target + share), by weight, where the share is what the domain
    would have with this lease: 0.5 at the target, 0 without one. Nodes without the label are last.
    """
    soft = [s for s in lease.placement.get("spread", []) if s.get("when") == "prefer"]
    targets = [s for s in lease.placement.get("spread", []) if "targets" in s]
    weights = sum(s.get("weight", 100) for s in targets)
    order = {}
    for node in nodes:
        costs = [_cost(s, soft, lease, node, cluster) for s in soft]
        gain = sum(s.get("weight", 100) * _gain(s, lease, node, cluster) for s in targets)
        known = [cost for cost in costs if cost is not None]
        worst = len(costs) > len(known)
        order[node.node_id] = float("-inf") if worst else gain / (weights or 1) - round(sum(known))
    return order


def _cost(spread: Spread, soft: Sequence[Spread], lease: Lease, node: Node, cluster: Cluster) -> float | None:
    here = place(spread["domain"], node)
    if here is None:
        return None
    counts = _counts(spread, soft, lease, cluster)
    skew: int = spread["max_skew"]
    return counts.get(here, 0) * log(len(counts) + 2) + skew - 1


def _gain(spread: Spread, lease: Lease, node: Node, cluster: Cluster) -> float:
    here = place(spread["domain"], node)
    if here is None:
        return 0.0
    used = Counter(
        place(spread["domain"], cluster.nodes.get(claim.node_id))
        for claim in cluster.staying()
        if selects(spread["select"], lease, claim.lease)
    )
    percent = _percent(spread, here, cluster)
    share = 100 * (used[here] + 1) / (used.total() + 1)
    return percent / (percent + share)


def _percent(spread: Spread, here: Hashable, cluster: Cluster) -> float:
    if not spread["targets"]:
        live = {place(spread["domain"], n) for n in cluster.nodes.values() if n.is_live} - {None}
        return 100 / max(1, len(live))
    for target in spread["targets"]:
        if ("str", target["value"]) == here:
            return float(target["percent"])
    return float(100 - sum(target["percent"] for target in spread["targets"]))


def _counts(spread: Spread, among: Sequence[Spread], lease: Lease, cluster: Cluster) -> dict[Hashable, int]:
    """How many matching leases each domain holds; every domain of a counted node is there.

    Counted are live nodes that have a domain for each spread of the same kind (hard or soft), meet
    what the lease requires of a node, unless that is ignored, and, if taints are honoured, have
    none that keeps the lease out.
    """
    rules = spread.get("count_nodes", {})
    counted = {
        node.node_id: place(spread["domain"], node)
        for node in cluster.nodes.values()
        if node.is_live
        and all(place(other["domain"], node) is not None for other in among)
        and (rules.get("affinity") == "ignore" or _suits(lease, node))
        and (rules.get("taints") != "honor" or may_come(lease.placement.get("tolerate", []), node.taints))
    }
    counts: dict[Hashable, int] = dict.fromkeys(counted.values(), 0)
    for claim in cluster.staying():
        if claim.node_id in counted and selects(spread["select"], lease, claim.lease):
            counts[counted[claim.node_id]] += 1
    return counts


def _suits(lease: Lease, node: Node) -> bool:
    return all(expr_holds(expr, node) for expr in lease.placement.get("require", []) if _is_of_the_node(expr))


def _is_of_the_node(expr: Expr) -> bool:
    if "any" in expr:
        return all(_is_of_the_node(item) for branch in expr["any"] for item in branch)
    return not any(kind in expr for kind in ("lease", "service", "leases"))


def _hard(lease: Lease) -> list[Spread]:
    listed = lease.placement.get("spread", [])
    return [s for s in listed if "targets" not in s and s.get("when") != "prefer"]


def _limits(lease: Lease) -> list[Spread]:
    return [s for s in lease.placement.get("spread", []) if "max_per_domain" in s]
