"""A node that claims leases one by one against the clock and settles each outside of it."""

import time

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.fill import QUEUE
from benchmarks.core.load import RanDryError
from benchmarks.core.node import Node
from benchmarks.core.sessions import CLAIM, COMPLETE, completed, settle_and_claim

_RAN_DRY = "the claims ran out of leases: these sizes do not fit together"


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

    def take(self) -> tuple[object, int]:
        """Claim one lease; its id and token.

        Raises: RanDryError when nothing can be claimed.
        """
        row = self.connection.execute(
            CLAIM, [QUEUE, self.node.node_id, self.node.epoch, 1], prepare=True
        ).fetchone()
        if row is None:
            raise RanDryError(_RAN_DRY)
        return row[0], row[1]

    def settle(self, lease: object, token: int) -> None:
        """Complete a lease."""
        self.connection.execute(COMPLETE, [lease, token], prepare=True)

    def exchange(self, lease: object, token: int) -> tuple[object, int]:
        """Complete a lease and claim the next one, in one call; its id and token."""
        settled = Jsonb([completed(lease, token)])
        rows = settle_and_claim(self.connection, self.node, settled, 1)
        for kind, claimed, claim_token, _ in rows:
            if kind == "claimed":
                return claimed, claim_token
        raise RanDryError(_RAN_DRY)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
