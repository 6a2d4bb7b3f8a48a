"""Webhooks, and what is sent to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hwqueue.types.events import EVENT_CODES

LEASE_COMPLETED = "lease_completed"
"""The code of completions, which are no events; only webhooks that name it are told of them."""

WEBHOOK_CODES = (*EVENT_CODES, LEASE_COMPLETED)
"""What a webhook may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A receiver of events, and how it goes. Its secret is nowhere: `secret_prefix` tells which.

    Attributes:
        codes, queues: What it is told of; None: every event, every queue.
        tenant: The only one; None: all, and what is no tenant's.
        labels: What a lease must have to be told of.
        old_secret_until: Until then requests are signed with the secret before, too.
        paused_reason: `asked`, or `gone`: the receiver answered 410.
        failing_since: The first failed attempt since the last success; None: the last succeeded.
        delivered, failed, dead: Deliveries, failed attempts, deliveries given up, since it is new.
        waiting: Deliveries that are to be sent.
        oldest_at: When the first thing happened that it was not told of; None: it knows all.
    """

    name: str
    url: str
    codes: Sequence[str] | None
    queues: Sequence[str] | None
    tenant: str | None
    labels: Mapping[str, str] | None
    secret_prefix: str
    old_secret_until: datetime | None
    created_at: datetime
    created_by: str
    created_login: str
    paused_at: datetime | None
    paused_reason: str | None
    delivered_at: datetime | None
    failing_since: datetime | None
    delivered: int
    failed: int
    dead: int
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What is to be sent to a webhook, or was.

    Attributes:
        state: `waiting`, `delivered` or `dead`.
        created_at: When what it tells of happened.
        available_at: When it may be sent next; None: it is not to be sent.
        status, response, error: How the last attempt ended: the answer's status and the beginning
            of its body, or why there was none.
    """

    delivery_id: UUID
    code: str
    event_id: int | None
    lease_id: UUID | None
    state: str
    attempt_count: int
    created_at: datetime
    available_at: datetime | None
    attempted_at: datetime | None
    finished_at: datetime | None
    status: int | None
    response: str | None
    error: str | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery to be sent now, with its signature. attempt: to be passed to `settle_delivery`."""

    delivery_id: UUID
    attempt: int
    webhook: str
    url: str
    code: str
    headers: Mapping[str, str]
    body: str
