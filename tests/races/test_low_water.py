"""Low-water marks never pass an entry that lives or may still come; sql/queues/low_water.sql.

An entry below its mark is not at the front: claims would take younger ones first. So every test
leaves younger ones behind the entry that it looks for. The marks are those of a queue, and, behind
a front that stands still, those of a class: test_class_marks has more of them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.races.cluster import QUEUE, register
from tests.races.interleave import TIMEOUT, Actor, Actors
from tests.races.marks import Line, position

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


@STANDS
@pytest.mark.parametrize("first_commits_first", [True, False])
def test_two_open_spawns(line: Line, actor: Actors, first_commits_first: bool) -> None:
    """Each is found when it commits, in whatever order they do."""
    line.settle_in()
    sides = [actor(), actor()]
    late = []
    for side in sides:
        side.begin()
        late += spawn_one(side, line)
        line.work(MANY)
    for turn in (0, 1) if first_commits_first else (1, 0):
        younger = line.spawn()
        sides[turn].commit()
        assert line.take(2) == [late[turn], younger]
        line.work(MANY)


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


def test_an_open_spawn_holds_back_marks_among_other_writers(line: Line, actor: Actors) -> None:
    """One that draws, one that does not: only the first is waited for, and it is."""
    line.settle_in()
    writer, spawner = actor().begin(), actor()
    writer.conn.execute("create table reports (n int)")
    spawner.begin()
    [late] = spawn_one(spawner, line)
    line.work(MANY)
    assert line.marks()[0] <= position(spawner.direct, late)
    younger = line.spawn()
    spawner.commit()
    assert line.take(2) == [late, younger]
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


def test_four_sessions_at_full_speed(direct: Direct, line: Line, actor: Actors) -> None:
    """Spawns and claims without a schedule: each lease is claimed once and none is left."""
    nodes = [Line(direct, f"other-{n}", name=f"other-{n}").node for n in range(2)]
    count = 150
    spawners, claimers = [actor(), actor()], [actor(), actor()]
    spawned = [side.start(lambda d: [d.spawn(QUEUE)["lease_id"] for _ in range(count)]) for side in spawners]
    claimed = [
        side.start(
            lambda d, node=node: [  # type: ignore[misc]
                row["lease_id"] for _ in range(count) for row in d.claim(QUEUE, *node)
            ]
        )
        for side, node in zip(claimers, nodes, strict=True)
    ]
    leases = [lease for job in spawned for lease in job.result(TIMEOUT)]
    got = [lease for job in claimed for lease in job.result(TIMEOUT)]
    got += line.take(2 * count)
    assert sorted(got) == sorted(leases)


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
