"""A node that claims leases one by one against the clock and settles each outside of it."""

import time
from uuid import UUID

import psycopg

from benchmarks.core.fill import QUEUE
from benchmarks.core.load import RanDryError
from benchmarks.core.node import Node
from benchmarks.core.sessions import CLAIM, COMPLETE, Held, settle_and_claim

_RAN_DRY = "the claims ran out of leases: these sizes do not fit together"

_AT_ONCE = 50


class Claimer:
    """One connection of a node.

    Attributes:
        connection: In autocommit.
        node: Who claims.
    """

    def __init__(self, dsn: str, node: Node) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.node = node

    def timed_claim(self) -> float:
        """Claim a lease and settle it; the milliseconds that the claim took, commit included."""
        started = time.perf_counter()
        claimed = self.take()
        elapsed = time.perf_counter() - started
        self.settle(*claimed)
        return 1000 * elapsed

    def take(self) -> Held:
        """Claim one lease; its id and token.

        Raises: RanDryError when nothing can be claimed.
        """
        row = self.connection.execute(
            CLAIM, [QUEUE, self.node.node_id, self.node.epoch, 1], prepare=True
        ).fetchone()
        if row is None:
            raise RanDryError(_RAN_DRY)
        return row[0], row[1]

    def settle(self, lease: UUID, token: int) -> None:
        """Complete a lease."""
        self.connection.execute(COMPLETE, [lease, token], prepare=True)

    def exchange(self, lease: UUID, token: int) -> Held:
        """Complete a lease and claim the next one, in one call; its id and token."""
        held = settle_and_claim(self.connection, self.node, [(lease, token)], 1)
        if not held:
            raise RanDryError(_RAN_DRY)
        return held[0]

    def exchange_many(self, count: int) -> None:
        """Claim leases and settle them, as many as a worker holds at a time."""
        held: list[Held] = []
        for start in range(0, count + _AT_ONCE, _AT_ONCE):
            more = min(_AT_ONCE, count - start) if start < count else 0
            held = settle_and_claim(self.connection, self.node, held, more)
            if len(held) < more:
                raise RanDryError(_RAN_DRY)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
