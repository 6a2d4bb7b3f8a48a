"""What arrives: single leases, and gangs of whole nodes, which ask for most of the GPU time."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

# How many of a hundred jobs, and how large.
_GANGS = 0.03
_GANG_NODES: Mapping[int, float] = {2: 0.4, 4: 0.3, 8: 0.2, 16: 0.1}
_SINGLE_GPUS: Mapping[int, float] = {1: 0.7, 2: 0.2, 4: 0.1}
_GANG_SHARE = 0.7  # of the GPU time
_SINGLE_MINUTES = 20.0


@dataclass(frozen=True)
class Cluster:
    """Racks of equal nodes."""

    racks: int
    nodes: int  # of a rack
    gpus: int  # of a node

    @property
    def size(self) -> int:
        """All GPUs."""
        return self.racks * self.nodes * self.gpus


@dataclass(frozen=True)
class Job:
    """A lease, or a gang of one member a node; times are seconds since the beginning.

    Attributes:
        nodes: Of a gang; 0: a single lease.
        gpus: Of the lease, or of each member.
    """

    arrives: float
    runs: float
    nodes: int
    gpus: int


def made_up(cluster: Cluster, count: int, load: float, seed: int) -> list[Job]:
    """Jobs in the order in which they arrive, so many that they ask for `load` of all GPU time.

    No gang is larger than a rack, no single lease larger than a node. Run times and the times
    between arrivals are exponential.
    """
    chance = random.Random(seed)
    sizes = {nodes: weight for nodes, weight in _GANG_NODES.items() if nodes <= cluster.nodes}
    shares = {gpus: weight for gpus, weight in _SINGLE_GPUS.items() if gpus <= cluster.gpus}
    single = _mean(shares) * _SINGLE_MINUTES * 60
    gang = single * (1 - _GANGS) * _GANG_SHARE / (1 - _GANG_SHARE) / _GANGS  # GPU seconds
    gang_seconds = gang / (_mean(sizes) * cluster.gpus)
    between = ((1 - _GANGS) * single + _GANGS * gang) / (load * cluster.size)
    now, jobs = 0.0, []
    for _ in range(count):
        now += chance.expovariate(1 / between)
        if chance.random() < _GANGS:
            [nodes] = chance.choices(list(sizes), list(sizes.values()))
            gpus, seconds = cluster.gpus, gang_seconds
        else:
            [gpus] = chance.choices(list(shares), list(shares.values()))
            nodes, seconds = 0, 60 * _SINGLE_MINUTES
        runs = chance.expovariate(1 / seconds)
        jobs.append(Job(now, runs, nodes, gpus))
    return jobs


def _mean(weights: Mapping[int, float]) -> float:
    return sum(size * weight for size, weight in weights.items()) / sum(weights.values())
