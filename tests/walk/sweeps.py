"""What upkeep may do to a lease that nobody calls for: due, deadline, expiry."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from tests.walk.seen import NEVER, GangSeen, LeaseSeen, Seen, time

Expected = dict[UUID, LeaseSeen]
# when upkeep looks again at what it starts or ends, and when a planner does not lead any more
_AWAITED = (
    ("everywhere_node", "due_at"),
    ("team_change", "retry_at"),
    ("replacement", "next_try_at"),
    ("planner", "expires_at"),
)


def swept(lease: LeaseSeen, seen: Seen) -> LeaseSeen:
    """The lease after a whole sweep."""
    if lease.state in ("claimed", "reserved"):
        return _expired(lease, seen)
    if lease.state == "scheduled" and _is_over(lease, seen):
        return replace(lease, state="pending")
    return lease


def late(lease: LeaseSeen, seen: Seen) -> LeaseSeen:
    """The lease after a look at deadlines."""
    waits = lease.state in ("pending", "scheduled")
    if waits and lease.deadline is not None and lease.deadline <= seen.now:
        return lease.ended("failed", lease.attempts)
    return lease


def reaped(lease: LeaseSeen, seen: Seen) -> LeaseSeen:
    """The lease after reap: what had a claim does not meet its deadline before the next one."""
    after = swept(lease, seen)
    return after if lease.state in ("claimed", "reserved") else late(after, seen)


def may_become(lease: LeaseSeen, seen: Seen) -> list[LeaseSeen]:
    """The lease after a call that does a part of the upkeep, or none of it."""
    due = swept(lease, seen)
    return [lease, due, late(lease, seen), late(due, seen)]


def is_due(lease: LeaseSeen, seen: Seen) -> bool:
    """Whether it could be granted at this moment, were there room."""
    return (
        lease.state in ("pending", "scheduled")
        and _is_over(lease, seen)
        and (lease.deadline is None or lease.deadline > seen.now)
    )


def next_event(seen: Seen, patience: timedelta) -> timedelta | None:
    """How long until time alone changes something: an end, a due time, a deadline, patience."""
    moments = [gang.next_try_at for gang in seen.gangs.values() if gang.is_tried]
    moments = [moment for moment in moments if moment != NEVER]
    moments += [
        time(row[column]) for table, column in _AWAITED for row in seen.rows[table] if row[column] is not None
    ]
    for lease in seen.leases.values():
        if lease.state == "earmarked":
            continue  # it never expires
        if lease.expires_at is not None:
            moments.append(lease.expires_at)
            moments += [] if lease.stop_at is None else [lease.stop_at]
        elif lease.due is not None and lease.due != NEVER:
            moments += [lease.due, lease.due + patience]
            moments += [] if lease.deadline is None else [lease.deadline]
    ahead = [moment - seen.now for moment in moments if moment > seen.now]
    return min(ahead, default=None)


def changes(
    before: Seen, after: Seen, expected: Expected | None = None
) -> dict[UUID, tuple[LeaseSeen, LeaseSeen]]:
    """Leases that are not what was expected: what they should be, and what they are."""
    should = before.leases | (expected or {})
    return {
        lease: (should[lease], now)
        for lease, now in after.leases.items()
        if lease in should and not same(should[lease], now)
    }


def unlike(
    before: Seen,
    after: Seen,
    expected: Expected | None = None,
    gone: frozenset[UUID] = frozenset(),
    gangs: Mapping[UUID, GangSeen] | None = None,
) -> list[str]:
    """How leases and gangs differ from what they were, or should be; `gone`: there no more."""
    found = changes(before, after, expected)
    left = before.leases.keys() - gone
    return (
        [f"{now}, not {should}" for should, now in found.values()]
        + [f"{lease} is gone" for lease in left - after.leases.keys()]
        + [f"{lease} is still there" for lease in gone & after.leases.keys()]
        + [
            f"{after.gangs[key]}, not {gang}"
            for key, gang in (before.gangs if gangs is None else gangs).items()
            if after.gangs[key].standing != gang.standing
        ]
    )


def same(one: LeaseSeen, other: LeaseSeen) -> bool:
    """Whether they differ in nothing but since when a pending lease is claimable."""
    return _comparable(one) == _comparable(other)


def _comparable(lease: LeaseSeen) -> tuple[object, ...]:
    due = lease.due if lease.state == "scheduled" else None
    return (*{**vars(lease), "due": due}.values(),)


def _expired(lease: LeaseSeen, seen: Seen) -> LeaseSeen:
    assert lease.expires_at is not None
    if lease.expires_at > seen.now:
        return lease
    return seen.lost(lease, lost(lease))


def lost(lease: LeaseSeen) -> LeaseSeen:
    """The lease when whoever held it is gone: an attempt is used up, but for a reservation."""
    if lease.stop_reason == "cancelled":
        return lease.ended("cancelled", lease.attempts)
    if lease.state in ("reserved", "earmarked") or lease.attempts < lease.most:
        return lease.back(lease.attempts)
    return lease.ended("failed", lease.attempts)


def _is_over(lease: LeaseSeen, seen: Seen) -> bool:
    return lease.due is not None and lease.due <= seen.now
