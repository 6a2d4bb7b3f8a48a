"""roll_up counts what ended by when it ended, whenever that is committed: once, and all of it."""

from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import Flow
from tests.patience import looks
from tests.races.cluster import QUEUE, Node, set_policy
from tests.races.interleave import TIMEOUT, Actors, asleep
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


def counted(direct: Direct) -> dict[str, int]:
    """What has been counted so far."""
    row = direct.conn.execute(COUNTED).fetchone()
    assert row is not None
    return dict(zip(ENDS, row, strict=True))


def test_a_settlement_that_is_committed_late(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """The count does not pass it, not even when others ended after it, and goes on behind it."""
    clock.freeze()
    direct.spawn_many(QUEUE, [{}] * 3)
    early, late, after = direct.claim(QUEUE, *node, qty=3)
    direct.complete(early["lease_id"], early["claim_token"])
    clock.advance(SECOND)
    writer = actor().begin()
    writer.direct.complete(late["lease_id"], late["claim_token"])
    ended_at = clock.now()
    clock.advance(SECOND)
    direct.complete(after["lease_id"], after["claim_token"])
    for _ in range(5):
        clock.advance(SECOND)
        direct.reap()
        assert direct.conn.execute(NOT_BEYOND, [ended_at]).fetchall() == [(True,)]
    assert counted(direct)["completed"] <= 1
    writer.commit()
    clock.advance(SECOND)
    count_all(direct.conn)
    assert counted(direct)["completed"] == 3


def test_a_run_whose_end_is_committed_late(direct: Direct, actor: Actors, clock: Clock) -> None:
    """The signal that ends it settles no lease; the count does not pass it all the same."""
    clock.freeze()
    flow = Flow(direct, [{"name": "approve", "kind": "wait", "signal": "ok"}])
    clock.advance(SECOND)
    writer = actor().begin()
    writer.direct.rows("signal_workflow_run", run=flow.run, name="ok")
    ended_at = clock.now()
    for _ in range(5):
        clock.advance(SECOND)
        flow.calls.rows("reap")
        assert direct.conn.execute(NOT_BEYOND, [ended_at]).fetchall() == [(True,)]
    assert direct.conn.execute(RUNS).fetchall() == []
    writer.commit()
    clock.advance(SECOND)
    count_all(direct.conn)
    assert direct.conn.execute(RUNS).fetchall() == [(flow.queue, "completed", 1, 1.0)]


def test_many_minutes_at_once(direct: Direct, node: Node, clock: Clock) -> None:
    """Nobody has reaped for long: a call counts an hour of them, the next one goes on."""
    direct.spawn_many(QUEUE, [{}] * 70)
    for _ in range(70):
        [claim] = direct.claim(QUEUE, *node)
        direct.complete(claim["lease_id"], claim["claim_token"])
        clock.advance(timedelta(minutes=1))
    while counted(direct)["completed"] == 0:  # others may hold it back for a moment
        [(more,)] = direct.conn.execute("select more from hwqueue.reap()").fetchall()
    assert (counted(direct)["completed"], more) == (60, True)
    count_all(direct.conn)
    assert counted(direct)["completed"] == 70


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
    direct: Direct, node: Node, dsn: str, empty_dsn: str, elsewhere: bool, *, work: LiteralString
) -> None:
    """They may stay open for hours; others end leases meanwhile, and that is counted."""
    direct.spawn_many(QUEUE, [{}] * 5)
    with psycopg.connect(empty_dsn if elsewhere else dsn) as idle:
        idle.execute(work)
        for claim in direct.claim(QUEUE, *node, qty=5):
            direct.complete(claim["lease_id"], claim["claim_token"])
            direct.reap()
        count_until(direct, completed=5, claims=5)


def count_until(direct: Direct, **expected: int) -> None:
    """Reap until so much is counted: other tests may hold it back for a moment."""
    for _ in looks():
        direct.reap()
        if counted(direct) == dict.fromkeys(ENDS, 0) | expected:
            return
    raise AssertionError(counted(direct))


def test_a_reaper_that_falls_asleep_with_the_time_in_hand(direct: Direct, actor: Actors, node: Node) -> None:
    """What it ends at last ended then, not when it fell asleep: others have counted up to now."""
    set_policy(direct, claim_timeout=1)
    deadline = direct.conn.execute("select clock_timestamp() + interval '0.3 s'").fetchone()
    assert deadline is not None
    direct.spawn_many(QUEUE, [{}, {"deadline": deadline[0].isoformat(), "priority": -1}])
    direct.claim(QUEUE, *node)
    direct.conn.execute("select pg_sleep(1.1)")
    with asleep(direct, actor(), Direct.reap) as reaped:
        # only the count: the rest is left to the sleeper
        direct.conn.execute("update hwqueue.reap_cursor set counted_to = clock_timestamp()")
    reaped.result(TIMEOUT)
    count_all(direct.conn)
    assert counted(direct) == dict.fromkeys(ENDS, 0) | {"failed": 1, "expired": 1, "claims": 1}


def test_a_batch_that_falls_asleep_with_the_time_in_hand(direct: Direct, actor: Actors, node: Node) -> None:
    """The count does not pass it: what it completes ended then."""
    direct.spawn_many(QUEUE, [{}] * 2)
    claims = direct.claim(QUEUE, *node, qty=2)
    with asleep(direct, actor(), lambda d: d.complete_many(claims)) as completed:
        for _ in range(3):
            direct.reap()
    assert completed.result(TIMEOUT) == []
    count_all(direct.conn)
    assert counted(direct)["completed"] == 2


def test_a_claim_that_falls_asleep_with_the_time_in_hand(direct: Direct, actor: Actors, node: Node) -> None:
    """The count does not pass it: what was cancelled while it was reserved ended then."""
    lease = direct.spawn(QUEUE)["lease_id"]
    direct.rows(
        "reserve_leases",
        places=[{"lease": str(lease), "node": str(node[0])}],
        hold=timedelta(minutes=1),
        round=1,
        epoch=direct.value("lead_planner", holder="one"),
    )
    assert direct.cancel(lease) == "claimed"
    with asleep(direct, actor(), lambda d: d.claim(QUEUE, *node)) as claimed:
        for _ in range(3):
            direct.reap()
    assert claimed.result(TIMEOUT) == []
    count_all(direct.conn)
    assert counted(direct)["cancelled"] == 1
