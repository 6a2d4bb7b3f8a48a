"""What the tests of `hwqueue top` look at: a small cluster at a fixed moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue.cli.top.reading import Reading
from hwqueue.types import Event, Minute, NodeUsage, PendingReason, Progress, QueueDepth, RunningLease
from tests.unit.claims import bare

NOW = datetime(2026, 3, 1, 12, 4, 10, tzinfo=UTC)


def ago(**span: float) -> datetime:
    """So long before NOW."""
    return NOW - timedelta(**span)


def queue(name: str, **facts: Any) -> QueueDepth:
    """A queue; empty unless told otherwise."""
    whole: dict[str, Any] = dict.fromkeys(("pending", "scheduled", "running", "stopping", "expired"), 0)
    made: QueueDepth = bare(QueueDepth, queue=name, **(whole | facts))
    return made


def pending(class_id: int, words: str, **facts: Any) -> PendingReason:
    """A class of which something waits."""
    whole: dict[str, Any] = {
        "queue": "renders",
        "task_name": "draw",
        "resources": {},
        "pending": 1,
        "oldest_at": ago(minutes=12),
        "message": "its turn has not come",
        "nodes_matching": 2,
        "nodes_free": 1,
    }
    made: PendingReason = bare(PendingReason, class_id=class_id, words=words, **(whole | facts))
    return made


def node(number: int, **facts: Any) -> NodeUsage:
    """A node with 8 cores, 64 GiB and 2 GPUs."""
    whole: dict[str, Any] = {
        "node_name": f"node-{number}",
        "rack": number % 2,
        "state": "live",
        "live": True,
        "seen_at": ago(seconds=3),
        "cpu_milli": 8000,
        "memory_mib": 65536,
        "gpus": 2,
        "gpus_free": 2,
        "custom": {},
        "custom_used": {},
    }
    whole |= dict.fromkeys(("claims", "cpu_used", "memory_used", "gpu_milli_used", "cores", "cores_free"), 0)
    made: NodeUsage = bare(NodeUsage, node_id=UUID(int=number), **(whole | facts))
    return made


def event(number: int, code: str, message: str, **facts: Any) -> Event:
    """Something that happened."""
    whole: dict[str, Any] = {"at": ago(minutes=number), "actor": "ops"}
    made: Event = bare(Event, event_id=number, code=code, message=message, **(whole | facts))
    return made


def running(number: int, task: str, **said: Any) -> RunningLease:
    """A lease that runs on node-1; said: what its handler reported."""
    made: RunningLease = bare(
        RunningLease,
        lease_id=UUID(int=number),
        queue="renders",
        task_name=task,
        attempt=1,
        node_name="node-1",
        claimed_at=ago(minutes=4 - number),
        expires_at=ago(minutes=-1),
        progress=bare(Progress, reported_at=ago(seconds=1), **said) if said else None,
    )
    return made


def minutes(*completed: int) -> Sequence[Minute]:
    """Minutes up to this one, with so many completed leases."""
    return [
        bare(
            Minute,
            minute=ago(minutes=len(completed) - number),
            claims=many,
            completed=many,
            failed=2,
            cancelled=0,
            retried=1,
            expired=0,
        )
        for number, many in enumerate(completed, start=1)
    ]


def reading(**facts: Any) -> Reading:
    """A cluster with something of everything."""
    busy = {"cpu_used": 6500, "memory_used": 32 * 1024, "gpu_milli_used": 1500, "claims": 3}
    whole: dict[str, Any] = {
        "at": NOW,
        "queues": [
            queue("mail", pending=4, running=1, oldest_at=ago(seconds=8)),
            queue("renders", pending=1204, running=3, scheduled=33, oldest_at=ago(minutes=12)),
            queue("reports", paused_at=ago(hours=3)),
        ],
        "pending": [
            pending(7, "gpu_model in H100, 8 GPU", pending=412, nodes_matching=0, nodes_free=0),
            pending(9, "2 GPU, away from db", pending=80, nodes_free=0, oldest_at=ago(minutes=2)),
            pending(3, "zone in a", pending=712, oldest_at=ago(seconds=50)),
        ],
        "nodes": [
            node(1, **busy),
            node(2, claims=1, cpu_used=500),
            node(3, state="silent", live=False, seen_at=ago(minutes=9)),
        ],
        "events": [
            event(1, "queue_paused", "queue reports was paused", queue="reports"),
            event(2, "node_silent", "node-3 is silent", node_id=UUID(int=3), actor="reap"),
        ],
        "running": [
            running(1, "draw", fraction=0.4, done=40, total=100, message="frame 40"),
            running(2, "mail", message="connects"),
            running(3, "resize"),
        ],
        "minutes": minutes(0, 10, 40, 80, 20),
    }
    return Reading(**(whole | facts))
