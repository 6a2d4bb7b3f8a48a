"""Made-up nodes: one that may run a given lease, and fleets of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from hwqueue.client import Client
from hwqueue.types import AsJson, Claim, Gpu, NodeSpec

_CPU_ISOLATION = ("whole_core", "strict_isolated")
_GPU_EXCLUSIVITY = ("session_exclusive", "device_exclusive", "partition_exclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpNode:
    """A registered node that no machine is behind.

    Attributes:
        epoch: Of its registration, to claim with.
        spec: What it registered as.
    """

    node_id: UUID
    epoch: int
    spec: NodeSpec

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name


class Fleet:
    """Made-up nodes of a test's database, to see where a placement leads.

    Example:
        gpu = fleet.add("gpu-1", labels={"zone": "a"}, gpus=2, gpu_model="A100")
        assert fleet.matching(draw.defaults.placement) == {"gpu-1"}
        drain(client, app, node=gpu)  # or node=fleet: each of its nodes claims
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nodes: dict[str, MadeUpNode] = {}

    def __getitem__(self, name: str) -> MadeUpNode:
        """The node of this name."""
        return self._nodes[name]

    def __len__(self) -> int:
        """How many nodes were added."""
        return len(self._nodes)

    @property
    def nodes(self) -> tuple[MadeUpNode, ...]:
        """Its nodes, in the order in which they were added."""
        return tuple(self._nodes.values())

    def add(
        self, name: str, *, gpus: int | Iterable[Gpu] = (), gpu_model: str | None = None, **spec: Any
    ) -> MadeUpNode:
        """Register a node.

        Args:
            name: Unique in the database.
            gpus: How many, or which.
            gpu_model: Of all of them, where `gpus` is a number.
            **spec: The other fields of `NodeSpec`: `labels`, `cpu_milli`, `rack`, `taints`, ...

        Raises: As `Client.register_node`.
        """
        if isinstance(gpus, int):
            gpus = [Gpu(resource_id=uuid4(), model=gpu_model) for _ in range(gpus)]
        node_id = uuid4()
        made = NodeSpec(name=name, instance_id=str(node_id), gpus=tuple(gpus), **spec)
        epoch = self._client.register_node(node_id, made)
        self._nodes[name] = MadeUpNode(node_id=node_id, epoch=epoch, spec=made)
        return self._nodes[name]

    def matching(self, placement: AsJson | Mapping[str, Any] | None, **lease: Any) -> set[str]:
        """The names of the nodes that may run such a lease now.

        Args:
            placement: None: any node.
            **lease: What else decides, as `Client.match_nodes` takes it: `queue`, `task`, `labels`.
        """
        found = self._client.match_nodes(placement or {}, **lease)
        return {node.node_name for node in found if node.eligible and node.node_name in self._nodes}

    def claim(self, name: str, queue: str) -> Claim | None:
        """What a worker on this node would get next; None when there is nothing for it."""
        node = self._nodes[name]
        claims = self._client.claim_task([queue], node.node_id, node.epoch)
        return claims[0] if claims else None


def node_for(placement: Mapping[str, Any], instance: str) -> tuple[UUID, NodeSpec]:
    """A node that may run leases with this placement, as far as that can be made up.

    Patterns and ranges of versions, trust and other leases are not looked at; the database says
    whether the node is good enough.

    Args:
        placement: In the form that leases have it.
        instance: Unique; part of the name.
    """
    wanted = _Wanted()
    for expression in placement.get("require", ()):
        wanted.take(expression)
    for preference in placement.get("prefer", ()):
        if preference.get("weight", 100) > 0:
            when = preference["when"]
            for expression in when if isinstance(when, list) else [when]:
                wanted.take(expression)
    resources = dict(placement.get("resources", {}))
    isolation = placement.get("isolation", {})
    shares = 1 if "gpu_milli" in resources or "gpu" in isolation else 0
    resources.pop("gpu_milli", None)
    gpus = max(resources.pop("gpu", 0), shares)
    spec = NodeSpec(
        name=f"test-{instance}",
        instance_id=instance,
        labels=wanted.labels,
        rack=wanted.rack,
        cpu_milli=resources.pop("cpu_milli", None),
        memory_mib=resources.pop("memory_mib", None),
        custom=resources,
        gpus=tuple(Gpu(resource_id=uuid4()) for _ in range(gpus)),
        resources=wanted.resources,
        cores=_own_cores() if "cpu" in isolation else (),
        cpu_isolation=_CPU_ISOLATION if "cpu" in isolation else (),
        gpu_exclusivity=_GPU_EXCLUSIVITY if "gpu" in isolation else (),
    )
    return wanted.node_id or uuid4(), spec


