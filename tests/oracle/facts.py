"""What the oracle knows of a node and of a claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

MILLI_PER_DEVICE = 1000


@dataclass(frozen=True)
class Node:
    """A registered node, as its spec declares it.

    `capacity` holds only what is declared; an undeclared `cpu_milli` or `memory_mib` is not
    counted, an undeclared custom countable is not there. `slots` None means no bound. `trusts`: the
    domains that it is attested for now.
    """

    node_id: UUID
    labels: Mapping[str, Any]
    rack: int | None
    resources: frozenset[UUID]
    capacity: Mapping[str, int]
    gpus: tuple[UUID, ...]
    slots: int | None
    trusts: frozenset[str] = frozenset()

    @classmethod
    def from_spec(cls, node_id: UUID, spec: Mapping[str, Any]) -> Self:
        """Read the JSON that `register_node` takes."""
        return cls(
            node_id=node_id,
            labels=spec.get("labels", {}),
            rack=spec.get("rack"),
            resources=frozenset(UUID(item) for item in spec.get("resources", [])),
            capacity=spec.get("capacity", {}),
            gpus=tuple(UUID(gpu["resource_id"]) for gpu in spec.get("gpus", [])),
            slots=spec.get("slots"),
        )

    def owns(self, resource: UUID) -> bool:
        """Whether the resource, a device or any other, is on this node."""
        return resource in self.resources or resource in self.gpus


@dataclass(frozen=True)
class Claim:
    """A running lease: what it asked for and what it was given."""

    lease_id: UUID
    node_id: UUID
    placement: Mapping[str, Any]
    assignment: Mapping[str, Any] | None


@dataclass(frozen=True)
class Usage:
    """What is taken of a node: amounts, and thousandths of each device in the node's order."""

    cpu_milli: int
    memory_mib: int
    gpu_milli: tuple[int, ...]
    custom: Mapping[str, int]
