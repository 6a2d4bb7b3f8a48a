"""What the client takes and returns: frozen dataclasses, JSON and nothing else inside.

Ids are `UUID`, spans `timedelta`, times aware `datetime`s. What a dataclass calls `shard_id` is the
cell that holds the row: 0 until an operator makes others.
"""

from hwqueue.types.base import AsJson, Json, LeaseState, Verdict
from hwqueue.types.claims import (
    Adopted,
    AssignedGpu,
    Assignment,
    Claim,
    ClaimHint,
    Heartbeat,
    Settled,
    SettledAndClaimed,
    Settlement,
)
from hwqueue.types.explain import (
    ClassExplanation,
    FunnelStage,
    Help,
    Holder,
    LeaseExplanation,
    NearNode,
    NearReason,
    ServedClass,
    SoleBlocker,
    WaitingLease,
)
from hwqueue.types.leases import (
    Attempt,
    Lease,
    LeaseChanges,
    LeaseSpec,
    LeaseSummary,
    SpawnOptions,
    SpawnResult,
)
from hwqueue.types.maintenance import BrokenInvariant, PruneResult, ReapResult, SchemaVersion
from hwqueue.types.nodes import (
    Attestation,
    Gpu,
    Node,
    NodeGpu,
    NodeMatch,
    NodeSpec,
    NodeTaint,
    Reason,
    Taint,
)
from hwqueue.types.queues import Queue, QueuePolicy, RetryPolicy
from hwqueue.types.services import ServicePolicy

__all__ = [
    "Adopted",
    "AsJson",
    "AssignedGpu",
    "Assignment",
    "Attempt",
    "Attestation",
    "BrokenInvariant",
    "Claim",
    "ClaimHint",
    "ClassExplanation",
    "FunnelStage",
    "Gpu",
    "Heartbeat",
    "Help",
    "Holder",
    "Json",
    "Lease",
    "LeaseChanges",
    "LeaseExplanation",
    "LeaseSpec",
    "LeaseState",
    "LeaseSummary",
    "NearNode",
    "NearReason",
    "Node",
    "NodeGpu",
    "NodeMatch",
    "NodeSpec",
    "NodeTaint",
    "PruneResult",
    "Queue",
    "QueuePolicy",
    "ReapResult",
    "Reason",
    "RetryPolicy",
    "SchemaVersion",
    "ServedClass",
    "ServicePolicy",
    "Settled",
    "SettledAndClaimed",
    "Settlement",
    "SoleBlocker",
    "SpawnOptions",
    "SpawnResult",
    "Taint",
    "Verdict",
    "WaitingLease",
]
