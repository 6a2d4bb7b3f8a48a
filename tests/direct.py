"""The SQL functions over one connection, for tests that look below the client.

Each method calls the function of its name, arguments by name, and returns rows as dictionaries.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.patience import looks

Row = dict[str, Any]
TASK = "work"
_IN_FORCE = """
  select not exists (select from hwqueue.affinity_term where published_at is null)
    and not exists (select from hwqueue.placement_class where terms <> '[]' and not terms_written)
"""


class Direct:
    """Calls on one connection; commits when the connection does."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def create_queue(self, queue: str, policy: Mapping[str, Any] | None = None) -> None:
        """Make a queue."""
        self._rows(
            "select hwqueue.create_queue(p_queue => %s, p_policy => %s)",
            queue,
            Jsonb(policy or {}),
        )

    def drop_queue(self, queue: str) -> None:
        """Drop a queue with all that is in it."""
        self._rows("select hwqueue.drop_queue(p_queue => %s, p_force => true)", queue)

    def register(self, node: UUID, spec: Mapping[str, Any]) -> int:
        """Register a node; returns its epoch."""
        return self._int(
            "select hwqueue.register_node(p_node => %s, p_spec => %s) as value", node, Jsonb(spec)
        )

    def deregister(self, node: UUID) -> None:
        """Take a node out."""
        self._rows("select hwqueue.deregister_node(p_node => %s)", node)

    def drain(self, node: UUID, deadline: timedelta) -> None:
        """Let a node run dry; what runs is asked to stop by then."""
        self._rows("select hwqueue.drain_node(p_node => %s, p_deadline => %s)", node, deadline)

    def heartbeat(self, node: UUID, epoch: int, claims: Sequence[Row]) -> list[Row]:
        """Extend claims; `claims` are rows with lease_id and claim_token."""
        listed = [{"lease_id": str(c["lease_id"]), "claim_token": c["claim_token"]} for c in claims]
        return self._rows(
            "select lease_id, verdict, expires_at from hwqueue.heartbeat_node("
            "p_node => %s, p_epoch => %s, p_claims => %s)",
            node,
            epoch,
            Jsonb(listed),
        )

    def spawn(self, queue: str, options: Mapping[str, Any] | None = None) -> Row:
        """Spawn one lease of task `work`."""
        return self._rows(
            "select lease_id, created, state from hwqueue.spawn_lease("
            "p_queue => %s, p_task => %s, p_options => %s)",
            queue,
            TASK,
            Jsonb(options or {}),
        )[0]

    def adopt(self, queue: str, node: UUID, options: Mapping[str, Any] | None = None) -> Row:
        """Record a lease of task `work` that runs on the node."""
        return self._rows(
            "select lease_id, claim_token from hwqueue.adopt_lease("
            "p_queue => %s, p_node => %s, p_task => %s, p_options => %s)",
            queue,
            node,
            TASK,
            Jsonb(options or {}),
        )[0]

    def spawn_many(self, queue: str, options: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Spawn a batch in one statement."""
        batch = [{"task": TASK, "options": dict(item)} for item in options]
        return self._rows(
            "select ordinal, lease_id, created, state from hwqueue.spawn_leases("
            "p_queue => %s, p_leases => %s)",
            queue,
            Jsonb(batch),
        )

    def claim(self, queue: str, node: UUID, epoch: int, qty: int = 1) -> list[Row]:
        """Claim up to `qty` leases."""
        return self.claim_any([queue], node, epoch, qty)

    def claim_any(self, queues: Sequence[str], node: UUID, epoch: int, qty: int = 1) -> list[Row]:
        """Claim up to `qty` leases of several queues."""
        return self._rows(
            "select lease_id, claim_token, attempt, score, expires_at, assignment"
            " from hwqueue.claim_task("
            "p_queues => %s, p_node => %s, p_epoch => %s, p_qty => %s)",
            list(queues),
            node,
            epoch,
            qty,
        )

    def settle_and_claim(
        self,
        queue: str,
        node: UUID,
        epoch: int,
        settle: Sequence[Row],
        *,
        qty: int = 1,
        completed: Sequence[Row] = (),
    ) -> list[Row]:
        """Complete the claims in `settle` (JSON) and `completed` (lists); claim up to `qty`."""
        settled = [
            {
                "lease_id": str(claim["lease_id"]),
                "claim_token": claim["claim_token"],
                "outcome": "complete",
            }
            for claim in settle
        ]
        return self._rows(
            "select kind, lease_id, claim_token, verdict, state, assignment"
            " from hwqueue.settle_and_claim("
            "p_node => %s, p_epoch => %s, p_settle => %s, p_queues => %s, p_qty => %s,"
            " p_completed => %s, p_completed_tokens => %s)",
            node,
            epoch,
            Jsonb(settled),
            [queue],
            qty,
            [claim["lease_id"] for claim in completed],
            [claim["claim_token"] for claim in completed],
        )

    def complete(self, lease: UUID, token: int) -> str:
        """Complete a claim; returns the state."""
        return self._text(
            "select hwqueue.complete_lease(p_lease => %s, p_token => %s) as value", lease, token
        )

    def complete_many(self, claims: Sequence[Row]) -> list[Row]:
        """Complete claims; returns those that could not be."""
        return self._rows(
            "select lease_id, verdict, state from hwqueue.complete_leases("
            "p_lease_ids => %s::uuid[], p_tokens => %s::bigint[])",
            [claim["lease_id"] for claim in claims],
            [claim["claim_token"] for claim in claims],
        )

    def fail(self, lease: UUID, token: int, *, retry: bool = True) -> str:
        """Fail a claim; returns the state."""
        return self._text(
            "select hwqueue.fail_lease("
            "p_lease => %s, p_token => %s, p_error => %s, p_retry => %s) as value",
            lease,
            token,
            Jsonb({"message": "it broke"}),
            retry,
        )

    def release(self, lease: UUID, token: int, delay: timedelta = timedelta(0)) -> str:
        """Hand a claim back; returns the state."""
        return self._text(
            "select hwqueue.release_lease(p_lease => %s, p_token => %s, p_delay => %s) as value",
            lease,
            token,
            delay,
        )

    def extend(self, lease: UUID, token: int, span: timedelta) -> None:
        """Move the end of a claim."""
        self._rows(
            "select hwqueue.extend_claim(p_lease => %s, p_token => %s, p_extend => %s)",
            lease,
            token,
            span,
        )

    def cancel(self, lease: UUID) -> str:
        """Cancel a lease; returns the state, `claimed` if its worker was asked to stop."""
        return self._text("select hwqueue.cancel_lease(p_lease => %s) as value", lease)

    def update(self, lease: UUID, changes: Mapping[str, Any]) -> str:
        """Change a lease that waits; returns the state."""
        return self._text(
            "select hwqueue.update_lease(p_lease => %s, p_changes => %s) as value",
            lease,
            Jsonb(changes),
        )

    def requeue(self, lease: UUID) -> str:
        """Make a finished lease pending again; returns the state."""
        return self._text("select hwqueue.requeue_lease(p_lease => %s) as value", lease)

    def reap(self) -> Row:
        """Sweep once."""
        return self._rows("select expired, promoted, deadlines from hwqueue.reap()")[0]

    def settle_terms(self) -> None:
        """Reap until all that is asked about other leases is in force.

        It comes into force in steps, each once the transactions of other sessions are over.
        """
        for _ in looks():
            self.reap()
            if self.conn.execute(_IN_FORCE).fetchone() == (True,):
                return
        raise AssertionError("some session on this server keeps a transaction open")

    def lease(self, lease: UUID) -> Row:
        """The lease as it is now."""
        return self._rows("select * from hwqueue.get_lease(p_lease => %s)", lease)[0]

    def states(self, queue: str) -> dict[UUID, str]:
        """The state of every lease of a queue."""
        rows = self._rows(
            "select lease_id, state from hwqueue.list_leases(p_queue => %s, p_limit => 1000)",
            queue,
        )
        return {row["lease_id"]: row["state"] for row in rows}

    def match(
        self, placement: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> list[Row]:
        """Ask every node whether it could run such a lease."""
        return self._rows(
            "select node_id, node_name, eligible, score, reasons from hwqueue.match_nodes("
            "p_placement => %s, p_options => %s)",
            Jsonb(placement),
            Jsonb(options or {}),
        )

    def explain(self, lease: UUID) -> Row:
        """Explain a lease."""
        return self._rows(
            "select code, permanent, nodes_live, nodes_matching, nodes_free, funnel, nearest"
            " from hwqueue.explain_lease(p_lease => %s)",
            lease,
        )[0]

    def could_take(self, lease: UUID) -> set[UUID]:
        """The nodes that could take a pending lease now, by its explanation; of at most 20."""
        found = self.explain(lease)
        able = {UUID(node["node_id"]) for node in found["nearest"] if not node["reasons"]}
        assert found["nodes_free"] == found["funnel"][-1]["nodes"] == len(able)
        return able

    def _rows(self, query: LiteralString, *values: Any) -> list[Row]:
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values).fetchall()

    def _text(self, query: LiteralString, *values: Any) -> str:
        value = self._rows(query, *values)[0]["value"]
        assert isinstance(value, str)
        return value

    def _int(self, query: LiteralString, *values: Any) -> int:
        value = self._rows(query, *values)[0]["value"]
        assert isinstance(value, int)
        return value
