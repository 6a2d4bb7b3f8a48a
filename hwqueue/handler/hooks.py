"""Hooks: functions that a worker calls when it starts or stops, and when leases fail or die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal, get_args

from hwqueue.handler.middleware import Function, is_async, name_of

_log = logging.getLogger("hwqueue.worker")

HookEvent = Literal["start", "stop", "failure", "dead"]


class Hooks:
    """The hooks of an app, the base of `App`. Each method is a decorator.

    A hook may be sync, and runs in a thread then, or async. Hooks of one event run one after
    another, in the order in which they were added. One that raises is logged, and changes nothing.
    """

    def __init__(self) -> None:
        self._hooks: dict[HookEvent, list[Callable[..., Any]]] = {event: [] for event in get_args(HookEvent)}

    def on_start(self, hook: Function) -> Function:
        """Call `hook()` when a worker starts, before it registers its node and claims anything."""
        return self._add("start", hook)

    def on_stop(self, hook: Function) -> Function:
        """Call `hook()` when a worker has stopped: nothing runs any more that could be ended.

        The worker waits five seconds for all of them.
        """
        return self._add("stop", hook)

    def on_failure(self, hook: Function) -> Function:
        """Call `hook(claim, error)` when an attempt of this worker has failed, the last included.

        The `hwqueue.Claim` says which attempt of which lease; `error` is a mapping of `type`,
        `message` and, if the handler raised, `traceback`. Called after the failure was committed.
        `on_failure` of a workflow is another thing: what its runs do when a step has failed.
        """
        return self._add("failure", hook)

    def on_dead(self, hook: Function) -> Function:
        """Call `hook(claim, error)` when a lease is dead, such as after its last attempt failed.

        Arguments as in `on_failure`, whose hooks come first. Also called in one worker that serves
        its queue and task when a lease has died without a handler: its last claim expired, or its
        deadline passed. `error["type"]` is then claim_expired, node_superseded or
        deadline_exceeded. That is some seconds later, once, and best effort: a worker that ends
        meanwhile calls nothing, and after an hour nobody does.
        """
        return self._add("dead", hook)

    def has_hooks(self, event: HookEvent) -> bool:
        """Whether the event has any."""
        return bool(self._hooks[event])

    async def call_hooks(self, event: HookEvent, *arguments: Any) -> None:
        """Call the hooks of an event; raises nothing of theirs."""
        for hook in self._hooks[event]:
            if is_async(hook):
                await _await(event, hook, arguments)
            else:
                await asyncio.to_thread(_call, event, hook, arguments)

    def _add(self, event: HookEvent, hook: Function) -> Function:
        self._hooks[event].append(hook)
        return hook


async def _await(event: HookEvent, hook: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        await hook(*arguments)
    except asyncio.CancelledError:
        raise
    except BaseException:  # asyncio would let SystemExit end the whole worker
        _tell(event, hook)


def _call(event: HookEvent, hook: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        hook(*arguments)
    except BaseException:  # a future does not take every kind, and would never be done
        _tell(event, hook)


def _tell(event: HookEvent, hook: Callable[..., Any]) -> None:
    _log.exception("hook %s (on_%s) raised; it changes nothing", name_of(hook), event)
