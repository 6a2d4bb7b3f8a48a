"""Low-water marks never pass an entry that lives or may still come; sql/queues/low_water.sql.

An entry below its mark is not at the front: claims would take younger ones first. So every test
leaves younger ones behind the entry that it looks for. The marks are those of a queue, and, behind
a front that stands still, those of a class.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, Node, prune, register
from tests.races.interleave import Actor, Actors
from tests.races.marks import FAR, NOWHERE, Line, position
from tests.races.terms import with_lease

MANY = 12  # cycles of others while a transaction stays open


def spawn_one(idle: Actor, line: Line) -> list[UUID]:
    """The usual spawn: its id and its position at nearly the same time."""
    return [idle.direct.spawn(QUEUE)["lease_id"]]


def spawn_late(idle: Actor, line: Line) -> list[UUID]:
    """The transaction has its id for long before it spawns."""
    idle.conn.execute("select pg_current_xact_id()")
    line.work(MANY)
    return spawn_one(idle, line)


def spawn_in_savepoint(idle: Actor, line: Line) -> list[UUID]:
    """The entry is written by a subtransaction, which has an id of its own."""
    with idle.conn.transaction():
        return spawn_one(idle, line)


def spawn_after_savepoint(idle: Actor, line: Line) -> list[UUID]:
    """The first spawn is undone, others go on, the second one stays."""
    with idle.conn.transaction(force_rollback=True):
        spawn_one(idle, line)
    line.work(MANY)
    return spawn_one(idle, line)


def spawn_batch(idle: Actor, line: Line) -> list[UUID]:
    """Several positions at once, one of them of another class."""
    options = [{}, {"labels": {"app": "web"}}, {}]
    return [row["lease_id"] for row in idle.direct.spawn_many(QUEUE, options)]


def spawn_now_and_then(idle: Actor, line: Line) -> list[UUID]:
    """Two spawns with much in between."""
    first = spawn_one(idle, line)
    line.work(MANY)
    return first + spawn_one(idle, line)


SPAWNS = [spawn_one, spawn_late, spawn_in_savepoint, spawn_after_savepoint, spawn_batch, spawn_now_and_then]


STANDS = pytest.mark.parametrize("stands", [False, True], ids=["front moves", "front stands"])


@STANDS
@pytest.mark.parametrize("spawn", SPAWNS)
@pytest.mark.parametrize("capacity", [{}, {"cpu_milli": 4000}], ids=["plain", "counted"])
def test_an_open_spawn_is_found_once_it_commits(
    direct: Direct,
    actor: Actors,
    spawn: Callable[[Actor, Line], list[UUID]],
    capacity: dict[str, int],
    stands: bool,
) -> None:
    """Others spawn, claim and move marks meanwhile; it then comes before all that is younger."""
    line = Line(direct, stands=stands, capacity=capacity)
    line.settle_in()
    idle = actor().begin()
    late = spawn(idle, line)
    first = position(idle.direct, late[0])
    line.work(MANY)
    assert line.marks()[0] <= first
    younger = [line.spawn() for _ in range(3)]
    idle.commit()
    assert line.take(len(late) + 4) == late + younger
    line.settle_in()  # and it held the mark back no longer than that
    assert line.marks()[0] > first


@pytest.mark.parametrize(
    ("elsewhere", "work"),
    [
        (False, "create table reports (n int)"),
        (False, "select hwqueue.create_queue('third')"),
        (True, "create table reports (n int)"),
    ],
    ids=["writes its own", "creates a queue", "in another database"],
)
def test_a_transaction_that_draws_no_position_holds_back_no_mark(
    line: Line, dsn: str, empty_dsn: str, elsewhere: bool, work: LiteralString
) -> None:
    """It may stay open for hours, and would hold back everything that goes by its id."""
    line.settle_in()
    with psycopg.connect(empty_dsn if elsewhere else dsn) as idle:
        idle.execute(work)
        line.work_past(line.last_position())


def test_a_spawn_undone_holds_back_no_mark(line: Line, actor: Actors) -> None:
    line.settle_in()
    idle = actor().begin()
    [undone] = spawn_one(idle, line)
    at = position(idle.direct, undone)
    line.work(MANY)
    idle.rollback()
    line.work_past(at)


def test_what_comes_back_in_line_holds_the_marks(direct: Direct, line: Line, actor: Actors) -> None:
    """A lease that was reserved in vain: no mark passes it before its end is committed."""
    line.settle_in()
    lease = line.spawn()
    node, _ = register(direct, 1)
    epoch = line.direct.value("lead_planner", holder="me", ttl=timedelta(minutes=1))
    places = Jsonb([{"lease": str(lease), "node": str(node)}])
    [row] = line.direct.rows("reserve_leases", places=places, hold=timedelta(minutes=1), round=1, epoch=epoch)
    assert row["verdict"] == "reserved"
    ending = actor().begin()
    ending.direct.deregister(node)
    for _ in range(5 * MANY):  # until the horizon has passed it
        line.spawn()
        [claim] = line.direct.claim(QUEUE, *line.node, qty=32)  # so many move the marks
        line.direct.complete(claim["lease_id"], claim["claim_token"])
    younger = line.spawn()
    ending.commit()
    assert line.take(2) == [lease, younger]


@STANDS
@pytest.mark.parametrize("whole", [True, False], ids=["transaction", "savepoint"])
def test_claims_undone_leave_their_entries_claimable(line: Line, actor: Actors, whole: bool) -> None:
    """The marks that they moved went with them."""
    line.settle_in()
    leases = [line.spawn() for _ in range(8)]
    assert line.take(1) == leases[:1]  # all eight are drawn: the next claim may pass them
    undoing = actor().begin()
    before = line.marks()
    undoing.conn.execute("savepoint before")
    for lease in leases[1:4]:
        [row] = undoing.direct.claim(QUEUE, *line.node)
        assert row["lease_id"] == lease
    if not whole:
        undoing.conn.execute("rollback to before")
        [again] = undoing.direct.claim(QUEUE, *line.node)
        assert again["lease_id"] == leases[1]
        undoing.commit()
        assert line.take(8) == leases[2:]
    else:
        undoing.rollback()
        assert line.marks() == before
        assert line.take(8) == leases[1:]


@STANDS
def test_what_an_open_claim_holds_is_not_passed(direct: Direct, line: Line, actor: Actors) -> None:
    """Another node's claims move the marks, not past what may be undone."""
    line.settle_in()
    other = Line(direct, "elsewhere", name="other").node
    held = line.spawn()
    at = position(direct, held)
    undoing = actor().begin()
    [row] = undoing.direct.claim(QUEUE, *other)
    assert row["lease_id"] == held
    line.work(MANY)
    assert line.marks()[0] <= at
    younger = line.spawn()
    undoing.rollback()
    assert line.take(2) == [held, younger]


