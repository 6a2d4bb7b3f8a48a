"""list_events: newest first, what follows, filters, and what a follower is shown."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, outlive


def ids(rows: list[Row]) -> list[int]:
    return [row["event_id"] for row in rows]


def listed(api: Api, **filters: Any) -> list[Row]:
    return api.rows("list_events", filter=filters)


def followed(api: Api, after: int, limit: int = 100, **filters: Any) -> list[Row]:
    return api.rows("list_events", after=after, filter=filters, limit=limit)


def paused(api: Api, times: int) -> str:
    """A queue with so many events, its creation included."""
    queue = api.queue()
    for number in range(times - 1):
        api.rows("resume_queue" if number % 2 else "pause_queue", queue=queue)
    return queue


def test_newest_first_and_what_follows_by_pages(api: Api, conn: psycopg.Connection) -> None:
    queue = paused(api, 5)
    newest = ids(listed(api, queue=queue))
    assert len(newest) == 5
    assert newest == sorted(newest, reverse=True)
    first = ids(api.rows("list_events", filter={"queue": queue}, limit=3))
    rest = ids(api.rows("list_events", filter={"queue": queue, "before": first[-1]}, limit=3))
    assert first + rest == newest
    outlive(conn)
    everything = newest[::-1]
    assert ids(followed(api, 0, queue=queue)) == everything
    seen: list[int] = []
    while page := ids(followed(api, seen[-1] if seen else 0, limit=2, queue=queue)):
        seen += page
    assert seen == everything
    assert ids(followed(api, everything[1], queue=queue, before=everything[4])) == everything[2:4]


def test_filters(api: Api, conn: psycopg.Connection) -> None:
    """Each finds the events of its subject, alone and beside others."""
    queue, node, actor = api.queue(), api.node(), f"a-{uuid4()}"
    lease = str(api.spawn(queue))
    conn.execute("select set_config('hwqueue.actor', %s, false)", [actor])
    api.rows("cancel_lease", lease=lease)
    conn.execute("reset hwqueue.actor")
    outlive(conn)
    wanted: list[tuple[str, Any, set[str]]] = [
        ("queue", queue, {"queue_created", "lease_cancelled"}),
        ("node", str(node.node_id), {"node_registered"}),
        ("lease", lease, {"lease_cancelled"}),
        ("actor", actor, {"lease_cancelled"}),
    ]
    for key, value, codes in wanted:
        assert {row["code"] for row in listed(api, **{key: value})} == codes
        assert {row["code"] for row in followed(api, 0, **{key: value})} == codes
        assert listed(api, **{key: str(uuid4())}) == []
    assert len(listed(api, queue=queue, lease=lease, code="lease_cancelled")) == 1
    assert listed(api, queue=queue, lease=lease, code="queue_created") == []


def test_codes(api: Api) -> None:
    queue = paused(api, 5)
    one = listed(api, queue=queue, code="queue_paused")
    assert [row["code"] for row in one] == ["queue_paused"] * 2
    some = listed(api, queue=queue, code=["queue_paused", "queue_created", "queue_paused"])
    assert [row["code"] for row in some] == ["queue_paused", "queue_paused", "queue_created"]
    assert ids(some) == sorted(ids(some), reverse=True)
    codes = ["queue_paused", "queue_created"]
    page = api.rows("list_events", filter={"queue": queue, "code": codes}, limit=2)
    assert ids(page) == ids(some)[:2]


def test_since_and_until(api: Api, queue: str, clock: Clock) -> None:
    """Over days: the partitions between them are read, and no event of theirs is left out."""
    times = []
    for number in range(8):
        clock.advance(timedelta(days=1, hours=7))
        times.append(clock.now())
        api.rows("resume_queue" if number % 2 else "pause_queue", queue=queue)
    for first in range(8):
        since = times[first].isoformat()
        assert [row["at"] for row in listed(api, queue=queue, since=since)] == times[first:][::-1]
        for last in range(first, 8):
            found = listed(api, queue=queue, since=since, until=times[last].isoformat())
            assert [row["at"] for row in found] == times[first:last][::-1]
    until = times[3].isoformat()
    assert [row["at"] for row in listed(api, queue=queue, until=until, code="queue_paused")] == [
        times[2],
        times[0],
    ]


BAD: list[tuple[Any, str]] = [
    (None, "filter"),
    ([], "filter"),
    ({"codes": "x"}, "filter.codes"),
    ({"queue_id": 1}, "filter.queue_id"),
    ({"code": 1}, "filter.code"),
    ({"code": []}, "filter.code"),
    ({"code": ["a", 1]}, "filter.code[1]"),
    ({"queue": ""}, "filter.queue"),
    ({"node": "box"}, "filter.node"),
    ({"lease": 1}, "filter.lease"),
    ({"class": "a"}, "filter.class"),
    ({"actor": {}}, "filter.actor"),
    ({"since": "yesterday"}, "filter.since"),
    ({"until": True}, "filter.until"),
    ({"before": -1}, "filter.before"),
    ({"final": "yes"}, "filter.final"),
]


@pytest.mark.parametrize(("bad", "field"), BAD)
@pytest.mark.thorough
def test_bad_filters(api: Api, bad: Any, field: str) -> None:
    assert api.refused("QHA01", "list_events", filter=bad).field == field
