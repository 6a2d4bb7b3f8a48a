"""Large requests: parsed and validated in threads, so that the event loop answers others.

A body of some megabytes takes a second and more to check, member by member. One of each caller is
worked on at a time, so that nobody has all threads, or all connections to the database.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from psycopg.types.json import Jsonb
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from hwqueue.calls import Call
from hwqueue.client import AsyncClient
from hwqueue.client._arguments import arguments
from hwqueue.server.problems import MOST_ERRORS, HTTPProblem
from hwqueue.server.settings import ServerSettings

LARGE_BODY_BYTES = 64 * 1024
"""Bytes of a body up to which a thread of its own costs more than it spares others."""
LARGE_BODY_MEMBERS = 500
"""Commas up to which a body is small: a few bytes may be a step, a lease or an item to be made."""

_MOST_NAMED = 5000
_WRONG = "are not as they must be"

T = TypeVar("T")
Work = Callable[[], Any]
RunInThread = Callable[[Work], Awaitable[Any]]


def is_large(body: bytes) -> bool:
    """Whether a body takes long to read, or is much work for the database."""
    return len(body) > LARGE_BODY_BYTES or body.count(b",") > LARGE_BODY_MEMBERS


class LargeRequests:
    """Threads for large requests: one of each caller, half as many as there are connections."""

    def __init__(self, settings: ServerSettings) -> None:
        self._max_wait = settings.pool_timeout.total_seconds()
        self._most = max(1, settings.pool_size // 2)
        self._all = asyncio.Semaphore(self._most)
        # by caller, of those that have a large request now
        self._slots = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """A slot for a large request of the caller.

        Raises: HTTPProblem (429: theirs before it takes too long; 503: those of others do).
        """
        own = self._slots.setdefault(caller, asyncio.Semaphore(1))
        await self._wait(
            own,
            HTTPProblem(
                429,
                "you have sent several large requests at a time: one is under way, and others of "
                "yours wait; all tokens of a tenant count together",
                **_GO,
            ),
        )
        try:
            await self._wait(
                self._all,
                HTTPProblem(
                    503,
                    f"too many large requests at a time: {self._most} of others are under way",
                    **_GO,
                ),
            )
            try:
                yield
            finally:
                self._all.release()
        finally:
            own.release()

    async def _wait(self, slots: asyncio.Semaphore, refusal: HTTPProblem) -> None:
        # not all alike: those that came together would be refused, and come again, together
        seconds = self._max_wait * random.uniform(0.5, 1)
        try:
            await asyncio.wait_for(slots.acquire(), seconds)
        except TimeoutError:
            raise refusal from None

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, done in a thread; a caller who leaves waits for its end."""
        return await anyio.to_thread.run_sync(work)


_GO: Mapping[str, Any] = {
    "hint": "send one after the other, or smaller ones",
    "headers": {"Retry-After": "1"},
}


class InvalidBody(HTTPException):
    """The way of a RequestValidationError through FastAPI's own reader of bodies."""

    def __init__(self, error: RequestValidationError) -> None:
        super().__init__(422)
        self.error = error


class LargeBodyRequest(Request):
    """A request whose body is here; its JSON becomes the route's model in a thread.

    FastAPI takes a model as it is, and does not check it a second time.
    """

    def __init__(self, request: Request, body: bytes, field: Any, run_in_thread: RunInThread) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body
        self._field = field
        self._run_in_thread = run_in_thread

    async def json(self) -> Any:
        """The model. Raises: json.JSONDecodeError, InvalidBody."""
        value, errors = await self._run_in_thread(self._read)
        if errors:
            raise InvalidBody(RequestValidationError(errors))
        return value

    def _read(self) -> tuple[Any, list[Any]]:
        try:
            return _reader(self._field.field_info.annotation).validate_python(json.loads(self._body)), []
        except ValidationError as error:
            return None, _errors(error)


class LargeClient(AsyncClient):
    """A client that checks and writes its arguments, and reads its answers, in a thread."""

    _run_in_thread: RunInThread

    @classmethod
    def threaded(cls, connection: Any, run_in_thread: RunInThread) -> LargeClient:
        """A client on a connection."""
        client = cls.on(connection)
        client._run_in_thread = run_in_thread
        return client

    async def _arguments(self, call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
        return await self._do(lambda: _written(arguments(call, values)))

    async def _do(self, work: Callable[[], T]) -> T:
        done: T = await self._run_in_thread(work)
        return done


@cache
def _reader(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _errors(error: ValidationError) -> list[Any]:
    """The first of what is wrong; how much, if that is too much: pydantic names all or nothing.

    It does so at a stretch: no other thread runs meanwhile, the event loop's neither.
    """
    count = error.error_count()
    if count > _MOST_NAMED:
        return [{"type": "value_error", "loc": ("body",), "msg": f"{count} values {_WRONG}"}]
    found = error.errors(include_url=False)[: MOST_ERRORS + 1]
    return [each | {"loc": ("body", *each["loc"])} for each in found]


def _written(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with their JSON as text: psycopg would write it in the event loop."""
    return {
        name: Jsonb(value.dumps(value.obj), dumps=bytes)
        if isinstance(value, Jsonb) and value.dumps
        else value
        for name, value in given.items()
    }
