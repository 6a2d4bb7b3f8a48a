"""LISTEN, so that an idle worker hears of new work before its next poll.

A notification is a hint and may be lost: polling is the truth. LISTEN needs a direct connection;
through PgBouncer in transaction mode it silently hears nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import psycopg
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

_log = logging.getLogger("hwqueue.worker")

CHANNEL = "hwqueue"


async def listen(
    conninfo: str, shard: int, queues: Collection[str], on_work: Callable[[], None]
) -> None:
    """Call `on_work` whenever one of the queues has new work; reconnect for ever.

    Runs until it is cancelled. While there is no connection the worker polls.
    """
    wanted = {f"{shard}:{queue}" for queue in queues}
    connecting = AsyncRetrying(
        retry=retry_if_exception_type(psycopg.Error),
        wait=wait_random_exponential(multiplier=0.5, max=60),
        before_sleep=_log_failure,
    )
    while True:
        connection: psycopg.AsyncConnection = await connecting(_subscribe, conninfo)
        _log.info("listening for new work")
        on_work()  # something may have come while nobody listened
        try:
            async with connection:
                async for notification in connection.notifies():
                    if notification.payload in wanted:
                        on_work()
        except psycopg.Error as error:
            _log.warning("LISTEN was cut off, polling until it is back: %s", error)


async def _subscribe(conninfo: str) -> psycopg.AsyncConnection:
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
    await connection.execute(f"listen {CHANNEL}")
    return connection


def _log_failure(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.warning("cannot LISTEN, polling instead: %s", error)
