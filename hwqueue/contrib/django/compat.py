"""Django's tasks: `django.tasks` from Django 6.0 on, before that the package `django-tasks`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import django

_BUILT_IN = django.VERSION >= (6, 0)


def has_tasks() -> bool:
    """Whether this project can have tasks of Django."""
    return _BUILT_IN or find_spec("django_tasks") is not None


if TYPE_CHECKING:
    from typing import Any

    from django.tasks import base, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started

    # generic for type checkers, and not at run time in Django 6.0
    Task = base.Task[..., Any]
    TaskContext = base.TaskContext[..., Any]
    TaskResult = base.TaskResult[..., Any]
elif _BUILT_IN:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
elif has_tasks():
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "has_tasks",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
