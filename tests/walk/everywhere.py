"""Everywhere tasks: a lease on each node that suits them, nodes that come later first of all."""

from collections.abc import Mapping
from copy import copy
from typing import Any
from uuid import UUID

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.oracle.capacity import fits
from tests.oracle.cluster import Cluster, Lease
from tests.oracle.occupancy import may_run
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import ticked
from tests.walk.names import QUEUE, everywhere_id, node_id
from tests.walk.operators import spec_of
from tests.walk.promises import keeps_its_room
from tests.walk.seen import FINISHED, LeaseSeen, Seen, time
from tests.walk.sweeps import lost, unlike
from tests.walk.world import IN_ZONE, Options, World, every, gpus, needs

TASK_ID = everywhere_id("e")
_WAITS = ("scheduled", "reserved", "earmarked")


class SpawnEverywhere(s.Step):
    """A producer spawns it: it writes one row, and no lease yet."""

    name = "spawn everywhere"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = {"everywhere_id": str(TASK_ID), **options}

    def can(self, seen: Seen) -> bool:
        """Whether it is not there yet."""
        return not seen.rows["everywhere"]

    def make(self, direct: Direct, seen: Seen) -> Row:
        return direct.row("spawn_everywhere", queue=QUEUE, task=TASK, options=self.options)

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """No lease has changed, and none has come."""
        new = after.leases.keys() - before.leases.keys()
        return unlike(before, after) + [f"spawned {key}" for key in new]


class StopEverywhere(s.Step):
    """An operator stops it, what runs goes on."""

    name = "stop everywhere"

    def can(self, seen: Seen) -> bool:
        """Whether it goes on."""
        return any(row["stopped_at"] is None for row in seen.rows["everywhere"])

    def make(self, direct: Direct, seen: Seen) -> str:
        return str(direct.value("stop_everywhere", everywhere=TASK_ID))


class Its(s.Step):
    """A call about the lease that the task has on a node."""

    def __init__(self, kind: type[s.OfLease], node: str) -> None:
        self.step = kind("e")
        self.name = f"{kind.verb} e on {node}"
        self.node = node_id(node)

    def can(self, seen: Seen) -> bool:
        """Whether there is one, and the call makes sense."""
        return self.node in _rows(seen) and self._step(seen).can(seen)

    def make(self, direct: Direct, seen: Seen) -> Any:
        """Make the call."""
        return self._step(seen).make(direct, seen)

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """As for any other lease."""
        return self._step(before).wrong(before, after, outcome)

    def _step(self, seen: Seen) -> s.OfLease:
        step = copy(self.step)
        step.lease = UUID(_rows(seen)[self.node]["lease_id"])
        return step


