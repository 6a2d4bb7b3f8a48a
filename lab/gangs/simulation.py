"""Runs jobs through the queue's own functions, with a clock that the simulation moves.

Nothing of the queue is made up: leases are spawned, claimed and completed, gangs are reserved by
`reap` and fetched by claims. Only the clock is, the run times, and who asks first: of the nodes
that have room, the fullest, as if packing were perfect. What becomes free is offered at once.
"""

import heapq
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Self
from uuid import UUID

import psycopg

from hwqueue import Member
from hwqueue.client import Client
from hwqueue.testing import install_clock
from hwqueue.types import Claim, Gpu, NodeSpec, SpawnOptions
from lab.gangs.jobs import Cluster, Job

QUEUE = "cluster"
TASK = "work"

_MILLI = 1000  # of a GPU
_LIVES = timedelta(days=1)  # without a heartbeat
_BOOKED = """
    select distinct on (l.node_id) (select sum(g) from unnest(l.gpu_used) g), l.node_id
    from hwqueue.node_load l order by l.node_id, l.version desc
"""


@dataclass(frozen=True)
class Way:
    """How room is given to gangs.

    Attributes:
        earmarks: How many gangs room is kept for: the queue's policy.
    """

    earmarks: int


@dataclass
class Place:
    """A node, and what it has left."""

    node_id: UUID
    epoch: int
    free: int


@dataclass
class Seen:
    """What came of it; GPU seconds of the measured part.

    Attributes:
        started: When each job began; jobs that are still waiting are left out.
        ended_at: When the last job arrived: the end of it all.
    """

    started: dict[Job, float] = field(default_factory=dict)
    busy: float = 0.0
    held: float = 0.0
    measured: float = 0.0
    ended_at: float = 0.0


