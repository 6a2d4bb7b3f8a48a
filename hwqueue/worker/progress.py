"""What running handlers report of their progress, until it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hwqueue.handler.lease_facts import Report
from hwqueue.worker.outbox import Item, Key, Outbox, Send, item_of

_MOST_REPORTS = 1000  # of one call


class ProgressOutbox(Outbox[Report]):
    """The last report of each claim: the next one says more.

    Args:
        send: Writes reports to the database.
    """

    def __init__(self, send: Send) -> None:
        super().__init__("progress was", send)

    def _add(self, key: Key, said: Item) -> None:
        self._unsent[key] = said

    def _batches(self, unsent: Mapping[Key, Report]) -> Iterable[Sequence[Item]]:
        reports = [item_of(key, said) for key, said in unsent.items()]
        for start in range(0, len(reports), _MOST_REPORTS):
            yield reports[start : start + _MOST_REPORTS]
