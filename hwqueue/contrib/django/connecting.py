"""Django's connections: the one of the queue, and what is closed around each handler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from django.db import connections, transaction

from hwqueue.client import Client
from hwqueue.contrib.django.conf import read_settings


def client(*, using: str | None = None, actor: str | None = None) -> Client:
    """A client on Django's connection of this thread, in whatever transaction it is.

    Make one where it is used, and keep none: Django closes its connections between requests.

    Args:
        using: Which of `DATABASES`; None: that of `HWQUEUE["DATABASE"]`.
        actor: Who does what is done with it, as events say; None: the login.

    Raises: BadArgument: the database is no Postgres, or its driver is not psycopg 3.
    """
    connection = connections[using or read_settings().database]
    if not connection.in_atomic_block and connection.connection is not None:
        # as before a query of Django's own; and what the queue does tells Django of no error
        connection.close_if_health_check_failed()
        if connection.connection is not None and connection.connection.closed:
            connection.close()
    return Client.on(connection, actor=actor)


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
