"""Calls of the SQL functions with typed arguments, for tests that walk, storm or compare."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int8

from tests.calls import TASK, Calls, Row
from tests.patience import looks

_PUBLISHED = """
  select not exists (select from hwqueue.affinity_term where published_at is null)
    and not exists (select from hwqueue.placement_class where terms <> '[]' and not terms_written)
"""


class Direct(Calls):
    """One method for each call; rows come as dictionaries."""

    def create_queue(self, queue: str, policy: Mapping[str, Any] | None = None) -> None:
        """Make a queue."""
        self.rows("create_queue", queue=queue, policy=policy or {})

    def drop_queue(self, queue: str) -> None:
        """Drop a queue with all that is in it."""
        self.rows("drop_queue", queue=queue, force=True)

    def register(self, node: UUID, spec: Mapping[str, Any]) -> int:
        """Register a node; returns its epoch."""
        return int(self.value("register_node", node=node, spec=spec))

    def deregister(self, node: UUID) -> None:
        """Take a node out."""
        self.rows("deregister_node", node=node)

    def drain(self, node: UUID, deadline: timedelta) -> None:
        """Let a node run dry; what runs is asked to stop by then."""
        self.rows("drain_node", node=node, deadline=deadline)

    def heartbeat(self, node: UUID, epoch: int, claims: Sequence[Row]) -> list[Row]:
        """Extend claims; `claims` are rows with lease_id and claim_token."""
        return self.rows("heartbeat_node", node=node, epoch=epoch, claims=_listed(claims))

    def spawn(self, queue: str, options: Mapping[str, Any] | None = None) -> Row:
        """Spawn one lease of task `work`."""
        return self.row("spawn_lease", queue=queue, task=TASK, options=options or {})

    def spawn_gang(self, queue: str, members: Sequence[Mapping[str, Any]], **options: Any) -> list[Row]:
        """Spawn a gang of task `work`, a member for each of these options; its members."""
        listed = [{"task": TASK, "options": dict(member)} for member in members]
        return self.rows("spawn_gang", queue=queue, members=Jsonb(listed), options=options)

    def adopt(self, queue: str, node: UUID, options: Mapping[str, Any] | None = None) -> Row:
        """Record a lease of task `work` that runs on the node."""
        return self.row("adopt_lease", queue=queue, node=node, task=TASK, options=options or {})

    def spawn_many(self, queue: str, options: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Spawn a batch in one statement."""
        batch = [{"task": TASK, "options": dict(item)} for item in options]
        return self.rows("spawn_leases", queue=queue, leases=batch)

    def claim(self, queue: str, node: UUID, epoch: int, qty: int = 1) -> list[Row]:
        """Claim up to `qty` leases."""
        return self.claim_any([queue], node, epoch, qty)

    def claim_any(self, queues: Sequence[str], node: UUID, epoch: int, qty: int = 1) -> list[Row]:
        """Claim up to `qty` leases of several queues."""
        return self.rows("claim_task", queues=list(queues), node=node, epoch=epoch, qty=qty)

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
        return self.rows(
            "settle_and_claim",
            node=node,
            epoch=epoch,
            settle=[{**claim, "outcome": "complete"} for claim in _listed(settle)],
            queues=[queue],
            qty=qty,
            completed=[claim["lease_id"] for claim in completed],
            completed_tokens=[Int8(claim["claim_token"]) for claim in completed],
        )

    def complete(self, lease: UUID, token: int) -> str:
        """Complete a claim; returns the state."""
        return str(self.value("complete_lease", lease=lease, token=token))

    def complete_many(self, claims: Sequence[Row]) -> list[Row]:
        """Complete claims; returns those that could not be."""
        return self.rows(
            "complete_leases",
            lease_ids=[claim["lease_id"] for claim in claims],
            tokens=[Int8(claim["claim_token"]) for claim in claims],
        )

    def fail(self, lease: UUID, token: int, *, retry: bool = True) -> str:
        """Fail a claim; returns the state."""
        error = {"message": "it broke"}
        return str(self.value("fail_lease", lease=lease, token=token, error=error, retry=retry))

    def release(self, lease: UUID, token: int, delay: timedelta = timedelta(0)) -> str:
        """Hand a claim back; returns the state."""
        return str(self.value("release_lease", lease=lease, token=token, delay=delay))

    def extend(self, lease: UUID, token: int, span: timedelta) -> None:
        """Move the end of a claim."""
        self.rows("extend_claim", lease=lease, token=token, extend=span)

    def cancel(self, lease: UUID) -> str:
        """Cancel a lease; returns the state, `claimed` if its worker was asked to stop."""
        return str(self.value("cancel_lease", lease=lease))

    def update(self, lease: UUID, changes: Mapping[str, Any]) -> str:
        """Change a lease that waits; returns the state."""
        return str(self.value("update_lease", lease=lease, changes=changes))

    def requeue(self, lease: UUID) -> str:
        """Make a finished lease pending again; returns the state."""
        return str(self.value("requeue_lease", lease=lease))

    def reap(self) -> Row:
        """Sweep once."""
        return self.row("reap")

    def settle_terms(self) -> None:
        """Reap until all affinity terms are published.

        That takes steps, each once the transactions of other sessions are over.
        """
        for _ in looks():
            self.reap()
            if self.conn.execute(_PUBLISHED).fetchone() == (True,):
                return
        raise AssertionError("some session on this server keeps a transaction open")

    def lease(self, lease: UUID) -> Row:
        """The lease as it is now."""
        return self.row("get_lease", lease=lease)

    def states(self, queue: str) -> dict[UUID, str]:
        """The state of every lease of a queue."""
        rows = self.rows("list_leases", filter={"queue": queue}, limit=1000)
        return {row["lease_id"]: row["state"] for row in rows}

    def match(self, placement: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> list[Row]:
        """Ask every node whether it could run such a lease."""
        return self.rows("match_nodes", placement=placement, options=options or {})

    def explain(self, lease: UUID) -> Row:
        """Explain a lease."""
        return self.row("explain_lease", lease=lease)

    def could_take(self, lease: UUID) -> set[UUID]:
        """The nodes that could take a pending lease now, by its explanation; of at most 20."""
        found = self.explain(lease)
        able = {UUID(node["node_id"]) for node in found["nearest"] if not node["reasons"]}
        assert found["nodes_free"] == found["funnel"][-1]["nodes"] == len(able)
        return able


def _listed(claims: Sequence[Row]) -> list[Row]:
    """Claims as the functions take them in JSON."""
    return [{"lease_id": str(c["lease_id"]), "claim_token": c["claim_token"]} for c in claims]
