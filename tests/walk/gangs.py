"""What a tick does to leases and gangs, told a second time: by trying every way to place a gang."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from uuid import UUID

from tests.oracle.cluster import Running
from tests.oracle.occupancy import broken_now
from tests.walk.seen import FINISHED, NEVER, WAITING, GangSeen, LeaseSeen, Seen
from tests.walk.sweeps import Expected, reaped

Gangs = dict[UUID, GangSeen]


def ticked(before: Seen, after: Seen) -> tuple[Expected, Gangs]:
    """Leases and gangs after a tick; where it has reserved room is not told but taken from it."""
    leases = {key: reaped(one, before) for key, one in before.leases.items()}
    gangs = dict(before.gangs)
    _settle_choices(leases, gangs, before)
    for key, gang in list(gangs.items()):
        is_lost = any(leases[member] != before.leases[member] for member in gang.members)
        if gang.is_changed or is_lost:
            gangs[key] = _looked_at(gang, leases, before)
    for key, gang in sorted(gangs.items(), key=lambda item: item[1].order):
        if gang.is_tried and gang.next_try_at <= before.now:
            gangs[key] = _tried(gang, leases, before, after)
    return leases, gangs


def _settle_choices(leases: Expected, gangs: Gangs, seen: Seen) -> None:
    """Whatever waits of a choice of which another one was taken is cancelled."""
    for key in seen.taken_instead:
        if key in gangs and gangs[key].state not in (*FINISHED, "cancelling"):
            gangs[key] = replace(gangs[key], state="cancelling", is_changed=True)
        elif key in leases and leases[key].state in WAITING:
            leases[key] = leases[key].ended("cancelled", leases[key].attempts)


def _looked_at(gang: GangSeen, leases: Expected, seen: Seen) -> GangSeen:
    """The gang once its members have been counted; those that may not go on are stopped."""
    by_state = {key: leases[key].state for key in gang.members}
    counts = Counter(by_state.values())
    state = _next_state(gang, counts)
    for key, was in by_state.items():
        one = leases[key]
        if state in ("cancelling", "completed") and was == "scheduled":
            leases[key] = one.ended("cancelled", one.attempts)
        elif state in ("cancelling", "stopping") and was == "reserved":
            leases[key] = one.back(one.attempts)
        elif state in ("cancelling", "stopping") and was == "claimed" and one.stop_at is None:
            leases[key] = replace(one, stop_at=seen.now, stop_reason="preempted")
    missing = counts["scheduled"] if state in ("reserved", "running") else 0
    is_ending = state == "running" and missing > 0 and counts["completed"] > 0
    is_left = state == "waiting" and not counts["claimed"]  # it starts as a whole again
    is_same = (state, missing) == (gang.state, gang.missing)
    if is_same and not is_ending and not (is_left and gang.has_started):
        return gang
    changed = replace(gang, state=state, missing=missing)
    if state in ("running", "completed"):
        changed = replace(changed, has_started=True)
    elif is_left:
        changed = replace(changed, has_started=False)
    if state == "waiting" or missing > gang.missing:
        is_first = gang.losses == 0 and counts["claimed"] > 0  # others must not take its room
        pause = timedelta(seconds=0 if is_first else min(2 ** min(gang.losses, 7), 120))
        changed = replace(changed, losses=gang.losses + 1, next_try_at=seen.now + pause)
    return replace(changed, next_try_at=NEVER) if is_ending else changed


def _next_state(gang: GangSeen, counts: Counter[str]) -> str:
    holds, enough = counts["reserved"] + counts["claimed"], len(gang.members) - gang.spare
    is_done = counts["completed"] >= enough and not holds + counts["failed"]
    if is_done and gang.state != "cancelling":
        return "completed"
    if not counts["scheduled"] + counts["reserved"] + counts["claimed"]:
        return next(state for state in ("failed", "cancelled", "completed") if counts[state])
    if gang.state == "cancelling" or counts["failed"] + counts["cancelled"]:
        return "cancelling"
    if holds and counts["scheduled"] <= gang.spare:
        here = len(gang.members) - counts["scheduled"] - counts["reserved"]
        joins = gang.state == "running" and here >= enough
        return "reserved" if counts["reserved"] and not joins else "running"
    if gang.on_lost == "replace" and gang.has_started and counts["claimed"]:
        return "waiting"
    return "stopping" if holds else "waiting"


def _tried(gang: GangSeen, leases: Expected, before: Seen, after: Seen) -> GangSeen:
    """All members that wait are reserved if there is a way to place them, else as many as must."""
    waiting = [key for key in gang.members if leases[key].state == "scheduled"]
    for count in _sizes(len(waiting), max(1, len(waiting) - gang.spare)):
        placed = waiting[:count]
        if any(_may_stand(where, leases, before) for where in _ways(gang, placed, before)):
            break
    else:
        pause = timedelta(seconds=min(2 ** min(gang.tries, 4), 15))
        return replace(gang, tries=gang.tries + 1, next_try_at=before.now + pause)
    for key in placed:
        leases[key] = reserved(leases[key], after.leases[key], before.now + gang.hold)
    state = "running" if gang.state == "running" else "reserved"
    return replace(gang, state=state, tries=0, missing=len(waiting) - len(placed))


def _sizes(count: int, needed: int) -> list[int]:
    """How many are tried: all, then as many as are needed; of those that join half as many each."""
    if needed > 1:
        return [count, needed]
    return [count >> turn for turn in range(count.bit_length())]


def reserved(lease: LeaseSeen, now: LeaseSeen, until: datetime) -> LeaseSeen:
    """The lease once it is reserved; where it is so is not told but taken from it."""
    return replace(
        lease,
        state="reserved",
        grants=lease.grants + 1,
        due=None,
        node=now.node,
        token=now.token,
        expires_at=until,
    )


def has_room(gang: GangSeen, leases: Expected, seen: Seen) -> bool:
    """Whether there is a way to place all members that wait."""
    waiting = [key for key in gang.members if leases[key].state == "scheduled"]
    return any(_may_stand(where, leases, seen) for where in _ways(gang, waiting, seen))


def _ways(gang: GangSeen, waiting: list[UUID], seen: Seen) -> Iterator[dict[UUID, UUID]]:
    """Every node for every member, of one rack or node where they are to be together."""
    alive = [key for key in seen.nodes if _is_open(key, seen)]
    for nodes in product(alive, repeat=len(waiting)):
        racks = {seen.nodes[node]["rack"] for node in nodes}
        if "rack" in gang.together and (len(racks) > 1 or None in racks):
            continue
        yield dict(zip(waiting, nodes, strict=True))


def _is_open(node: UUID, seen: Seen) -> bool:
    return seen.is_live(node) and seen.nodes[node]["cordoned_at"] is None


def _may_stand(where: dict[UUID, UUID], leases: Expected, seen: Seen) -> bool:
    """Whether the members could run there beside all that has claims: devices and terms."""
    placed = {key: one for key, one in leases.items() if _is_placed(one)} | {
        key: replace(leases[key], node=node) for key, node in where.items()
    }
    used: Counter[UUID] = Counter()
    for key, one in placed.items():
        assert one.node is not None
        used[one.node] += seen.facts[key].placement.get("resources", {}).get("gpu", 0)
    running = tuple(
        Running(seen.facts[key], one.node, is_leaving=one.stop_at is not None)
        for key, one in placed.items()
        if one.node is not None
    )
    has_room = all(count <= len(seen.places[node].gpus) for node, count in used.items())
    return has_room and not broken_now(replace(seen.cluster, running=running))


def _is_placed(lease: LeaseSeen) -> bool:
    return lease.node is not None and lease.state not in FINISHED
