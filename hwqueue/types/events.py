"""Events: who did what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

EVENT_CODES = (
    "queue_created",
    "queue_policy_set",
    "queue_paused",
    "queue_resumed",
    "queue_dropped",
    "task_set",
    "task_dropped",
    "node_registered",
    "node_superseded",
    "node_deregistered",
    "node_cordoned",
    "node_drained",
    "node_uncordoned",
    "node_tainted",
    "node_untainted",
    "node_reserved",
    "node_attested",
    "node_attestation_revoked",
    "node_trust_suspended",
    "node_confirmed",
    "node_handed_over",
    "node_silent",
    "node_back",
    "lease_updated",
    "lease_adopted",
    "lease_cancelled",
    "lease_failed",
    "lease_deadline_exceeded",
    "lease_requeued",
    "lease_deleted",
    "claim_expired",
    "claim_stop_requested",
    "service_policy_set",
    "class_unmatched",
    "class_unmatched_over",
    "term_published",
    "node_expiry_set",
    "event_retention_set",
    "token_created",
    "token_revoked",
    "webhook_set",
    "webhook_dropped",
    "webhook_paused",
    "webhook_resumed",
    "webhook_rotated",
    "schedule_set",
    "schedule_dropped",
    "schedule_paused",
    "schedule_resumed",
    "schedule_missed",
    "schedule_failed",
    "limit_set",
    "limit_dropped",
    "limit_throttled",
    "tenant_set",
    "tenant_dropped",
    "tenant_granted",
    "tenant_revoked",
    "usage_stale",
    "generation_raised",
    "positions_repaired",
    "upkeep_postponed",
    "schema_upgraded",
    "workflow_defined",
    "workflow_run_failed",
    "workflow_run_cancelled",
    "workflow_run_paused",
    "workflow_run_resumed",
    "workflow_run_retried",
    "workflow_run_updated",
    "workflow_step_skipped",
    "workflow_wait_timed_out",
    "gang_waiting",
    "gang_earmarked",
    "gang_reserved",
    "gang_running",
    "gang_stopping",
    "gang_cancelling",
    "gang_completed",
    "gang_failed",
    "gang_cancelled",
    "everywhere_spawned",
    "everywhere_stopping",
    "everywhere_stopped",
)
"""What this release writes; the table is in docs/run/events.md. Later ones add codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a queue, a node, a lease, a class or the system.

    Attributes:
        event_id: Rises with the transactions that write events, not quite with time.
        code: What happened, one of `EVENT_CODES`, or one that a later release added.
        lease_id, node_id, queue, class_id: What it is about; None where it is not.
        actor: Who did it: what the caller's client was given, else the login.
        login: The database login that did it, by the server's own word.
        message: The same in words.
        detail: The same for programs; keys depend on the code.
    """

    event_id: int
    at: datetime
    code: str
    lease_id: UUID | None
    node_id: UUID | None
    queue: str | None
    class_id: int | None
    actor: str
    message: str
    detail: Mapping[str, Any] | None
    login: str | None = None
