"""Claims and leases for tests of what is done with one."""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

from hwqueue.app import App
from hwqueue.types import Assignment, Claim, Lease, LeaseState
from hwqueue.worker.runner import Runner
from hwqueue.worker.settings import WorkerSettings


def claim(task: str, params: Any = None, assignment: Assignment | None = None, *, attempt: int = 2) -> Claim:
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
    )


def bare(kind: Any, /, **said: Any) -> Any:
    """A row of which nothing else is known: what is not said is None."""
    return kind(**{**dict.fromkeys(field.name for field in fields(kind)), **said})


def lease(task: str, *, state: LeaseState, result: Any = None) -> Lease:
    """A lease that has ended; what is not given is None."""
    found: Lease = bare(Lease, lease_id=uuid4(), task_name=task, state=state, result=result)
    return found


async def unanswered(_claim: Claim, call: str, _arguments: Mapping[str, Any]) -> Any:
    """Answers no call of a handler."""
    raise AssertionError(call)


def make_runner(app: App, *, ask: Any = unanswered, **settings: Any) -> Runner:
    """A runner without a database: what handlers ask goes to `ask`, what they say nowhere."""
    session = Mock(ask=ask, in_doubt=False)
    told = WorkerSettings(**{"concurrency": 1, "cancel_grace": timedelta(seconds=1), **settings})
    return Runner(app, told, session, now=asyncio.Event(), gpu_names=())