def test_two_sessions_move_marks(direct: Direct, line: Line, actor: Actors) -> None:
    """Whoever finds the marks locked leaves them; nobody waits, and one row is left."""
    other = Line(direct, "elsewhere", name="other").node
    line.settle_in()
    leases = [line.spawn() for _ in range(12)]
    idle = actor().begin()
    [held] = idle.direct.claim(QUEUE, *other)  # and the marks of the queue with it
    assert line.take(9) == leases[1:10]
    idle.commit()
    assert held["lease_id"] == leases[0]
    assert line.take(3) == leases[10:]
    line.settle_in()
    rows = direct.conn.execute(
        "select count(*) from hwqueue.low_water join hwqueue.queue using (queue_id) where name = %s", [QUEUE]
    )
    assert rows.fetchone() == (1,)


@pytest.mark.parametrize("priority", [5, -5])
def test_the_first_mark_goes_when_another_moves(line: Line, priority: int) -> None:
    """It stands for a rank that nothing has: with two marks a claim would look for both."""
    line.work_past(0, priority=priority)
    assert line.marks().keys() == {-priority}


def test_before_the_first_position(line: Line, actor: Actors) -> None:
    """A sequence that nobody has drawn from shows 1, a position that is still to come."""
    idle, early = actor(), actor().begin()
    drawn = early.conn.execute("select hwqueue.last_drawn_position()").fetchone()
    early.conn.execute("select pg_current_xact_id()")
    idle.begin()
    [late] = spawn_one(idle, line)
    line.spawn()
    early.direct.claim(QUEUE, *line.node)
    early.conn.execute("select hwqueue.advance_horizon(%s)", drawn)
    early.commit()
    line.work(MANY)
    assert line.marks().get(0, 0) <= position(idle.direct, late)


_LOOKS_FOR_THEM = """
  select bool_or(version < blocked_to_version) from hwqueue.low_water where class_id = 0
"""
RED: dict[str, object] = {"labels": {"colour": "red"}}


def looks_for_them(direct: Direct) -> bool:
    """Whether claims look for marks of classes."""
    [(found,)] = direct.conn.execute(_LOOKS_FOR_THEM).fetchall()
    return bool(found)


def by_turns(line: Line, kinds: Sequence[dict[str, object]], rounds: int) -> list[UUID]:
    """Leases of all kinds in turn."""
    return [line.spawn(**kind) for _ in range(rounds) for kind in kinds]


@pytest.mark.parametrize("less", [[], [-5]], ids=["alone", "before others"])
def test_a_front_that_moves_needs_none(direct: Direct, line: Line, less: list[int]) -> None:
    """Nor does one that comes before leases of a lesser priority."""
    for priority in less:
        line.spawn(priority=priority)
    line.work(5)
    plain = line.class_of(line.work())
    line.settle_in()
    assert not looks_for_them(direct)
    assert line.marks_of(plain) == {}


