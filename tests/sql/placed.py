"""What tests of taints and attestations ask again and again."""

from typing import Any
from uuid import UUID

from tests.calls import Row
from tests.sql.api import Api, Node

_STOP = """
  select stop_reason, stop_detail, stop_requested_at, stop_by from hwqueue.claim where lease_id = %s
"""


def spawn_placed(api: Api, queue: str, **placement: Any) -> UUID:
    """Spawn a lease with this placement; its id."""
    return api.spawn(queue, placement=placement)


def running_placed(api: Api, queue: str, node: Node, **placement: Any) -> Row:
    """Spawn such a lease and claim it on the node; the claim."""
    lease = spawn_placed(api, queue, **placement)
    return api.granted(lease, node, queue)


def reasons(api: Api, node: Node, **placement: Any) -> list[Row]:
    """Why the node may not run such a lease."""
    [row] = [row for row in api.rows("match_nodes", placement=placement) if row["node_id"] == node.node_id]
    found: list[Row] = row["reasons"]
    return found


def codes(api: Api, node: Node, **placement: Any) -> list[str]:
    """The codes of these reasons."""
    return [reason["code"] for reason in reasons(api, node, **placement)]


def stop(api: Api, claim: Row) -> tuple[Any, ...]:
    """What a claim is asked: reason, detail, when its worker is told, by when it should stop."""
    row = api.conn.execute(_STOP, [claim["lease_id"]]).fetchone()
    return tuple(row or ())


def verdict(api: Api, node: Node, claim: Row) -> str:
    """What the next heartbeat says of a claim."""
    [told] = api.verdicts(node, claim)
    return told
