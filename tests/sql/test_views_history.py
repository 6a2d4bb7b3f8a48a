"""The life line of a lease."""

from datetime import timedelta
from uuid import UUID

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, token

SECOND = timedelta(seconds=1)


def line(api: Api, lease: UUID) -> list[str]:
    """What happened, in order."""
    return [row["event"] for row in api.rows("lease_history", lease=lease)]


def test_from_spawn_to_the_end(api: Api, clock: Clock) -> None:
    queue = api.queue(retry={"kind": "fixed", "base": 10, "jitter": 0})
    node, other = api.node(heartbeat_timeout="1 hour"), api.node(heartbeat_timeout="1 hour")
    began = clock.now()
    lease = api.spawn(queue)
    assert line(api, lease) == ["spawned", "ready"]
    clock.advance(3 * SECOND)
    [claim] = api.claim(node, queue)
    clock.advance(2 * SECOND)
    assert line(api, lease) == ["spawned", "claimed"]
    api.rows("fail_lease", **token(claim), error={"message": "it broke"})
    assert line(api, lease) == ["spawned", "claimed", "failed", "scheduled"]
    clock.advance(10 * SECOND)
    [claim] = api.claim(other, queue)
    clock.advance(SECOND)
    api.complete(claim)
    rows = api.rows("lease_history", lease=lease)
    assert [row["event"] for row in rows] == [
        "spawned",
        "claimed",
        "failed",
        "claimed",
        "completed",
    ]
    assert [row["ordinal"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["at"] - began for row in rows] == [
        0 * SECOND,
        *(n * SECOND for n in (3, 5, 15, 16)),
    ]
    assert [row["lasted"] for row in rows] == [3 * SECOND, 2 * SECOND, 10 * SECOND, SECOND, None]
    assert [row["node_name"] for row in rows] == [None, *[node.name] * 2, *[other.name] * 2]
    assert [row["attempt"] for row in rows] == [None, 1, 1, 2, 2]
    assert rows[2]["detail"] == {"message": "it broke"}
    assert rows[4]["claim_token"] == claim["claim_token"]


def test_one_that_waits_for_its_time(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=60)
    spawned, scheduled = api.rows("lease_history", lease=lease)
    assert (spawned["event"], scheduled["event"]) == ("spawned", "scheduled")
    assert scheduled["at"] == clock.now() + 60 * SECOND
    assert scheduled["lasted"] == 0 * SECOND


def test_released_then_ready_again(api: Api, clock: Clock) -> None:
    queue = api.queue()
    claim = api.running(queue, api.node(heartbeat_timeout="1 hour"))
    clock.advance(SECOND)
    api.rows("release_lease", **token(claim))
    assert line(api, claim["lease_id"]) == ["spawned", "claimed", "released", "ready"]


def test_dead_after_its_last_attempt(api: Api) -> None:
    claim = api.running(api.queue(max_attempts=1))
    api.rows("fail_lease", **token(claim), error={"message": "x"})
    rows: list[Row] = api.rows("lease_history", lease=claim["lease_id"])
    # the attempt failed, and with it the lease
    assert [row["event"] for row in rows] == ["spawned", "claimed", "failed", "failed"]
    assert (rows[-1]["lasted"], rows[-1]["detail"]) == (None, {"message": "x"})


def test_cancelled_before_it_ran(api: Api) -> None:
    lease = api.spawn(api.queue())
    api.rows("cancel_lease", lease=lease, reason="not needed")
    rows = api.rows("lease_history", lease=lease)
    assert [row["event"] for row in rows] == ["spawned", "cancelled"]
    assert rows[1]["detail"]["detail"] == "not needed"


def test_the_view_finds_one_lease(api: Api) -> None:
    queue = api.queue()
    api.spawn(queue)
    lease = api.spawn(queue)
    with api.conn.cursor() as cursor:
        rows = cursor.execute(
            "select ordinal, event from hwqueue.lease_history where lease_id = %s order by ordinal",
            [lease],
        ).fetchall()
    assert rows == [(1, "spawned"), (2, "ready")]


def test_a_lease_that_nobody_spawned(api: Api) -> None:
    api.refused("QHL04", "lease_history", lease=NOBODY)
