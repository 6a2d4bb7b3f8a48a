"""Leases with isolation classes, as the SQL functions write them, from a normal placement."""

from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

_CLASS = """
  select hwqueue.find_class(q.queue_id, 'work', '', null, '{}', %s, 0)
  from hwqueue.queue q where q.name = %s
"""
_MOVE = """
  with moved as (
    update hwqueue.lease set class_id = %(class)s where lease_id = %(lease)s
  )
  update hwqueue.ready set class_id = %(class)s where lease_id = %(lease)s
"""
_REASONS = """
  select hwqueue.class_reasons(c, n, hwqueue.read_load(n.node_id, 0))
  from hwqueue.placement_class c, hwqueue.node n
  where c.class_id = %s and n.node_id = %s
"""


def make_class(conn: psycopg.Connection[Any], queue: str, placement: dict[str, Any]) -> int:
    """The class of task `work` with this placement, which must be normal."""
    row = conn.execute(_CLASS, [Jsonb(placement), queue]).fetchone()
    assert row is not None
    return int(row[0])


def spawn(conn: psycopg.Connection[Any], queue: str, placement: dict[str, Any]) -> UUID:
    """Spawn a lease of that class."""
    row = conn.execute("select lease_id from hwqueue.spawn_lease(%s, 'work')", [queue]).fetchone()
    assert row is not None
    lease: UUID = row[0]
    conn.execute(_MOVE, {"class": make_class(conn, queue, placement), "lease": lease})
    return lease


def reasons(
    conn: psycopg.Connection[Any], queue: str, node: UUID, placement: dict[str, Any]
) -> dict[str, bool]:
    """Why the node may not run such a lease now: codes, and whether each is permanent."""
    row = conn.execute(_REASONS, [make_class(conn, queue, placement), node]).fetchone()
    assert row is not None
    return {reason["code"]: reason["permanent"] for reason in row[0]}
