"""Tasks by name: the decorator that makes a function a handler, and what a handler may raise."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Unpack, get_args, overload

from hwqueue.client import AsyncClient, Client
from hwqueue.client._arguments import check_span
from hwqueue.errors import ConfigError
from hwqueue.handler.binding import BadParams, Binding, Handler
from hwqueue.handler.context import Cancelled
from hwqueue.handler.hooks import Hooks
from hwqueue.handler.middleware import Function, Middleware
from hwqueue.handler.task import Limits, ParamsTask, Task, TaskDecorator, TaskDefaults, limits_of
from hwqueue.logs import LogLevel
from hwqueue.options import check_options
from hwqueue.types import AsJson, RetryPolicy, SyncedSchedule, Timing
from hwqueue.workflow.definition import WorkflowOptions
from hwqueue.workflow.flow import Flow

__all__ = [
    "App",
    "BadParams",
    "Cancelled",
    "CommandFailed",
    "Handler",
    "ParamsTask",
    "Reject",
    "Retry",
    "Snooze",
    "Task",
    "TaskDefaults",
    "Throttled",
]

Exceptions = type[BaseException] | tuple[type[BaseException], ...]

_LONGEST = timedelta(days=3650)


class _Again(Exception):
    """Says when its handler runs again."""

    ends_attempt = True  # of `hwqueue.handler.retrying`: no call of a step is made again for it
    after: timedelta | None = None
    at: datetime | None = None

    def __init__(self, name: str, message: str, after: timedelta | None, at: datetime | None) -> None:
        super().__init__(message)
        _check_times(name, message, after, at)
        self.after = after
        self.at = at


class Retry(_Again):
    """Raised by a handler: this attempt failed, try again at a time of the handler's choosing.

    Uses up an attempt like any failure; with none left the lease is dead.

    Args:
        message: What happened; kept with the attempt.
        after: Wait before the next attempt, by the database's clock, at most 3650 days. With
            neither `after` nor `at`, the lease's own retry policy decides.
        at: Time of the next attempt, with a time zone. Excludes `after`.

    Raises:
        ConfigError: Both, `after` is no timedelta, `at` has no time zone, or it is out of range.
    """

    def __init__(
        self, message: str = "", *, after: timedelta | None = None, at: datetime | None = None
    ) -> None:
        super().__init__("Retry", message, after, at)
        if after is not None and at is not None:
            raise ConfigError("Retry takes after or at, not both")
        if after is not None and not timedelta(0) <= after <= _LONGEST:
            raise ConfigError(f"Retry: after is from zero to 3650 days, not {after}")


class Reject(Exception):
    """Raised by a handler: the lease can never succeed. It is dead at once, without retries."""

    ends_attempt = True


class CommandFailed(Exception):
    """A command of `hwqueue run` has failed; its attempt fails with `exit_status` in the error.

    Attributes:
        exit_status: From 1 to 255: of the command; 128 and a signal's number if that killed it, 124
            if it ran too long, 126 or 127 if it could not be started.
    """

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message, exit_status)
        self.exit_status = exit_status

    def __str__(self) -> str:
        return str(self.args[0])


class Snooze(_Again):
    """Raised by a handler: not now. The lease goes back and is available later.

    No attempt is used up. How often a lease is put off has no bound but its deadline: one that is
    not claimed again by then fails when it passes, with the event
    `lease_deadline_exceeded`.

    Args:
        after: Wait, more than zero and at most 3650 days.
        at: Time when it is available, with a time zone. Excludes `after`.
        message: Why; for the worker's log.

    Raises:
        ConfigError: Not one of `after` and `at`, `after` is no timedelta, or out of range.
    """

    def __init__(
        self, message: str = "", *, after: timedelta | None = None, at: datetime | None = None
    ) -> None:
        super().__init__("Snooze", message, after, at)
        if (after is None) == (at is None):
            raise ConfigError("Snooze takes after or at, one of them")
        if after is not None and not timedelta(0) < after <= _LONGEST:
            raise ConfigError(f"Snooze: after is more than zero and at most 3650 days, not {after}")


class Throttled(Exception):
    """Raised by a handler: the service behind a limit has had enough, as a 429 says.

    The limit lets no lease start for a while, and this one waits with the others; no attempt is
    used up. Of a limit by key that is the key of this lease.

    Args:
        limit: The name of one that the lease has.
        retry_after: Seconds, or a span, at most ten years.
        message: Why; for the worker's log.

    Raises:
        ConfigError: `retry_after` is none of these, or out of range.
    """

    ends_attempt = True

    def __init__(self, limit: str, retry_after: float | timedelta, message: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        is_number = isinstance(retry_after, int | float) and not isinstance(retry_after, bool)
        if not isinstance(retry_after, timedelta):
            if not (is_number and 0 <= retry_after <= _LONGEST.total_seconds()):
                raise ConfigError(
                    f"Throttled: retry_after is seconds or a timedelta, not {retry_after!r:.60}"
                )
            retry_after = timedelta(seconds=retry_after)
        if not timedelta(0) <= retry_after <= _LONGEST:
            raise ConfigError(f"Throttled: retry_after is from zero to 3650 days, not {retry_after}")
        self.retry_after = retry_after


class App(Hooks):
    """The tasks that a worker can run.

    Attributes:
        keep_logs: As given.
        child_import: `module:name` of this app, which a child process imports for a handler that
            runs in one. None: it imports the handler's module alone.

    Example:
        app = hwqueue.App()

        @app.task("send-email")
        async def send_email(to: str, subject: str) -> None: ...

        await send_email.spawn(client, to="ann@example.org", subject="hello")

    Args:
        keep_logs: Records of Python's `logging` that handlers make, from this level on, are kept
            with the attempt like lines of `context.log`, as far as the worker's log level lets them
            through. None: none are.

    Raises:
        ConfigError: There is no such level.
    """

    def __init__(self, *, keep_logs: LogLevel | None = None) -> None:
        super().__init__()
        self.child_import: str | None = None
        if keep_logs not in (None, *get_args(LogLevel)):
            raise ConfigError(f"keep_logs must be one of {', '.join(get_args(LogLevel))}, not {keep_logs!r}")
        self.keep_logs = keep_logs
        self._tasks: dict[str, Task[..., Any]] = {}
        self._included: dict[str, App] = {}
        self._workflows: dict[str, Flow] = {}
        self._middleware = Middleware()

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, read-only."""
        return MappingProxyType(self._tasks)

    @property
    def workflows(self) -> Mapping[str, Flow]:
        """The workflows by name, read-only."""
        return MappingProxyType(self._workflows)

    def workflow(
        self, name: str, *, schedule: Timing | None = None, **options: Unpack[WorkflowOptions]
    ) -> Flow:
        """A workflow whose steps are functions: `@flow.step(after=[prepare])` adds one.

        Its steps are tasks of this app. `flow.workflow.define(client)` defines it, as at a
        deployment; a worker does not.

        Args:
            schedule: `hwqueue.cron(...)` or `hwqueue.every(...)`: a run is submitted at these times
                once the workflow is defined and `sync_schedules` has told the database.
            **options: See `hwqueue.Workflow`.

        Raises:
            ConfigError: This app has a workflow of that name, or the schedule is none.
        """
        if name in self._workflows:
            raise ConfigError(f"workflow {name!r} is defined twice in this app")
        _check_schedule(f"workflow {name!r}", schedule)
        self._workflows[name] = Flow(name, self.task, schedule=schedule, **options)
        return self._workflows[name]

    def include(self, other: App) -> None:
        """Let workers of this app also run the tasks of another one, with the other's middleware.

        Its workflows are this app's, too.

        Raises:
            ConfigError: Both have a task or a workflow of the same name.
        """
        for name in other.workflows:
            if name in self._workflows:
                raise ConfigError(f"workflow {name!r} is defined twice in this app")
        for name in other.tasks:
            if name in self._tasks:
                raise ConfigError(f"task {name!r} is defined twice in this app")
        self._included |= dict.fromkeys(other.tasks, other)
        self._tasks |= other.tasks
        self._workflows |= other.workflows

    def child_import_of(self, task: str) -> str | None:
        """What a child process imports for the handler of a task: `child_import` of its app."""
        return self._included.get(task, self).child_import

    def middleware(self, function: Function) -> Function:
        """Call every handler through `function(call_next, context)`; usable as a decorator.

        `call_next(context)` calls the next middleware, at the end the handler, and returns the
        handler's result; what the handler raises comes out of it. The function returns the result,
        its own or another one. `call_next(context.with_params(params))` replaces the params.

        An async function is for async handlers, and awaits `call_next`; a sync one is for sync
        handlers, in their thread or process. The first that was added is the outermost. It counts
        for all tasks of the app, whichever was defined first. For handlers in child processes add
        it where the handler's module is imported, too: in the module that defines the app, say.

        Raises:
            ConfigError: It does not take two arguments.
        """
        return self._middleware.add(function)

    def task(
        self,
        name: str,
        *,
        queue: str = "default",
        max_attempts: int | None = None,
        placement: AsJson | Mapping[str, Any] | None = None,
        affinity_tags: Mapping[str, Any] | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        retry_on: Exceptions | None = None,
        no_retry_on: Exceptions = (),
        claim_timeout: timedelta | None = None,
        patience: timedelta | None = None,
        max_run: timedelta | None = None,
        process: bool = False,
        timeout: timedelta | None = None,
        schedule: Timing | None = None,
        limits: Limits = (),
    ) -> TaskDecorator:
        """Make a function the handler of `name`.

        The function takes arguments by name, `(frame: int, scene: str)`, or the params as a whole:
        `(params)`, `(params, context)`, or one parameter annotated as a mapping. A parameter
        annotated `LeaseContext` or `AsyncLeaseContext` is given the context, and `Depends` injects
        the rest. Arguments may be JSON, dataclasses, enums, times, UUIDs and pydantic models. What
        the function returns, as JSON, completes the lease; what it raises fails it. An async
        function runs in the worker's event loop, a sync one in a thread, and with `process` either
        in a child process that sees only the CPUs and GPUs that the lease was given.

        What is said here of leases are defaults: `Task.with_options` and the options of a spawn
        win over them. `Task.spawn` uses them. SQL, HTTP, the command line and `spawn_lease` do once
        the database knows them: `hwqueue task sync` sets all but `queue` and `timeout`. The worker
        warns of leases without them.

        Args:
            name: What leases call the task; unique in the app.
            queue: Where `Task.spawn` puts its leases.
            max_attempts: None: the queue's.
            placement: A `Placement` or the same as a mapping; None: any node.
            affinity_tags: Node labels must contain them; ANDed with `placement`.
            priority: -32768..32767, higher runs first; None: 0.
            labels: Of the leases, text to text.
            retry: When a failed attempt is followed by another one; None: as the queue says.
            retry_on: Exceptions after which a lease is tried again; any other one is for good.
                None: all. `Retry`, `Reject`, timeouts and processes that died are not asked about.
            no_retry_on: Exceptions that are for good; they win over `retry_on`.
            claim_timeout: A claim without heartbeat ends after it; None: the queue's.
            patience: How long a lease waits for a better node, at most; None: the queue's.
            max_run: How long a lease may run; then it is asked to stop, and its attempt fails. The
                database knows it: room that it uses is free by then. None: as long as it takes.
            process: Run each lease in a child process. Needed to stop a sync handler that does
                not look at `context.cancelled`. The function must be at the top of its module.
            timeout: Longest run, more than zero; then the attempt fails. A sync handler in a
                thread is only asked to stop: it goes on beside the next attempt, and holds its slot
                until it returns. One in a process is killed.
            schedule: `hwqueue.cron(...)` or `hwqueue.every(...)`: a lease is spawned at these times
                once `sync_schedules` has told the database.
            limits: Names of limits, and `Keyed("per_user", "user_id")` of those by key: leases that
                `Task.spawn` and the schedule spawn have them. `hwqueue task sync` does not set
                them: the policy of a queue says what all of its leases have.

        Raises:
            ConfigError: The name is taken, an option is of the wrong type, or the function cannot
                be a handler.
        """
        if not isinstance(name, str):
            raise ConfigError(
                f"a task's name must be a str, not {name!r:.60}", hint='name it: @app.task("draw")'
            )
        defaults = TaskDefaults(
            queue=queue,
            max_attempts=max_attempts,
            placement=placement,
            affinity_tags=affinity_tags,
            priority=priority,
            labels=labels,
            retry=retry,
            claim_timeout=claim_timeout,
            patience=patience,
            max_run=max_run,
            timeout=timeout,
        )
        _check_schedule(f"task {name!r}", schedule)
        wanted = limits_of(limits, name)
        timed = {**defaults.options(), "timeout": timeout}
        check_options(timed, ConfigError, f"task {name!r}: ")
        only = None if retry_on is None else _exceptions(name, retry_on)
        never = _exceptions(name, no_retry_on)

        def register(handler: Handler) -> Any:
            self._refuse(name, handler, process, timeout)
            is_async = inspect.iscoroutinefunction(handler)
            binding = Binding.of(name, handler, is_async=is_async)
            kind = Task if binding.whole is None else ParamsTask
            task: Task[..., Any] = kind(
                name=name,
                handler=handler,
                binding=binding,
                defaults=defaults,
                process=process,
                is_async=is_async,
                retry_on=only,
                no_retry_on=never,
                middleware=self._middleware,
                schedule=schedule,
                limits=wanted,
            )
            self._tasks[name] = task
            return task

        return register

    @overload
    def sync_schedules(
        self, client: AsyncClient, *, origin: str
    ) -> Coroutine[Any, Any, list[SyncedSchedule]]: ...

    @overload
    def sync_schedules(self, client: Client, *, origin: str) -> list[SyncedSchedule]: ...

    def sync_schedules(
        self, client: AsyncClient | Client, *, origin: str
    ) -> Coroutine[Any, Any, list[SyncedSchedule]] | list[SyncedSchedule]:
        """Make the schedules of an origin those of this app's tasks and workflows, named as these.

        As at a deployment, with a login of an admin: `hwqueue schedule sync` does the same. What
        this origin declared before and the app has no more is dropped; what others declare, or
        people made, stays, and what is paused stays so.

        Args:
            client: An `AsyncClient` (then await the result) or a `Client`.
            origin: Whose they are, such as the name of the app.

        Returns: What became of each.
        Raises: ScheduleExists, ScheduleInvalid, ConfigError; as spawn_lease or submit_workflow.
        SQL: sync_schedules. Safe inside your transaction: yes.
        """
        return client.sync_schedules(origin, self.schedules)

    @property
    def schedules(self) -> dict[str, dict[str, Any]]:
        """The specifications of the schedules of its tasks and workflows, by their names.

        Raises: ConfigError, if a task and a workflow that have one have the same name.
        """
        specs = {name: task.schedule_spec() for name, task in self._tasks.items()}
        found = {name: spec for name, spec in specs.items() if spec is not None}
        for name, flow in self._workflows.items():
            if flow.schedule is not None:
                if name in found:
                    raise ConfigError(f"{name!r} is the schedule of a task and of a workflow of this app")
                found[name] = flow.schedule.of_workflow(name)
        return found

    def _refuse(self, name: str, handler: Handler, process: bool, timeout: timedelta | None) -> None:
        """Refuse what cannot be a task. Raises: ConfigError."""
        known = self._tasks.get(name)
        if known is not None and not _imported_again(known.handler, handler):
            raise ConfigError(f"task {name!r} is defined twice in this app")
        if timeout is not None and timeout <= timedelta(0):
            raise ConfigError(f"task {name!r}: timeout must be more than zero, not {timeout}")
        if process and "<locals>" in handler.__qualname__:
            raise ConfigError(
                f"task {name!r}: a handler that runs in a process must be at the top of its "
                f"module, or the child cannot import it; {handler.__qualname__} is not"
            )


