"""roll_up counts what ended by when it ended, whenever that is committed: once, and all of it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import Flow
from tests.patience import looks
from tests.races.cluster import QUEUE, register
from tests.races.interleave import TIMEOUT, interleave
from tests.sql.api import count_all

SECOND = timedelta(seconds=1)
COUNTED = """
  select coalesce(sum(completed), 0)::int, coalesce(sum(failed), 0)::int,
         coalesce(sum(expired), 0)::int, coalesce(sum(cancelled), 0)::int,
         coalesce(sum(claims), 0)::int
  from hwqueue.throughput(p_minutes => 1440)
"""
ENDS = ("completed", "failed", "expired", "cancelled", "claims")
RUNS = """
  select workflow, outcome, (select sum(c) from unnest(counts) c)::int, seconds
  from hwqueue.run_total order by workflow, outcome
"""
NOT_BEYOND = """
  select counted_to <= %s from hwqueue.reap_cursor order by version desc limit 1
"""
# Sleepers fall asleep with the time in hand.
SLEEPY_CLOCK = """
  create or replace function hwqueue.clock() returns timestamptz language plpgsql as $$
  declare
    v_now timestamptz := clock_timestamp();
  begin
    if current_setting('application_name') = 'sleeper' then
      perform pg_advisory_xact_lock_shared(1);
    end if;
    return v_now;
  end $$
"""


def counted(conn: psycopg.Connection) -> dict[str, int]:
    """What has been counted so far."""
    row = conn.execute(COUNTED).fetchone()
    assert row is not None
    return dict(zip(ENDS, row, strict=True))


def test_a_settlement_that_is_committed_late(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """The count does not pass it, not even when others ended after it, and goes on behind it."""
    clock.freeze()
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    direct.spawn_many(QUEUE, [{}] * 3)
    early, late, after = direct.claim(QUEUE, *node, qty=3)
    direct.complete(early["lease_id"], early["claim_token"])
    with interleave(dsn) as actor:
        writer = actor()
        clock.advance(SECOND)
        writer.begin()
        writer.direct.complete(late["lease_id"], late["claim_token"])
        ended_at = clock.now()
        clock.advance(SECOND)
        direct.complete(after["lease_id"], after["claim_token"])
        for _ in range(5):
            clock.advance(SECOND)
            direct.reap()
            assert conn.execute(NOT_BEYOND, [ended_at]).fetchall() == [(True,)]
        assert counted(conn)["completed"] <= 1
        writer.commit()
    clock.advance(SECOND)
    count_all(conn)
    assert counted(conn)["completed"] == 3


def test_a_run_whose_end_is_committed_late(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """The signal that ends it settles no lease; the count does not pass it all the same."""
    clock.freeze()
    flow = Flow(Direct(conn), [{"name": "approve", "kind": "wait", "signal": "ok"}])
    with interleave(dsn) as actor:
        writer = actor()
        clock.advance(SECOND)
        writer.begin()
        writer.direct.rows("signal_workflow_run", run=flow.run, name="ok")
        ended_at = clock.now()
        for _ in range(5):
            clock.advance(SECOND)
            flow.calls.rows("reap")
            assert conn.execute(NOT_BEYOND, [ended_at]).fetchall() == [(True,)]
        assert conn.execute(RUNS).fetchall() == []
        writer.commit()
    clock.advance(SECOND)
    count_all(conn)
    assert conn.execute(RUNS).fetchall() == [(flow.queue, "completed", 1, 1.0)]


def test_many_minutes_at_once(conn: psycopg.Connection, clock: Clock) -> None:
    """Nobody has reaped for long: a call counts an hour of them, the next one goes on."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    direct.spawn_many(QUEUE, [{}] * 70)
    for _ in range(70):
        [claim] = direct.claim(QUEUE, *node)
        direct.complete(claim["lease_id"], claim["claim_token"])
        clock.advance(timedelta(minutes=1))
    while counted(conn)["completed"] == 0:  # others may hold it back for a moment
        [(more,)] = conn.execute("select more from hwqueue.reap()").fetchall()
    assert (counted(conn)["completed"], more) == (60, True)
    count_all(conn)
    assert counted(conn)["completed"] == 70


