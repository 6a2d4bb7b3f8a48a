"""The queues and the nodes that races run on."""

from typing import Any
from uuid import UUID, uuid4

from tests.calls import Row
from tests.direct import Direct
from tests.sql.api import outlive

QUEUE = "races"
OTHER = "other"  # beside it: for those who ask, or who have nothing to do with it
Node = tuple[UUID, int]  # and its epoch


def set_policy(direct: Direct, **policy: Any) -> None:
    """Change keys of the policy of the queue."""
    direct.rows("set_queue_policy", queue=QUEUE, policy=policy)


def node_spec(number: int, **changes: Any) -> dict[str, Any]:
    """A node that counts nothing."""
    return {"name": f"node-{number}", "instance_id": "first"} | changes


def register(direct: Direct, number: int = 0, **changes: Any) -> Node:
    """A new node; returns its id and epoch."""
    node = uuid4()
    return node, direct.register(node, node_spec(number, **changes))


def prune(direct: Direct, times: int = 4) -> None:
    """Prune so often, each time as after all that was open before."""
    for _ in range(times):
        outlive(direct.conn)
        direct.rows("prune")


def started(direct: Direct, node: Node, options: dict[str, Any] | None = None, *, queue: str = QUEUE) -> Row:
    """The claim of a new lease that runs on the node."""
    lease = direct.spawn(queue, options)["lease_id"]
    [claim] = direct.claim(queue, *node)
    assert claim["lease_id"] == lease
    return claim


def completed(
    direct: Direct, node: Node, options: dict[str, Any] | None = None, *, queue: str = QUEUE
) -> UUID:
    """A new lease that the node has run."""
    claim = started(direct, node, options, queue=queue)
    lease: UUID = claim["lease_id"]
    direct.complete(lease, claim["claim_token"])
    return lease
