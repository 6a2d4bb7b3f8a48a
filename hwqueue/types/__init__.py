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
    MatchPage,
    Node,
    NodeClaim,
    NodeCore,
    NodeGpu,
    NodeIsolation,
    NodeMatch,
    NodeSpec,
    NodeTaint,
    Reason,
    Taint,
)
from hwqueue.types.queues import Queue, QueuePolicy, RetryPolicy, WakePayload
from hwqueue.types.services import ServicePolicy
from hwqueue.types.statistics import Minute, Sample
from hwqueue.types.tokens import ApiToken, TokenGrant
from hwqueue.types.views import (
    ClassStats,
    LeaseEvent,
    NodeUsage,
    PendingReason,
    QueueDepth,
    TagCount,
)

__all__ = [
    "Adopted",
    "ApiToken",
    "AsJson",
    "AssignedGpu",
    "Assignment",
    "Attempt",
    "Attestation",
    "BrokenInvariant",
    "Claim",
    "ClaimHint",
    "ClassExplanation",
    "ClassStats",
    "Event",
    "FunnelStage",
    "Gpu",
    "Heartbeat",
    "Help",
    "Holder",
    "Json",
    "Lease",
    "LeaseChanges",
    "LeaseEvent",
    "LeaseExplanation",
    "LeaseSpec",
    "LeaseState",
    "LeaseSummary",
    "MatchPage",
    "Minute",
    "NearNode",
    "NearReason",
    "Node",
    "NodeClaim",
    "NodeCore",
    "NodeGpu",
    "NodeIsolation",
    "NodeMatch",
    "NodeSpec",
    "NodeTaint",
    "NodeUsage",
    "PendingReason",
    "PruneResult",
    "Queue",
    "QueueDepth",
    "QueuePolicy",
    "ReapResult",
    "Reason",
    "RetryPolicy",
    "Sample",
    "SchemaVersion",
    "ServedClass",
    "ServicePolicy",
    "Settled",
    "SettledAndClaimed",
    "Settlement",
    "SoleBlocker",
    "SpawnOptions",
    "SpawnResult",
    "TagCount",
    "Taint",
    "TokenGrant",
    "Verdict",
    "WaitingLease",
    "WakePayload",
]
