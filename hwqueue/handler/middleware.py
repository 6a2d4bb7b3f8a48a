"""Middleware: functions around every handler of an app."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from hwqueue.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
_Handle = Callable[[Any], Any]


class Middleware:
    """The middleware of one app, the outermost first. Made by `App`; see `App.middleware`."""

    def __init__(self) -> None:
        self._functions: dict[bool, list[Callable[..., Any]]] = {True: [], False: []}

    def add(self, function: Function) -> Function:
        """See `App.middleware`."""
        if not _takes_two(function):
            name = name_of(function)
            raise ConfigError(f"middleware {name!r} must be a function of (call_next, context)")
        self._functions[is_async(function)].append(function)
        return function

    def names(self, *, is_async: bool) -> tuple[str, ...]:
        """The names of the middleware around async handlers, or around sync ones."""
        return tuple(map(name_of, self._functions[is_async]))

    def around(self, handle: _Handle, *, is_async: bool) -> _Handle:
        """What takes a context and calls `handle` through all middleware of its kind."""
        for function in reversed(self._functions[is_async]):
            handle = partial(function, handle)
        return handle


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that can be called, returns something to await."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(function: Callable[..., Any]) -> str:
    """Its name for people, the same in each process."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _takes_two(function: object) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind("call_next", "context")
    except TypeError:
        return False
    return True
