"""Leases, where they run, what "the same place" means, and what a selector selects."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.oracle.expressions import Expr
from tests.oracle.facts import Node
from tests.oracle.values import exact, is_number


@dataclass(frozen=True)
class Lease:
    """One unit of work; `queue_domain` is the failure domain of its queue."""

    lease_id: UUID
    placement: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
    task: str = ""
    service_id: UUID | None = None
    queue_domain: str = "rack"


@dataclass(frozen=True)
class Running:
    """A claimed lease; it is leaving once asked to stop, or expired and not reaped yet.

    What is leaving counts for capacity, away, exclusivity and the whole fleet, not toward or spread.
    """

    lease: Lease
    node_id: UUID
    is_leaving: bool = False


@dataclass(frozen=True)
class Service:
    """The policy of a service: None is its queue's failure domain."""

    failure_domain: str | None = None
    away_from: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Every registered node and every claim at one instant; `succeeded` has the node of a lease."""

    nodes: Mapping[UUID, Node]
    running: tuple[Running, ...] = ()
    services: Mapping[UUID, Service] = field(default_factory=dict)
    succeeded: Mapping[UUID, UUID] = field(default_factory=dict)

    def staying(self) -> list[Running]:
        """The claims that count toward and for spread."""
        return [claim for claim in self.running if not claim.is_leaving]


def place(domain: str, node: Node | None) -> Hashable | None:
    """The node's place in a domain, None if it has none; a label must be a scalar to be a place."""
    if node is None:
        return None
    if domain == "node":
        return node.node_id
    if domain == "rack":
        return node.rack
    if domain == "fleet":
        return "fleet"
    label: Any = node.labels.get(domain.removeprefix("label:"))
    if is_number(label):
        return ("number", exact(label).normalize())
    return (type(label).__name__, label) if isinstance(label, str | bool) else None


def place_of(term: Expr, owner: Lease, node: Node | None, cluster: Cluster) -> Hashable | None:
    """The node's place in the domain of the term, which belongs to a placement of `owner`."""
    if "domain" in term or "service" not in term:
        return place(term.get("domain", "node"), node)
    service = cluster.services.get(UUID(term["service"]), Service())
    domain = service.failure_domain or owner.queue_domain
    if domain == "rack" and node is not None and node.rack is None:
        return node.node_id  # as a failure domain, a node without rack is its own
    return place(domain, node)


def names(term: Expr, owner: Lease, other: Lease) -> bool:
    """Whether the target of the owner's term is this other lease, or takes it in."""
    if "lease" in term:
        return other.lease_id == UUID(term["lease"])
    if "service" in term:
        return other.service_id == UUID(term["service"])
    tenants = term.get("tenants", [owner.tenant])
    return (tenants == "*" or other.tenant in tenants) and _selects(term["leases"], owner, other)


def selects(selector: Mapping[str, Any], owner: Lease, other: Lease) -> bool:
    """Whether a spread of the owner counts the other lease: of its own tenant only."""
    return other.tenant == owner.tenant and _selects(selector, owner, other)


def _selects(selector: Mapping[str, Any], owner: Lease, other: Lease) -> bool:
    if selector.get("same") == "service":
        return owner.service_id is not None and other.service_id == owner.service_id
    if selector.get("same") == "task":
        return other.task == owner.task
    return all(other.labels.get(key) == value for key, value in selector.get("labels", {}).items()) and all(
        _expr_selects(expr, other.labels) for expr in selector.get("exprs", [])
    )


def _expr_selects(expr: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key: str = expr["label"]
    op: str = expr["op"]
    if op in ("exists", "does_not_exist"):
        return (key in labels) == (op == "exists")
    is_one_of: bool = key in labels and labels[key] in expr["values"]
    return is_one_of == (op == "in")
