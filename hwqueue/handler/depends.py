"""What a handler is given besides its arguments: the context of its lease, and dependencies.

A dependency is a function that makes a value, such as a database session. A generator function
yields it, and goes on after the handler has ended. It may take the context and other dependencies.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, overload

from hwqueue.errors import ConfigError
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext

T = TypeVar("T")
AnyContext = LeaseContext | AsyncLeaseContext


@dataclass(frozen=True, slots=True)
class Dependency:
    """The mark that `Depends` leaves at a parameter."""

    make: Callable[..., Any]


@overload
def Depends(make: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Iterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Coroutine[Any, Any, T]]) -> T: ...
@overload
def Depends(make: Callable[..., T]) -> T: ...
def Depends(make: Callable[..., Any]) -> Any:  # noqa: N802 - what FastAPI calls it
    """Inject what a function makes into a parameter of a handler or of another dependency.

    Write `session: Session = Depends(make_session)`, which type checkers leave out of what `spawn`
    asks for, or `session: Annotated[Session, Depends(make_session)]`.

    Args:
        make: Called once for each run of a handler, however many parameters depend on it. The code
            after the `yield` of a generator function runs when the handler has ended; an exception
            of the handler is raised at the `yield`, and fails the attempt even if it is caught
            there. Async ones are for async handlers only.
    """
    return Dependency(make)


@dataclass(frozen=True, slots=True)
class Source:
    """Where an injected value comes from.

    Attributes:
        make: The function of a dependency; None: the value is the context of the lease.
        inputs: What `make` is given.
    """

    make: Callable[..., Any] | None
    inputs: dict[str, Source]


CONTEXT = Source(None, {})
UNREADABLE = (AttributeError, NameError, TypeError)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, evaluated. Raises: one of `UNREADABLE`."""
    return typing.get_type_hints(function, include_extras=True)


def source_of(
    parameter: inspect.Parameter, hint: Any, *, is_async: bool, path: tuple[Any, ...] = ()
) -> Source | None:
    """Where a parameter's value comes from; None: it is not injected.

    Args:
        hint: Its annotation, evaluated; what `inspect.Parameter.empty` is when there is none.
        is_async: Whether the handler that all this is for is async.
        path: The functions on the way to here.

    Raises: ConfigError.
    """
    if hint in (LeaseContext, AsyncLeaseContext):
        fits = AsyncLeaseContext if is_async else LeaseContext
        if hint is not fits:
            kind = "an async" if is_async else "a sync"
            raise ConfigError(f"{parameter.name}: {kind} handler gets {fits.__name__}")
        return CONTEXT
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    found = [note for note in (parameter.default, *notes) if isinstance(note, Dependency)]
    return _source(found[0].make, is_async, path) if found else None


def _source(make: Callable[..., Any], is_async: bool, path: tuple[Any, ...]) -> Source:
    name = getattr(make, "__qualname__", repr(make))
    if make in path:
        raise ConfigError(f"the dependency {name} depends on itself")
    if not is_async and (inspect.iscoroutinefunction(make) or inspect.isasyncgenfunction(make)):
        raise ConfigError(f"the dependency {name} is async, the handler is not")
    try:
        hints = hints_of(make) if inspect.isroutine(make) else {}
    except UNREADABLE as error:
        raise ConfigError(f"the dependency {name}: annotations cannot be read: {error}") from error
    inputs = {}
    for parameter in inspect.signature(make).parameters.values():
        hint = hints.get(parameter.name, parameter.empty)
        source = source_of(parameter, hint, is_async=is_async, path=(*path, make))
        if source is not None:
            inputs[parameter.name] = source
        elif parameter.default is parameter.empty and parameter.kind < parameter.VAR_KEYWORD:
            raise ConfigError(
                f"the dependency {name} gets no {parameter.name}: it may take the context of the "
                "lease, other dependencies, and what has a default"
            )
    return Source(make, inputs)


Made = dict[Callable[..., Any], Any]


def resolve(sources: dict[str, Source], context: AnyContext, stack: ExitStack, made: Made) -> dict[str, Any]:
    """The values of injected parameters of a sync handler; `stack` ends them.

    Args:
        made: What has been made for this run.
    """
    return {name: _made(source, context, stack, made) for name, source in sources.items()}


def _made(source: Source, context: AnyContext, stack: ExitStack, made: Made) -> Any:
    make = source.make
    if make is None:
        return context
    if make not in made:
        inputs = resolve(source.inputs, context, stack, made)
        if inspect.isgeneratorfunction(make):
            made[make] = stack.enter_context(contextmanager(make)(**inputs))
        else:
            made[make] = make(**inputs)
    return made[make]


async def resolve_async(
    sources: dict[str, Source], context: AnyContext, stack: AsyncExitStack, made: Made
) -> dict[str, Any]:
    """The values of injected parameters of an async handler; `stack` ends them."""
    return {name: await _made_async(source, context, stack, made) for name, source in sources.items()}


async def _made_async(source: Source, context: AnyContext, stack: AsyncExitStack, made: Made) -> Any:
    make = source.make
    if make is None:
        return context
    if make not in made:
        inputs = await resolve_async(source.inputs, context, stack, made)
        if inspect.isasyncgenfunction(make):
            made[make] = await stack.enter_async_context(asynccontextmanager(make)(**inputs))
        elif inspect.isgeneratorfunction(make):
            made[make] = stack.enter_context(contextmanager(make)(**inputs))
        else:
            value = make(**inputs)
            made[make] = await value if inspect.iscoroutine(value) else value
    return made[make]
