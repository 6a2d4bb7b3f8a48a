"""Nodes and running claims, read from the tables in one snapshot."""

from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.oracle.facts import Claim, Node

_NODES = """
  select n.node_id, n.labels, n.rack, n.resources, n.cpu_milli, n.memory_mib, n.custom, n.gpu_ids,
         n.slots
  from hwqueue.node n
  where n.deregistered_at is null
"""
_CLAIMS = """
  select c.lease_id, c.node_id, p.placement, c.assignment
  from hwqueue.claim c
  join hwqueue.placement_class p on p.shard_id = c.shard_id and p.class_id = c.class_id
"""


def read_state(conn: psycopg.Connection[Any]) -> tuple[list[Node], list[Claim]]:
    """All nodes and all running claims, at one instant."""
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute("set transaction isolation level repeatable read, read only")
        nodes = [_node(row) for row in cursor.execute(_NODES)]
        claims = [Claim(**row) for row in cursor.execute(_CLAIMS)]
    return nodes, claims


def _node(row: dict[str, Any]) -> Node:
    declared = {key: row[key] for key in ("cpu_milli", "memory_mib") if row[key] is not None}
    return Node(
        node_id=row["node_id"],
        labels=row["labels"],
        rack=row["rack"],
        resources=frozenset(row["resources"]),
        capacity=declared | row["custom"],
        gpus=tuple(row["gpu_ids"]),
        slots=row["slots"],
    )
