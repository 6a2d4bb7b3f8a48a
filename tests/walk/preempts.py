"""Leases and gangs of earlier tiers that get the room of later ones, whose claims are asked to stop."""

from uuid import UUID

from tests.oracle.capacity import fits
from tests.oracle.facts import Claim
from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import overbooked, ticked
from tests.walk.promises import books_open_nodes, keeps_its_room
from tests.walk.seen import LeaseSeen, Seen
from tests.walk.sweeps import unlike
from tests.walk.world import World, every, gpus, needs

_PREEMPTED = "tier_preempted"
_POLICY = {
    "preempt": {"after": 0, "grace": 10, "hold": 1},
    "preemptible": {"max_times": 100},
}
_TENANTS = {"first": "guaranteed", "second": "best_effort", "third": "scavenger"}


class ReapTiers(s.Reap):
    """A sweep where leases of earlier tiers wait."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """All others are swept as ever; room is booked where there would be some, and for no one in vain."""
        leases, gangs = ticked(before, after)
        moved = before.preempting | after.preempting
        moved |= {key for key, one in after.leases.items() if _is_asked(one)}
        moved |= {key for key, one in before.leases.items() if _is_asked(one) or _is_left(one)}
        for key in moved & after.leases.keys():
            leases[key] = after.leases[key]
        return unlike(before, after, leases, gangs=gangs) + _waits_wrong(after) + _room_wrong(after)


class Beat(s.Heartbeat):
    """A node says what it runs, and hears who is to stop; of what is reserved it does not know."""

    def can(self, seen: Seen) -> bool:
        """Whether one of its claims was asked to stop: else a walk over heartbeats has no end."""
        running = [one for one in seen.leases.values() if one.node == self.node and one.state == "claimed"]
        return any(map(_is_asked, running)) and super().can(seen)

    def make(self, direct: object, seen: Seen) -> list[dict[str, object]]:
        rows = [row for row in seen.rows["claim"] if row["node_id"] == str(self.node)]
        held = [row for row in rows if not row["is_reserved"]]
        return direct.heartbeat(self.node, seen.nodes[self.node]["epoch"], held)  # type: ignore[attr-defined,no-any-return]

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        told = {row["lease_id"]: row["verdict"] for row in outcome.value}
        should = {
            key: "preempted" if _is_asked(one) else "ok"
            for key, one in before.leases.items()
            if one.node == self.node and one.state == "claimed" and one.stop_reason != "cancelled"
        }
        return [] if told == should else [f"verdicts {told}, not {should}"]


def asks_later_tiers(before: Seen, after: Seen) -> list[str]:
    """Whoever is asked to stop is of a later tier than one that has room booked on its node."""
    return [
        f"asked to stop for nobody: {one}"
        for key, one in after.leases.items()
        if _is_asked(one) and not (key in before.leases and _is_asked(before.leases[key]))
        if not any(
            after.leases[other].node == one.node and after.leases[other].tier < one.tier
            for other in after.preempting
        )
    ]


def victims_keep_their_place(before: Seen, after: Seen) -> list[str]:
    """A single lease that is released waits where it was in line, and has used no attempt."""
    places = {UUID(row["lease_id"]): row["position"] for row in before.rows["lease"]}
    wrong = []
    for row in after.rows["ready"]:
        key = UUID(row["lease_id"])
        was = before.leases.get(key)
        if was is None or not _is_asked(was) or was.expires_at is None or was.expires_at <= before.now:
            continue  # it has expired, and may have used an attempt
        if row["position"] != places[key] or row["attempt_count"] != was.attempts - 1:
            wrong.append(f"{was} was at {places[key]}, and came back as {row}")
    return wrong


def _waits_wrong(seen: Seen) -> list[str]:
    """No lease waits, without a next try, while later tiers alone use room that would do for it."""
    classes = {UUID(row["lease_id"]): row["class_id"] for row in seen.rows["lease"]}
    rows = [UUID(row["lease_id"]) for row in seen.rows["replacement"]]
    looked_for = {classes[key] for key in rows if key in classes and seen.leases[key].state == "pending"}
    wrong = []
    for key, one in seen.leases.items():
        if one.state != "pending" or classes[key] in looked_for:
            continue
        stay = [claim for claim in seen.claims if not _may_go(seen, claim, one.tier)]
        free, freed = (_has_room(seen, key, claims) for claims in (seen.claims, stay))
        if freed and not free:
            wrong.append(f"{one} waits, although others could go")
    return wrong


def _has_room(seen: Seen, lease: UUID, claims: list[Claim]) -> bool:
    placement = seen.facts[lease].placement
    in_vain = {  # it was not fetched there lately
        UUID(row["node_id"])
        for row in seen.rows["attempt"]
        if row["lease_id"] == str(lease) and (row["error"] or {}).get("reason") == "claim_expired"
    }
    return any(
        seen.is_open(node) and node not in in_vain and fits(placement, place, claims)
        for node, place in seen.places.items()
    )


def _may_go(seen: Seen, claim: Claim, tier: int) -> bool:
    one = seen.leases[claim.lease_id]
    return one.state == "claimed" and one.tier > tier and one.stop_at is None


def _room_wrong(seen: Seen) -> list[str]:
    """What is booked has room once those that were asked have gone, and is reserved as soon as it has."""
    stay = [claim for claim in seen.claims if seen.leases[claim.lease_id].stop_at is None]
    booked = {seen.leases[key].node for key in seen.preempting}
    wrong = [f"more than it has is booked on {node}" for node in overbooked(stay) & booked]
    full = overbooked(seen.claims)
    for key in seen.preempting:
        one = seen.leases[key]
        if one.gang is None and one.node not in full and one.node and seen.is_open(one.node):
            wrong.append(f"its room is free, but {one}")
    return wrong


def _is_left(lease: LeaseSeen) -> bool:
    """Whether it was cancelled while it was reserved: no node has it, so upkeep ends it."""
    return lease.state == "reserved" and lease.stop_reason == "cancelled"


def _is_asked(lease: LeaseSeen) -> bool:
    return lease.stop_reason == _PREEMPTED


def _of(tenant: str) -> dict[str, object]:
    return {**needs(gpu=1), "tenant": tenant}


# Two devices that later tiers use. One lease of each earlier tier comes, in any order.
PREEMPTS = World(
    "preempts",
    policy=_POLICY,
    tenants=_TENANTS,
    nodes={"n": gpus(1, "n"), "m": gpus(1, "m")},
    leases={"v": _of("third"), "w": _of("second")},
    first=[s.Claim("n"), s.Claim("m")],
    steps=[
        s.Spawn("a", _of("first")),
        s.Spawn("b", _of("second")),
        s.Claim("n"),
        s.Claim("m"),
        *every(s.Complete, "ab"),
        *every(s.Release, "vw"),
        s.Cancel("a"),
        o.Cordon("n"),
        o.Uncordon("n"),
        Beat("n"),
        s.Wait(),
        ReapTiers(),
    ],
    promises=[asks_later_tiers, victims_keep_their_place, keeps_its_room],
    is_upkeeps=True,
    near=3,
)
# One device, and no time passes: all of it, in a minute.
PREEMPTS_AT_ONCE = World(
    "preempts_at_once",
    policy=_POLICY,
    tenants=_TENANTS,
    nodes={"n": gpus(1, "n")},
    leases={"v": _of("third")},
    first=[s.Claim("n")],
    steps=[
        s.Spawn("a", _of("first")),
        s.Claim("n"),
        *every(s.Complete, "av"),
        s.Release("v"),
        s.Cancel("a"),
        o.Cordon("n"),
        o.Uncordon("n"),
        Beat("n"),
        ReapTiers(),
    ],
    promises=[asks_later_tiers, victims_keep_their_place, keeps_its_room],
    is_upkeeps=True,
    is_slow=True,
)
# A gang of two needs the devices of both nodes; one of them runs a lease of the last tier.
GANG_PREEMPTS = World(
    "gang_preempts",
    policy={**_POLICY, "earmarks": 1},
    tenants=_TENANTS,
    nodes={"n": gpus(1, "n"), "m": gpus(1, "m")},
    leases={"v": _of("third"), "w": _of("second")},
    gangs={"g": {"members": "ab", "each": _of("first")}},
    first=[s.Claim("n"), s.Claim("m")],
    steps=[
        s.Claim("n"),
        s.Claim("m"),
        s.Complete("a"),
        *every(s.Release, "vw"),
        m.CancelGang("g"),
        o.Cordon("m"),
        o.Uncordon("m"),
        Beat("n"),
        s.Wait(),
        ReapTiers(),
    ],
    promises=[asks_later_tiers, victims_keep_their_place, keeps_its_room, books_open_nodes],
    is_upkeeps=True,
    near=3,
)
