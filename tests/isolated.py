"""Leases with isolation classes, and why a node may not run them."""

from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

_SPAWN = "select lease_id from hwqueue.spawn_lease(%s, 'work', '{}', %s)"
_REASONS = """
  select reasons from hwqueue.match_nodes(%s, %s) where node_id = %s
"""


def spawn(conn: psycopg.Connection[Any], queue: str, placement: dict[str, Any]) -> UUID:
    """Spawn a lease with this placement."""
    row = conn.execute(_SPAWN, [queue, Jsonb({"placement": placement})]).fetchone()
    assert row is not None
    lease: UUID = row[0]
    return lease


def reasons(
    conn: psycopg.Connection[Any], queue: str, node: UUID, placement: dict[str, Any]
) -> dict[str, bool]:
    """Why the node may not run such a lease now: codes, and whether each is permanent."""
    options = Jsonb({"queue": queue, "task": "work"})
    row = conn.execute(_REASONS, [Jsonb(placement), options, node]).fetchone()
    assert row is not None
    return {reason["code"]: reason["permanent"] for reason in row[0]}
