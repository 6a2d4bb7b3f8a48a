"""Where a replay runs: a database of its own, or, on request, one that holds nothing yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.schema import upgrade


@contextmanager
def scratch_database(dsn: str, name: str | None = None, *, keep: bool = False) -> Iterator[str]:
    """Create an upgraded database on the server of `dsn`; drop it at the end unless `keep`.

    `name` None picks one of its own. Raises: ConfigError when it exists, or may not be created.
    """
    name = name or f"hwqueue_replay_{uuid4().hex[:12]}"
    try:
        _execute(dsn, "create database {}", name)
    except psycopg.errors.DuplicateDatabase as error:
        raise ConfigError(
            f"database {name!r} exists, and a replay makes its own",
            hint="choose another --database, or add --in-place if it is empty",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            "a replay runs in a database of its own, and this role may not create one",
            hint="grant it CREATEDB, or name an empty database with --database and add --in-place",
        ) from error
    scratch = make_conninfo(dsn, dbname=name)
    try:
        upgrade(scratch)
        yield scratch
    finally:
        if not keep:
            _execute(dsn, "drop database {} with (force)", name)


@contextmanager
def empty_database(dsn: str, queue: str) -> Iterator[str]:
    """Use the database of `dsn` itself; it must hold no queue and no node. Cleared at the end.

    Raises: ConfigError when the database is in use.
    """
    upgrade(dsn)
    with Client(dsn, pool_size=1) as client:
        queues, nodes = client.list_queues(), client.list_nodes()
    if queues or nodes:
        raise ConfigError(
            f"the database is in use: it has {len(queues)} queues and {len(nodes)} nodes",
            hint="leave out --in-place (the replay then makes a database of its own), "
            "or name an empty database with --database",
        )
    try:
        yield dsn
    finally:
        with Client(dsn, pool_size=1) as client:
            clear(client, queue, [node.node_id for node in client.list_nodes()])


def clear(client: Client, queue: str, nodes: Iterable[UUID]) -> None:
    """Drop a queue with its leases, if it is there, and deregister nodes."""
    if any(found.queue == queue for found in client.list_queues()):
        client.drop_queue(queue, force=True)
    for node in nodes:
        client.deregister_node(node)


def with_database(dsn: str, name: str | None) -> str:
    """Return `dsn` with another database name; None leaves it as it is."""
    return dsn if name is None else make_conninfo(dsn, dbname=name)


def _execute(dsn: str, command: LiteralString, database: str) -> None:
    # Neither command runs in a transaction, so neither can be a function of the SQL API.
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(command).format(sql.Identifier(database)))
