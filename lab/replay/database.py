"""Databases that hold nothing yet, in which a replay may run on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import make_conninfo

from hwqueue.client import Client
from hwqueue.demo.cleanup import clear
from hwqueue.errors import ConfigError
from hwqueue.schema import upgrade


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


def with_database(dsn: str, name: str | None) -> str:
    """Return `dsn` with another database name; None leaves it as it is."""
    return dsn if name is None else make_conninfo(dsn, dbname=name)