@pytest.mark.parametrize(
    ("elsewhere", "work"),
    [
        (False, "select hwqueue.spawn_lease('races', 'work')"),
        (False, "create table reports (n int)"),
        (True, "create table reports (n int)"),
    ],
    ids=["spawns", "writes its own", "in another database"],
)
def test_transactions_that_end_no_lease_hold_nothing_back(
    conn: psycopg.Connection, dsn: str, empty_dsn: str, elsewhere: bool, work: LiteralString
) -> None:
    """They may stay open for hours; others end leases meanwhile, and that is counted."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    direct.spawn_many(QUEUE, [{}] * 5)
    with psycopg.connect(empty_dsn if elsewhere else dsn) as idle:
        idle.execute(work)
        for claim in direct.claim(QUEUE, *node, qty=5):
            direct.complete(claim["lease_id"], claim["claim_token"])
            direct.reap()
        count_until(conn, completed=5, claims=5)


def count_until(conn: psycopg.Connection, **expected: int) -> None:
    """Reap until so much is counted: other tests may hold it back for a moment."""
    for _ in looks():
        Direct(conn).reap()
        if counted(conn) == dict.fromkeys(ENDS, 0) | expected:
            return
    raise AssertionError(counted(conn))


def test_a_reaper_that_falls_asleep_with_the_time_in_hand(conn: psycopg.Connection, dsn: str) -> None:
    """What it ends at last ended then, not when it fell asleep: others have counted up to now."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"claim_timeout": 1})
    node = register(conn)
    deadline = conn.execute("select clock_timestamp() + interval '0.3 s'").fetchone()
    assert deadline is not None
    direct.spawn_many(QUEUE, [{}, {"deadline": deadline[0].isoformat(), "priority": -1}])
    direct.claim(QUEUE, *node)
    conn.execute("select pg_sleep(1.1)")
    conn.execute(SLEEPY_CLOCK)
    with interleave(dsn) as actor:
        keeper, sleeper = actor(), actor()
        sleeper.conn.execute("set application_name = 'sleeper'")
        keeper.begin()
        keeper.conn.execute("select pg_advisory_xact_lock(1)")
        asleep = sleeper.start(lambda d: d.reap())
        sleeper.wait_until_parked()
        before = conn.execute("select clock_timestamp()").fetchone()
        assert before is not None
        # only the count: the rest is left to the sleeper
        conn.execute("update hwqueue.reap_cursor set counted_to = %s", before)
        keeper.commit()
        asleep.result(TIMEOUT)
    count_all(conn)
    assert counted(conn) == {
        "completed": 0,
        "failed": 1,
        "expired": 1,
        "cancelled": 0,
        "claims": 1,
    }


def test_a_batch_that_falls_asleep_with_the_time_in_hand(conn: psycopg.Connection, dsn: str) -> None:
    """The count does not pass it: what it completes ended then."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    direct.spawn_many(QUEUE, [{}] * 2)
    claims = direct.claim(QUEUE, *node, qty=2)
    conn.execute(SLEEPY_CLOCK)
    with interleave(dsn) as actor:
        keeper, sleeper = actor(), actor()
        sleeper.conn.execute("set application_name = 'sleeper'")
        keeper.begin()
        keeper.conn.execute("select pg_advisory_xact_lock(1)")
        asleep = sleeper.start(lambda d: d.complete_many(claims))
        sleeper.wait_until_parked()
        for _ in range(3):
            direct.reap()
        keeper.commit()
        assert asleep.result(TIMEOUT) == []
    count_all(conn)
    assert counted(conn)["completed"] == 2


def test_a_claim_that_falls_asleep_with_the_time_in_hand(conn: psycopg.Connection, dsn: str) -> None:
    """The count does not pass it: what was cancelled while it was reserved ended then."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    lease = direct.spawn(QUEUE)["lease_id"]
    direct.rows(
        "reserve_leases",
        places=[{"lease": str(lease), "node": str(node[0])}],
        hold=timedelta(minutes=1),
        round=1,
        epoch=direct.value("lead_planner", holder="one"),
    )
    assert direct.cancel(lease) == "claimed"
    conn.execute(SLEEPY_CLOCK)
    with interleave(dsn) as actor:
        keeper, sleeper = actor(), actor()
        sleeper.conn.execute("set application_name = 'sleeper'")
        keeper.begin()
        keeper.conn.execute("select pg_advisory_xact_lock(1)")
        asleep = sleeper.start(lambda d: d.claim(QUEUE, *node))
        sleeper.wait_until_parked()
        for _ in range(3):
            direct.reap()
        keeper.commit()
        assert asleep.result(TIMEOUT) == []
    count_all(conn)
    assert counted(conn)["cancelled"] == 1


def test_many_sessions_end_leases_while_others_count(conn: psycopg.Connection, dsn: str) -> None:
    """Commits come late, in any order; what is counted in the end is what was done."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    done = threading.Event()

    def work(seed: int) -> dict[str, int]:
        dice = random.Random(seed)
        did = dict.fromkeys(("completed", "failed", "cancelled", "claims"), 0)
        with psycopg.connect(dsn, autocommit=True) as session:
            mine = Direct(session)
            node: tuple[UUID, int] = register(session, seed)
            for _ in range(40):
                mine.spawn_many(QUEUE, [{}] * 2)
                with session.transaction():
                    for claim in mine.claim(QUEUE, *node, qty=2):
                        lease, number = claim["lease_id"], claim["claim_token"]
                        how = dice.choice(["completed", "failed", "cancelled"])
                        did[how] += 1
                        did["claims"] += 1
                        if how == "completed":
                            mine.complete(lease, number)
                            continue
                        if how == "cancelled":
                            mine.cancel(lease)
                        mine.fail(lease, number, retry=False)
                        if dice.random() < 0.5:
                            with session.transaction():
                                session.execute("select hwqueue.requeue_lease(%s)", [lease])
                    session.execute("select pg_sleep(%s)", [dice.random() / 100])
        return did

    def reap() -> None:
        with psycopg.connect(dsn, autocommit=True) as session:
            while not done.is_set():
                Direct(session).reap()

    with ThreadPoolExecutor(6) as pool:
        reapers = [pool.submit(reap) for _ in range(2)]
        workers = [pool.submit(work, seed) for seed in range(4)]
        totals = [worker.result() for worker in workers]
        done.set()
        for reaper in reapers:
            reaper.result()
    count_all(conn)
    expected = {name: sum(did[name] for did in totals) for name in totals[0]}
    assert expected["claims"] > 100
    assert counted(conn) == expected | {"expired": 0}
