"""An async client that belongs to no event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from hwqueue.calls import Call
from hwqueue.client import AsyncClient
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._async.runner import AsyncConnectionRunner
from hwqueue.client._drivers import Rows
from hwqueue.connections import in_utf8


class _ConnectingRunner:
    """Connects for each call: a pool would be bound to the event loop that opened it.

    Fixtures are not async, so that they need no plugin for async tests, and fit all of them.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in a transaction of its own."""
        connecting = psycopg.AsyncConnection.connect(in_utf8(self._conninfo), autocommit=True)
        async with await connecting as connection:
            return await AsyncConnectionRunner(connection).run(call, arguments, actor)


def connecting_client(conninfo: str) -> AsyncClient:
    """An `AsyncClient` without a pool; it needs no `open` and no `close`."""
    client = AsyncClient.__new__(AsyncClient)
    client._pool = None
    AsyncPart.__init__(client, _ConnectingRunner(conninfo))
    return client
