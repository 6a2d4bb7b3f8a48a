"""Nodes and running claims, read from the tables in one snapshot."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.oracle.capacity import check_claims, check_usage
from tests.oracle.facts import Claim, Node, Usage

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
_USAGE = """
  select distinct on (u.node_id) u.node_id, u.cpu_used, u.memory_used, u.gpu_used, u.custom_used
  from hwqueue.node_load u order by u.node_id, u.version desc
"""


@dataclass(frozen=True)
class State:
    """All nodes, all running claims and the usage that is kept for each node, at one instant."""

    nodes: list[Node]
    claims: list[Claim]
    kept: dict[UUID, Usage]


def violations(conn: psycopg.Connection[Any]) -> list[str]:
    """Every broken promise that one snapshot of the database shows."""
    state = read_state(conn)
    broken = check_claims(state.nodes, state.claims)
    return broken + check_usage(state.nodes, state.claims, state.kept)


def read_state(conn: psycopg.Connection[Any]) -> State:
    """Read the three tables in one snapshot."""
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute("set transaction isolation level repeatable read, read only")
        nodes = [_node(row) for row in cursor.execute(_NODES)]
        claims = [Claim(**row) for row in cursor.execute(_CLAIMS)]
        kept = {row["node_id"]: _usage(row) for row in cursor.execute(_USAGE)}
    return State(nodes, claims, kept)


def _usage(row: dict[str, Any]) -> Usage:
    return Usage(
        cpu_milli=row["cpu_used"],
        memory_mib=row["memory_used"],
        gpu_milli=tuple(row["gpu_used"]),
        custom=row["custom_used"],
    )


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
