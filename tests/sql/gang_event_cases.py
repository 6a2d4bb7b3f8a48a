"""What makes each event of a gang happen: a case for each of its states, as in event_cases."""

from collections.abc import Callable
from uuid import UUID

from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import token
from tests.sql.event_cases import Case, Stage

PAIR = Jsonb([{"task": "train", "count": 2}])
NO = {"message": "no"}


class Pair:
    """A gang of two, and the node that it runs on."""

    def __init__(self, stage: Stage, node: Row | None = None, **options: object) -> None:
        self.api = stage.api
        self.queue, self.node = stage.api.queue(), stage.api.node(**node or {})
        rows = self.api.rows("spawn_gang", queue=self.queue, members=PAIR, options=options)
        self.gang_id: UUID = rows[0]["gang_id"]
        self.leases: list[UUID] = [row["lease_id"] for row in rows]

    def started(self) -> tuple[Row, Row]:
        """The claims of its members, all of them running."""
        self.api.reap()
        first, second = self.api.claim(self.node, self.queue, qty=2)
        self.api.reap()
        return first, second

    def told(self, before: str) -> Row:
        """End what is left, so that nothing more is told; what the event says."""
        self.api.reap()
        self.api.rows("cancel_gang", gang=self.gang_id)
        self.api.reap()
        for lease in self.leases:
            found = self.api.lease(lease)
            if found["state"] == "claimed":
                claim = {"lease_id": lease, "claim_token": found["claim_token"]}
                self.api.rows("release_lease", **token(claim))
        self.api.reap()
        detail = {"gang_id": str(self.gang_id), "from": before, "size": 2}
        return {"queue": self.queue, "lease_id": None, "detail": detail}


def _complete(pair: Pair) -> None:
    pair.api.complete(*pair.started())


def _fail(pair: Pair) -> Row:
    first, second = pair.started()
    pair.api.rows("fail_lease", **token(first), error=NO)
    pair.api.reap()
    return second


def _fail_and_stop(pair: Pair) -> None:
    pair.api.rows("release_lease", **token(_fail(pair)))


def _cancel_one(pair: Pair) -> None:
    pair.api.rows("cancel_lease", lease=pair.leases[0])


def _cancel(pair: Pair) -> None:
    pair.api.rows("cancel_gang", gang=pair.gang_id)


def _of_two(before: str, happens: Callable[[Pair], object] = lambda _: None) -> Case:
    """A pair to which this happens, and the state that it was in before the event."""

    def case(stage: Stage) -> Row:
        pair = Pair(stage)
        happens(pair)
        return pair.told(before)

    return case


def _earmarked(stage: Stage) -> Row:
    pair = Pair(stage, node={"concurrency": 2})
    claim = pair.api.running(pair.api.queue(), pair.node)
    told = pair.told("waiting")
    pair.api.complete(claim)
    return told


def _failed(stage: Stage) -> Row:
    pair = Pair(stage, max_attempts=1)
    first, second = pair.started()
    pair.api.complete(second)
    pair.api.rows("fail_lease", **token(first), error=NO)
    return pair.told("running")


GANG_CASES: dict[str, Case] = {
    "gang_waiting": _of_two("stopping", _fail_and_stop),
    "gang_earmarked": _earmarked,
    "gang_reserved": _of_two("waiting"),
    "gang_running": _of_two("reserved", Pair.started),
    "gang_stopping": _of_two("running", _fail),
    "gang_cancelling": _of_two("waiting", _cancel_one),
    "gang_completed": _of_two("running", _complete),
    "gang_failed": _failed,
    "gang_cancelled": _of_two("cancelling", _cancel),
}
