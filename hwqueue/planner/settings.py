"""How a planner works."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a planner works.

    Attributes:
        interval: From the end of a round to the next one. A round is followed by four times its own
            length at least, so that reading takes a fifth of a connection's time at most.
        ttl: How long prices hold, and the lead, after the last round; longer where rounds are.
        queues: To plan for; none: all.
        solve_timeout: How long a round looks for better patterns.
        gang_timeout: How long a round looks for better places, for gangs that are together in the
            same way.
        lease_hold: How long a node has to fetch a lease that is reserved there; 0: leases of short
            queues are not assigned to nodes.
        holder: A name of this process' own.
    """

    interval: timedelta = timedelta(seconds=1)
    ttl: timedelta = timedelta(seconds=10)
    queues: Sequence[str] = ()
    solve_timeout: timedelta = timedelta(seconds=10)
    gang_timeout: timedelta = timedelta(seconds=1)
    lease_hold: timedelta = timedelta(seconds=3)
    holder: str = field(
        default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    )
