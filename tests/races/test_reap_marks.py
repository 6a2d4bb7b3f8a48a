"""reap starts its scans at marks: nothing that an open transaction may still bring is below."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register, set_policy, started
from tests.races.interleave import TIMEOUT, Actors, asleep
from tests.sql.api import outlive

MINUTE = timedelta(minutes=1)
COUNTED = {"capacity": {"cpu_milli": 10_000_000}}
NEEDS = {"placement": {"resources": {"cpu_milli": 1000}}}
MARKS = """
  select claims_from, deadlines_from, scheduled_from from hwqueue.reap_cursor
"""
ONE_OF_EACH = "select expired, promoted, deadlines from hwqueue.reap(p_limit => 1)"
PARTS = ("expired", "promoted", "deadlines")
VERSION = "select version from hwqueue.reap_cursor"
REAP = "select expired, promoted, deadlines from hwqueue.reap(p_unless_within => '10 seconds')"
LIMITED_REAP = "select expired from hwqueue.reap(p_limit => 5)"
HAS_ID = """
  select count(*) from pg_locks
  where pid = %s and locktype = 'transactionid' and mode = 'ExclusiveLock' and granted
"""
HAS_CLAIM_TABLE = """
  select count(*) from pg_locks
  where pid = %s and relation = 'hwqueue.claim'::regclass and mode <> 'AccessShareLock'
"""


def marks(direct: Direct) -> set[Any]:
    """Where the three scans start."""
    [row] = direct.conn.execute(MARKS).fetchall()
    return set(row)


def reap_on(direct: Direct, clock: Clock, minutes: int) -> None:
    for _ in range(minutes):
        clock.advance(MINUTE)
        direct.reap()


def bring_marks_up(direct: Direct, clock: Clock) -> None:
    """Reap until the marks are as far as they go; no transaction of the test's own may be open."""
    for _ in range(4):
        outlive(direct.conn)
        reap_on(direct, clock, 1)


Bring = Callable[[Direct, Node], UUID]


def bring_claim(direct: Direct, node: Node) -> UUID:
    """An entry that is due a minute after: a claim that nobody heartbeats."""
    [claim] = direct.claim(QUEUE, *node)
    lease: UUID = claim["lease_id"]
    return lease


def bring_deadline(direct: Direct, _node: Node) -> UUID:
    """Another: a lease that must be claimed by then."""
    [(found,)] = direct.conn.execute("select hwqueue.clock() + interval '1 minute'").fetchall()
    lease: UUID = direct.spawn(QUEUE, {"deadline": found.isoformat(), "priority": -1})["lease_id"]
    return lease


def bring_schedule(direct: Direct, _node: Node) -> UUID:
    """Another: a lease that may not be claimed before."""
    lease: UUID = direct.spawn(QUEUE, {"delay": 60})["lease_id"]
    return lease


class Kind(NamedTuple):
    """Something that falls due: how it comes, which part of reap sees to it, what it is then."""

    bring: Bring
    part: str
    state: str


kinds = pytest.mark.parametrize(
    "kind",
    [
        Kind(bring_claim, "expired", "pending"),
        Kind(bring_deadline, "deadlines", "failed"),
        Kind(bring_schedule, "promoted", "pending"),
    ],
    ids=lambda kind: kind.part,
)


@kinds
def test_a_writer_that_commits_late(
    direct: Direct, actor: Actors, node: Node, clock: Clock, kind: Kind
) -> None:
    """What it wrote was due long before; the marks have waited for it, and go on behind it."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    direct.spawn(QUEUE, {"priority": 5})
    bring_marks_up(direct, clock)
    writer = actor().begin()
    lease = kind.bring(writer.direct, node)
    written_at = clock.now()
    reap_on(direct, clock, 8)
    assert max(marks(direct)) <= written_at
    writer.commit()
    assert direct.reap()[kind.part] == 1
    assert direct.lease(lease)["state"] == kind.state
    bring_marks_up(direct, clock)
    assert written_at < min(marks(direct))


@kinds
def test_what_is_left_by_one_reap_is_found_by_the_next(
    direct: Direct, node: Node, clock: Clock, kind: Kind
) -> None:
    """The marks do not pass what is still there."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    bring_marks_up(direct, clock)
    direct.spawn_many(QUEUE, [{"priority": 5}] * 6)
    leases = [kind.bring(direct, node) for _ in range(6)]
    clock.advance(2 * MINUTE)
    for _ in leases:
        outlive(direct.conn)
        [counts] = direct.conn.execute(ONE_OF_EACH).fetchall()
        assert dict(zip(PARTS, counts, strict=True)) == dict.fromkeys(PARTS, 0) | {kind.part: 1}
    assert {direct.lease(lease)["state"] for lease in leases} == {kind.state}


