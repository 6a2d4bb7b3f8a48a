"""The documented order of claims: which lease a node may be given next.

Candidates are the first `window` ready entries of each queue's order (tier, rank, position), those
of them that the node may run and has room for, and the heads of the `probe` best scoring classes
that it may run and has room for; classes that score alike may be probed in any order. Of the
candidates: lowest rank, highest score, lowest position.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A ready entry. There is one tier; the rank is minus the priority, no queue ages here."""

    lease: Hashable
    queue: str
    placement_class: Hashable
    rank: int
    position: int
    expired: bool


Place = tuple[int, float, int]


def acceptable(
    entries: Sequence[Entry], scores: Mapping[Hashable, float], window: int, probe: int
) -> set[Hashable]:
    """The leases that may come next, {None} if none may.

    `entries` are all that are ready; `scores` has the classes that the node may run now, whether
    they have entries or not.
    """

    def place(entry: Entry) -> Place:
        return (entry.rank, -scores[entry.placement_class], entry.position)

    front = [entry for entry in _front(entries, window) if _claimable(entry, scores)]
    heads = _heads(entries, scores)
    ranked = sorted(scores.values(), reverse=True)
    if probe == 0:
        surely, perhaps, turns = set(), set(), 0
    else:
        cut = ranked[min(probe, len(ranked)) - 1] if ranked else 0
        surely = {key for key, score in scores.items() if score > cut}
        perhaps = {key for key, score in scores.items() if score == cut}
        turns = min(probe - len(surely), len(perhaps))
    base = min([*front, *(heads[key] for key in surely if key in heads)], key=place, default=None)
    found: set[Hashable] = set()
    rivals = [heads[key] for key in perhaps if key in heads]

    def not_before(limit: Entry | None) -> int:
        """How many of the tied classes have no head that would come before."""
        before = [r for r in rivals if limit is None or place(r) < place(limit)]
        return len(perhaps) - len(before)

    if not_before(base) >= turns:
        found.add(base.lease if base else None)
    for rival in rivals:
        if (base is None or place(rival) < place(base)) and not_before(rival) >= turns > 0:
            found.add(rival.lease)
    return found


def _front(entries: Sequence[Entry], window: int) -> list[Entry]:
    by_queue: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.rank, entry.position)):
        by_queue.setdefault(entry.queue, []).append(entry)
    return [entry for listed in by_queue.values() for entry in listed[:window]]


def _heads(entries: Sequence[Entry], scores: Mapping[Hashable, float]) -> dict[Hashable, Entry]:
    heads: dict[Hashable, Entry] = {}
    for entry in sorted(entries, key=lambda entry: (entry.rank, entry.position)):
        if _claimable(entry, scores):
            heads.setdefault(entry.placement_class, entry)
    return heads


def _claimable(entry: Entry, scores: Mapping[Hashable, float]) -> bool:
    return entry.placement_class in scores and not entry.expired
