"""How the parameters of a lease become the arguments of its handler, and arguments parameters.

A handler takes its params in one of two ways, decided by its signature:

- as a whole, `(params)` or `(params, context)`: one parameter that is called `params` or annotated
  as a mapping.
- one by one, `(frame: int, scene: str)`: each parameter is a member of the params, by its name.

Parameters annotated as a context, and dependencies, are neither: they are injected.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any

from hwqueue.convert import Misfit, Reader, is_mapping, is_record, jsonable, read_members, reader_of
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.handler.depends import CONTEXT, UNREADABLE, Source, hints_of, resolve, resolve_async, source_of
from hwqueue.types import Json, SpawnOptions

Handler = Callable[..., Any]
Parameter = inspect.Parameter
_UNREAD = Parameter.empty

_MANY_VALUES = 2000
"""This number is read in a few milliseconds, in which an event loop does nothing else."""


class BadParams(Exception):
    """The params of a lease do not fit its handler. The lease is dead at once, without retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a handler takes.

    Attributes:
        task: The task's name, for errors.
        signature: Of the handler.
        whole: The name of the parameter that takes the params as a whole; None: one by one.
        members: How each argument is read.
        required: Those without a default.
        rest: How the arguments of a `**` parameter are read; None: it has none.
        injected: Where the values of the other parameters come from.
        result: The annotated type of the result.
        positional: The parameters that are passed by position, in order.
        has_dependencies: Whether anything but the context is injected.
        is_converted: Whether params are checked and converted at all.
    """

    task: str
    signature: inspect.Signature
    whole: str | None
    members: dict[str, Reader]
    required: set[str] = field(default_factory=set)
    rest: Reader | None = None
    injected: dict[str, Source] = field(default_factory=dict)
    result: Any = Any
    positional: tuple[str, ...] = ()
    has_dependencies: bool = False
    is_converted: bool = True

    @classmethod
    def of(cls, task: str, handler: Handler, *, is_async: bool) -> Binding:
        """How the params of a lease are bound to a handler. Raises: ConfigError."""
        try:
            return _bind(task, handler, is_async)
        except ConfigError as error:
            raise ConfigError(f"task {task!r}: {error}", hint=error.hint) from error

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Json:
        """The params of a lease from the arguments of a spawn.

        Raises: BadArgument, which names the argument: it is missing, unknown, not of its type, or
            has no JSON form.
        """
        if self.whole is not None:
            return self._pack_whole(*args, **kwargs)
        own = [one for name, one in self.signature.parameters.items() if name not in self.injected]
        try:
            bound = inspect.Signature(own).bind(*args, **kwargs)
        except TypeError as error:
            raise BadArgument(f"task {self.task!r}: {error}", hint=_hint(kwargs)) from None
        given: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            is_rest = self.signature.parameters[name].kind is Parameter.VAR_KEYWORD
            given |= value if is_rest else {name: value}
        params = {name: jsonable(value, f"params.{name}") for name, value in given.items()}
        self._check(params)
        return params

    def _pack_whole(self, params: Any = None) -> Json:
        if params is None:
            return None
        packed = jsonable(params, "params")
        self._check(packed)
        return packed

    def _check(self, params: Json) -> None:
        try:
            self._read(params)
        except Misfit as misfit:
            path = f"params{misfit.where}"
            message = f"task {self.task!r}: {path} {misfit.what}"
            raise BadArgument(message, detail={"field": path}) from None

    def _read(self, params: Json) -> dict[str, Any]:
        """The arguments of the handler, without what is injected. Raises: Misfit."""
        if self.whole is not None:
            return {self.whole: self.members[self.whole](params)}
        read = read_members(params, self.members, self.required, self.rest)
        if self.injected and (taken := sorted(read.keys() & self.injected.keys())):
            raise Misfit("is injected, it cannot be given", f".{taken[0]}")
        return read

    def _arguments(self, params: Json) -> dict[str, Any]:
        try:
            return self._read(params)
        except Misfit as misfit:
            raise BadParams(f"params{misfit.where} {misfit.what}") from None
        except RecursionError:
            raise BadParams("params are nested too deep to be read") from None

    def run(self, handler: Handler, context: Any) -> Any:
        """Call a sync handler for the lease of a context, and close its dependencies.

        Raises: BadParams, and what the handler or a dependency raises.
        """
        values = self._arguments(context.claim.params)
        if not self.has_dependencies:
            return self._call(handler, values | dict.fromkeys(self.injected, context))
        failed: BaseException | None = None
        with ExitStack() as stack:
            try:
                values |= resolve(self.injected, context, stack, {})
                return self._call(handler, values)
            except BaseException as error:
                failed = error
                raise
        raise failed or AssertionError  # a dependency swallowed it, which does not complete a lease

    async def run_async(self, handler: Handler, context: Any) -> Any:
        """`run`, for an async handler; many params are read in a thread, beside the event loop."""
        params = context.claim.params
        if self.is_converted and _has_many_values(params):
            values = await asyncio.to_thread(self._arguments, params)
        else:
            values = self._arguments(params)
        if not self.has_dependencies:
            return await self._call(handler, values | dict.fromkeys(self.injected, context))
        failed: BaseException | None = None
        async with AsyncExitStack() as stack:
            try:
                values |= await resolve_async(self.injected, context, stack, {})
                return await self._call(handler, values)
            except BaseException as error:
                failed = error
                raise
        raise failed or AssertionError

    def _call(self, handler: Handler, values: dict[str, Any]) -> Any:
        """Call a handler with these arguments; by position up to the first that is left out."""
        args = []
        for name in self.positional:
            if name not in values:
                break
            args.append(values.pop(name))
        return handler(*args, **values)

    def read_result(self, result: Json) -> Any:
        """What the handler returned, from the JSON of a lease.

        Raises: BadArgument: it is not of the type that the handler says it returns.
        """
        try:
            return reader_of(self.result)(result)
        except Misfit as misfit:
            message = f"task {self.task!r}: result{misfit.where} {misfit.what}"
            raise BadArgument(message, detail={"field": f"result{misfit.where}"}) from None


def _has_many_values(params: Json) -> bool:
    """Whether there are more than `_MANY_VALUES`, those in lists and objects included."""
    left, count = [params], 0
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count > _MANY_VALUES:
                return True
            left.extend(value.values() if isinstance(value, dict) else value)
    return False


def _bind(task: str, handler: Handler, is_async: bool) -> Binding:
    signature = inspect.signature(handler)
    parameters = signature.parameters
    try:
        hints = hints_of(handler)
    except UNREADABLE as error:
        if next(iter(parameters), "").lstrip("_") != "params":
            raise ConfigError(
                f"its annotations cannot be read: {error}",
                hint="import the types of the arguments outside of `if TYPE_CHECKING:`",
            ) from error
        hints = {}
    injected = {}
    for name, parameter in parameters.items():
        source = source_of(parameter, hints.get(name, _UNREAD), is_async=is_async)
        if source is None and name.lstrip("_") == "context" and hints.get(name, Any) is Any:
            source = CONTEXT
        if source is not None:
            injected[name] = source
    own = [parameter for name, parameter in parameters.items() if name not in injected]
    if own and own[0].name == "self":
        raise ConfigError(
            f"no self is given to {signature}",
            hint="a handler is a function; `context: LeaseContext` gets its lease's id and attempt",
        )
    whole = _whole(own, hints)
    if whole is None:
        _refuse_ambiguous(own, hints, signature)
    return Binding(
        task=task,
        signature=signature,
        whole=whole,
        members={
            one.name: _member_reader(one, hints, is_whole=whole is not None)
            for one in own
            if one.kind is not Parameter.VAR_KEYWORD
        },
        required={one.name for one in own if one.default is _UNREAD},
        rest=next((_member_reader(one, hints) for one in own if one.kind is Parameter.VAR_KEYWORD), None),
        injected=injected,
        result=hints.get("return", Any),
        positional=tuple(
            name for name, one in parameters.items() if one.kind <= Parameter.POSITIONAL_OR_KEYWORD
        ),
        has_dependencies=any(source is not CONTEXT for source in injected.values()),
        is_converted=whole is None or is_record(hints.get(whole, Any)),
    )


def _whole(own: list[Parameter], hints: Mapping[str, Any]) -> str | None:
    """The parameter that takes the params as a whole, if there is one."""
    if len(own) != 1 or own[0].kind > Parameter.POSITIONAL_OR_KEYWORD:
        return None
    name = own[0].name
    is_whole = name.lstrip("_") in ("params", "") or is_mapping(hints.get(name, Any))
    return name if is_whole else None


def _refuse_ambiguous(own: list[Parameter], hints: Mapping[str, Any], signature: inspect.Signature) -> None:
    if any(one.kind is Parameter.VAR_POSITIONAL for one in own):
        raise ConfigError(f"a handler's arguments have names, unlike the * of {signature}")
    positional = [one for one in own if one.kind <= Parameter.POSITIONAL_OR_KEYWORD]
    if len(positional) in (1, 2) and positional[-1].name not in hints:
        last = positional[-1].name
        raise ConfigError(
            f"{signature} may mean (params), (params, context) or arguments by name",
            hint=f"annotate {last}, as in `{last}: int`, or call the parameters params and context",
        )


def _member_reader(one: Parameter, hints: Mapping[str, Any], *, is_whole: bool = False) -> Reader:
    """How an argument is read; params as a whole are left alone, but for a dataclass or model."""
    hint = hints.get(one.name, Any)
    if is_whole and not is_record(hint):
        return reader_of(Any)
    try:
        return reader_of(hint)
    except ConfigError as error:
        raise ConfigError(f"{one.name}: {error}", hint=error.hint) from error


def _hint(kwargs: Mapping[str, Any]) -> str | None:
    options = sorted(kwargs.keys() & (SpawnOptions.__annotations__.keys() | {"queue"}))
    if not options:
        return None
    return f"spawn options go before: with_options({options[0]}=...).spawn(...)"
