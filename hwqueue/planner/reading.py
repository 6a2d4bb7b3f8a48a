"""What waits and what is free, read page by page and brought into the program's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.planner.flow import Lease, Option, Wanted
from hwqueue.planner.gangs import Gang, Need, Place
from hwqueue.planner.model import WHOLE_GPU, Demand, Pool, alike_as_one
from hwqueue.planner.program import STEP

_MOST = 1_000_000  # leases of a class that are ever counted
_SHARES = 20  # on a device: more leases of a class than fit so change nothing
_SHORT = 2000  # leases of a queue that is short
_CLASSES = 100  # that wait in one
_GANGS = 200  # that are planned in a round, those that are first in order


@dataclass(slots=True)
class _Kind:
    """Nodes that the same classes suit: what each of them has, and what they have left together."""

    profile_id: int
    gpus: int
    cpu_milli: int | None
    memory_mib: int | None
    nodes: int = 0
    cpu_free: int = 0
    memory_free: int = 0
    free: Counter[int] = field(default_factory=Counter)

    def suits(self, item: Mapping[str, Any]) -> bool:
        """Whether an idle one could run a lease of the class."""
        return (
            self.profile_id in item["profiles"]
            and item["gpus"] <= self.gpus
            and (self.cpu_milli is None or item["cpu_milli"] <= self.cpu_milli)
            and (self.memory_mib is None or item["memory_mib"] <= self.memory_mib)
        )

    def add(self, item: Mapping[str, Any]) -> None:
        """Add a group of nodes."""
        self.nodes += item["nodes"]
        self.cpu_free += item["cpu_free"] or 0
        self.memory_free += item["memory_free"] or 0
        self.free.update({int(level): devices for level, devices in item["free"].items()})

    def pool(self) -> Pool:
        """What they have left."""
        return Pool(
            cpu_milli=None if self.cpu_milli is None else self.cpu_free,
            memory_mib=None if self.memory_mib is None else self.memory_free,
            free=self.free,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a round reads.

    Attributes:
        pools: Nodes with GPUs.
        demands: What waits, by queue; only queues in which something waits for GPUs.
        devices: GPUs of all these nodes.
        allocated: How many of them are in use; shares count as their part.
    """

    pools: Sequence[Pool]
    demands: Mapping[str, Sequence[Demand]]
    devices: int
    allocated: float

    @property
    def leases(self) -> int:
        """How many leases wait."""
        return sum(demand.count for each in self.demands.values() for demand in each)


async def read(client: AsyncClient, queues: Sequence[str] = ()) -> Picture:
    """Read the nodes, then what waits in these queues (none: in all).

    Raises: QueueUnknown, of a queue that is named.
    """
    found: dict[tuple[Any, ...], _Kind] = {}
    async for item in _pages(client, "nodes"):
        key = (item["profile_id"], item["gpus"], item["cpu_milli"], item["memory_mib"])
        found.setdefault(key, _Kind(*key)).add(item)
    kinds = list(found.values())
    free: Counter[int] = Counter()
    for kind in kinds:
        free.update(kind.free)
    most = min(_MOST, max(1000, _SHARES * free.total()))
    named = queues or [item["queue"] async for item in _pages(client, "queues")]
    demands = {
        queue: waiting for queue in named if (waiting := await _read_demands(client, queue, kinds, most))
    }
    devices = sum(kind.gpus * kind.nodes for kind in kinds)
    room = sum(level * count for level, count in free.items()) / WHOLE_GPU
    return Picture(
        pools=[kind.pool() for kind in kinds], demands=demands, devices=devices, allocated=devices - room
    )


async def read_gangs(client: AsyncClient, queues: Sequence[str] = ()) -> list[list[Gang]]:
    """The first gangs in order that wait, those that are together in the same way in one list."""
    rows = await client.planner_view("gangs", limit=_GANGS)
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Gang]] = {}
    for row in rows:
        item = row.item
        if item is not None and (not queues or item["queue"] in queues):
            how = tuple(item["together"][:1]), tuple(sorted(item["same"]))
            alike.setdefault(how, []).append(
                Gang(
                    gang_id=UUID(item["gang_id"]),
                    rank=item["rank"],
                    needs=tuple(_need(each) for each in item["members"]),
                )
            )
    return list(alike.values())


def _need(item: Mapping[str, Any]) -> Need:
    return Need(
        class_id=str(item["class_id"]),
        members=item["members"],
        gpus=item["gpus"],
        share=item["gpu_milli"],
        cpu_milli=item["cpu_milli"],
        memory_mib=item["memory_mib"],
        is_plain=item["is_plain"],
    )


async def read_places(client: AsyncClient, gangs: Sequence[Gang]) -> list[Place]:
    """Where gangs that are together in the same way have room."""
    nodes: dict[str, list[tuple[int, Mapping[str, int]]]] = {}
    rows = await client.planner_rooms([gang.gang_id for gang in gangs])
    for row in rows:
        nodes.setdefault(row.place, []).append((row.nodes, row.rooms))
    return [Place(name, found) for name, found in nodes.items()]


async def read_matches(client: AsyncClient, queues: Sequence[str] = ()) -> dict[str, list[Wanted]]:
    """What waits in short queues, of which some nodes suit some leases better than others."""
    named = queues or [item["queue"] async for item in _pages(client, "queues")]
    found = {}
    for queue in named:
        rows = await client.planner_view("matches", queue, limit=_CLASSES, most=_SHORT)
        nodes: dict[str, UUID] = {}  # one object each: they are compared a lot
        found[queue] = [_wanted(row.item, nodes) for row in rows if row.item is not None]
    return {queue: wanted for queue, wanted in found.items() if wanted}


def _wanted(item: Mapping[str, Any], nodes: dict[str, UUID]) -> Wanted:
    for node, _, _ in item["nodes"]:
        if node not in nodes:
            nodes[node] = UUID(node)
    return Wanted(
        class_id=item["class_id"],
        patience=item["patience"],
        best=item["best"],
        worst=item["worst"],
        leases=[Lease(UUID(lease), tier, rank, waited) for lease, tier, rank, waited in item["leases"]],
        options=[Option(nodes[node], affinity, room) for node, affinity, room in item["nodes"]],
    )


async def _read_demands(client: AsyncClient, queue: str, kinds: Sequence[_Kind], most: int) -> list[Demand]:
    """What waits in a queue, classes that ask for the same as one."""
    found = []
    async for item in _pages(client, "classes", queue, most=most):
        suited = tuple(number for number, kind in enumerate(kinds) if kind.suits(item))
        if suited:
            found.append(
                Demand(
                    count=item["ready"],
                    gpus=item["gpus"],
                    # a curve has a point for every ten thousandths
                    share=-(-item["gpu_milli"] // STEP) * STEP,
                    cpu_milli=item["cpu_milli"],
                    memory_mib=item["memory_mib"],
                    pools=suited,
                )
            )
    return alike_as_one(found)


async def _pages(
    client: AsyncClient,
    part: Literal["queues", "classes", "nodes"],
    queue: str | None = None,
    *,
    most: int = 1,
) -> AsyncIterator[Mapping[str, Any]]:
    """The items of all pages."""
    after: str | None = None
    while True:
        rows = await client.planner_view(part, queue, after=after, most=most)
        after = None
        for row in rows:
            if row.item is None:
                after = row.next
            else:
                yield row.item
        if after is None:
            return
