"""Gangs as a queue without gangs has them: members are single leases, and hold what they have.

A member that is claimed waits for the others, as a pod that a permit plugin keeps waiting. After a
time all of them give up their room, and try again later in the rack that is emptiest then.
"""

from dataclasses import dataclass, field
from uuid import UUID

from hwqueue import LeaseSpec
from hwqueue.types import Claim, SpawnOptions
from lab.gangs.jobs import Cluster, Job
from lab.gangs.simulation import QUEUE, TASK, Place, Simulation, Way

TIMEOUT = 300.0  # seconds from the first member that has room
_BACKOFF = 10.0  # seconds after the first try; doubles
_LONGEST = 300.0


@dataclass
class Try:
    """One try of a gang to start.

    Attributes:
        number: From 0.
        waiting: Members without room.
        held: Those that have some.
    """

    job: Job
    number: int
    waiting: set[UUID]
    held: list[tuple[Place, Claim]] = field(default_factory=list)


class HoldAndWait(Simulation):
    """The simulation, with the queue's single leases alone."""

    def __init__(self, dsn: str, cluster: Cluster, tick: float, way: Way) -> None:
        super().__init__(dsn, cluster, tick, way)
        self._members: dict[UUID, Try] = {}  # that wait

    def _spawn_gang(self, job: Job, options: SpawnOptions) -> None:
        self._try(job, 0)

    def _try(self, job: Job, number: int) -> None:
        places = list(self._places.values())
        size = self._cluster.nodes
        racks = [places[first : first + size] for first in range(0, len(places), size)]
        able = [sum(place.free >= job.gpus for place in rack) for rack in racks]
        rack = able.index(max(able))
        options: SpawnOptions = {"placement": {"resources": {"gpu": job.gpus}, "require": [{"rack": rack}]}}
        spec = LeaseSpec(task=TASK, options=options)
        spawned = self._client.spawn_leases(QUEUE, [spec] * job.nodes)
        trying = Try(job, number, {each.lease_id for each in spawned})
        self._members |= dict.fromkeys(trying.waiting, trying)
        for place in racks[rack]:
            if place.free >= job.gpus:
                self._ask(place)

    def _claimed(self, place: Place, claim: Claim) -> None:
        trying = self._members.pop(claim.lease_id, None)
        if trying is None:
            super()._claimed(place, claim)
            return
        if not trying.held:
            self._at(self._now + TIMEOUT, lambda: self._give_up(trying))
        place.free -= trying.job.gpus
        self._held += trying.job.gpus
        trying.waiting.discard(claim.lease_id)
        trying.held.append((place, claim))
        if not trying.waiting:
            self._held -= len(trying.held) * trying.job.gpus
            self._start(trying.job, trying.held)

    def _give_up(self, trying: Try) -> None:
        if not trying.waiting:
            return
        for lease in trying.waiting:
            del self._members[lease]
            self._client.cancel_lease(lease)
        self._held -= len(trying.held) * trying.job.gpus
        self._free(trying.job, trying.held)
        pause = min(_LONGEST, _BACKOFF * 2**trying.number)
        self._at(self._now + pause, lambda: self._try(trying.job, trying.number + 1))

    def _waits(self) -> bool:
        return bool(self._members) or super()._waits()
