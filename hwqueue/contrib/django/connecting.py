"""Django's connections: the one of the queue, and what is closed around each handler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import connections, transaction

from hwqueue.calls import Call
from hwqueue.client import Client
from hwqueue.client._drivers import Rows
from hwqueue.client._sync.runner import runner_on
from hwqueue.contrib.django.conf import read_settings


def client(*, using: str | None = None, actor: str | None = None) -> Client:
    """A client on Django's connection, in whatever transaction it is.

    Each call is made on the connection that the calling thread has at that moment: Django closes
    them between requests. So a client may be kept.

    Args:
        using: Which of `DATABASES`; None: that of `HWQUEUE["DATABASE"]`.
        actor: Who does what is done with it, as events say; None: the login.

    Its calls raise BadArgument, too: the database is no Postgres.
    """
    return Client.on(_Runner(using), actor=actor)


class _Runner:
    """Makes calls on what is Django's connection when they come."""

    def __init__(self, using: str | None) -> None:
        self._using = using

    def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the transaction of this thread."""
        connection = connections[self._using or read_settings().database]
        if not connection.in_atomic_block and connection.connection is not None:
            # as before a query of Django's own; and what the queue does tells Django of no error
            connection.close_if_health_check_failed()
            if connection.connection is not None and connection.connection.closed:
                connection.close()
        return runner_on(connection).run(call, arguments, actor)


def savepoint() -> AbstractContextManager[None]:
    """In a transaction of the queue's connection, a savepoint: an error in it aborts only that."""
    alias = read_settings().database
    is_inside = connections[alias].in_atomic_block
    return transaction.atomic(using=alias) if is_inside else nullcontext()


def close_old_connections() -> None:
    """Close what is broken or older than CONN_MAX_AGE, but for transactions that are open.

    Django's own function closes these, too. A test that runs a handler is within one.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