class Registers(s.OfNode):
    """A node registers, and asks for work: its own lease is there before others can be."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """Leases of other nodes are what they were, and this one has what it is to have."""
        own = self._own(before) | self._own(after)
        leases = {key: after.leases[key] for key in own if key in after.leases}
        is_new = after.nodes[self.node]["epoch"] != before.nodes.get(self.node, {}).get("epoch")
        for key, one in before.leases.items():
            if is_new and one.node == self.node and key not in own:
                leases[key] = lost(one)
        return unlike(before, after, leases) + standing_wrong(after, self.node)

    def asks(self, direct: Direct, epoch: int) -> int:
        """Let the node claim, of a task that there is not."""
        direct.rows("claim_task", queues=[QUEUE], node=self.node, epoch=epoch, tasks=["none"])
        return epoch

    def _own(self, seen: Seen) -> set[UUID]:
        row = _rows(seen).get(self.node)
        return set() if row is None else {UUID(row["lease_id"])}


class Arrives(Registers, o.Arrive):
    """A node comes, or comes back."""

    def make(self, direct: Direct, seen: Seen) -> int:
        """Register it, and let it ask."""
        return self.asks(direct, super().make(direct, seen))


class Restarts(Registers, o.RestartAlike):
    """Another process of the node registers: what the old one held has ended."""

    def make(self, direct: Direct, seen: Seen) -> int:
        """Register it, and let it ask."""
        return self.asks(direct, super().make(direct, seen))


class Relabel(Registers):
    """The node registers with another zone; what runs there goes on."""

    verb = "relabel"

    def make(self, direct: Direct, seen: Seen) -> int:
        """Register it, in the other zone."""
        node = seen.nodes[self.node]
        zone = "b" if node["labels"].get("zone") == "a" else "a"
        epoch = direct.register(self.node, spec_of(node) | {"labels": {"zone": zone}})
        return self.asks(direct, epoch)


class ReapNodes(s.Reap):
    """A sweep: each node has what it is to have, whatever happened before."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """All others are swept as ever."""
        leases, gangs = ticked(before, after)
        leases |= {key: one for key, one in after.leases.items() if one.gang == key}
        wrong = unlike(before, after, leases, gangs=gangs)
        for node in {*after.nodes, *_rows(after)}:
            wrong += standing_wrong(after, node)
        return wrong


def standing_wrong(seen: Seen, node: UUID) -> list[str]:
    """What is wrong with the lease of a node that was looked at just now."""
    [task] = seen.rows["everywhere"]
    row = _rows(seen).get(node)
    one = None if row is None else _lease(seen, row)
    due = None if row is None or row["due_at"] is None else time(row["due_at"])
    fit = _fit(seen, node, task)
    if fit != "now":
        forbidden = _WAITS if fit == "never" else _WAITS[1:]
        return [f"{fit} on node {node}, but {one}"] if one and one.state in forbidden else []
    if row is None:
        return [f"node {node} suits and has no lease"]
    if one is None or one.state in FINISHED:
        is_over = task["mode"] == "once" or (due is not None and due > seen.now)
        return [] if is_over else [f"node {node} is to have another lease, not {one}"]
    if row["reason"] == "insufficient_capacity" and one.state == "scheduled":
        return [f"no room is kept for {one}"]
    if one.state == "scheduled" and (due is None or due <= seen.now):
        return [f"nothing is reserved for {one}"]
    return _booked_wrong(seen, node, UUID(row["lease_id"]))


def _booked_wrong(seen: Seen, node: UUID, key: UUID) -> list[str]:
    """What is wrong with the room that is kept for a lease of the node."""
    one = seen.leases[key]
    others = [claim for claim in seen.claims if claim.lease_id != key]
    if one.state == "earmarked" and fits(seen.facts[key].placement, seen.places[node], others):
        return [f"there is room for {one}"]
    if one.state == "reserved" and one.expires_at is not None and one.expires_at <= seen.now:
        return [f"reserved for ever: {one}"]
    return []


def one_a_node(before: Seen, after: Seen) -> list[str]:
    """A node has one open lease of it at most, and that runs there alone."""
    rows = {UUID(row["lease_id"]): node for node, row in _rows(after).items()}
    own = {key: one for key, one in after.leases.items() if one.gang == key}
    held = [one.node for one in own.values() if one.node is not None]
    wrong = [f"node {node} has {held.count(node)} leases" for node in held if held.count(node) > 1]
    wrong += [
        f"open, and of no node: {one}"
        for key, one in own.items()
        if one.state not in FINISHED and key not in rows
    ]
    return wrong + [
        f"lease of node {rows[key]} is elsewhere: {one}"
        for key, one in own.items()
        if one.node is not None and rows.get(key, one.node) != one.node
    ]


def once_is_enough(before: Seen, after: Seen) -> list[str]:
    """Where it has completed once it does not run again, as long as the node is there."""
    [task] = after.rows["everywhere"]
    now = _rows(after)
    return [
        f"node {node} completed it, and has another lease"
        for node, row in _rows(before).items()
        if task["mode"] == "once"
        and row["ended_as"] == "completed"
        and node in after.nodes
        and (node not in now or now[node]["lease_id"] != row["lease_id"])
    ]


def _rows(seen: Seen) -> dict[UUID, Row]:
    return {UUID(row["node_id"]): row for row in seen.rows["everywhere_node"]}


def _lease(seen: Seen, row: Row) -> LeaseSeen | None:
    return seen.leases.get(UUID(row["lease_id"]))


def _fit(seen: Seen, node: UUID, task: Row) -> str:
    """Whether the node is to have a lease now, later or never."""
    if task["stopped_at"] is not None or node not in seen.nodes:
        return "never"
    [placement] = [
        row["placement"] for row in seen.rows["placement_class"] if row["class_id"] == task["class_id"]
    ]
    alone = Lease(lease_id=TASK_ID, placement=placement)
    place = seen.places[node]
    if may_run(alone, place, Cluster({}, (), {}, {})) or not fits(placement, place, []):
        return "never"
    is_open = seen.is_live(node) and seen.nodes[node]["cordoned_at"] is None
    return "now" if is_open else "later"


def _world(name: str, options: Options, steps: list[s.Step], *, is_slow: bool = True) -> World:
    zone = {"labels": {"zone": "a"}}
    e = {"placement": {**IN_ZONE, "resources": {"gpu": 1}}, **options}
    return World(
        name,
        nodes={"n": {**gpus(1, "n"), **zone}},
        leases={"s": needs(gpu=1)},
        first=[SpawnEverywhere(e)],
        steps=[
            s.Claim("n"),
            *every(s.Complete, "s"),
            Its(s.Complete, "n"),
            Relabel("n"),
            Restarts("n"),
            s.Wait(),
            ReapNodes(),
            *steps,
        ],
        promises=[one_a_node, once_is_enough, keeps_its_room],
        is_upkeeps=True,
        is_slow=is_slow,
    )


_LATER: Options = {**gpus(1, "m"), "labels": {"zone": "a"}}

# Once on each node, also on one that comes later, leaves and comes back.
ONCE = _world(
    "once",
    {"mode": "once"},
    [Arrives("m", _LATER), s.Claim("m"), Its(s.Complete, "m"), o.Leave("m")],
    is_slow=False,
)
# For ever: one that ends is followed by another, one whose node does not suit any more is to stop.
ALWAYS = _world(
    "always",
    {"mode": "always", "on_unmatched": "stop"},
    [Its(s.Fail, "n"), Its(s.Release, "n"), o.Cordon("n"), o.Uncordon("n"), StopEverywhere()],
)