def _check_schedule(what: str, schedule: object) -> None:
    if not isinstance(schedule, Timing | None):
        raise ConfigError(f"{what}: schedule must be cron(...) or every(...), not {schedule!r:.60}")
    for span in ("every", "missed_window", "jitter"):
        check_span(getattr(schedule, span, None), span, ConfigError, f"{what}: schedule: ")


def _imported_again(known: Handler, handler: Handler) -> bool:
    """Whether a module is run a second time, after its first import has failed half-way.

    Python forgets such a module, and runs it again for the next import. That one is to fail for the
    same reason as the first, and not because of the tasks above it.
    """
    before, now = inspect.unwrap(known), inspect.unwrap(handler)
    same = all(
        getattr(before, name, None) == getattr(now, name, None) for name in ("__module__", "__qualname__")
    )
    spaces = [getattr(one, "__globals__", None) for one in (before, now)]
    return same and None not in spaces and spaces[0] is not spaces[1]


def _check_times(name: str, message: object, after: object, at: object) -> None:
    """Refuse a span that is a plain number, or was taken for the message, and what is no time.

    A worker could not settle the lease with it. Raises: ConfigError.
    """
    if not isinstance(message, str):
        raise ConfigError(
            f"{name}: message must be text, not {message!r}",
            hint=f"name the span: {name}(after=timedelta(seconds=5))",
        )
    check_span(after, "after", ConfigError, f"{name}: ")
    if at is None:
        return
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigError(f"{name} needs a time with a time zone: at=datetime.now(UTC) + ..., not {at!r:.60}")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise ConfigError(f"{name}: at is in a year from 1 to 9999 in UTC, not {at}") from None


def _exceptions(name: str, given: Exceptions) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError(f"task {name!r}: {kind} is no exception to retry on")
    return kinds
