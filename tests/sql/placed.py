"""Leases of a class that is given in its normal form, so that a test is about what decides."""

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tests.sql.api import TASK, Api, Node, Row, beat

_CLASS = """
  select hwqueue.find_class(queue_id, %s, '', null, '{}', %s, 0) from hwqueue.queue where name = %s
"""
_REASONS = """
  select hwqueue.class_reasons(hwqueue.draft_class(0, 'work', '', null, '{}', %s, 0), n,
                               hwqueue.read_load(n.node_id, 0), hwqueue.clock())
  from hwqueue.node n where node_id = %s
"""
_STOP = """
  select stop_reason, stop_detail, stop_requested_at, stop_by from hwqueue.claim where lease_id = %s
"""


def spawn_placed(api: Api, queue: str, **placement: Any) -> UUID:
    """Spawn a lease with this placement, in normal form; its id."""
    with api.conn.transaction():
        lease = api.spawn(queue)
        row = api.conn.execute(_CLASS, [TASK, Jsonb(placement), queue]).fetchone()
        for table in ("lease", "ready"):
            statement = f"update hwqueue.{table} set class_id = %s where lease_id = %s"
            api.conn.execute(statement.encode(), [*(row or ()), lease])
    return lease


def running_placed(api: Api, queue: str, node: Node, **placement: Any) -> Row:
    """Spawn such a lease and claim it on the node; the claim."""
    lease = spawn_placed(api, queue, **placement)
    [claim] = api.claim(node, queue)
    assert claim["lease_id"] == lease
    return claim


def reasons(api: Api, node: Node, **placement: Any) -> list[Row]:
    """Why the node may not run such a lease."""
    row = api.conn.execute(_REASONS, [Jsonb(placement), node.node_id]).fetchone()
    return list((row or ([],))[0])


def codes(api: Api, node: Node, **placement: Any) -> list[str]:
    """The codes of these reasons."""
    return [reason["code"] for reason in reasons(api, node, **placement)]


def stop(api: Api, claim: Row) -> tuple[Any, ...]:
    """What a claim is asked: reason, detail, when its worker is told, by when it should stop."""
    row = api.conn.execute(_STOP, [claim["lease_id"]]).fetchone()
    return tuple(row or ())


def verdict(api: Api, node: Node, claim: Row) -> str:
    """What the next heartbeat says of a claim."""
    [row] = api.rows("heartbeat_node", **node.who, claims=beat(claim))
    return str(row["verdict"])
