"""Tasks of the queue, and tasks of Django."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import sync_to_async
from django.db import connection
from django.dispatch import receiver

from hwqueue import Placement, Reject, label
from hwqueue.contrib.django import app
from hwqueue.contrib.django.tasks import with_options
from tests.django_shop.orders.models import Order

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import task
    from django.tasks.signals import task_finished
else:
    from django_tasks import task
    from django_tasks.signals import task_finished


@receiver(task_finished)
def note_failure(task_result: Any, **_: Any) -> None:
    """Leave an order for each task that has failed for good."""
    if task_result.status == "FAILED":
        Order.objects.create(item=f"{task_result.task.name} failed")


@app.task("confirm-order", queue="mail")
def confirm_order(order_id: int) -> str:
    """Confirm an order."""
    Order.objects.filter(pk=order_id).update(confirmed=True)
    return "confirmed"


@app.task("backend-pid", queue="mail")
def backend_pid() -> int:
    """The session that Django has in this thread."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


@app.task("backend-pid-async", queue="mail")
async def backend_pid_async() -> int:
    """That of the thread for database access from async code."""
    return await sync_to_async(backend_pid.handler)()


@app.task("count-in-process", queue="mail", process=True)
def count_in_process() -> int:
    """A query in a child process, which has to set up Django for it."""
    return Order.objects.count()


@task
def add(one: int, other: int = 1) -> int:
    """A plain task."""
    return one + other


@task
async def add_async(one: int, other: int) -> int:
    """A task that is a coroutine function, and uses the database."""
    return one + other + await sync_to_async(Order.objects.count)()


@task(queue_name="renders", priority=7, takes_context=True)
def attempts(context: Any, fail_until: int) -> list[Any]:
    """Fails until an attempt; then who ran it, and what the lease says."""
    if context.attempt < fail_until:
        raise LookupError(f"attempt {context.attempt}")
    context.lease.progress(0.5)
    return [context.attempt, len(context.task_result.worker_ids), context.lease.attempt]


@task
def reject() -> None:
    """Fails for good."""
    raise Reject("never")


@task
def unstorable() -> object:
    """Returns what has no JSON form."""
    return object()


@with_options(placement=Placement().require(label("gpu") == "true"), max_attempts=1)
@task(queue_name="renders")
def render(frame: int) -> str:
    """For nodes with a GPU."""
    return f"frame {frame}"


@with_options(process=True)
@task
def in_process() -> list[int]:
    """Runs in a child process; the ids of both."""
    return [os.getpid(), os.getppid(), Order.objects.count()]
