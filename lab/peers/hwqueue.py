"""hwqueue as one of the queues that are measured side by side: a node for each connection."""

from dataclasses import dataclass
from itertools import cycle
from typing import Any

from rich.console import Console

from benchmarks.core import fill
from benchmarks.core.fill import QUEUE, Lease
from benchmarks.core.load import Load, drive
from benchmarks.core.node import Node, register
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.run import Run
from benchmarks.core.sessions import CLAIM, COMPLETE, SettleAndClaimSession, complete_many
from hwqueue.schema import upgrade
from lab.peers.packages import installed_version
from lab.peers.peer import ANY, WARMUP_JOBS, Connection, Effort, SqlPeer, count

_QUIET = Run(None, Console(quiet=True))


@dataclass(frozen=True)
class Hwqueue(SqlPeer):
    """hwqueue; a kind is a label that the node must have.

    Attributes:
        nodes: The connections share so many, each claims for its own in turn; 0: one each.
        connections: That share them; a further one has a further node.
        cpu_milli: What each lease needs; 0: capacity is not counted.
        stands: Whether the first lease of all is one that no node may run.
        deletes: Whether what is done is deleted, as some of the others do, and not kept.
    """

    name: str = "hwqueue"
    nodes: int = 0
    connections: int = 1
    cpu_milli: int = 0
    stands: bool = False
    deletes: bool = False
    best_batch = 1000
    routes_by = "affinity_tags"

    def version(self) -> str:
        """See `Peer`."""
        return installed_version("hwqueue")

    def install(self, dsn: str) -> None:
        """Install the schema, make the queue."""
        upgrade(dsn)
        create_queue(dsn, **({"retain_completed": 0} if self.deletes else {}))
        if self.stands:
            fill.fill(_QUIET, dsn, [fill.kind(affinity_tags={"pool": "none of them"})], 1)

    def fill(self, dsn: str, count: int, kind: str = ANY) -> None:
        """Copies of one spawned lease; spawning a million takes minutes."""
        fill.fill(_QUIET, dsn, [self.lease(kind)], count)

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Pending leases, of all kinds: no kind is topped up apart from another."""
        return count(dsn, "select sum(pending) from hwqueue.list_queues()")

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "HwqueueJobs":
        """Register the connection's nodes and open it."""
        return HwqueueJobs(dsn, self.register(dsn, number, kind), self.lease(kind))

    def register(self, dsn: str, number: int, kind: str = ANY) -> list[Node]:
        """Register the nodes that connection 0, 1, ... claims for."""
        spec: dict[str, Any] = {} if kind == ANY else {"labels": {"pool": kind}}
        if self.cpu_milli:
            spec["capacity"] = {"cpu_milli": 64 * self.cpu_milli}
        return [register(dsn, node, **spec) for node in self._own_nodes(number)]

    def _own_nodes(self, number: int) -> list[int]:
        if self.nodes == 0:
            return [number]
        if number >= self.connections:
            return [self.nodes + number]
        first, after = (n * self.nodes // self.connections for n in (number, number + 1))
        return list(range(first, after)) or [number]

    def lease(self, kind: str = ANY) -> Lease:
        """A lease of a kind, as spawn_leases takes it."""
        options: dict[str, Any] = {} if kind == ANY else {"affinity_tags": {"pool": kind}}
        if self.cpu_milli:
            options["placement"] = {"resources": {"cpu_milli": self.cpu_milli}}
        return fill.kind(payload(), **options)


@dataclass(frozen=True)
class SettlingHwqueue(Hwqueue):
    """hwqueue as its worker drives it: what is done is settled by the call that claims the next."""

    name: str = "hwqueue, settle_and_claim"

    def drive(self, dsn: str, effort: Effort, kind: str = ANY) -> Load:
        """See `Peer`."""
        opener = _SettleAndClaim(self, dsn, effort.batch, kind)
        return drive(opener, effort.connections, effort.seconds, warmup=0)


@dataclass(frozen=True)
class _SettleAndClaim:
    """Opens sessions that always hold a batch, warmed up as those of `ClaimAndComplete`."""

    queue: Hwqueue
    dsn: str
    batch: int
    kind: str

    def __call__(self, number: int) -> SettleAndClaimSession:
        [node] = self.queue.register(self.dsn, number, self.kind)
        session = SettleAndClaimSession(self.dsn, node, self.batch)
        for _ in range(WARMUP_JOBS):
            session.step()
        return session


class HwqueueJobs(Connection):
    """See `Jobs`; settles one with complete_lease, a batch with complete_leases."""

    def __init__(self, dsn: str, nodes: list[Node], lease: Lease) -> None:
        super().__init__(dsn)
        self._nodes = cycle(nodes)
        self._node = nodes[0]
        self._lease = lease

    def spawn(self, count: int) -> None:
        """See `Jobs`."""
        fill.spawn(self.connection, [self._lease] * count)

    def claim(self, quantity: int) -> list[Any]:
        """See `Jobs`; for the next node."""
        self._node = next(self._nodes)
        values = [QUEUE, self._node.node_id, self._node.epoch, quantity]
        rows = self.connection.execute(CLAIM, values, prepare=True)
        return [(row[0], row[1]) for row in rows]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        if len(claimed) == 1:
            self.connection.execute(COMPLETE, claimed[0], prepare=True)
        elif claimed:
            leases, tokens = zip(*claimed, strict=True)
            complete_many(self.connection, list(leases), list(tokens))
