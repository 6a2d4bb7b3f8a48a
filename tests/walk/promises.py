"""What every call holds to where room is reserved or kept for a lease."""

from collections import Counter
from uuid import UUID

from tests.walk.seen import Seen


def keeps_its_room(before: Seen, after: Seen) -> list[str]:
    """What becomes free where a lease has an earmark goes to nobody that does not come before."""
    kept = {
        one.node: after.turn(key)
        for key, one in before.leases.items()
        if one.state == "earmarked"
        and key in after.leases
        and (after.leases[key].state, after.leases[key].node) == ("earmarked", one.node)
    }
    return [
        f"{key} got a device of node {node} that is kept for another lease"
        for node, keys in ((node, _devices(after, node).keys()) for node in kept if node)
        for key in keys - _devices(before, node).keys()
        if after.turn(key) >= kept[node]
    ]


def books_open_nodes(before: Seen, after: Seen) -> list[str]:
    """What is booked is so on a node that lives and gets new work."""
    return [
        f"booked on a node that gets nothing: {one}"
        for key, one in after.leases.items()
        if one.state in ("reserved", "earmarked")
        and one.node is not None
        and one.grants > before.leases[key].grants
        and not after.is_open(one.node)
    ]


def _devices(seen: Seen, node: UUID) -> Counter[UUID]:
    """How many devices each claim on the node has, but for what is kept."""
    return Counter(
        {
            claim.lease_id: len((claim.assignment or {}).get("gpus", []))
            for claim in seen.backed
            if claim.node_id == node and (claim.assignment or {}).get("gpus")
        }
    )
