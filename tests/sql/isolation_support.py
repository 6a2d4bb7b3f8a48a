"""What the tests of isolation share: nodes with cores and devices, and leases that want them."""

from typing import Any
from uuid import UUID, uuid4

from tests.calls import Row
from tests.isolated import reasons, spawn
from tests.sql.api import Api, Node

CPU = ["whole_core", "strict_isolated"]
GPU = ["session_exclusive", "device_exclusive"]


def cores(*sizes: int) -> list[Row]:
    """Cores of NUMA nodes with so many each; core 1 has the threads 10 and 11, and so on."""
    numa = [number for number, size in enumerate(sizes) for _ in range(size)]
    return [
        {"core": core, "numa": numa[core], "threads": [10 * core, 10 * core + 1]} for core in range(len(numa))
    ]


def isolating(api: Api, *sizes: int, node_id: UUID | None = None, **spec: Any) -> Node:
    """A node that honours all CPU classes, with such cores."""
    return api.node(node_id, **{"cores": cores(*sizes), "cpu_isolation": CPU} | spec)


def asking(
    cpu: str | None = None, gpu: str | None = None, /, require: list[Row] | None = None, **resources: int
) -> Row:
    """A normal placement."""
    isolation = {key: value for key, value in (("cpu", cpu), ("gpu", gpu)) if value is not None}
    parts = {"require": require, "resources": resources, "isolation": isolation}
    return {key: value for key, value in parts.items() if value}


def run(api: Api, node: Node, placement: Row) -> Row | None:
    """Such a lease, claimed by the node; None when it may not run it now."""
    queue = api.queue()
    lease = spawn(api.conn, queue, placement)
    rows = api.claim(node, queue)
    if not rows:
        return None
    assert rows[0]["lease_id"] == lease
    return rows[0]


def held(api: Api, node: Node, placement: Row) -> Row:
    """Such a lease, claimed by the node, which must have room for it."""
    claim = run(api, node, placement)
    assert claim is not None
    return claim


def assigned(api: Api, node: Node, placement: Row) -> Row:
    """What such a lease is given on the node."""
    assignment: Row = held(api, node, placement)["assignment"]
    return assignment


def why(api: Api, node: Node, placement: Row) -> dict[str, bool]:
    """Codes of the reasons against it, and whether each is permanent; checks it with a claim."""
    found = reasons(api.conn, api.queue(), node.node_id, placement)
    if found:
        assert run(api, node, placement) is None
    return found


def core_use(api: Api, node: Node) -> list[int]:
    """Thousandths in use of each core of the node."""
    query = "select core_used from hwqueue.node_load where node_id = %s order by version desc limit 1"
    return list(api.one(query, node.node_id))


def devices(*parents: int | None) -> list[Row]:
    """Devices, whole ones (None) and parts of the one at a place of the list."""
    ids = [str(uuid4()) for _ in parents]
    return [
        {"resource_id": ids[place]}
        | ({"partitionable": True} if place in parents else {})
        | ({"parent_resource_id": ids[parent]} if parent is not None else {})
        for place, parent in enumerate(parents)
    ]
