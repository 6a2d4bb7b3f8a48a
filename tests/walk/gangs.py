"""What a tick does to leases and gangs, told a second time: by trying every way to place a gang.

In these worlds any node would do for any gang: all earmarks are in each other's way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from uuid import UUID

from tests.oracle.cluster import Running
from tests.oracle.facts import Claim
from tests.oracle.occupancy import broken_now
from tests.walk.seen import FINISHED, NEVER, WAITING, GangSeen, LeaseSeen, Seen
from tests.walk.sweeps import Expected, reaped

Gangs = dict[UUID, GangSeen]
_BOOKED = ("reserved", "earmarked")


def ticked(before: Seen, after: Seen) -> tuple[Expected, Gangs]:
    """Leases and gangs after a tick; where it has reserved room is not told but taken from it."""
    leases = {key: reaped(one, before) for key, one in before.leases.items()}
    gangs = dict(before.gangs)
    _settle_choices(leases, gangs, before)
    for key in list(gangs):
        gang = gangs[key]
        is_lost = any(leases[member] != before.leases[member] for member in gang.members)
        if gang.is_changed or is_lost:
            gangs[key] = _looked_at(gang, leases, before)
            _let_those_behind(gang, key, gangs, before)
    for key, gang in _in_order(gangs):
        if gang.state == "earmarked":
            gangs[key] = _kept(gang, leases, before)
            _let_those_behind(gang, key, gangs, before)
    for key, gang in _in_order(gangs):
        if gang.is_tried and gang.next_try_at <= before.now:
            gangs[key] = _tried(gang, gangs, leases, before, after)
    return leases, gangs


def _in_order(gangs: Gangs) -> list[tuple[UUID, GangSeen]]:
    return sorted(gangs.items(), key=lambda item: item[1].order)


def _let_those_behind(was: GangSeen, key: UUID, gangs: Gangs, seen: Seen) -> None:
    """Once nothing is kept for a gang any more, those that waited for that are tried at once."""
    if was.state != "earmarked" or gangs[key].state == "earmarked":
        return
    for other, gang in gangs.items():
        if gang.state == "waiting" and gang.is_behind:
            gangs[other] = replace(gang, next_try_at=seen.now)


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
        elif state in ("cancelling", "stopping") and was in _BOOKED:
            leases[key] = one.back(one.attempts)
        elif state in ("cancelling", "stopping") and was == "claimed" and one.stop_at is None:
            leases[key] = replace(one, stop_at=seen.now, stop_reason="preempted")
    missing = counts["scheduled"] if state in (*_BOOKED, "running") else 0
    is_ending = state == "running" and missing > 0 and counts["completed"] > 0
    is_left = state == "waiting" and not counts["claimed"]  # it starts as a whole again
    is_same = (state, missing) == (gang.state, gang.missing)
    if is_same and not is_ending and not (is_left and gang.has_started):
        return gang
    changed = replace(gang, state=state, missing=missing, next_try_at=max(gang.next_try_at, seen.now))
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
    reserved, enough = sum(counts[state] for state in _BOOKED), len(gang.members) - gang.spare
    holds = reserved + counts["claimed"]
    goes_on = gang.goes_on(counts)
    least = enough if gang.spare or not goes_on else 1
    is_done = counts["completed"] >= least and not (holds or (counts["failed"] and not goes_on))
    if is_done and gang.state != "cancelling":
        return "completed"
    if not counts["scheduled"] + holds:
        return next(state for state in ("failed", "cancelled", "completed") if counts[state])
    is_enough = goes_on and counts["completed"] + holds >= least
    if gang.state == "cancelling" or (counts["failed"] + counts["cancelled"] and not is_enough):
        return "cancelling"
    if holds and counts["scheduled"] <= gang.spare:
        here = len(gang.members) - counts["scheduled"] - reserved
        joins = gang.state == "running" and here >= enough
        booked = "earmarked" if counts["earmarked"] else "reserved"
        return booked if reserved and not joins else "running"
    if gang.on_lost == "replace" and gang.has_started and counts["claimed"]:
        return "waiting"
    return "stopping" if holds else "waiting"


def _let_those_before(gang: GangSeen, gangs: Gangs, seen: Seen) -> bool:
    """Before room is kept for a gang, those before it in order are tried once more, next time."""
    earlier = {
        key: replace(one, next_try_at=seen.now)
        for key, one in gangs.items()
        if one.state == "waiting" and one.order < gang.order and one.next_try_at > seen.now
    }
    gangs |= earlier
    return bool(earlier)


def _kept(gang: GangSeen, leases: Expected, seen: Seen) -> GangSeen:
    """What is kept for a gang is reserved once nobody uses it, or is given up."""
    kept = [key for key in gang.members if leases[key].state == "earmarked"]
    if seen.queue["paused_at"] is not None or any(_is_amiss(leases[key], seen) for key in kept):
        leases |= {key: leases[key].back(leases[key].attempts) for key in kept}
        return _looked_at(gang, leases, seen)
    placed = [claim for claim in seen.claims if _is_placed(leases[claim.lease_id])]
    if {leases[key].node for key in kept} & overbooked(placed):
        return gang
    until = seen.now + gang.hold
    leases |= {key: replace(leases[key], state="reserved", expires_at=until) for key in kept}
    return replace(gang, state="reserved")


def _is_amiss(lease: LeaseSeen, seen: Seen) -> bool:
    """Whether nothing can be kept for a member: its node gets nothing new, or it is to end."""
    is_over = any(at is not None and at <= seen.now for at in (lease.stop_at, lease.deadline))
    return is_over or lease.node not in seen.nodes or not seen.is_open(lease.node)


def overbooked(claims: Iterable[Claim]) -> set[UUID | None]:
    """The nodes of which more than one of these claims has a device."""
    used = Counter(
        (claim.node_id, gpu["resource_id"])
        for claim in claims
        for gpu in (claim.assignment or {}).get("gpus", [])
    )
    return {node for (node, _), count in used.items() if count > 1}


def _tried(gang: GangSeen, gangs: Gangs, leases: Expected, before: Seen, after: Seen) -> GangSeen:
    """All members that wait are reserved if there is a way to place them, else as many as must."""
    waiting = [key for key in gang.members if leases[key].state == "scheduled"]
    needed = max(1, len(waiting) - gang.spare)
    for count in _sizes(len(waiting), needed):
        placed = waiting[:count]
        if any(_may_stand(where, leases, before) for where in _ways(gang, placed, before)):
            break
    else:
        placed = waiting[:needed]
        if _may_be_kept(gang, placed, gangs, leases, before):
            if not gang.is_put_off and _let_those_before(gang, gangs, before):
                return replace(gang, next_try_at=before.now)
            for key in placed:
                kept = reserved(leases[key], after.leases[key], NEVER)
                leases[key] = replace(kept, state="earmarked")
            missing = len(waiting) - needed
            return replace(gang, state="earmarked", tries=0, missing=missing)
        pause = timedelta(seconds=min(2 ** min(gang.tries, 4), 15))
        return replace(gang, tries=gang.tries + 1, next_try_at=before.now + pause)
    for key in placed:
        leases[key] = reserved(leases[key], after.leases[key], before.now + gang.hold)
    state = "running" if gang.state == "running" else "reserved"
    return replace(gang, state=state, tries=0, missing=len(waiting) - len(placed))


def _may_be_kept(gang: GangSeen, waiting: list[UUID], gangs: Gangs, leases: Expected, seen: Seen) -> bool:
    """Whether room is kept for it: no other has any, and there would be room if nothing ran."""
    count = sum(one.state == "earmarked" for one in gangs.values())
    if count >= seen.queue["earmarks"] or any(_is_placed(leases[key]) for key in gang.members):
        return False
    alone = {key: leases[key] for key in waiting}
    return any(_may_stand(where, alone, seen) for where in _ways(gang, waiting, seen))


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
    """Every node for every member, of one rack where they must be together."""
    alive = [key for key in seen.nodes if seen.is_open(key)]
    for nodes in product(alive, repeat=len(waiting)):
        racks = {seen.nodes[node]["rack"] for node in nodes}
        if gang.together[-1:] == ("rack",) and (len(racks) > 1 or None in racks):
            continue
        yield dict(zip(waiting, nodes, strict=True))


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
    has_room = all(used[node] <= len(seen.places[node].gpus) for node in where.values())
    return has_room and not broken_now(replace(seen.cluster, running=running))


def _is_placed(lease: LeaseSeen) -> bool:
    return lease.node is not None and lease.state not in FINISHED