@pytest.mark.parametrize("priority", [0, 5], ids=["same rank", "another rank"])
def test_a_front_that_stands(direct: Direct, line: Line, priority: int) -> None:
    """By position, or since it has a better rank than what is claimed for long."""
    stands = line.spawn(priority=priority, **NOWHERE)
    if priority == 0:
        direct.conn.execute(FAR)
    plain = line.class_of(line.work())
    line.work_past(position(direct, stands), plain)
    assert looks_for_them(direct)


def test_several_classes_and_ranks(direct: Direct) -> None:
    """Each class has a mark for each rank that was claimed; the order stays what it is."""
    line = Line(direct, stands=True)
    ranks = (3, 1, 0)
    kinds = [{"priority": priority, **kind} for kind, priority in product(({}, RED), ranks)]
    for _ in range(2):
        leases = by_turns(line, kinds, 6)
        asked = [kinds[n % len(kinds)] for n in range(len(leases))]
        in_order = sorted(range(len(leases)), key=lambda n: (-int(str(asked[n]["priority"])), n))
        assert line.take(len(leases) + 1) == [leases[n] for n in in_order]
    red = line.class_of(leases[3])
    for priority in ranks:
        line.work_past(line.last_position(), red, priority=priority, **RED)
    assert set(line.marks_of(red)) == {-3, -1, 0}


@pytest.mark.parametrize("ahead", [5, 2, 0])
def test_what_comes_before_the_marks(direct: Direct, ahead: int) -> None:
    """A new lease of a better rank than any mark, of one between two, and of the last one's."""
    line = Line(direct, stands=True)
    by_turns(line, [{"priority": 3}, {}], 6)
    line.take(12)
    line.settle_in(3, 0)
    late = line.spawn()
    first = line.spawn(priority=ahead)
    expected = [late, first] if ahead == 0 else [first, late]
    assert line.take(3) == expected


def test_a_lease_with_a_class_of_its_own(direct: Direct) -> None:
    """It may get an entry in its old place (assign_target_class), so its class has no marks."""
    line = Line(direct, stands=True)
    named = line.spawn()
    away = with_lease(named, away=True)
    direct.conn.execute(FAR)
    line.spawn(**away)
    line.direct.settle_terms()
    own = line.class_of(named)
    assert own != line.class_of(line.spawn())
    assert line.claim()["lease_id"] == named
    line.work(6)
    assert line.marks_of(own) == {}


def test_claims_that_ask_for_many_and_get_one_move_marks(line: Line) -> None:
    """One of the leases that are granted does it, however many were asked for."""
    for _ in looks():
        before = line.versions()
        for _ in range(20):
            line.spawn()
            [claim] = line.direct.claim(line.queue, *line.node, qty=1000)
            line.direct.complete(claim["lease_id"], claim["claim_token"])
        if line.versions() >= before + 10:
            return
    raise AssertionError(f"the marks are still {line.marks()}")


def test_two_sessions_write_the_first_mark(direct: Direct, actor: Actors) -> None:
    """One has the queue's marks; the other goes without, and waits for nobody."""
    line = Line(direct, stands=True)
    other = Line(direct, "elsewhere", name="other").node
    line.settle_in()
    leases = by_turns(line, [RED], 6)
    red = line.class_of(leases[0])
    idle = actor().begin()
    [held] = idle.direct.claim(line.queue, *other)
    assert line.take(2) == leases[1:3]
    assert line.marks_of(red) == {}
    idle.rollback()
    assert held["lease_id"] == leases[0]
    assert line.take(6) == [leases[0], *leases[3:]]


def test_the_front_moves_again(direct: Direct) -> None:
    """After some hundred claims nobody looks for marks of classes; old ones hide nothing."""
    line = Line(direct, stands=True)
    line.settle_in()
    assert line.direct.cancel(line.front()) == "cancelled"
    line.skip_versions(250)  # of 256
    line.work_until(lambda: not looks_for_them(direct))
    stands = line.spawn(**NOWHERE)
    direct.conn.execute(FAR)
    leases = by_turns(line, [{}, RED], 4)
    assert line.take(9) == leases
    assert looks_for_them(direct)
    assert line.front() == stands


def test_a_class_takes_its_marks_along(direct: Direct, clock: Clock) -> None:
    """When prune deletes it."""
    line = Line(direct, stands=True)
    red = line.class_of(line.work(labels=RED["labels"]))
    line.work_past(0, red, **RED)
    clock.advance(timedelta(days=365))
    prune(direct, 6)
    assert line.marks_of(red) == {}


ELSEWHERE = {"placement": {"require": [{"label": "zone", "op": "exists"}]}}
MOST_MARKS = 16


