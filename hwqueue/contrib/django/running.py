"""Tasks of Django in a worker: each is a task of the app, named by the path of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from hwqueue.app import App
from hwqueue.contrib.django.compat import TaskResult, task_finished, task_started
from hwqueue.contrib.django.connecting import client, close_old_connections
from hwqueue.contrib.django.results import result_of, set_successful
from hwqueue.contrib.django.tasks import DEFAULTS, HwqueueBackend, HwqueueTask, HwqueueTaskContext, task_of
from hwqueue.convert import jsonable
from hwqueue.errors import BadArgument, LeaseNotFound
from hwqueue.handler.context import LeaseContext
from hwqueue.types import Claim


def add_tasks(app: App) -> None:
    """Add the tasks of Django that the imported modules define, and tell Django of their ends.

    A path that the app has a task of is left to it.
    """
    names = set()
    for path, task in _defined():
        if path in app.tasks:
            continue
        options = cast("HwqueueBackend", task.get_backend()).options_of(task)
        app.task(
            path,
            queue=task.queue_name,
            priority=task.priority or None,
            **{name: options[name] for name in DEFAULTS if name in options},
        )(_handler(task))
        names.add(path)

    def tell_finished(claim: Claim, _error: Mapping[str, Any]) -> None:
        if claim.task_name in names:
            _tell_failed(claim)

    if names:
        app.on_dead(tell_finished)


def _defined() -> Iterator[tuple[str, HwqueueTask]]:
    """The tasks that can be found by their paths, without copies that `using` has made."""
    for path in sorted(HwqueueBackend.paths):
        try:
            yield path, task_of(path)
        except LookupError:
            continue  # decorated by something else, or removed


def _handler(task: HwqueueTask) -> Callable[..., Any]:
    """What the worker calls, in a thread of its own.

    A coroutine function gets a loop in that thread, as Django does it. In the worker's own loop the
    database access of all tasks would wait for the one thread of `sync_to_async`.
    """

    def run(params: Mapping[str, Any], context: LeaseContext) -> Any:
        result = _begin(task, context.claim)
        told = [HwqueueTaskContext(task_result=result, lease=context)] if task.takes_context else []
        value = task.call(*told, *params["args"], **params["kwargs"])
        _tell_returned(result, value)
        return value

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(run, name, getattr(task.func, name))
    return run


def _begin(task: HwqueueTask, claim: Claim) -> TaskResult:
    """The result of a task that begins to run; it holds what came before, so the lease is read."""
    result = result_of(client().get_lease(claim.lease_id), task, task.backend)
    task_started.send(type(task.get_backend()), task_result=result)
    return result


def _tell_returned(result: TaskResult, value: Any) -> None:
    """Tell that a task is done, just before its lease completes."""
    try:
        set_successful(result, jsonable(value, "result"))
    except BadArgument:
        return  # its lease fails for it
    task_finished.send(type(result.task.get_backend()), task_result=result)


def _tell_failed(claim: Claim) -> None:
    """Tell that a lease is dead, after that was committed."""
    close_old_connections()
    try:
        task = task_of(claim.task_name)
        result = result_of(client().get_lease(claim.lease_id), task, task.backend)
    except LeaseNotFound:
        return  # the queue keeps no failed leases
    finally:
        close_old_connections()
    task_finished.send(type(task.get_backend()), task_result=result)
