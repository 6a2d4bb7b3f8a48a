"""A made-up fleet and what waits for it, as a planner reads them."""

import random
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from hwqueue.planner.flow import Lease, Option, Wanted
from hwqueue.planner.gangs import Gang, Need, Place
from hwqueue.planner.model import WHOLE_GPU, Demand, Pool

_SHARES = (50, 100, 110, 160, 190, 230, 250, 320, 460, 470, 500, 530, 650, 810)
_GPUS = (1, 1, 1, 2, 4, 8)
_SUITED = (0.01, 0.05, 0.2, 0.6, 1.0)  # parts of the kinds of nodes that a class may run on
_DEVICES = 8  # of a node
_CORES = 96_000  # thousandths
_MEMORY = 786_432  # MiB
_MEMBER_GPUS = (1, 2, 4, 8)
_MEMBERS = (2, 4, 8, 16, 32)
_RACK = 40  # nodes
_LEVELS = 20  # different amounts of room that a device may have left, besides all and none


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How much there is.

    Attributes:
        nodes: Of 8 GPUs each.
        kinds: Of nodes, by what may run there.
        classes: That wait.
        pending: Leases that wait, in all classes.
        used: The part of all GPUs that is in use.
    """

    nodes: int
    kinds: int
    classes: int
    pending: int
    used: float

    def made(self, seed: int) -> tuple[list[Pool], list[Demand]]:
        """Pools of nodes, and demands for them; the same for the same seed."""
        chance = random.Random(seed)
        levels = sorted(chance.sample(range(10, WHOLE_GPU, 10), _LEVELS))
        of_kind = Counter(chance.choices(range(self.kinds), k=self.nodes))
        pools = [self._pool(chance, levels, of_kind[kind]) for kind in range(self.kinds)]
        counts = Counter(
            chance.choices(
                range(self.classes),
                weights=[chance.paretovariate(1.2) for _ in range(self.classes)],
                k=self.pending,
            )
        )
        return pools, [self._demand(chance, counts[number]) for number in range(self.classes)]

    def _pool(self, chance: random.Random, levels: list[int], nodes: int) -> Pool:
        free: Counter[int] = Counter()
        for _ in range(nodes * _DEVICES):
            draw = chance.random()
            if draw >= self.used:
                free[WHOLE_GPU] += 1
            elif draw >= self.used / 2:
                free[chance.choice(levels)] += 1
        room = 1 - self.used / 2
        return Pool(cpu_milli=int(nodes * _CORES * room), memory_mib=int(nodes * _MEMORY * room), free=free)

    def _demand(self, chance: random.Random, count: int) -> Demand:
        share = chance.choice(_SHARES) if chance.random() < 0.6 else 0
        suited = max(1, round(chance.choice(_SUITED) * self.kinds))
        return Demand(
            count=count,
            gpus=1 if share else chance.choice(_GPUS),
            share=share,
            cpu_milli=chance.choice((1000, 4000, 8000, 12_000)),
            memory_mib=1024 * chance.choice((4, 16, 32, 96)),
            pools=tuple(sorted(chance.sample(range(self.kinds), suited))),
        )


def made_gangs(count: int, racks: int, seed: int) -> tuple[list[Gang], list[Place]]:
    """Gangs of one rack each, all as urgent, and racks of nodes, a third of which are full."""
    chance = random.Random(seed)
    gangs = [
        Gang(
            gang_id=UUID(int=number),
            rank=0,
            needs=(_need(chance.choice(_MEMBERS), chance.choice(_MEMBER_GPUS)),),
        )
        for number in range(count)
    ]
    places = []
    for number in range(racks):
        free = Counter(chance.choice((0, 0, 0, 0, *range(1, 9))) for _ in range(_RACK))
        rooms = [
            (nodes, {str(gpus): left // gpus for gpus in _MEMBER_GPUS if gpus <= left})
            for left, nodes in free.items()
        ]
        places.append(Place(f"rack {number}", rooms))
    return gangs, places


def made_leases(classes: int, nodes: int, count: int, seed: int) -> list[Wanted]:
    """Leases that like each node more or less, and nodes with room for one to four of any class."""
    chance = random.Random(seed)
    rooms = [chance.randint(1, 4) for _ in range(nodes)]
    ids = [UUID(int=node) for node in range(nodes)]
    counts = Counter(chance.choices(range(classes), k=count))
    found = []
    for number, pending in counts.items():
        strength = chance.uniform(0.01, 1)
        suited = chance.sample(range(nodes), max(1, round(chance.choice(_SUITED) * nodes)))
        options = [Option(ids[node], strength * chance.uniform(-100, 100), rooms[node]) for node in suited]
        affinities = [option.affinity for option in options]
        waited = sorted((chance.uniform(0, 4) for _ in range(pending)), reverse=True)
        found.append(
            Wanted(
                class_id=number,
                patience=2.0,
                best=max(affinities),
                worst=min(affinities),
                leases=[
                    Lease(UUID(int=count * number + turn), 0, 0, each) for turn, each in enumerate(waited)
                ],
                options=options,
            )
        )
    return found


def _need(members: int, gpus: int) -> Need:
    return Need(
        class_id=str(gpus),
        members=members,
        gpus=gpus,
        share=0,
        cpu_milli=0,
        memory_mib=0,
        is_plain=True,
    )
