"""throughput: what roll_up has counted, minute by minute."""

from datetime import timedelta
from itertools import groupby, pairwise
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, Node, count_all, outlive, settlement, token

pytestmark = pytest.mark.thorough

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

NOTHING = dict.fromkeys(("claims", "completed", "failed", "cancelled", "retried", "expired"), 0)
TOTALS = """
  select m.completed, m.failed from hwqueue.minute_stat m join hwqueue.queue q using (queue_id)
  where q.name = %s order by m.minute desc limit 1
"""
MINUTES = """
  select count(*) from hwqueue.minute_stat m join hwqueue.queue q using (queue_id) where q.name = %s
"""


@pytest.fixture(autouse=True)
def _whole_minute(clock: Clock) -> None:
    """Begin a minute, so that a few seconds stay in it."""
    now = clock.now()
    clock.advance(2 * MINUTE - timedelta(seconds=now.second, microseconds=now.microsecond))


def count(api: Api, clock: Clock) -> None:
    """Let everything that has ended be counted."""
    clock.advance(SECOND)
    count_all(api.conn)


def figures(row: dict[str, Any]) -> dict[str, int]:
    """The counts of a minute."""
    return {name: row[name] for name in NOTHING}


def this_minute(api: Api, queue: str | None) -> dict[str, int]:
    """What ended in the running minute."""
    return figures(api.row("throughput", queue=queue, minutes=1))


def fail(api: Api, queue: str, **options: Any) -> UUID:
    claim = api.running(queue, **options)
    api.rows("fail_lease", **token(claim), error={}, retry=False)
    lease: UUID = claim["lease_id"]
    return lease


def test_every_end_is_counted_as_what_it_was(api: Api, clock: Clock) -> None:
    queue = api.queue(claim_timeout=1)
    api.rows("complete_lease", **token(api.running(queue)))
    api.rows("fail_lease", **token(api.running(queue)), error={})
    api.rows("fail_lease", **token(api.running(queue)), error={}, retry=False)
    api.rows("release_lease", **token(api.running(queue)), delay="1 hour")
    api.rows("cancel_lease", lease=api.spawn(queue, delay=3600))
    stopped = api.running(queue)
    api.rows("cancel_lease", lease=stopped["lease_id"])
    api.rows("fail_lease", **token(stopped), error={})
    api.running(queue)
    node = api.node()
    api.running(queue, node)
    api.rows("deregister_node", node=node.node_id)
    clock.advance(2 * SECOND)
    count(api, clock)
    count(api, clock)
    ends = {"completed": 1, "failed": 1, "cancelled": 2, "retried": 3, "expired": 1}
    assert this_minute(api, queue) == {"claims": 7} | ends


def test_what_ended_at_the_border_of_two_counts_is_counted_once(api: Api, queue: str, clock: Clock) -> None:
    """A count ends at the very instant at which something ended; the next one begins there."""
    for _ in range(3):  # the first of them at :00, where a minute ends and the next begins
        api.rows("complete_lease", **token(api.running(queue)))
        count_all(api.conn)
        clock.advance(SECOND)
    clock.advance(MINUTE - 3 * SECOND)
    api.rows("complete_lease", **token(api.running(queue)))
    count_all(api.conn)
    count(api, clock)
    assert [row["completed"] for row in api.rows("throughput", queue=queue, minutes=2)] == [3, 1]


def test_minutes_follow_each_other(api: Api, clock: Clock) -> None:
    queue, other = api.queue(), api.queue()
    for completions in (2, 0, 1):
        for _ in range(completions):
            api.rows("complete_lease", **token(api.running(queue)))
        api.rows("complete_lease", **token(api.running(other)))
        count(api, clock)
        clock.advance(MINUTE - SECOND)
    rows = api.rows("throughput", queue=queue, minutes=4)
    assert [row["completed"] for row in rows] == [2, 0, 1, 0]
    assert [b["minute"] - a["minute"] for a, b in pairwise(rows)] == [MINUTE] * 3
    assert [r["completed"] for r in api.rows("throughput", minutes=4)] == [3, 1, 2, 0]
    assert figures(rows[1]) == NOTHING
    assert rows[1]["wait_p50"] is None


def test_how_long_leases_waited_and_ran(api: Api, node: Node, queue: str, clock: Clock) -> None:
    due = api.spawn(queue, delay=10)
    api.reap_after(clock, 40 * SECOND)
    claim = api.granted(due, node, queue)
    clock.advance(timedelta(milliseconds=500))
    api.complete(claim)
    count(api, clock)
    row = api.row("throughput", queue=queue, minutes=1)
    assert 10 < row["wait_p50"] <= row["wait_p95"] <= 30
    assert 0.1 < row["run_p50"] <= row["run_p95"] <= 0.5


