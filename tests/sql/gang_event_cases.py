"""What makes each event of a gang happen: a case for each of its states, as in event_cases."""

from uuid import UUID

from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import token
from tests.sql.event_cases import Case, Stage

PAIR = Jsonb([{"task": "train", "count": 2}])


class Pair:
    """A gang of two, and the node that it runs on."""

    def __init__(self, stage: Stage, node: Row | None = None, **options: object) -> None:
        self.api = stage.api
        self.queue, self.node = stage.api.queue(), stage.api.node(**node or {})
        rows = self.api.rows("spawn_gang", queue=self.queue, members=PAIR, options=options)
        self.gang_id: UUID = rows[0]["gang_id"]
        self.leases: list[UUID] = [row["lease_id"] for row in rows]

    def reap(self) -> None:
        """As often as a change can make another one."""
        for _ in range(3):
            self.api.rows("reap")

    def started(self) -> tuple[Row, Row]:
        """The claims of its members, all of them running."""
        self.reap()
        first, second = self.api.claim(self.node, self.queue, qty=2)
        self.reap()
        return first, second

    def told(self, before: str) -> Row:
        """End what is left, so that nothing more is told; what the event says."""
        self.api.rows("cancel_gang", gang=self.gang_id)
        self.reap()
        for lease in self.leases:
            found = self.api.lease(lease)
            if found["state"] == "claimed":
                claim = {"lease_id": lease, "claim_token": found["claim_token"]}
                self.api.rows("release_lease", **token(claim))
        self.reap()
        detail = {"gang_id": str(self.gang_id), "from": before, "size": 2}
        return {"queue": self.queue, "lease_id": None, "detail": detail}


def _reserved(stage: Stage) -> Row:
    pair = Pair(stage)
    pair.reap()
    return pair.told("waiting")


def _earmarked(stage: Stage) -> Row:
    pair = Pair(stage, node={"concurrency": 2})
    claim = pair.api.running(pair.api.queue(), pair.node)
    pair.reap()
    told = pair.told("waiting")
    pair.api.rows("complete_lease", **token(claim))
    return told


def _running(stage: Stage) -> Row:
    pair = Pair(stage)
    pair.started()
    return pair.told("reserved")


def _completed(stage: Stage) -> Row:
    pair = Pair(stage)
    for claim in pair.started():
        pair.api.rows("complete_lease", **token(claim))
    pair.reap()
    return pair.told("running")


def _stopping(stage: Stage) -> Row:
    pair = Pair(stage)
    first, _ = pair.started()
    pair.api.rows("fail_lease", **token(first), error={"message": "no"})
    pair.reap()
    return pair.told("running")


def _waiting(stage: Stage) -> Row:
    pair = Pair(stage)
    first, second = pair.started()
    pair.api.rows("fail_lease", **token(first), error={"message": "no"})
    pair.reap()
    pair.api.rows("release_lease", **token(second))
    pair.reap()
    return pair.told("stopping")


def _failed(stage: Stage) -> Row:
    pair = Pair(stage, max_attempts=1)
    first, second = pair.started()
    pair.api.rows("complete_lease", **token(second))
    pair.api.rows("fail_lease", **token(first), error={"message": "no"})
    pair.reap()
    return pair.told("running")


def _cancelling(stage: Stage) -> Row:
    pair = Pair(stage)
    pair.api.rows("cancel_lease", lease=pair.leases[0])
    pair.reap()
    return pair.told("waiting")


def _cancelled(stage: Stage) -> Row:
    pair = Pair(stage)
    pair.api.rows("cancel_gang", gang=pair.gang_id)
    pair.reap()
    return pair.told("cancelling")


GANG_CASES: dict[str, Case] = {
    "gang_waiting": _waiting,
    "gang_earmarked": _earmarked,
    "gang_reserved": _reserved,
    "gang_running": _running,
    "gang_stopping": _stopping,
    "gang_cancelling": _cancelling,
    "gang_completed": _completed,
    "gang_failed": _failed,
    "gang_cancelled": _cancelled,
}
