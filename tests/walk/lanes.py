"""Leases of a limit: who is let through, in which order, and that nobody waits beside a free place."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.calls import Row
from tests.direct import Direct
from tests.walk import steps as s
from tests.walk.seen import Seen
from tests.walk.world import World, every

Holders = dict[int, set[str]]


class ClaimFromLanes(s.Claim):
    """A node asks for work, in a session that has not looked for changes of lanes lately."""

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        direct.conn.execute("select set_config('hwqueue.recent_due_scan', '', false)")
        return super().make(direct, seen)

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """What it ends because it has found nothing leaves its places to the next claim."""
        found = super().wrong(before, after, outcome)
        if outcome.value or len(before.claims) == len(after.claims):
            return found
        return [line for line in found if not line.startswith("not granted")]


class ReapLanes(s.Reap):
    """A sweep, which counts what was noted."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """Nothing is left to count, and nobody is parked beside a free place."""
        held, most = _holders(after), _most(after)
        return (
            super().wrong(before, after, outcome)
            + [f"not counted: {row}" for row in after.rows["lane_change"]]
            + [
                f"parked although {held[lane]} of {most[lane]} are through: {line[0]}"
                for lane, line in _lines(after).items()
                if len(held[lane]) < most[lane]
            ]
        )


class SetSlots(s.Step):
    """An operator changes how many leases a limit lets run."""

    def __init__(self, limit: str, slots: int) -> None:
        self.name = f"{slots} slots for {limit}"
        self.limit, self.slots = limit, slots

    def make(self, direct: Direct, seen: Seen) -> Any:
        direct.rows("set_limit", name=self.limit, changes={"slots": self.slots})


def none_too_many(before: Seen, after: Seen) -> list[str]:
    """Nobody is let through to a lane that has no place; those that were when it had more stay."""
    held, most = _holders(before), _most(after)
    return [
        f"{these} hold {most[lane]} places of lane {lane}"
        for lane, these in _holders(after).items()
        if len(these) > most[lane] and these - held[lane]
    ]


def first_come(before: Seen, after: Seen) -> list[str]:
    """Who is let through was before all those that stay."""
    held, lines = _holders(after), _lines(after)
    return [
        f"{row} was passed by {other}"
        for lane, line in _lines(before).items()
        for nth, row in enumerate(line)
        for other in line[nth + 1 :]
        if row in lines[lane] and other["lease_id"] in held[lane]
    ]


def hands_over(before: Seen, after: Seen) -> list[str]:
    """The end of a claim lets the next one through at once, where no more run than may."""
    held, now, most = _holders(before), _holders(after), _most(before)
    used = {row["lane_id"]: row["used"] for row in before.rows["lane"]}
    claims = {row["lease_id"] for row in before.rows["claim"]} - {
        row["lease_id"] for row in after.rows["claim"]
    }
    return [
        f"the place of {ended} in lane {lane} was not handed over: {line[0]}"
        for lane, line in _lines(before).items()
        for ended in [claims & held[lane]]
        if used.get(lane, 0) <= most[lane] and len(now[lane] - held[lane]) < min(len(ended), len(line))
        if any(row in _lines(after)[lane] for row in line)
    ]


def _lanes(seen: Seen) -> Iterator[tuple[str, list[int]]]:
    for row in seen.rows["lease"]:
        yield row["lease_id"], [one["lane_id"] for one in row["lanes"] or ()]


def _holders(seen: Seen) -> Holders:
    """Who has a place in each lane: all that may run or runs, and in those before it who is parked."""
    through = {row["lease_id"] for table in ("ready", "claim") for row in seen.rows[table]}
    parked = {row["lease_id"]: row["lane_id"] for row in seen.rows["scheduled"]}
    found: Holders = defaultdict(set)
    for lease, lanes in _lanes(seen):
        passed = len(lanes) if lease in through else 0
        if parked.get(lease) is not None:
            passed = lanes.index(parked[lease])
        for lane in lanes[:passed]:
            found[lane].add(lease)
    return found


def _lines(seen: Seen) -> dict[int, list[Row]]:
    """Who is parked in each lane, the first one first."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in sorted(seen.rows["scheduled"], key=lambda row: (row["tier"], row["rank"], row["turn"] or 0)):
        if row["lane_id"] is not None:
            found[row["lane_id"]].append(row)
    return found


def _most(seen: Seen) -> dict[int, int]:
    """How many places each lane has."""
    most = {row["limit_id"]: row["most"] for row in seen.rows["limit_rule"]}
    return {one["lane_id"]: most[one["limit_id"]] for row in seen.rows["lease"] for one in row["lanes"] or ()}


_STEPS: list[s.Step] = [
    ClaimFromLanes("n"),
    ClaimFromLanes("m", 2),
    *every(s.Complete, "bc"),
    s.Release("a"),
    s.Cancel("a"),
    s.Wait(),
    ReapLanes(),
]
_PROMISES = [none_too_many, first_come, hands_over]
# One place for all, or two: the limit is raised and lowered.
LANES = World(
    "lanes",
    nodes={"n": {}, "m": {}},
    limits={"all": {"slots": 1}},
    leases={name: {"limits": ["all"]} for name in "abc"},
    steps=[*_STEPS, SetSlots("all", 1), SetSlots("all", 2)],
    promises=_PROMISES,
    policy={"max_attempts": 1},
)
# A place for each key, and then one for all: who is parked in the second lane has a place of the first.
CHAINS = World(
    "chains",
    nodes={"n": {}, "m": {}},
    limits={"key": {"slots": 1, "by": "key"}, "all": {"slots": 1}},
    leases={name: {"limits": {"key": key, "all": None}} for name, key in zip("abc", "uuv", strict=True)},
    steps=[*_STEPS, s.Fail("b"), s.Requeue("a")],
    promises=_PROMISES,
    policy={"max_attempts": 1},
)