def test_a_held_entry_keeps_its_mark(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """A settlement that is rolled back leaves an expired claim, and it is found."""
    set_policy(direct, claim_timeout=60)
    claim = started(direct, node)
    worker = actor().begin()
    worker.direct.complete(claim["lease_id"], claim["claim_token"])
    reap_on(direct, clock, 5)
    worker.rollback()
    assert direct.reap()["expired"] == 1


def test_what_came_below_the_marks_is_found(direct: Direct, node: Node, clock: Clock) -> None:
    """Clocks are set back. Every five minutes the scans start at the very start."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    bring_marks_up(direct, clock)
    clock.advance(-60 * MINUTE)
    claim = started(direct, node)
    clock.advance(60 * MINUTE)
    assert claim["expires_at"] < min(marks(direct))
    found = []
    for _ in range(6):
        clock.advance(MINUTE)
        found.append(direct.reap()["expired"])
    assert sum(found) == 1


def test_a_reaper_that_stays_open(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """Others leave it the turn, but not for ever; who must, reaps beside it at once."""
    clock.freeze()
    set_policy(direct, claim_timeout=60)
    direct.spawn_many(QUEUE, [{}] * 2)
    direct.reap()
    sleeper, worker = actor().begin(), actor()
    sleeper.direct.reap()
    direct.claim(QUEUE, *node)
    clock.advance(1.5 * MINUTE)
    assert worker.conn.execute(REAP).fetchall() == [(0, 0, 0)]
    assert worker.direct.reap()["expired"] == 1
    direct.claim(QUEUE, *node)
    clock.advance(1.5 * MINUTE)
    assert worker.conn.execute(REAP).fetchall() == [(1, 0, 0)]


def test_who_has_written_already_leaves_the_mark(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Reaping in the user's own transaction keeps nobody from reaping."""
    clock.advance(MINUTE)
    user = actor().begin()
    user.direct.spawn(QUEUE)
    user.direct.reap()
    before = direct.conn.execute(VERSION).fetchall()
    direct.reap()
    assert direct.conn.execute(VERSION).fetchall() != before
    user.commit()


def test_a_node_at_work_uses_up_none_of_the_limit(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Its expired claims come first and are left alone; those of another node are reaped."""
    set_policy(direct, claim_timeout=60)
    direct.spawn_many(QUEUE, [NEEDS] * 8)
    busy, silent = (register(direct, n, **COUNTED) for n in (1, 2))
    assert len(direct.claim(QUEUE, *busy, qty=6)) == 6
    clock.advance(timedelta(seconds=1))
    [late] = direct.claim(QUEUE, *silent)
    clock.advance(5 * MINUTE)
    worker, sweeper = actor().begin(), actor()
    worker.direct.claim(QUEUE, *busy)
    assert sweeper.conn.execute(LIMITED_REAP).fetchall() == [(1,)]
    assert sweeper.direct.lease(late["lease_id"])["state"] == "pending"
    worker.commit()
    assert [sweeper.direct.reap()["expired"] for _ in range(2)] == [6, 0]


def settle_and_claim(direct: Direct, node: Node, claim: dict[str, Any]) -> None:
    """Complete one and claim the next."""
    direct.settle_and_claim(QUEUE, *node, [claim])


def cancel_another(direct: Direct, _node: Node, _claim: dict[str, Any]) -> None:
    [(lease,)] = direct.conn.execute("select lease_id from hwqueue.ready limit 1").fetchall()
    direct.cancel(lease)


@pytest.mark.parametrize(
    ("write", "ends"),
    [
        (lambda direct, node, _claim: direct.claim(QUEUE, *node), False),
        (settle_and_claim, True),
        (lambda d, _node, claim: d.extend(claim["lease_id"], claim["claim_token"], MINUTE), False),
        (lambda direct, _node, claim: direct.fail(claim["lease_id"], claim["claim_token"]), True),
        (lambda d, _node, claim: d.complete(claim["lease_id"], claim["claim_token"]), True),
        (lambda direct, _node, claim: direct.complete_many([claim]), True),
        (lambda direct, node, _claim: direct.deregister(node[0]), False),
        (cancel_another, True),
        (lambda direct, _node, _claim: direct.spawn(QUEUE), False),
        (lambda direct, _node, _claim: direct.spawn_many(QUEUE, [{}]), False),
    ],
    ids=[
        *("claim_task", "settle_and_claim", "extend_claim"),
        *("fail_lease", "complete_lease", "complete_leases", "deregister_node", "cancel_lease"),
        *("spawn_lease", "spawn_leases"),
    ],
)
def test_ids_come_before_the_clock(
    direct: Direct, actor: Actors, node: Node, write: Callable[..., object], ends: bool
) -> None:
    """What marks and counts rest on: a writer that parks at the clock has its id.

    And if it ends something, a lock on claim.
    """
    direct.spawn_many(QUEUE, [{}] * 2)
    [claim] = direct.claim(QUEUE, *node)
    writer = actor()
    pid = [writer.conn.info.backend_pid]
    with asleep(direct, writer, lambda d: write(d, node, claim)) as written:
        assert direct.conn.execute(HAS_ID, pid).fetchall() == [(1,)]
        if ends:
            assert direct.conn.execute(HAS_CLAIM_TABLE, pid).fetchall() != [(0,)]
    written.result(TIMEOUT)
