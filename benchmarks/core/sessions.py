"""Sessions that claim and settle through hwqueue's SQL functions, with nothing in between.

Prepared calls over psycopg, so that the client costs the same as the floor's.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE, TASK, Lease
from benchmarks.core.node import Node

Held: TypeAlias = tuple[UUID, int]
"""A claim: lease and token."""

CLAIM = """
    select lease_id, claim_token, params from hwqueue.claim_task(
      p_queues => array[%s], p_node => %s, p_epoch => %s, p_qty => %s)
"""
COMPLETE = "select hwqueue.complete_lease(p_lease => %s, p_token => %s)"
COMPLETE_MANY = """
    select lease_id, verdict from hwqueue.complete_leases(p_lease_ids => %s, p_tokens => %s)
"""
SETTLE_AND_CLAIM = """
    select kind, lease_id, claim_token, params from hwqueue.settle_and_claim(
      p_node => %s, p_epoch => %s, p_settle => '[]', p_queues => array[%s], p_qty => %s,
      p_completed => %s, p_completed_tokens => %s)
"""
SPAWN = "select lease_id from hwqueue.spawn_lease(p_queue => %s, p_task => %s)"
SPAWN_MANY = "select count(*) from hwqueue.spawn_leases(p_queue => %s, p_leases => %s)"
SETTLE_ONE_AND_CLAIM = """
    select kind, lease_id, claim_token, params from hwqueue.settle_and_claim(
      p_node => %s, p_epoch => %s, p_settle => '[]', p_queues => array[%s], p_qty => %s,
      p_completed => array[%s], p_completed_tokens => array[%s])
"""


@dataclass(frozen=True)
class ClaimThenSettle:
    """Opens sessions that claim, then settle in a call and a commit of its own."""

    dsn: str
    nodes: tuple[Node, ...]
    batch: int = 1

    def __call__(self, number: int) -> "ClaimThenSettleSession":
        return ClaimThenSettleSession(self.dsn, self.nodes[number], self.batch)


@dataclass(frozen=True)
class SettleAndClaim:
    """Opens sessions that settle what they have and claim the next in one call."""

    dsn: str
    nodes: tuple[Node, ...]
    batch: int = 1

    def __call__(self, number: int) -> "SettleAndClaimSession":
        return SettleAndClaimSession(self.dsn, self.nodes[number], self.batch)


@dataclass(frozen=True)
class SeasonedSettleAndClaim(SettleAndClaim):
    """Opens sessions that have found a queue empty before, as those of workers have.

    The first claim of a session that finds nothing plans what other claims do not run. What it has
    settled in the same call is not committed meanwhile.

    Attributes:
        idle: A queue with nothing in it.
    """

    idle: str = ""

    def __call__(self, number: int) -> "SettleAndClaimSession":
        session = super().__call__(number)
        session.find_nothing(self.idle)
        return session


@dataclass(frozen=True)
class SpawnSettleAndClaim(SettleAndClaim):
    """Opens sessions that spawn as many leases as they claim, these in a call."""

    leases: tuple[Lease, ...] = ({"task": TASK},)

    def __call__(self, number: int) -> "SpawnSettleAndClaimSession":
        return SpawnSettleAndClaimSession(self.dsn, self.nodes[number], self.batch, self.leases)


class ClaimThenSettleSession:
    """A node's connection; settles with complete_lease, batches with one call for all."""

    def __init__(self, dsn: str, node: Node, batch: int) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._node = node
        self._batch = batch

    def step(self) -> int:
        """Claim a batch and settle it."""
        claimed = self._connection.execute(
            CLAIM, [QUEUE, self._node.node_id, self._node.epoch, self._batch], prepare=True
        ).fetchall()
        if self._batch == 1:
            for lease, token, _ in claimed:
                self._connection.execute(COMPLETE, [lease, token], prepare=True)
        elif claimed:
            leases, tokens, _ = zip(*claimed, strict=True)
            complete_many(self._connection, list(leases), list(tokens))
        return len(claimed)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SettleAndClaimSession:
    """A node's connection that always holds a batch."""

    def __init__(self, dsn: str, node: Node, batch: int) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._node = node
        self._batch = batch
        self._held: list[Held] = []

    def step(self) -> int:
        """Settle what is held and claim the next; counts what was claimed."""
        self._held = settle_and_claim(self._connection, self._node, self._held, self._batch)
        return len(self._held)

    def find_nothing(self, queue: str) -> None:
        """Claim from a queue that is empty."""
        held = settle_and_claim(self._connection, self._node, [], self._batch, queue)
        assert not held, f"queue {queue} is not empty"

    def close(self) -> None:
        """Settle what is held and close the connection."""
        settle_and_claim(self._connection, self._node, self._held, 0)
        self._connection.close()


class SpawnSettleAndClaimSession(SettleAndClaimSession):
    """The same, with as many leases spawned as it claims."""

    def __init__(self, dsn: str, node: Node, batch: int, leases: tuple[Lease, ...]) -> None:
        super().__init__(dsn, node, batch)
        self._ahead = 0  # leases that it has spawned and not claimed
        self._spawned = len(leases)
        self._leases = Jsonb(list(leases))

    def step(self) -> int:
        """Spawn, settle what is held and claim the next; counts what was claimed."""
        while self._ahead < self._batch:
            if self._spawned == 1:
                self._connection.execute(SPAWN, [QUEUE, TASK], prepare=True)
            else:
                self._connection.execute(SPAWN_MANY, [QUEUE, self._leases], prepare=True)
            self._ahead += self._spawned
        self._ahead -= self._batch
        return super().step()


def complete_many(connection: psycopg.Connection[Any], leases: list[Any], tokens: list[int]) -> None:
    """Complete a batch in one call.

    Raises: AssertionError when one of them could not be.
    """
    left = connection.execute(COMPLETE_MANY, [leases, tokens], prepare=True).fetchall()
    assert not left, f"not completed: {left[0]}"


def settle_and_claim(
    connection: psycopg.Connection[Any],
    node: Node,
    held: list[Held],
    quantity: int,
    queue: str = QUEUE,
) -> list[Held]:
    """Complete what is held and claim up to `quantity`: what is held then.

    Raises: AssertionError when one could not be completed.
    """
    if len(held) == 1:  # two lists cost psycopg more than the rest of the call
        call, values = SETTLE_ONE_AND_CLAIM, [node.node_id, node.epoch, queue, quantity, *held[0]]
    else:
        call, values = SETTLE_AND_CLAIM, [node.node_id, node.epoch, queue, quantity, *_apart(held)]
    rows = connection.execute(call, values, prepare=True).fetchall()
    assert all(row[0] == "claimed" for row in rows), f"not completed: {rows[0]}"
    return [(lease, token) for _, lease, token, _ in rows]


def _apart(held: list[Held]) -> tuple[list[UUID], list[int]]:
    return [lease for lease, _ in held], [token for _, token in held]
