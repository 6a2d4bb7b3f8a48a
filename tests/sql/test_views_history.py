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
    columns = ("ordinal", "event", "at", "lasted", "node_name", "attempt")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        (1, "spawned", began, 3 * SECOND, None, None),
        (2, "claimed", began + 3 * SECOND, 2 * SECOND, node.name, 1),
        (3, "failed", began + 5 * SECOND, 10 * SECOND, node.name, 1),
        (4, "claimed", began + 15 * SECOND, SECOND, other.name, 2),
        (5, "completed", began + 16 * SECOND, None, other.name, 2),
    ]
    assert (rows[2]["detail"], rows[4]["claim_token"]) == ({"message": "it broke"}, claim["claim_token"])


def test_one_that_waits_for_its_time(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=60)
    spawned, scheduled = api.rows("lease_history", lease=lease)
    assert (spawned["event"], scheduled["event"]) == ("spawned", "scheduled")
    assert scheduled["at"] == clock.now() + 60 * SECOND
    assert scheduled["lasted"] == 0 * SECOND


def test_released_then_dead_after_its_last_attempt(api: Api, clock: Clock) -> None:
    queue, node = api.queue(max_attempts=1), api.node(heartbeat_timeout="1 hour")
    claim = api.running(queue, node)
    lease = claim["lease_id"]
    clock.advance(SECOND)
    api.rows("release_lease", **token(claim))
    assert line(api, lease) == ["spawned", "claimed", "released", "ready"]
    [claim] = api.claim(node, queue)
    api.rows("fail_lease", **token(claim), error={"message": "x"})
    rows: list[Row] = api.rows("lease_history", lease=lease)
    # the attempt failed, and with it the lease
    assert [row["event"] for row in rows][-3:] == ["claimed", "failed", "failed"]
    assert (rows[-1]["lasted"], rows[-1]["detail"]) == (None, {"message": "x"})


def test_the_view_finds_one_lease(api: Api, queue: str) -> None:
    other, lease = api.spawn(queue), api.spawn(queue)
    api.rows("cancel_lease", lease=lease, reason="not needed")
    rows = api.rows("lease_history", lease=lease)
    assert [(row["ordinal"], row["event"]) for row in rows] == [(1, "spawned"), (2, "cancelled")]
    assert rows[1]["detail"]["detail"] == "not needed"
    view = "select ordinal, event from hwqueue.lease_history where lease_id = %s order by ordinal"
    assert api.conn.execute(view, [lease]).fetchall() == [(1, "spawned"), (2, "cancelled")]
    assert api.conn.execute(view, [other]).fetchall() == [(1, "spawned"), (2, "ready")]
    api.refused("QHL04", "lease_history", lease=NOBODY)
