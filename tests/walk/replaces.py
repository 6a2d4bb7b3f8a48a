"""Leases that take the place of others: after them, or beside them until they have stopped."""

from tests.oracle.capacity import fits
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.gangs import ticked
from tests.walk.names import lease_id
from tests.walk.promises import keeps_its_room
from tests.walk.seen import Seen
from tests.walk.sweeps import unlike
from tests.walk.world import Options, World, every, gpus, needs

OLD, NEW = lease_id("a"), lease_id("b")


class ReapPlaces(s.Reap):
    """A sweep where a lease waits for the place of another one."""

    def wrong(self, before: Seen, after: Seen, outcome: s.Outcome) -> list[str]:
        """All others are swept as ever, and no reservation is left that is over."""
        leases, gangs = ticked(before, after)
        leases |= {key: after.leases[key] for key in (OLD, NEW) if key in after.leases}
        wrong = unlike(before, after, leases, gangs=gangs)
        if (new := after.leases.get(NEW)) is None:
            return wrong
        if new.state == "reserved" and (new.expires_at is None or new.expires_at <= after.now):
            wrong.append(f"reserved for ever: {new}")
        if new.state == "earmarked" and not _is_held(after):
            wrong.append(f"the place is free, but {new}")
        return wrong + _asked_wrong(before, after)


def one_at_a_time(before: Seen, after: Seen) -> list[str]:
    """Without overlap the new one has no room of its own before the old one has left its."""
    new = after.leases.get(NEW)
    is_beside = any(row["is_overlapping"] for row in _rows(before) + _rows(after))
    if new is None or is_beside or new.state not in ("reserved", "claimed"):
        return []
    return [f"both have room: {after.leases[OLD]}, {new}"] if _is_held(after) else []


def stops_for_its_place(before: Seen, after: Seen) -> list[str]:
    """The old one is asked to stop once the new one has room, or runs beside it, not before."""
    was, now = before.leases.get(OLD), after.leases.get(OLD)
    if was is None or now is None or now.stop_at is None or was.stop_at is not None:
        return []
    new = after.leases.get(NEW)
    is_ready = new is not None and new.state in ("earmarked", "claimed", "completed", "failed")
    return [] if is_ready else [f"asked to stop for {new}"]


def _asked_wrong(before: Seen, after: Seen) -> list[str]:
    """Where room is kept in its place, the old one was asked to stop, and hears why.

    That is so only where the two do not have room beside each other, or are not to.
    """
    if not _is_held(after):
        return []
    old, wrong = after.leases[OLD], []
    assert old.node is not None
    others = [claim for claim in after.claims if claim.lease_id != NEW]
    fit = fits(after.facts[NEW].placement, after.places[old.node], others)
    for row in _rows(after):
        reason = "cancelled" if row["old_goes"] == "cancel" else "preempted"
        if row["state"] == "stopping" and old.stop_reason != reason:
            wrong.append(f"not asked to stop: {old}")
        if row["state"] == "stopping" and row["is_overlapping"] and fit:
            wrong.append(f"asked to stop although both have room: {old}")
    return wrong


def _rows(seen: Seen) -> list[dict[str, object]]:
    return seen.rows["replacement"]


def _is_held(seen: Seen) -> bool:
    """Whether the old one still has the claim whose place is taken."""
    old = seen.leases.get(OLD)
    return (
        old is not None
        and old.state == "claimed"
        and any(row["old_token"] in (old.token, None) for row in _rows(seen))
    )


def _world(name: str, devices: int, replaces: Options, *, is_slow: bool = True) -> World:
    new = {**needs(gpu=1), "replaces": {"lease": str(OLD), **replaces}}
    return World(
        name,
        nodes={"n": gpus(devices, "n")},
        leases={"a": needs(gpu=1)},
        steps=[
            s.Spawn("b", new),
            s.Spawn("s", needs(gpu=1)),
            s.Claim("n"),
            *every(s.Complete, "abs"),
            s.Fail("a"),
            s.Release("a"),
            s.Cancel("b"),
            o.RestartAlike("n"),
            s.Wait(),
            ReapPlaces(),
        ],
        promises=[one_at_a_time, stops_for_its_place, keeps_its_room],
        is_upkeeps=True,
        is_slow=is_slow,
        near=3,
    )


# A new version takes the device of the old one. Another lease wants it, too.
IN_PLACE = _world("in_place", 1, {"then": "cancel"}, is_slow=False)
# The old one waits again, for any node.
MOVED = _world("moved", 1, {"then": "requeue"})
# The new one starts beside the old one where both have room.
OVERLAP = _world("overlap", 2, {"then": "cancel", "overlap": True})