def passed(line: Line, before: int, *priorities: int) -> None:
    """Let the marks of these priorities go past what has been drawn by now."""
    for priority in priorities or (0,):
        line.work_past(before, priority=priority)


def claimed(line: Line) -> Node:
    """A lease that runs while marks pass the place that it had."""
    line.spawn()
    row = line.claim()
    passed(line, line.last_position())
    return row["lease_id"], row["claim_token"]


def retry(line: Line, clock: Clock) -> UUID:
    """It fails and is tried again at once."""
    lease, token = claimed(line)
    assert line.direct.fail(lease, token) == "pending"
    return lease


def release(line: Line, clock: Clock) -> UUID:
    """Its worker hands it back."""
    lease, token = claimed(line)
    assert line.direct.release(lease, token) == "pending"
    return lease


def expiry(line: Line, clock: Clock) -> UUID:
    """Its claim runs out and is reaped."""
    lease, _ = claimed(line)
    clock.advance(timedelta(hours=1))
    assert line.direct.reap()["expired"] == 1
    return lease


def requeue(line: Line, clock: Clock) -> UUID:
    """It failed for good; an operator gives it another chance."""
    lease, token = claimed(line)
    line.direct.fail(lease, token, retry=False)
    passed(line, line.last_position())
    assert line.direct.requeue(lease) == "pending"
    return lease


def due(line: Line, clock: Clock) -> UUID:
    """It was spawned for later, and its time comes."""
    lease = line.spawn(delay=60)
    passed(line, line.last_position())
    clock.advance(timedelta(minutes=2))
    assert line.direct.reap()["promoted"] == 1
    return lease


def new_priority(line: Line, clock: Clock) -> UUID:
    """It waits for another kind of node in a lane of its own, and is moved to a lane at work."""
    return changed(line, line.spawn(priority=7, **ELSEWHERE), {"priority": 0, "placement": {}})


def new_placement(line: Line, clock: Clock) -> UUID:
    """It waits for another kind of node at the head of the lane, until any node will do."""
    return changed(line, line.spawn(**ELSEWHERE), {"placement": {}})


def changed(line: Line, lease: UUID, changes: Mapping[str, Any]) -> UUID:
    """Change a lease that waits, after others have come and gone."""
    at = position(line.direct, lease)
    line.work(20)
    assert line.marks()[0] <= at or "priority" in changes
    line.conn.execute("select hwqueue.update_lease(p_lease => %s, p_changes => %s)", [lease, Jsonb(changes)])
    return lease


WAYS = [retry, release, expiry, requeue, due, new_priority, new_placement]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capacity", [{}, {"cpu_milli": 4000}], ids=["plain", "counted"])
def test_it_comes_back_behind_the_marks(
    direct: Direct, clock: Clock, way: Callable[[Line, Clock], UUID], capacity: dict[str, int]
) -> None:
    """It is next in line: before all that was spawned after it came back."""
    clock.freeze()
    line = Line(direct, capacity=capacity)
    line.settle_in()
    lease = way(line, clock)
    younger = [line.spawn() for _ in range(3)]
    assert line.take(5) == [lease, *younger]


def test_more_lanes_than_marks(line: Line) -> None:
    """The oldest marks go; their lanes are read from the start."""
    priorities = range(-10, 10)
    for _ in range(3):
        for priority in priorities:
            line.work(2, priority=priority)
        leases = {priority: line.spawn(priority=priority) for priority in priorities}
        expected = [leases[priority] for priority in reversed(priorities)]
        assert line.take(len(leases)) == expected
    assert 1 < len(line.marks()) <= MOST_MARKS


def test_a_mark_that_nobody_moves_goes(line: Line) -> None:
    """Or queues with an ageing step would keep 16 marks of ranks that never come again."""
    line.settle_in(5)
    line.settle_in(0)
    assert set(line.marks()) == {0, -5}
    line.skip_versions(250)  # of 256
    assert set(line.marks()) == {0, -5}
    line.work_until(lambda: set(line.marks()) == {0})
    urgent, usual = line.spawn(priority=5), line.spawn()
    assert line.take(2) == [urgent, usual]


def test_queues_have_marks_of_their_own(direct: Direct) -> None:
    """What comes to one queue has nothing to do with how far another one is."""
    busy = Line(direct)
    quiet = Line(direct, "quiet", name="other")
    waiting = [quiet.spawn() for _ in range(3)]
    assert quiet.take(1) == waiting[:1]
    busy.settle_in()
    fresh = busy.spawn()
    both = direct.conn.execute(
        "select lease_id from hwqueue.claim_task(p_queues => %s, p_node => %s, p_epoch => %s, p_qty => 3)",
        [[busy.queue, quiet.queue], *busy.node],
    )
    assert [lease for (lease,) in both] == [*waiting[1:], fresh]
