"""Who runs where, read from the tables in one snapshot."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.oracle.cluster import Cluster, Lease, Running, Service
from tests.oracle.facts import Node

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


def cluster_of(
    conn: psycopg.Connection[Any], at: datetime, services: Mapping[UUID, Service] | None = None
) -> Cluster:
    """Who runs where at the time `at` of the queue's clock, in the transaction that is open."""
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
