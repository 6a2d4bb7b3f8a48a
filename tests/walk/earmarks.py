"""Room that is kept for the first gang that does not fit, and what may use it meanwhile."""

from datetime import datetime
from uuid import UUID

from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import overbooked
from tests.walk.promises import books_open_nodes, keeps_its_room
from tests.walk.seen import GangSeen, Seen
from tests.walk.world import World, every, gpus, needs


class ReapKept(s.Reap):
    """A sweep: nodes know until when others may use the room that is kept there."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """What has been kept since an earlier sweep is noted as this one found it."""
        wrong = super().wrong(before, after, outcome)
        for key, gang in after.gangs.items():
            if gang.state == before.gangs[key].state == "earmarked":
                until = _starts_by(gang, after)
                wrong += [
                    f"room of {node} may be used until {noted}, not {until}"
                    for node in _nodes(gang, after)
                    for noted in [after.nodes[node]["backfill_until"]]
                    if noted != until
                ]
        return wrong


def _nodes(gang: GangSeen, seen: Seen) -> set[UUID]:
    return {node for key in gang.members if (node := seen.leases[key].node) is not None}


def _starts_by(gang: GangSeen, seen: Seen) -> datetime | None:
    """When the last claim that is in its way ends; None: one of them may last for ever."""
    full = overbooked(seen.claims) & _nodes(gang, seen)
    ends = [
        seen.overrun_at.get(key) if one.state == "claimed" else None
        for key, one in seen.leases.items()
        if one.node in full and one.state != "earmarked"
    ]
    known = [end for end in ends if end is not None]
    return max(known, default=seen.now) if len(known) == len(ends) else None


# One gang needs all devices, one of which is in use; another one waits behind it.
KEPT = World(
    "kept",
    policy={"earmarks": 1},
    nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
    leases={"s": needs(gpu=1), "t": needs(gpu=1)},
    gangs={
        "g": {"members": "abc", "each": needs(gpu=1)},
        "h": {"members": "de", "each": needs(gpu=1)},
    },
    first=[s.Claim("n"), s.Reap()],
    steps=[
        s.Claim("n", 2),
        s.Claim("m"),
        *every(s.Complete, "sa"),
        s.Release("b"),
        m.CancelGang("g"),
        o.Cordon("m"),
        o.Uncordon("m"),
        o.RestartAlike("n"),
        s.Wait(),
        ReapKept(),
    ],
    promises=[keeps_its_room, books_open_nodes],
    near=2,
)

# What is in its way ends in 20 seconds: one lease will be over by then, another one will not.
BACKFILL = World(
    "backfill",
    policy={"earmarks": 1},
    nodes={"n": gpus(2, "n")},
    leases={
        "s": {**needs(gpu=1), "max_run": 20},
        "v": {**needs(gpu=1), "max_run": 60, "priority": -1},
        "t": {**needs(gpu=1), "max_run": 5, "priority": -2},
    },
    gangs={"g": {"members": "ab", "each": needs(gpu=1)}},
    first=[s.Claim("n"), s.Reap(), s.Reap()],
    steps=[
        s.Claim("n"),
        *every(s.Complete, "st"),
        s.Release("t"),
        m.CancelGang("g"),
        s.Wait(),
        ReapKept(),
    ],
    near=3,
)
