"""Gangs: room that is kept for one, and nodes that fall silent."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tests.calls import Row
from tests.direct import Direct
from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.grants import claim_timeout
from tests.walk.promises import books_open_nodes, keeps_its_room
from tests.walk.seen import Seen, span
from tests.walk.sweeps import next_event, unlike
from tests.walk.world import World, every, gpus, needs

# One gang needs all devices, one of which is in use; another one waits behind it.
KEPT = World(
    "kept",
    policy={"earmarks": 1},
    nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
    leases={"s": needs(gpu=1), "t": needs(gpu=1)},
    gangs={"g": {"members": "abc", "each": needs(gpu=1)}, "h": {"members": "de", "each": needs(gpu=1)}},
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
        s.Reap(),
    ],
    promises=[keeps_its_room, books_open_nodes],
    near=2,
)


class WaitOrFallSilent(s.Wait):
    """Time passes until something is due, or a node is not live any more."""

    def make(self, direct: Direct, seen: Seen) -> None:
        """Move the clock, no further than to the first end of a node's life."""
        lives = [node["live_until"] - seen.now for node in seen.nodes.values()]
        ahead = next_event(seen, span(seen.queue["patience"]))
        ends = [ahead, *(left for left in lives if left > timedelta(0))]
        step = min(end for end in ends if end is not None)
        direct.conn.execute("update hwqueue.test_clock set offset_by = offset_by + %s", [step])


class Beat(s.Heartbeat):
    """A node says that it lives, and what it runs; of what is reserved it does not know."""

    def can(self, seen: Seen) -> bool:
        """Whether it would change anything."""
        return self.node in seen.nodes and (not seen.is_live(self.node) or super().can(seen))

    def make(self, direct: Direct, seen: Seen) -> list[Row]:
        """Give a sign of life."""
        rows = [row for row in seen.rows["claim"] if row["node_id"] == str(self.node)]
        held = [row for row in rows if not row["is_reserved"]]
        return direct.heartbeat(self.node, seen.nodes[self.node]["epoch"], held)

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """It lives again, and what it runs is extended, whether or not it was too late."""
        later = {
            key: replace(one, expires_at=max(one.expires_at, end))
            for key, one in before.leases.items()
            if one.node == self.node and one.state == "claimed" and one.expires_at is not None
            for end in [before.now + claim_timeout(before, key)]
        }
        told = {row["lease_id"] for row in outcome.value}
        wrong = [] if told == later.keys() else [f"told of {told}, not of {later.keys()}"]
        wrong += [] if after.is_live(self.node) else ["it does not live"]
        return wrong + unlike(before, after, later)


def _world(name: str, first: Sequence[s.Step], near: int) -> World:
    return World(
        name,
        nodes={"n": gpus(1, "n"), "m": {**gpus(1, "m"), "heartbeat_timeout": 20}, "o": gpus(1, "o")},
        leases={},
        gangs={"g": {"members": "ab", "each": needs(gpu=1), "hold": 20}},
        first=[s.Reap(), *first],
        steps=[
            *(s.Claim(node) for node in "nmo"),
            s.Complete("a"),
            *(Beat(node) for node in "mo"),
            o.Leave("m"),
            WaitOrFallSilent(),
            s.Reap(),
        ],
        promises=[books_open_nodes],
        near=near,
    )


# Two members, and three nodes for them: one with a member is silent when its reservation is over.
SILENT = _world("silent", [WaitOrFallSilent()], 3)
# The same once both run: what runs on the silent node expires later.
LOST = _world("lost", [s.Claim("m"), s.Claim("o"), s.Reap(), WaitOrFallSilent(), Beat("o")], 2)
