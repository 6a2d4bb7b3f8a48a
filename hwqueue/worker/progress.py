"""What running handlers report of their progress, until it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from hwqueue.context import Report
from hwqueue.types import Claim
from hwqueue.worker.outbox import Outbox, Send

_MOST_REPORTS = 1000  # of one call


class ProgressBook(Outbox):
    """The last report of each claim: the next one says more.

    Args:
        send: Writes reports to the database.
    """

    def __init__(self, send: Send) -> None:
        super().__init__("progress was", send)
        self._unsent: dict[tuple[UUID, int], Report] = {}

    def tell(self, claim: Claim, report: Report) -> None:
        """Keep a report of this claim's handler; from any thread."""
        key = {"lease_id": str(claim.lease_id), "claim_token": claim.claim_token}
        with self._lock:
            is_first = not self._unsent
            self._unsent[claim.lease_id, claim.claim_token] = key | report
        if is_first:
            self._wake()

    @property
    def _is_empty(self) -> bool:
        return not self._unsent

    def _take(self) -> Iterable[Sequence[Report]]:
        reports, self._unsent = list(self._unsent.values()), {}
        for start in range(0, len(reports), _MOST_REPORTS):
            yield reports[start : start + _MOST_REPORTS]
