"""Nodes and running claims, read from the tables in one snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.oracle.capacity import check_claims, check_usage
from tests.oracle.cluster import Cluster, Lease, Running, Service
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
  join hwqueue.placement_class p on p.class_id = c.class_id
"""
# As JSON: what a column of a later revision holds is absent before.
_CLUSTER_NODES = """
  select to_jsonb(n) as node, s.seen_at + n.heartbeat_timeout as live_until
  from hwqueue.node n
  join hwqueue.node_state s on s.node_id = n.node_id
  where n.deregistered_at is null
"""
_RUNNING = """
  select c.lease_id, c.node_id,
         least(c.stop_requested_at, c.expires_at, timestamptz '9999-01-01 00:00:00+00') as stays_until,
         p.placement, p.labels, p.tenant, p.task_name, p.service_id, to_jsonb(q) as queue
  from hwqueue.claim c
  join hwqueue.placement_class p on p.class_id = c.class_id
  join hwqueue.queue q on q.queue_id = c.queue_id
"""
_SUCCEEDED = """
  select o.lease_id, o.node_id from hwqueue.outcome o
  where o.state = 'completed' and o.node_id is not null
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


def read_cluster(
    conn: psycopg.Connection[Any], at: datetime, services: Mapping[UUID, Service] | None = None
) -> Cluster:
    """Who runs where at the time `at` of the queue's clock, in one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        return cluster_of(conn, at, services)


def cluster_of(
    conn: psycopg.Connection[Any], at: datetime, services: Mapping[UUID, Service] | None = None
) -> Cluster:
    """The same in the transaction that is open."""
    with conn.cursor(row_factory=dict_row) as cursor:
        nodes = [_placed_node(row, at) for row in cursor.execute(_CLUSTER_NODES)]
        running = tuple(_running(row, at) for row in cursor.execute(_RUNNING))
        succeeded = {row["lease_id"]: row["node_id"] for row in cursor.execute(_SUCCEEDED)}
    return Cluster({node.node_id: node for node in nodes}, running, services or {}, succeeded)


def _placed_node(row: dict[str, Any], at: datetime) -> Node:
    """What placement looks at: not what the node has room for."""
    node = row["node"]
    attested = zip(node.get("attested", []), node.get("attested_until", []), strict=True)
    return Node(
        node_id=UUID(node["node_id"]),
        labels=node["labels"],
        rack=node["rack"],
        resources=frozenset(map(UUID, node["resources"])),
        capacity={},
        gpus=tuple(map(UUID, node["gpu_ids"])),
        slots=None,
        taints=tuple(node.get("taints", []) + node.get("operator_taints", [])),
        trusts=frozenset(
            domain for domain, until in attested if until == "infinity" or datetime.fromisoformat(until) > at
        ),
        is_live=row["live_until"] > at,
    )


def _running(row: dict[str, Any], at: datetime) -> Running:
    lease = Lease(
        lease_id=row["lease_id"],
        placement=row["placement"],
        labels=row["labels"],
        tenant=row["tenant"],
        task=row["task_name"],
        service_id=row["service_id"],
        queue_domain=row["queue"].get("failure_domain", "rack"),
    )
    return Running(lease, row["node_id"], is_leaving=row["stays_until"] <= at)


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
