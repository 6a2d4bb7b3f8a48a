"""What the linear program is about: groups of nodes with room, and groups of leases that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

WHOLE_GPU = 1000  # thousandths of one device


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that differ in nothing that matters here, and what they have left together.

    Attributes:
        cpu_milli, memory_mib: In sum; None: not counted.
        free: How many devices have how many thousandths left.
    """

    cpu_milli: int | None
    memory_mib: int | None
    free: Mapping[int, int]

    @property
    def devices_with_room(self) -> int:
        """Those of which something is left."""
        return sum(self.free.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Leases that ask for the same.

    Attributes:
        count: How many there are.
        gpus: Whole devices, or 1 for a share.
        share: Thousandths of one device; 0: whole devices.
        pools: The numbers of the pools whose nodes may run them.
    """

    count: int
    gpus: int
    share: int
    cpu_milli: int
    memory_mib: int
    pools: tuple[int, ...]

    @property
    def devices(self) -> float:
        """What one of them holds, in devices."""
        return self.share / WHOLE_GPU if self.share else self.gpus


def alike_as_one(demands: Iterable[Demand]) -> list[Demand]:
    """The demands, those that ask for the same of the same pools as one."""
    counts: Counter[Demand] = Counter()
    for demand in demands:
        counts[replace(demand, count=0)] += demand.count
    return [replace(demand, count=count) for demand, count in counts.items()]
