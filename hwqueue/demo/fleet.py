"""The simulated cluster: registered machines, and a few connections that poll on their behalf."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.demo import mapping
from hwqueue.demo.ledger import Grant, Ledger
from hwqueue.demo.model import Job, Machine
from hwqueue.types import Claim, Settlement, SpawnOptions

SPAWN_BATCH = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its registration."""

    machine: Machine
    node_id: UUID
    epoch: int


class Fleet:
    """Nodes of one queue and the clients that claim for them; at most one call per node at a time.

    `scope` keeps the node ids of two replays in one database apart, `prefix` their names.
    """

    def __init__(self, clients: Sequence[AsyncClient], queue: str, *, scope: str, prefix: str = "") -> None:
        self.clients = clients
        self.queue = queue
        self.nodes: list[Node] = []
        self.ledger = Ledger(machines={})
        self._spawned: list[Job] = []
        self._scope = scope
        self._prefix = prefix
        self._started = time.perf_counter()

    def start_clock(self) -> None:
        """Make now the zero of the ledger's times."""
        self._started = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds since `start_clock`."""
        return time.perf_counter() - self._started

    async def register(self, machines: Iterable[Machine]) -> None:
        """Register every machine. Raises: NodeNameTaken."""

        async def one(client: AsyncClient, machine: Machine) -> None:
            node_id = mapping.node_id(machine, self._scope)
            # nobody works for these nodes: no gang of another queue is to be given room on them
            spec = mapping.node_spec(machine, self._scope, self._prefix, self.queue)
            self.nodes.append(Node(machine, node_id, await client.register_node(node_id, spec)))

        machines = list(machines)
        await self._share_out(machines, one)
        self.ledger.machines = {machine.name: machine for machine in machines}
        order = {machine.name: number for number, machine in enumerate(machines)}
        self.nodes.sort(key=lambda node: order[node.machine.name])

    async def spawn(self, jobs: Sequence[Job], options: Sequence[SpawnOptions] | None = None) -> list[UUID]:
        """Spawn the jobs in order, in batches; `options[i]` are more spawn options of `jobs[i]`."""
        first = len(self._spawned)
        self._spawned += jobs  # before they are there: another connection may claim one at once
        lease_ids: list[UUID] = []
        for start in range(0, len(jobs), SPAWN_BATCH):
            batch = jobs[start : start + SPAWN_BATCH]
            items = [
                mapping.lease_spec(job, first + i, options[i] if options else {})
                for i, job in enumerate(batch, start)
            ]
            spawned = await self.clients[0].spawn_leases(self.queue, items)
            for lease, job in zip(spawned, batch, strict=True):
                self.ledger.spawned(lease.lease_id, job)
                lease_ids.append(lease.lease_id)
        return lease_ids

    async def poll(self, client: AsyncClient, node: Node, qty: int = 1) -> list[Grant]:
        """Let a node ask for work once."""
        before = time.perf_counter()
        claims = await client.claim_task(
            [self.queue], node.node_id, node.epoch, qty=qty, claim_timeout=mapping.FOREVER
        )
        self.ledger.polled(1000 * (time.perf_counter() - before), len(claims))
        return self._granted(node, claims)

    async def poll_each(self, nodes: Sequence[Node], qty: int) -> list[Node]:
        """Let nodes ask once each, in order over all connections; return those that got work."""
        lucky: list[Node] = []

        async def one(client: AsyncClient, node: Node) -> None:
            if await self.poll(client, node, qty):
                lucky.append(node)

        await self._share_out(nodes, one)
        return lucky

    async def settle(self, client: AsyncClient, node: Node, ended: Sequence[Grant]) -> list[Grant]:
        """End a node's leases as recorded and ask for one more, in one round trip."""
        settlements = [self._settlement(grant) for grant in ended]
        before = time.perf_counter()
        outcome = await client.settle_and_claim(
            node.node_id, node.epoch, settlements, [self.queue], qty=1, claim_timeout=mapping.FOREVER
        )
        self.ledger.settled_in(1000 * (time.perf_counter() - before))
        for grant, settled in zip(ended, outcome.settled, strict=True):
            self.ledger.settled(grant, settled.state or settled.verdict, self.now)
        return self._granted(node, outcome.claimed)

    def _settlement(self, grant: Grant) -> Settlement:
        if self.ledger.jobs[grant.lease_id].phase == "Failed":
            error = {"message": "failed in the recording"}
            return Settlement.fail(grant.lease_id, grant.claim_token, error=error, retry=False)
        return Settlement.complete(grant.lease_id, grant.claim_token)

    def _granted(self, node: Node, claims: Sequence[Claim]) -> list[Grant]:
        grants = []
        for claim in claims:
            grant = Grant(
                lease_id=claim.lease_id,
                claim_token=claim.claim_token,
                machine=node.machine.name,
                job=claim.params["job"],
                score=claim.score,
                assignment=claim.assignment,
            )
            self.ledger.granted(grant, self._spawned[claim.params["number"]], self.now)
            grants.append(grant)
        return grants

    async def _share_out(self, items: Sequence[T], work: Callable[[AsyncClient, T], Awaitable[None]]) -> None:
        turn = iter(items)

        async def worker(client: AsyncClient) -> None:
            for item in turn:
                await work(client, item)

        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(worker(client))