def nodes_for_gang(
    placements: Sequence[Mapping[str, Any]], together: Sequence[str], same: Sequence[str]
) -> list[tuple[UUID, NodeSpec]]:
    """A node for each member of a gang, all of them in one place; one for all on one node.

    Args:
        placements: Of the members.
        together, same: Of the gang; of several domains the first counts.
    """
    domain = next(iter(together), None)
    if domain == "node":
        placements = [_all_in_one(placements)]
    made = [node_for(placement, str(uuid4())) for placement in placements]
    keys = [*same, *([domain.removeprefix("label:")] if domain not in (None, "node", "rack") else [])]
    shared = {key: next((spec.labels[key] for _, spec in made if key in spec.labels), "test") for key in keys}
    rack = next((spec.rack for _, spec in made if spec.rack is not None), 1)
    return [
        (
            node_id,
            replace(spec, labels={**spec.labels, **shared}, rack=rack if domain == "rack" else spec.rack),
        )
        for node_id, spec in made
    ]


def _all_in_one(placements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A placement that asks for what all of these ask for."""
    resources: Counter[str] = Counter()
    for placement in placements:
        resources.update(placement.get("resources", {}))
        if "gpu_milli" in placement.get("resources", {}):
            resources["gpu"] += 1  # a share of a device of its own
    first = dict(placements[0]) if placements else {}
    return {
        **first,
        "require": [each for placement in placements for each in placement.get("require", ())],
        "resources": dict(resources),
    }


def _own_cores() -> list[dict[str, Any]]:
    """Those of this machine: a handler is pinned to the cores that its lease was given."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return [{"core": cpu, "numa": 0, "threads": [cpu]} for cpu in own]


class _Wanted:
    """What expressions want of a node; the first that speaks of a thing decides it."""

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        self.rack: int | None = None
        self.node_id: UUID | None = None
        self.resources: list[str] = []

    def take(self, expression: Mapping[str, Any]) -> None:
        """Meet one expression."""
        if expression.get("away"):
            return
        if "any" in expression:
            for one in expression["any"][0]:
                self.take(one)
        elif "tags" in expression:
            _merge(self.labels, expression["tags"])
        elif "label" in expression:
            self._take_label(expression)
        elif "rack" in expression:
            self.rack = self.rack if self.rack is not None else int(_first(expression["rack"]))
        elif "node" in expression:
            self.node_id = self.node_id or UUID(str(_first(expression["node"])))
        elif "resource" in expression:
            self.resources.append(str(_first(expression["resource"])))

    def _take_label(self, expression: Mapping[str, Any]) -> None:
        key, op = expression["label"], expression.get("op")
        if op not in _MEET:
            return
        if other := expression.get("other_label"):
            value, against = _MEET_OTHER.get(op, (1, 1))
            self.labels.setdefault(other, against)
            self.labels.setdefault(key, value)
        else:
            self.labels.setdefault(key, _MEET[op](expression.get("values", [])))


_MEET: dict[str, Callable[[list[Any]], Any]] = {
    "in": lambda values: values[0],
    "exists": lambda _values: True,
    "gt": lambda values: values[0] + 1,
    "gte": lambda values: values[0],
    "lt": lambda values: values[0] - 1,
    "lte": lambda values: values[0],
    "contains_all": lambda values: values,
    "contains_any": lambda values: values[:1],
}
_MEET_OTHER = {"gt": (2, 1), "lt": (1, 2)}


def _merge(into: dict[str, Any], tags: Mapping[str, Any]) -> None:
    for key, value in tags.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into.setdefault(key, value)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value
