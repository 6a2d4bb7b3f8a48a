"""What an action is: what is asked before, how it is done, where it leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from hwqueue.client import AsyncClient
from hwqueue.dashboard.reads import Reads

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before an action: the headline, what happens, which fields it takes.

    taints, signals: names to choose from. things: what it is done to, as (state, name), of which a
    form shows the first few. is_noted: an event says who has done it.
    """

    headline: str
    consequences: tuple[str, ...]
    button: str
    fields: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    things: tuple[tuple[str, str], ...] = ()
    is_noted: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """A verb: what it is done to, what is asked before, how it is done, what is said after.

    `gone`: the page to go to, where its subject has none any more.
    """

    subject: str
    ask: Callable[[Reads, str], Awaitable[Question]]
    do: Callable[[AsyncClient, str, Fields], Awaitable[None]]
    done: str
    gone: str | None = None
