"""What an action is: what is asked before, how it is done, where it leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from hwqueue.client import AsyncClient
from hwqueue.dashboard.reads import Reads

Fields = Mapping[str, str]
T = TypeVar("T")
V = TypeVar("V")


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
class Action(Generic[T]):
    """A verb: what it is done to, what is asked before, how it is done, what is said after.

    `find`: reads what the question is about. `gone`: the page to go to, where its subject has none
    any more. is_for_admins: operators may not do it.
    """

    subject: str
    find: Callable[[Reads, str], Awaitable[T]]
    ask: Callable[[T], Question]
    do: Callable[[AsyncClient, str, Fields], Awaitable[object]]
    done: str
    gone: str | None = None
    is_for_admins: bool = False

    async def question(self, source: Reads, subject: str) -> Question:
        """What to ask before it is done to this."""
        return self.ask(await self.find(source, subject))


def verb_of(request: Request, actions: Mapping[str, V]) -> tuple[str, V]:
    """The verb of an address, and its action. Raises: HTTPException (404)."""
    verb = request.path_params["verb"]
    if verb not in actions:
        raise HTTPException(404)
    return verb, actions[verb]


def typed(fields: Fields, name: str) -> str | None:
    """What was typed in a field of a form; None: nothing."""
    return fields.get(name, "").strip() or None
