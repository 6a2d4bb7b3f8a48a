"""Nodes: what they are, and what they may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from hwqueue.types.base import given, seconds
from hwqueue.types.claims import Assignment

_NODES = uuid5(NAMESPACE_DNS, "node.hwqueue")


def id_of_node(name: str) -> UUID:
    """The id of a node that is given none: the same whenever a worker of this name starts."""
    return uuid5(_NODES, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device of a node; leases and assignments name it by `resource_id`, unique everywhere.

    partitionable: it may be split; parts are devices with its id as `parent_resource_id`. Where
    nobody may have it whole (a GPU in MIG mode), list its parts without it.
    """

    resource_id: UUID | str
    model: str | None = None
    memory_mib: int | None = None
    parent_resource_id: UUID | str | None = None
    partitionable: bool = False

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        parent = self.parent_resource_id
        return given(
            resource_id=str(self.resource_id),
            model=self.model,
            memory_mib=self.memory_mib,
            parent_resource_id=None if parent is None else str(parent),
            partitionable=self.partitionable or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """What keeps leases off a node unless they tolerate it.

    effect: `no_schedule`; `prefer_no_schedule`: only a worse score; `no_execute`: what runs there
    is asked to stop, too.
    """

    key: str
    value: str | None = None
    effect: str

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        return given(key=self.key, value=self.value, effect=self.effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node is, for `register_node`.

    instance_id: one per start of the runtime; a new one fences the older. heartbeat_timeout: the
    node counts as dead after it; None: 45 s. labels: what placements look at. rack: below 2^32.
    cpu_milli, memory_mib: None: not counted. custom: the node's own countables. cores: dicts of
    core, numa, threads. gpus: a device's position is its index in assignments. resources: ids of
    what else is attached. slots: most claims at a time; None: no limit. taints: the node's own,
    instead of those it had; those of operators stay. keep_claims: claims of an older instance go on
    instead of ending at once. cpu_isolation, gpu_exclusivity: classes honoured beside best_effort
    and shared; whole cores need `cores`. default_cpu_isolation: for leases that ask nothing; None:
    best_effort. gpu_share_mode: "exclusive" or "fractional" (None). queues, tasks: names of those
    that the node's worker polls and has handlers for, which explanations tell; None: not said, so
    taken as any. concurrency: how many leases its worker runs at a time, so that explanations and
    views say when it is full; None: not said. These three limit nothing: a claim names its own.
    hears_deaths: its worker calls `take_deaths`. declared: tasks for which its app declares
    defaults, so that spawns are told when the database has none.
    """

    name: str
    instance_id: str
    heartbeat_timeout: timedelta | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    rack: int | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None
    custom: Mapping[str, int] = field(default_factory=dict)
    cores: Sequence[Mapping[str, Any]] = ()
    gpus: Sequence[Gpu] = ()
    resources: Sequence[UUID | str] = ()
    slots: int | None = None
    taints: Sequence[Taint] = ()
    keep_claims: bool = False
    cpu_isolation: Sequence[str] = ()
    gpu_exclusivity: Sequence[str] = ()
    default_cpu_isolation: str | None = None
    gpu_share_mode: str | None = None
    queues: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    concurrency: int | None = None
    hears_deaths: bool = False
    declared: Sequence[str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        capacity = given(cpu_milli=self.cpu_milli, memory_mib=self.memory_mib)
        return given(
            name=self.name,
            instance_id=self.instance_id,
            heartbeat_timeout=seconds(self.heartbeat_timeout),
            labels=self.labels,
            rack=self.rack,
            capacity=capacity | dict(self.custom) or None,
            cores=list(self.cores) or None,
            gpus=[gpu.as_json() for gpu in self.gpus] or None,
            resources=[str(resource) for resource in self.resources] or None,
            slots=self.slots,
            taints=[taint.as_json() for taint in self.taints] or None,
            keep_claims=self.keep_claims or None,
            cpu_isolation=list(self.cpu_isolation) or None,
            gpu_exclusivity=list(self.gpu_exclusivity) or None,
            default_cpu_isolation=self.default_cpu_isolation,
            gpu_share_mode=self.gpu_share_mode,
            queues=None if self.queues is None else list(self.queues),
            tasks=None if self.tasks is None else list(self.tasks),
            concurrency=self.concurrency,
            hears_deaths=self.hears_deaths or None,
            declared=None if self.declared is None else list(self.declared),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpu:
    """A device of a registered node.

    milli_used: thousandths set aside. parent_resource_id: the device that it is a part of.
    """

    resource_id: UUID
    model: str | None
    memory_mib: int | None
    milli_used: int
    parent_resource_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCore:
    """A core of a registered node; `milli_used`: thousandths set aside, None if not counted."""

    core: int
    numa: int
    threads: tuple[int, ...]
    milli_used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIsolation:
    """What a node honours: `cpu` and `gpu` classes, and what leases get that ask nothing."""

    cpu: tuple[str, ...]
    gpu: tuple[str, ...]
    default_cpu: str
    gpu_share_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTaint:
    """A taint of a registered node. by: `node` if it registered with it, or `operator`."""

    key: str
    value: str | None
    effect: str
    since: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What an operator vouched for: the node belongs to a trust domain.

    expires_at: None: never. any_instance: it holds for every instance that the node's login
    registers. suspended_at: it does not count since then, for the reason of `suspended_why`, until
    `confirm_node`; None: it counts.
    """

    domain: str
    expires_at: datetime | None
    attested_at: datetime
    attested_by: str
    any_instance: bool = False
    suspended_at: datetime | None = None
    suspended_why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A registered node. live: seen within its heartbeat timeout. claims: running now.

    login: The role whose members may act for the node; None: any worker, until it registers again.
    """

    node_id: UUID
    name: str
    node_epoch: int
    live: bool
    seen_at: datetime
    cordoned: bool
    draining: bool
    labels: Mapping[str, Any]
    rack: int | None
    capacity: Mapping[str, int]
    used: Mapping[str, int]
    gpus: tuple[NodeGpu, ...]
    slots: int | None
    claims: int
    registered_at: datetime
    taints: tuple[NodeTaint, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    cores: tuple[NodeCore, ...] = ()
    isolation: NodeIsolation | None = None
    login: str | None = None
    instance_id: str | None = None

    @property
    def state(self) -> str:
        """`draining`, `cordoned`, `live` or `silent`, the first that it is."""
        if self.draining:
            return "draining"
        return "cordoned" if self.cordoned else "live" if self.live else "silent"

    @property
    def tenants(self) -> list[str]:
        """Those that it is for; none: it is for all."""
        keys = (taint.key for taint in self.taints if taint.by == "operator")
        return sorted({key.removeprefix("tenant:") for key in keys if key.startswith("tenant:")})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """What runs on a node.

    expires_at: None: room is kept for it that others still use. stop_by: by when it was asked to
    stop; assignment: None: not counted.
    """

    lease_id: UUID
    queue: str
    task_name: str
    tenant: str
    service_id: UUID | None
    claim_token: int
    attempt: int
    claimed_at: datetime
    expires_at: datetime | None
    stop_reason: str | None
    stop_by: datetime | None
    assignment: Assignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a node may not run something.

    permanent: until the node or the lease changes. predicate: what failed, as the placement has it;
    of capacity `{"resources": amounts}`; None where the code says all. stage: see `FunnelStage`.
    """

    code: str
    permanent: bool
    message: str
    predicate: Mapping[str, Any] | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMatch:
    """What a node is to a placement; not eligible, `reasons` says why, and `score` only what if."""

    node_id: UUID
    node_name: str
    eligible: bool
    score: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of which the same is told of a placement, without the words of `NodeMatch`.

    codes: those of the reasons, in their order; none where `eligible`. permanent: one of them holds
    until the node or the lease changes. node_names: the best node first.
    """

    eligible: bool
    codes: tuple[str, ...]
    permanent: bool
    nodes: int
    node_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPage:
    """What all nodes are to a placement, counted, and some of them, the best first.

    nodes: how many are registered; eligible: could run it now. reasons: by code, how many nodes it
    keeps out; one with two codes counts for both.
    """

    nodes: int
    eligible: int
    reasons: Mapping[str, int]
    items: tuple[NodeMatch, ...]
