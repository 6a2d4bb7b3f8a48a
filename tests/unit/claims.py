"""A claim for tests of what a worker does with one."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from hwqueue.types import Assignment, Claim


def claim(
    task: str, params: Any = None, assignment: Assignment | None = None, *, attempt: int = 2
) -> Claim:
    """A claim of a lease of this task."""
    return Claim(
        lease_id=uuid4(),
        claim_token=7,
        attempt=attempt,
        queue="default",
        task_name=task,
        params=params,
        headers=None,
        score=0.0,
        expires_at=datetime.now(UTC),
        assignment=assignment,
        shard_id=0,
    )
