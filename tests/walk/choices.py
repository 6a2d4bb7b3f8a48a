"""A choice of alternatives, of which one runs: single leases, and a gang."""

from collections import Counter
from uuid import UUID

from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.names import choice_id
from tests.walk.seen import LeaseSeen, Seen
from tests.walk.world import World, every, gpus, needs

_BOOKED = ("reserved", "claimed")


class RequeueChoice(s.Requeue):
    """An operator requeues an alternative."""

    verb = "requeue choice"

    def expected(self, before: Seen, lease: LeaseSeen) -> LeaseSeen | None:
        """It is refused where another one was taken."""
        if self.lease in before.taken_instead:
            return None
        return super().expected(before, lease)


def one_is_taken(before: Seen, after: Seen) -> list[str]:
    """Of a choice one alternative at most has claims, and what was taken stays so."""
    booked: Counter[str] = Counter()
    alternatives = {one: row["choice_id"] for row in after.rows["choice"] for one in row["members"]}
    holding = {str(one.gang or key) for key, one in after.leases.items() if one.state in _BOOKED}
    booked.update(alternatives[one] for one in holding if one in alternatives)
    taken = {row["choice_id"]: row["taken"] for row in after.rows["choice"]}
    return [f"{count} alternatives of {key} run" for key, count in booked.items() if count > 1] + [
        f"choice {row['choice_id']} took {row['taken']}, then {taken[row['choice_id']]}"
        for row in before.rows["choice"]
        if row["taken"] is not None and taken[row["choice_id"]] != row["taken"]
    ]


def none_runs_beside(before: Seen, after: Seen) -> list[str]:
    """Once one was taken no other one ever starts."""
    return [
        f"{key} has started although another alternative was taken"
        for key in _members(before)
        if after.leases[key].grants > before.leases[key].grants
    ]


def _members(seen: Seen) -> list[UUID]:
    """The leases that may not run, those of gangs with them."""
    lost = seen.taken_instead
    return [key for key, one in seen.leases.items() if key in lost or one.gang in lost]


_ONE_OF = {"one_of": str(choice_id("x"))}

# One GPU, or one of a rarer kind, or a gang of two: whichever has room first.
CHOICE = World(
    "choice",
    nodes={"n": gpus(1, "n"), "m": {**gpus(1, "m"), "labels": {"zone": "a"}}},
    leases={
        "a": {"placement": {"resources": {"gpu": 1}, "require": [{"tags": {"zone": "a"}}]}} | _ONE_OF,
        "b": {**needs(gpu=1), "priority": 1, **_ONE_OF},
    },
    gangs={"g": {"members": "cd", "each": needs(gpu=1), **_ONE_OF}},
    steps=[
        s.Claim("n"),
        s.Claim("m"),
        *every(s.Complete, "a"),
        s.Fail("b"),
        s.Cancel("b"),
        *every(RequeueChoice, "ab"),
        s.Release("c"),
        m.CancelGang("g"),
        o.RestartAlike("m"),
        s.Wait(),
        s.Reap(),
    ],
    promises=[one_is_taken, none_runs_beside],
    is_slow=True,
)