class Simulation:
    """One cluster and one queue, in a database of their own."""

    def __init__(self, dsn: str, cluster: Cluster, tick: float, way: Way) -> None:
        self._dsn = dsn
        self._cluster = cluster
        self._tick_seconds = tick
        self._way = way
        self._closing = ExitStack()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._singles: dict[UUID, Job] = {}  # that wait
        self._gangs: dict[UUID, Job] = {}  # that wait
        self._places: dict[UUID, Place] = {}
        self._ticks = False  # they go on as long as a gang waits
        self._now = 0.0
        self._from = 0.0
        self._running = 0  # GPUs
        self._held = 0.0  # GPUs that are kept for somebody and idle
        self.seen = Seen()

    def __enter__(self) -> Self:
        self._conn = self._closing.enter_context(psycopg.connect(self._dsn, autocommit=True))
        self._clock = install_clock(self._conn)
        self._clock.freeze()
        self._client = self._closing.enter_context(Client(self._dsn))
        policy = {"claim_timeout": 20 * 86_400, "earmarks": self._way.earmarks}
        self._client.create_queue(QUEUE, policy=policy)
        for number in range(self._cluster.racks * self._cluster.nodes):
            self._register(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _register(self, number: int) -> None:
        node_id, gpus = UUID(int=1 + number), self._cluster.gpus
        first = 10_000 + number * gpus
        spec = NodeSpec(
            name=f"node-{number}",
            instance_id="1",
            heartbeat_timeout=_LIVES,
            rack=number // self._cluster.nodes,
            gpus=[Gpu(resource_id=UUID(int=first + each)) for each in range(gpus)],
        )
        epoch = self._client.register_node(node_id, spec)
        self._places[node_id] = Place(node_id, epoch, gpus)

    def run(self, jobs: list[Job]) -> Seen:
        """Let all jobs arrive; the first quarter of the time is not measured."""
        self.seen.ended_at = jobs[-1].arrives
        self._from = self.seen.ended_at / 4
        for job in jobs:
            self._at(job.arrives, lambda job=job: self._arrive(job))  # type: ignore[misc]
        self._at(0, self._beat)
        while self._events and self._events[0][0] <= self.seen.ended_at:
            at, _, happen = heapq.heappop(self._events)
            self._move(at)
            happen()
        return self.seen

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happen))

    def _move(self, at: float) -> None:
        """Let time pass, and count what runs meanwhile."""
        if at > self._now:
            span = max(0.0, at - max(self._now, self._from))
            self.seen.busy += span * self._running
            self.seen.held += span * self._held
            self.seen.measured += span * self._cluster.size
            self._clock.advance(timedelta(seconds=at - self._now))
            self._now = at

    def _beat(self) -> None:
        """A sign of life of every node; of what it runs none is needed."""
        for place in self._places.values():
            self._client.heartbeat_node(place.node_id, place.epoch)
        self._at(self._now + _LIVES.total_seconds() / 2, self._beat)

    def _arrive(self, job: Job) -> None:
        options: SpawnOptions = {"placement": {"resources": {"gpu": job.gpus}}}
        if job.nodes:
            self._spawn_gang(job, options)
            return
        lease = self._client.spawn_lease(QUEUE, TASK, **options).lease_id
        self._singles[lease] = job
        able = [place for place in self._places.values() if place.free >= job.gpus]
        for place in sorted(able, key=lambda place: place.free):
            if self._ask(place):
                break

    def _spawn_gang(self, job: Job, options: SpawnOptions) -> None:
        members = [Member(TASK, count=job.nodes, options=options)]
        spawned = self._client.spawn_gang(QUEUE, members, together="rack")
        self._gangs[spawned[0].gang_id] = job
        self._tick_again()

    def _ask(self, place: Place) -> bool:
        """Let a node claim a lease."""
        claims = self._client.claim_task([QUEUE], place.node_id, place.epoch)
        for claim in claims:
            self._claimed(place, claim)
        return bool(claims)

    def _claimed(self, place: Place, claim: Claim) -> None:
        job = self._singles.pop(claim.lease_id)
        place.free -= job.gpus
        self._start(job, [(place, claim)])

    def _start(self, job: Job, held: list[tuple[Place, Claim]]) -> None:
        """Of a lease, or of all members of a gang; their room is taken."""
        self.seen.started[job] = self._now
        self._running += len(held) * job.gpus
        self._at(self._now + job.runs, lambda: self._end(job, held))

    def _end(self, job: Job, held: list[tuple[Place, Claim]]) -> None:
        self._running -= len(held) * job.gpus
        self._free(job, held)

    def _free(self, job: Job, held: list[tuple[Place, Claim]]) -> None:
        """Complete these claims, and offer their room."""
        for place, claim in held:
            self._client.complete_lease(claim.lease_id, claim.claim_token)
            place.free += job.gpus
        for place, _ in held:
            while place.free and self._waits() and self._ask(place):
                pass

    def _waits(self) -> bool:
        """Whether a claim may find something."""
        return bool(self._singles)

    def _tick_again(self) -> None:
        if self._gangs and not self._ticks:
            past = self._now // self._tick_seconds
            self._at(self._tick_seconds * (past + 1), self._tick)
            self._ticks = True

    def _tick(self) -> None:
        """What upkeep does; then the nodes of gangs that are reserved fetch their members."""
        self._client.reap()
        for gang in self._client.list_gangs(state="reserved", limit=1000):
            if gang.gang_id in self._gangs:
                self._fetch(gang.gang_id)
        booked = sum(min(self._cluster.gpus, used / _MILLI) for used, _ in self._conn.execute(_BOOKED))
        self._held = max(0.0, booked - self._running)
        self._ticks = False
        self._tick_again()

    def _fetch(self, gang_id: UUID) -> None:
        members = self._client.get_gang(gang_id).members
        held: list[tuple[Place, Claim]] = []
        for node_id in {member.node_id for member in members}:
            assert node_id is not None
            place = self._places[node_id]
            claims = self._client.claim_task([QUEUE], node_id, place.epoch, qty=len(members))
            held += [(place, claim) for claim in claims]
        assert len(held) == len(members), "a gang was fetched in part"
        job = self._gangs.pop(gang_id)
        for place, _ in held:
            place.free -= job.gpus
        self._start(job, held)