def test_quantiles(api: Api) -> None:
    """A bound belongs to its bucket."""
    histogram = "select hwqueue.histogram_of(%s::float8[])"
    counts = api.one(histogram, [0.0, 0.01, 0.02, 30.0, 30.5, 86400.0, 86401.0])
    assert counts == [2, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert api.one(histogram, None) == [0] * 15
    quantile = "select hwqueue.histogram_quantile(hwqueue.histogram_of(%s::float8[]), %s)"
    several = [0.005, 20.0, 20.0, 20.0]
    for seconds, part, expected in (
        *(([], 0.5, None), ([0.7], 1.0, 1.0), ([0.7], 0.5, 0.75), ([100_000.0], 0.5, 86400.0)),
        *((several, 0.25, 0.01), (several, 1.0, 30.0)),
    ):
        assert api.one(quantile, seconds, part) == expected


def test_a_lease_may_die_again_and_again(api: Api, queue: str, clock: Clock) -> None:
    """Requeued before anybody has counted its end, and after."""
    lease = fail(api, queue)
    clock.advance(SECOND)
    api.rows("requeue_lease", lease=lease)
    api.rows("cancel_lease", lease=lease)
    clock.advance(SECOND)
    api.rows("requeue_lease", lease=lease)
    count(api, clock)
    assert this_minute(api, queue) == NOTHING | {"claims": 1, "failed": 1, "cancelled": 1}
    [again] = api.claim(api.node(), queue)
    api.rows("fail_lease", **token(again), error={}, retry=False)
    count(api, clock)
    api.rows("requeue_lease", lease=lease)
    count(api, clock)
    assert this_minute(api, queue) == NOTHING | {"claims": 2, "failed": 2, "cancelled": 1}
    assert api.one("select count(*) from hwqueue.undone_end") == 0


def test_a_call_is_bounded(api: Api, node: Node, clock: Clock) -> None:
    """Ten times the limit, and all of one instant together."""
    queue, other = api.queue(), api.queue()
    for name in (queue, other):
        for _ in range(12):
            api.spawn(name)
        for claim in api.claim(node, name, qty=12):
            clock.advance(timedelta(milliseconds=1))
            api.complete(claim)
    for _ in range(15):
        api.spawn(queue)
    claims = api.claim(node, queue, qty=15)
    settled = [settlement(claim) for claim in claims]
    clock.advance(SECOND)
    api.rows("settle_and_claim", **node.who, queues=[queue], settle=settled, qty=0)
    clock.advance(SECOND)
    found = [(0, False)]
    while found[-1][0] < 39:
        more = api.row("reap", limit=1)["more"]
        found.append((this_minute(api, None)["completed"], more))
    calls = [key for key, _ in groupby(found) if key[0]]
    assert calls == [(10, True), (20, True), (39, False)]


def test_what_is_not_counted_is_not_pruned(api: Api, clock: Clock) -> None:
    """But for an hour at most: figures must not fill a disk that nobody reaps on."""
    queue = api.queue(retain_completed=0)
    api.rows("complete_lease", **token(api.running(queue)))
    clock.advance(MINUTE)
    assert api.row("prune")["leases"] == 0
    count(api, clock)
    assert api.row("prune")["leases"] == 1
    assert sum(row["completed"] for row in api.rows("throughput", queue=queue)) == 1
    api.rows("complete_lease", **token(api.running(queue)))
    clock.advance(61 * MINUTE)
    assert api.row("prune")["leases"] == 1


def test_old_minutes_go_and_totals_stay(api: Api, queue: str, clock: Clock) -> None:
    for gap in (MINUTE, MINUTE, timedelta(days=2)):
        api.rows("complete_lease", **token(api.running(queue)))
        count(api, clock)
        clock.advance(gap)
    api.rows("prune")
    # the last one before a day ago is what the next is read against
    assert api.one(MINUTES, queue) == 1
    assert api.conn.execute(TOTALS, [queue]).fetchone() == (3, 0)
    api.rows("complete_lease", **token(api.running(queue)))
    count(api, clock)
    assert this_minute(api, queue)["completed"] == 1
    assert api.conn.execute(TOTALS, [queue]).fetchone() == (4, 0)


def test_a_queue_that_is_dropped(api: Api, queue: str, clock: Clock) -> None:
    """Its name begins anew; what it had is deleted with it."""
    fail(api, queue)
    count(api, clock)
    api.rows("drop_queue", queue=queue)
    api.rows("create_queue", queue=queue)
    assert this_minute(api, queue) == NOTHING
    before = api.one("select count(*) from hwqueue.minute_stat")
    for _ in range(3):
        outlive(api.conn)
        api.rows("prune")
    assert api.one("select count(*) from hwqueue.minute_stat") == before - 1


def test_an_unknown_queue_and_a_wrong_span(api: Api) -> None:
    api.refused("QHQ01", "throughput", queue="nobody made this")
    for minutes in (0, 1441, None):
        assert api.fault("throughput", minutes=minutes) == "p_minutes"
    assert len(api.rows("throughput", minutes=1440)) == 1440
