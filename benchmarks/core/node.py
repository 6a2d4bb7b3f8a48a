"""Nodes that the benchmarks claim on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

# For nodes that call once and must not die while claims of others are timed.
LIVES_LONG = {"heartbeat_timeout": 86_400}


@dataclass(frozen=True)
class Node:
    """A registered node, as calls name it."""

    node_id: UUID
    epoch: int


def node_id(number: int) -> UUID:
    """The id of node 0, 1, ...: its number in digits, which pgbench's scripts can write, too."""
    return UUID(f"{number:032d}")


def register(dsn: str, number: int = 0, **spec: Any) -> Node:
    """Register node 0, 1, ...; `spec` is more of what register_node takes, e.g. labels."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return register_on(connection, number, spec)


def register_on(connection: psycopg.Connection, number: int, spec: Mapping[str, Any]) -> Node:
    """Register over a connection."""
    full = {"name": f"bench-{number}", "instance_id": "1", **spec}
    row = connection.execute(
        "select hwqueue.register_node(p_node => %s, p_spec => %s)",
        [node_id(number), Jsonb(full)],
        prepare=True,
    ).fetchone()
    assert row is not None
    return Node(node_id(number), row[0])
