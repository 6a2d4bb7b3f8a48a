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
from hwqueue.types.events import Event
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
    "Event",
    "Gpu",
    "Heartbeat",
    "Json",
    "Lease",
    "LeaseChanges",
    "LeaseSpec",
    "LeaseState",
    "LeaseSummary",
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
    "ServicePolicy",
    "Settled",
    "SettledAndClaimed",
    "Settlement",
    "SpawnOptions",
    "SpawnResult",
    "Taint",
    "Verdict",
]
