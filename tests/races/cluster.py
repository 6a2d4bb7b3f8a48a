"""The queue and the nodes that races run on."""

from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.direct import Direct

QUEUE = "races"
SHORT = "300ms"  # a lock_timeout where nothing may wait


def node_spec(number: int, **changes: Any) -> dict[str, Any]:
    """A node that counts nothing."""
    return {"name": f"node-{number}", "instance_id": "first"} | changes


def register(conn: psycopg.Connection, number: int = 0, **changes: Any) -> tuple[UUID, int]:
    """A new node; returns its id and epoch."""
    node = uuid4()
    return node, Direct(conn).register(node, node_spec(number, **changes))
