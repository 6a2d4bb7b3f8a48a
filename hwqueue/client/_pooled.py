"""What connections of a client's own have in common, for both kinds."""

from __future__ import annotations

import select
from typing import Any

from psycopg.abc import AdaptContext
from psycopg.adapt import Loader
from psycopg.types.datetime import IntervalBinaryLoader, TimestamptzBinaryLoader
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Float8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader
from psycopg.types.uuid import UUIDBinaryLoader

from hwqueue.client._json import read_json

READ_COMMITTED = "read committed"

_LOADERS: dict[str, type[Loader]] = {
    "uuid": UUIDBinaryLoader,
    "timestamptz": TimestamptzBinaryLoader,
    "interval": IntervalBinaryLoader,
    "float8": Float8BinaryLoader,
    "bytea": ByteaBinaryLoader,
    "text": TextBinaryLoader,
}


def read_as_usual(connection: AdaptContext) -> None:
    """Read values as the types say, whatever the application has registered for its own."""
    set_json_loads(read_json, connection)
    for name, loader in _LOADERS.items():
        connection.adapters.register_loader(name, loader)


def says_something(descriptor: int) -> bool:
    """Whether a connection that nobody uses has something to read: most often, that it has ended.

    That is one call of the system, where asking the server is a round trip.
    """
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    watch: Any = select.poll()
    watch.register(descriptor, select.POLLIN)
    return bool(watch.poll(0))
