"""Events: who did what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a queue, a node, a lease, a class or the system.

    Attributes:
        event_id: Rises with the transactions that write events, not quite with time.
        code: What happened; the table is in docs/explanation/events.md. Later releases add codes.
        lease_id, node_id, queue, class_id: What it is about; None where it is not.
        actor: Who did it: what the caller's client was given, else the login.
        login: The database login that did it, by the server's own word; None in events of
            earlier releases.
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
    shard_id: int
    login: str | None = None
