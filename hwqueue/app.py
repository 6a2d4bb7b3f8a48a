"""Tasks by name: the decorator that makes a function a handler, and what a handler may raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Unpack, overload

from hwqueue.client import AsyncClient, Client
from hwqueue.errors import ConfigError
from hwqueue.types import AsJson, Json, SpawnOptions, SpawnResult

Handler = Callable[..., Any]


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again at a time of the handler's choosing.

    Uses up an attempt like any failure; with none left the lease is dead.

    Args:
        message: What happened; kept with the attempt.
        after: Wait before the next attempt. With neither `after` nor `at`, the lease's own retry
            policy decides.
        at: Time of the next attempt, with a time zone. Excludes `after`.
    """

    def __init__(
        self, message: str = "", *, after: timedelta | None = None, at: datetime | None = None
    ) -> None:
        super().__init__(message)
        if after is not None and at is not None:
            raise ConfigError("Retry takes after or at, not both")
        if at is not None and at.tzinfo is None:
            raise ConfigError("Retry needs a time zone: at=datetime.now(UTC) + ...")
        self.after = after
        self.at = at


class Reject(Exception):
    """Raised by a handler: the lease can never succeed. It is dead at once, without retries."""


class Cancelled(BaseException):
    """Raised inside a sync handler that is asked to stop (async ones get `CancelledError`).

    A `BaseException`, so that `except Exception` in a handler does not swallow it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A handler and how its leases are spawned and run. Made by `App.task`.

    Attributes:
        name: What leases call it.
        handler: The decorated function; calling the task calls it.
        queue: Where `spawn` puts its leases.
        max_attempts: For its leases; None: the queue's.
        placement: For its leases; None: any node.
        process: Whether each lease runs in a child process of its own.
        timeout: Longest run; then the handler is asked to stop and the attempt fails.
    """

    name: str
    handler: Handler
    queue: str
    max_attempts: int | None
    placement: AsJson | Mapping[str, Any] | None
    process: bool
    timeout: timedelta | None
    is_async: bool
    wants_context: bool

    def __call__(self, *args: Any) -> Any:
        """Call the handler itself, for example in a test."""
        return self.handler(*args)

    @overload
    def spawn(
        self,
        client: AsyncClient,
        params: Json = None,
        *,
        queue: str | None = None,
        shard: int = 0,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, SpawnResult]: ...

    @overload
    def spawn(
        self,
        client: Client,
        params: Json = None,
        *,
        queue: str | None = None,
        shard: int = 0,
        **options: Unpack[SpawnOptions],
    ) -> SpawnResult: ...

    def spawn(
        self,
        client: AsyncClient | Client,
        params: Json = None,
        *,
        queue: str | None = None,
        shard: int = 0,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, SpawnResult] | SpawnResult:
        """Spawn a lease of this task, with the task's defaults.

        Args:
            client: An `AsyncClient` (then await the result) or a `Client`; `Client.on(connection)`
                spawns inside your transaction.
            params: What the handler gets; JSON. None: an empty object.
            queue: None: the task's.
            **options: See `hwqueue.types.SpawnOptions`; they win over the task's own.

        Raises: As `spawn_lease`.
        SQL: spawn_lease. Safe inside your transaction: yes, waits for nobody.
        """
        merged = SpawnOptions(max_attempts=self.max_attempts, placement=self.placement)
        merged.update(options)
        return client.spawn_lease(queue or self.queue, self.name, params, shard=shard, **merged)


class App:
    """The tasks that a worker can run.

    Example:
        app = hwqueue.App()

        @app.task("send-email")
        async def send_email(params): ...
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks by name, read-only."""
        return MappingProxyType(self._tasks)

    def task(
        self,
        name: str,
        *,
        queue: str = "default",
        max_attempts: int | None = None,
        placement: AsJson | Mapping[str, Any] | None = None,
        process: bool = False,
        timeout: timedelta | None = None,
    ) -> Callable[[Handler], Task]:
        """Make a function the handler of `name`.

        The function takes `(params)` or `(params, context)`. What it returns, as JSON, completes
        the lease; what it raises fails it. An async function runs in the worker's event loop, a
        sync one in a thread, and with `process` either in a child process that sees only the CPUs
        and GPUs that the lease was given.

        Args:
            name: What leases call the task; unique in the app.
            queue: Where `Task.spawn` puts its leases.
            max_attempts: Of leases that `Task.spawn` makes; None: the queue's.
            placement: Of leases that `Task.spawn` makes: a `Placement` or the same as a mapping.
                Only Python knows these defaults: SQL, HTTP, the command line and `spawn_lease` do
                not use them, and the worker warns of such leases.
            process: Run each lease in a child process. Needed to stop a sync handler that does
                not look at `context.cancelled`. The function must be at the top of its module.
            timeout: Longest run, more than zero; then the attempt fails. A sync handler in a
                thread is only asked to stop: it goes on beside the next attempt, and holds its slot
                until it returns. One in a process is killed.

        Raises:
            ConfigError: The name is taken, or the function cannot be a handler.
        """

        def register(handler: Handler) -> Task:
            if name in self._tasks:
                raise ConfigError(f"task {name!r} is defined twice in this app")
            if timeout is not None and timeout <= timedelta(0):
                raise ConfigError(f"task {name!r}: timeout must be more than zero, not {timeout}")
            if process and "<locals>" in handler.__qualname__:
                raise ConfigError(
                    f"task {name!r}: a handler that runs in a process must be at the top of its "
                    f"module, or the child cannot import it; {handler.__qualname__} is not"
                )
            task = Task(
                name=name,
                handler=handler,
                queue=queue,
                max_attempts=max_attempts,
                placement=placement,
                process=process,
                timeout=timeout,
                is_async=inspect.iscoroutinefunction(handler),
                wants_context=_takes_context(name, handler),
            )
            self._tasks[name] = task
            return task

        return register


def _takes_context(name: str, handler: Handler) -> bool:
    """Whether the handler takes `(params, context)` rather than `(params)`."""
    signature = inspect.signature(handler)
    for arguments in (("params", "context"), ("params",)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ConfigError(
        f"task {name!r}: a handler takes (params) or (params, context), not {signature}"
    )
