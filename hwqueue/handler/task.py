"""A task: a handler by its name, and how its leases are spawned and run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from hwqueue.client import AsyncClient, AsyncSpawned, AsyncTaskSpawned, Client, Spawned, TaskSpawned
from hwqueue.client._json import given, plain
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.handler.binding import Binding, Handler
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.middleware import Middleware
from hwqueue.options import check_options
from hwqueue.types import (
    AsJson,
    Json,
    Lease,
    LeaseSpec,
    LeaseState,
    RetryPolicy,
    SpawnOptions,
    Timing,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
X = TypeVar("X")
TakenT_contra = TypeVar("TakenT_contra", contravariant=True)
ContextT = TypeVar("ContextT", LeaseContext, AsyncLeaseContext)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefaults:
    """How the leases of a task are spawned and run, unless told otherwise.

    None: as the database says of the task (`set_task`), else as ever.

    Attributes:
        queue: Where its leases are put.
        max_attempts: None: the queue's.
        placement: What its leases ask of a node; None: any node.
        affinity_tags: Node labels must contain them; ANDed with `placement`.
        priority: -32768..32767, higher runs first; None: 0.
        labels: Of its leases, text to text.
        retry: When a failed attempt is followed by another one; None: as the queue's policy says.
        claim_timeout: A claim without heartbeat ends after it; None: the queue's.
        patience: How long a lease waits for a better node, at most; None: the queue's.
        max_run: How long a lease may run, as the database sees it; None: as long as it takes.
        timeout: Longest run of its handler; then the attempt fails.
    """

    queue: str = "default"
    max_attempts: int | None = None
    placement: AsJson | Mapping[str, Any] | None = None
    affinity_tags: Mapping[str, Any] | None = None
    priority: int | None = None
    labels: Mapping[str, str] | None = None
    retry: RetryPolicy | Mapping[str, Any] | None = None
    claim_timeout: timedelta | None = None
    patience: timedelta | None = None
    max_run: timedelta | None = None
    timeout: timedelta | None = None

    def options(self) -> SpawnOptions:
        """What a spawn is given of it."""
        return cast("SpawnOptions", {name: getattr(self, name) for name in TASK_OPTIONS})

    def as_json(self) -> dict[str, Any]:
        """What `set_task` takes: the options of a spawn without what is None, spans in seconds."""
        return cast("dict[str, Any]", plain(given(self.options()), "defaults"))


@dataclass(frozen=True, slots=True)
class Keyed:
    """A limit by key, for `App.task`: the key is a field of the params.

    Attributes:
        limit: Its name.
        field: Of the params, such as `user_id`; a text, an int or a UUID.
    """

    limit: str
    field: str


Limits = str | Keyed | Iterable[str | Keyed]


def limits_of(limits: Limits, task: str) -> tuple[str | Keyed, ...]:
    """One limit, or several. Raises: ConfigError, for what is none."""
    found = (limits,) if isinstance(limits, str | Keyed) else tuple(limits)
    for each in found:
        if not isinstance(each, str | Keyed):
            raise ConfigError(f"task {task!r}: limits has names and Keyed(...), not {each!r:.60}")
    return found


TASK_OPTIONS = [each.name for each in fields(TaskDefaults) if each.name in SpawnOptions.__annotations__]
"""The options of a spawn that a task has defaults of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task(Generic[P, R_co]):
    """A handler and how its leases are spawned and run. Made by `App.task`.

    `P` are the arguments of a spawn: those of the handler, without the context where that comes
    first. `R_co` is what calling the handler returns; for an async one, a coroutine.

    Attributes:
        name: What leases call it.
        handler: The decorated function; calling the task calls it.
        binding: How the params of a lease become the handler's arguments.
        defaults: For its leases.
        process: Whether each lease runs in a child process of its own.
        is_async: Whether the handler is a coroutine function.
        retry_on: Exceptions after which a lease may be tried again; None: all.
        no_retry_on: Exceptions after which a lease is dead.
        options: What `with_options` was given; it wins over the defaults.
        middleware: Its app's, around the handler.
        schedule: When a lease is spawned by itself; None: never.
        limits: Those of its leases.
    """

    name: str
    handler: Callable[..., R_co]
    binding: Binding
    defaults: TaskDefaults = field(default_factory=TaskDefaults)
    process: bool = False
    is_async: bool = False
    retry_on: tuple[type[BaseException], ...] | None = None
    no_retry_on: tuple[type[BaseException], ...] = ()
    options: SpawnOptions = field(default_factory=SpawnOptions)
    middleware: Middleware = field(default_factory=Middleware, repr=False)
    schedule: Timing | None = None
    limits: tuple[str | Keyed, ...] = ()

    def schedule_spec(self) -> dict[str, Any] | None:
        """Its schedule as `create_schedule` takes it; None: it has none."""
        if self.schedule is None:
            return None
        options = self.defaults.as_json() | given(limits=self._limits(self.schedule.params))
        what = {"queue": self.defaults.queue, "task": self.name, "options": options}
        return self.schedule.as_json() | what

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the handler itself, for example in a test; nothing is converted or injected."""
        return self.handler(*args, **kwargs)

    def with_options(self, *, queue: str | None = None, **options: Unpack[SpawnOptions]) -> Self:
        """The same task with other options for its spawns.

        Args:
            queue: None: the task's.
            **options: See `hwqueue.types.SpawnOptions`; they win over the task's own.

        Raises: BadArgument, when an option is of the wrong type.
        """
        check_options(options, BadArgument)
        defaults = self.defaults if queue is None else replace(self.defaults, queue=queue)
        return replace(self, defaults=defaults, options=SpawnOptions(**{**self.options, **options}))

    @overload
    def spawn(
        self, client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, AsyncTaskSpawned[R_co]]: ...

    @overload
    def spawn(self, client: Client, /, *args: P.args, **kwargs: P.kwargs) -> TaskSpawned[R_co]: ...

    def spawn(
        self, client: AsyncClient | Client, /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, AsyncTaskSpawned[R_co]] | TaskSpawned[R_co]:
        """Spawn a lease of this task, with the task's defaults.

        Options are given before: `task.with_options(priority=5).spawn(client, frame=1)`.

        Args:
            client: An `AsyncClient` (then await the result) or a `Client`; `Client.on(connection)`
                spawns inside your transaction.
            *args, **kwargs: The handler's arguments. What is not given has the handler's default
                when it runs.

        Raises: BadArgument, when the arguments do not fit the handler; else as `spawn_lease`.
        SQL: spawn_lease. Safe inside your transaction: yes, waits for nobody.
        """
        self._check_client(client)
        return self._spawn(client, self.binding.pack(args, kwargs))

    def _check_client(self, client: object) -> None:
        """Refuse a spawn whose client was left out, before its first argument is missed."""
        if isinstance(client, type) or not hasattr(client, "spawn_lease"):
            raise BadArgument(
                f"task {self.name!r}: a spawn begins with a client, not {client!r:.60}",
                hint="with hwqueue.Client() as client: task.spawn(client, ...)",
            )

    def _spawn(
        self, client: AsyncClient | Client, params: Json
    ) -> Coroutine[Any, Any, AsyncTaskSpawned[R_co]] | TaskSpawned[R_co]:
        options = self._spawn_options(params)
        call: Callable[[], Any] = partial(
            client.spawn_lease, self.defaults.queue, self.name, params, **options
        )
        return cast("TaskSpawned[R_co]", self._reading(call))

    def _reading(self, call: Callable[[], Any]) -> Any:
        """What a call spawns, or will spawn once awaited: with what reads its result."""
        if iscoroutinefunction(call):
            return self._reading_awaited(call)
        return self._read(call())

    async def _reading_awaited(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._read(await call())

    def _read(self, spawned: Any) -> Any:
        if isinstance(spawned, list):
            return [self._read(one) for one in spawned]
        if isinstance(spawned, Spawned):
            return TaskSpawned.reading(spawned, self.binding.read_result)
        if isinstance(spawned, AsyncSpawned):
            return AsyncTaskSpawned.reading(spawned, self.binding.read_result)
        return spawned

    def _spawn_options(self, params: Json) -> SpawnOptions:
        limits = None if "limits" in self.options else self._limits(params)
        return cast("SpawnOptions", given({**self.defaults.options(), "limits": limits, **self.options}))

    def _limits(self, params: Json) -> dict[str, str | None] | None:
        """The limits of a lease with these params. Raises: BadArgument, for a key that they lack."""
        found: dict[str, str | None] = {}
        for each in self.limits:
            if isinstance(each, str):
                found[each] = None
                continue
            key = params.get(each.field) if isinstance(params, Mapping) else None
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise BadArgument(
                    f"task {self.name!r}: params.{each.field} is the key of limit {each.limit}: "
                    f"it must be a text or an int, not {key!r:.60}",
                    detail={"field": f"params.{each.field}"},
                )
            found[each.limit] = str(key)
        return found or None

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> LeaseSpec:
        """One lease for `spawn_many`, or for a batch of several tasks (`client.spawn_leases`).

        Raises: BadArgument, when the arguments do not fit the handler.
        """
        params = self.binding.pack(args, kwargs)
        return self._spec(params, self._spawn_options(params))

    def _spec(self, params: Json, options: SpawnOptions) -> LeaseSpec:
        return LeaseSpec(task=self.name, params={} if params is None else params, options=options)

    @overload
    def spawn_many(
        self, client: AsyncClient, leases: Iterable[LeaseSpec | Mapping[str, Any]]
    ) -> Coroutine[Any, Any, list[AsyncTaskSpawned[R_co]]]: ...

    @overload
    def spawn_many(
        self, client: Client, leases: Iterable[LeaseSpec | Mapping[str, Any]]
    ) -> list[TaskSpawned[R_co]]: ...

    def spawn_many(
        self, client: AsyncClient | Client, leases: Iterable[LeaseSpec | Mapping[str, Any]]
    ) -> Coroutine[Any, Any, list[AsyncTaskSpawned[R_co]]] | list[TaskSpawned[R_co]]:
        """Spawn leases of this task in one transaction, all or nothing.

        Args:
            leases: The arguments of each, as a mapping, which only the database's answer and this
                call check; or as `task.spec(...)`, which type checkers check, and which may have
                options of its own: `task.with_options(priority=5).spec(...)`.

        Returns:
            In the order given.

        Raises: BadArgument, when arguments do not fit; `detail["index"]` is the position (from 0).
            Else as `spawn_leases`.
        SQL: spawn_leases. Safe inside your transaction: yes, waits for nobody.
        """
        self._check_client(client)
        specs = [self._checked(each, index) for index, each in enumerate(leases)]
        call = partial(client.spawn_leases, self.defaults.queue, specs)
        return cast("list[TaskSpawned[R_co]]", self._reading(call))

    def _checked(self, lease: LeaseSpec | Mapping[str, Any], index: int) -> LeaseSpec:
        """One lease of a batch."""
        try:
            if not isinstance(lease, LeaseSpec):
                whole = self.binding.whole is not None
                if not whole and not isinstance(lease, Mapping):
                    raise BadArgument(
                        f"arguments are a mapping or task.spec(...), not {lease!r:.60}",
                        hint="task.spawn_many(client, [task.spec(1), task.spec(2)])",
                    )
                packed = self.binding.pack((lease,), {}) if whole else self.binding.pack((), lease)
                return self._spec(packed, self._spawn_options(packed))
            if lease.task != self.name:
                raise BadArgument(f"a lease of {lease.task!r} in a batch of task {self.name!r}")
        except BadArgument as error:
            detail = {**error.detail, "index": index}
            raise BadArgument(f"leases[{index}]: {error}", detail=detail, hint=error.hint) from None
        return lease

    @overload
    def result_of(self: Task[P, Coroutine[Any, Any, X]], lease: Lease) -> X: ...

    @overload
    def result_of(self, lease: Lease) -> R_co: ...

    def result_of(self, lease: Lease) -> Any:
        """What the handler returned for a completed lease, as the type that it is annotated with.

        Raises: BadArgument: the lease is of another task or did not complete, or its result does
            not fit the type.
        """
        where = f"lease {lease.lease_id} of task {lease.task_name}"
        if lease.task_name != self.name:
            raise BadArgument(f"{where} has no result of task {self.name}")
        if lease.state is not LeaseState.COMPLETED:
            raise BadArgument(f"{where} is {lease.state.value}: it has no result")
        return self.binding.read_result(lease.result)

    def run(self, context: Any) -> Any:
        """Run a sync handler for the lease of a context; for workers.

        Raises: BadParams, and what the handler or a dependency raises.
        """
        handle = partial(self.binding.run, self.handler)
        return self.middleware.around(handle, is_async=False)(context)

    @property
    def takes_context(self) -> bool:
        """Whether the handler, or what is around it, is given the context of its lease."""
        return bool(self.binding.injected) or bool(self.middleware.names(is_async=self.is_async))

    def run_async(self, context: Any) -> Coroutine[Any, Any, Any]:
        """`run`, for an async handler. Without `takes_context` only the claim is looked at."""
        handle = partial(self.binding.run_async, self.handler)
        running: Coroutine[Any, Any, Any] = self.middleware.around(handle, is_async=True)(context)
        return running

    def may_retry(self, error: BaseException) -> bool:
        """Whether `retry_on` and `no_retry_on` let a lease be tried again after an exception."""
        if isinstance(error, self.no_retry_on):
            return False
        return self.retry_on is None or isinstance(error, self.retry_on)


class ParamsTask(Task[[T], R_co]):
    """A task whose handler takes the params as a whole: `(params)` or `(params, context)`."""

    __slots__ = ()

    @overload
    def spawn(
        self,
        client: AsyncClient,
        params: T | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, AsyncTaskSpawned[R_co]]: ...

    @overload
    def spawn(
        self,
        client: Client,
        params: T | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> TaskSpawned[R_co]: ...

    def spawn(
        self,
        client: AsyncClient | Client,
        params: Any = None,
        *,
        queue: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, AsyncTaskSpawned[R_co]] | TaskSpawned[R_co]:
        """Spawn a lease of this task, with the task's defaults.

        Args:
            client: An `AsyncClient` (then await the result) or a `Client`; `Client.on(connection)`
                spawns inside your transaction.
            params: What the handler gets; JSON, a dataclass or a pydantic model. None: an empty
                object.
            queue, **options: As for `with_options`.

        Raises: BadArgument, when the params do not fit the handler; else as `spawn_lease`.
        SQL: spawn_lease. Safe inside your transaction: yes, waits for nobody.
        """
        self._check_client(client)
        configured = self.with_options(queue=queue, **options)
        return configured._spawn(client, self.binding.pack((params,), {}))


class _ParamsHandler(Protocol[TakenT_contra, R_co]):
    def __call__(self, params: TakenT_contra) -> R_co: ...


class _ParamsContextHandler(Protocol[TakenT_contra, R_co]):
    def __call__(self, params: TakenT_contra, context: Any) -> R_co: ...


class TaskDecorator(Protocol):
    """Makes a handler a task of the type that its signature asks for."""

    @overload
    def __call__(self, handler: _ParamsHandler[T, X], /) -> ParamsTask[T, X]: ...

    @overload
    def __call__(self, handler: _ParamsContextHandler[T, X], /) -> ParamsTask[T, X]: ...

    @overload
    def __call__(self, handler: Callable[Concatenate[ContextT, P], X], /) -> Task[P, X]: ...

    @overload
    def __call__(self, handler: Callable[P, X], /) -> Task[P, X]: ...

    def __call__(self, handler: Handler, /) -> Any:
        """The task."""
        ...
