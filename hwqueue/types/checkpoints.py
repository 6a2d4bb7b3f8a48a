"""Durable steps: what handlers save, and the signals that leases are sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from hwqueue.types.base import Json, LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a claim has saved under a name.

    status: `done`, `open` (a wait that goes on) or `timed_out` (a wait whose signal did not come).
    state: the result of a step, or the payload of a signal. waits_for: the signal of a wait; None:
    it is a step, or a sleep. waits_until: when the wait ends at the latest; None: it has no end.
    """

    name: str
    status: str
    state: Json
    saved_at: datetime
    waits_for: str | None
    waits_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint as people are shown it, without its state.

    bytes: of the state, as stored. is_open: a wait that goes on. is_suspended: the lease is
    scheduled because of this wait.
    """

    lease_id: UUID
    name: str
    saved_at: datetime
    bytes: int
    waits_for: str | None
    waits_until: datetime | None
    is_open: bool
    is_suspended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent:
    """What became of a signal; created: False if one of its name and key was sent before."""

    created: bool
    state: LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTaken:
    """What a wait found: `taken` with its payload, `timed_out`, or `none`."""

    verdict: str
    payload: Json
