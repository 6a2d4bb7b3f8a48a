"""A lease as Django's tasks see it."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from hwqueue.contrib.django.compat import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from hwqueue.error_text import error_line
from hwqueue.types import Json, Lease, LeaseState

_STATUS = {
    LeaseState.SCHEDULED: TaskResultStatus.READY,
    LeaseState.PENDING: TaskResultStatus.READY,
    LeaseState.CLAIMED: TaskResultStatus.RUNNING,
    LeaseState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    LeaseState.FAILED: TaskResultStatus.FAILED,
    LeaseState.CANCELLED: TaskResultStatus.FAILED,
}
_OF_WORKERS = {"Timeout": "builtins.TimeoutError", "BadParams": "hwqueue.app.BadParams"}
_NOT_TRIED = "released"


def result_of(lease: Lease, task: Task, alias: str) -> TaskResult:
    """What is known about a lease of a task. Raises: LookupError: its params are not a task's."""
    params = lease.params
    if not isinstance(params, Mapping):
        raise LookupError(f"lease {lease.lease_id}: its params are no arguments of a task")
    began = [each.claimed_at for each in lease.attempts if each.outcome != _NOT_TRIED]
    result = TaskResult(
        task=_as_spawned(task, lease),
        id=str(lease.lease_id),
        status=_STATUS[lease.state],
        enqueued_at=_local(lease.created_at),
        started_at=_local(min(began, default=lease.claimed_at)),
        finished_at=_local(lease.finished_at),
        last_attempted_at=_local(lease.claimed_at),
        args=list(params.get("args", ())),
        kwargs=dict(params.get("kwargs", {})),
        backend=alias,
        errors=list(_errors(lease)),
        worker_ids=list(_workers(lease)),
    )
    object.__setattr__(result, "_return_value", lease.result)
    return result


def _as_spawned(task: Task, lease: Lease) -> Task:
    """The task with the queue, the priority and the time of the lease."""
    due = lease.available_at
    later = due is not None and due > lease.created_at and not lease.attempts
    try:
        return task.using(
            queue_name=lease.queue, priority=lease.priority, run_after=_local(due) if due and later else None
        )
    except InvalidTask:  # an operator has given it a priority that Django has not, say
        return task


def _workers(lease: Lease) -> Iterator[str]:
    """The nodes of the attempts, the present one included."""
    yield from (str(each.node_id) for each in lease.attempts if each.outcome != _NOT_TRIED)
    if lease.state in (LeaseState.CLAIMED, LeaseState.COMPLETED) and lease.node_id is not None:
        yield str(lease.node_id)


def _errors(lease: Lease) -> Iterator[TaskError]:
    """What became of the attempts that failed; of a lease that ended without one, why."""
    said = False
    for each in lease.attempts:
        if each.outcome not in (_NOT_TRIED, "cancelled"):
            said = True
            yield _error(each.error, f"attempt {each.attempt} {each.outcome} on {each.node_id}")
    if lease.state is LeaseState.CANCELLED:
        yield TaskError(exception_class_path="hwqueue.errors.LeaseCancelled", traceback="it was cancelled")
    elif lease.state is LeaseState.FAILED and not said:
        yield _error(lease.error, "it failed without an attempt")


def _error(error: Json, otherwise: str) -> TaskError:
    """An error that a worker or the database has told."""
    told = error if isinstance(error, Mapping) else {}
    kind = str(told.get("type", ""))
    message = str(told.get("message") or error_line(error) or otherwise)
    trace = told.get("traceback")
    return TaskError(
        exception_class_path=_class_path(kind),
        traceback=str(trace) if trace else f"{kind}: {message}" if kind else message,
    )


def _class_path(kind: str) -> str:
    """Where the class of an error can be imported from."""
    if "." in kind:
        return kind
    if isinstance(getattr(builtins, kind, None), type):
        return f"builtins.{kind}"
    return _OF_WORKERS.get(kind, "hwqueue.errors.LeaseFailed")


def _local(at: datetime | None) -> datetime | None:
    """A time as the project has them."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def set_successful(result: TaskResult, value: Any) -> None:
    """Note in a result that its task has returned a value."""
    for name, each in (
        ("status", TaskResultStatus.SUCCESSFUL),
        ("finished_at", timezone.now()),
        ("_return_value", value),
    ):
        object.__setattr__(result, name, each)
