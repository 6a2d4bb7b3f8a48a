"""A backend of Django's tasks: `TASKS = {"default": {"BACKEND": ".tasks.HwqueueBackend"}}`.

With Django before 6.0 the tasks are those of the package `django-tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string

from hwqueue.client._json import given
from hwqueue.contrib.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from hwqueue.contrib.django.connecting import client, savepoint
from hwqueue.contrib.django.results import result_of
from hwqueue.errors import ConfigError, LeaseNotFound
from hwqueue.handler.context import LeaseContext
from hwqueue.options import check_options
from hwqueue.types import AsJson, Json, RetryPolicy, SpawnOptions, Unique

AnyTask = TypeVar("AnyTask", bound=Any)

_OF_ALL = (
    "placement",
    "affinity_tags",
    "labels",
    "max_attempts",
    "retry",
    "claim_timeout",
    "patience",
    "max_run",
)
_OF_WORKERS = ("process", "timeout")
_OF_LEASES = (*_OF_ALL, "deadline", "idempotency_key", "unique", "headers")
DEFAULTS = (*_OF_ALL, *_OF_WORKERS)
"""What `OPTIONS` may hold, and `App.task`: what makes sense for all leases of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HwqueueTask(Task):
    """A task of Django with what hwqueue knows beyond it; None: as `OPTIONS` and the queue say.

    Each of these is an argument of `using`. `with_options` sets them where a task is defined, and
    so does `@task(...)` from Django 6.1 on and with `django-tasks`. Of leases they are as in
    `hwqueue.types.SpawnOptions`, `process` and `timeout` as in `hwqueue.App.task`.
    """

    placement: AsJson | Mapping[str, Any] | None = field(default=None, hash=False)
    affinity_tags: Mapping[str, Any] | None = field(default=None, hash=False)
    labels: Mapping[str, str] | None = field(default=None, hash=False)
    max_attempts: int | None = None
    retry: RetryPolicy | Mapping[str, Any] | None = field(default=None, hash=False)
    claim_timeout: timedelta | None = None
    patience: timedelta | None = None
    max_run: timedelta | None = None
    deadline: datetime | None = None
    idempotency_key: str | None = None
    unique: Unique | Mapping[str, Any] | None = field(default=None, hash=False)
    headers: Mapping[str, Any] | None = field(default=None, hash=False)
    process: bool | None = None
    timeout: timedelta | None = None

    def using(self, **changes: Any) -> HwqueueTask:
        """The same task with other options; what is None stays as it is.

        Raises: InvalidTask: an option is of the wrong type. TypeError: there is no such option.
        """
        return replace(self, **given(changes))

    @property
    def own_options(self) -> dict[str, Any]:
        """What it says beyond Django's own options."""
        named = {name: getattr(self, name) for name in (*_OF_LEASES, *_OF_WORKERS)}
        return given(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class HwqueueTaskContext(TaskContext):  # type: ignore[misc]  # its stub says not frozen
    """What a task with `takes_context` is given.

    Attributes:
        lease: For progress, cancellation, the GPUs that were set aside, and the like.
    """

    lease: LeaseContext


def with_options(**options: Any) -> Callable[[AnyTask], AnyTask]:
    """A decorator above `@task` for what Django has no argument for.

    Example:
        @with_options(placement=hwqueue.Placement().resources(gpu=1), process=True)
        @task(queue_name="renders")
        def render(frame: int) -> str: ...

    Args:
        **options: As for `HwqueueTask.using`.
    """

    def decorate(task: AnyTask) -> AnyTask:
        if not isinstance(task, HwqueueTask):
            raise ConfigError(
                f"with_options: {task!r} is no task of a backend of hwqueue",
                hint="write it above @task(...), for a backend whose BACKEND is HwqueueBackend",
            )
        return cast("AnyTask", task.using(**options))

    return decorate


class HwqueueBackend(BaseTaskBackend):
    """Puts Django's tasks into queues of hwqueue, in the transaction in which they are enqueued.

    The name of a lease's task is the path of the function; its params are `args` and `kwargs`.

    Args:
        params: An entry of `TASKS`. `OPTIONS` holds defaults of all tasks: placement,
            affinity_tags, labels, max_attempts, retry, claim_timeout, patience, max_run, process,
            timeout.
    """

    task_class = HwqueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    paths: set[str] = set()  # noqa: RUF012 - of all tasks that were made; workers look them up

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - set(DEFAULTS))
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS'] has no key {unknown[0]!r}: it has {', '.join(DEFAULTS)}"
            )

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot be enqueued. Raises: InvalidTask."""
        super().validate_task(task)
        try:
            check_options(self.options_of(task), ConfigError, f"task {task.module_path}: ")
        except ConfigError as error:
            raise InvalidTask(str(error)) from error
        self.paths.add(task.module_path)

    def options_of(self, task: Any) -> dict[str, Any]:
        """The options of a task, those of `OPTIONS` included."""
        return {**self.options, **task.own_options}

    def enqueue(  # type: ignore[override]  # generic in its stub
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult:
        """Spawn a lease on Django's connection: it exists when its transaction commits.

        Raises: as `hwqueue.Client.spawn_lease`.
        """
        self.validate_task(task)
        # read back what it holds, as workers will: this refuses what has no JSON form
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        spawned = client().spawn_lease(
            task.queue_name,
            task.module_path,
            cast("Json", {"args": result.args, "kwargs": result.kwargs}),
            **self._spawn_options(task),
        )
        object.__setattr__(result, "id", str(spawned.lease_id))
        if not spawned.created:  # another one has its key
            return self.get_result(result.id)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The lease as Django sees it. Raises: TaskResultDoesNotExist."""
        try:
            with savepoint():  # a caller's transaction outlives the answer that there is none
                lease = client().get_lease(UUID(str(result_id)))
            return result_of(lease, task_of(lease.task_name), self.alias)
        except (ValueError, LeaseNotFound, LookupError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def check(self, **_: Any) -> list[CheckMessage]:
        """Whether the app of the queue is installed, which makes the schema."""
        if apps.is_installed("hwqueue.contrib.django"):
            return []
        hint = "put it into INSTALLED_APPS"
        said = f"TASKS[{self.alias!r}] needs the app hwqueue.contrib.django"
        return [Error(said, hint=hint, id="hwqueue.E003")]

    def _spawn_options(self, task: Any) -> SpawnOptions:
        options = {name: each for name, each in self.options_of(task).items() if name in _OF_LEASES}
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        return cast("SpawnOptions", {**options, "priority": task.priority, "available_at": at})


def task_of(path: str) -> HwqueueTask:
    """The task of a backend of hwqueue at a path. Raises: LookupError: there is none."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise LookupError(f"no task is at {path}") from error
    if not isinstance(found, HwqueueTask):
        raise LookupError(f"{path} is a {type(found).__name__}, no task of a backend of hwqueue")
    return found


def backends() -> list[HwqueueBackend]:
    """Those of `TASKS` that are of hwqueue."""
    return [each for each in task_backends.all() if isinstance(each, HwqueueBackend)]
