"""Bulk calls whatever the statistics say: none yet, of an empty, a drained or a full queue."""

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.plans.explain import explained
from tests.sql.api import Api, outlive

pytestmark = pytest.mark.usefixtures("fresh")

MANY = 1200
SOME = 400  # of them each call changes: what it reads beyond these shows
QUEUES = ("big", "other")
ALL = {"queue": "big"}
CANCELLED = {"queue": "big", "state": "cancelled"}
# and the pages that each lease takes at most: it has a key
CALLS: list[tuple[str, Row, Row | None, int]] = [
    ("update_leases", ALL, {"priority": 2, "labels": {"film": "7"}}, 120),
    ("update_leases", ALL, {"queue": "other"}, 175),
    ("cancel_leases", ALL, None, 70),
    ("requeue_leases", CANCELLED, None, 122),
    ("cancel_leases", ALL, None, 70),
    ("delete_leases", CANCELLED, None, 60),
]


@pytest.fixture
def api(api: Api) -> Api:
    """Of a database that nobody has analyzed, nor will, with two queues."""
    for queue in QUEUES:
        api.rows("create_queue", queue=queue)
    return api


def spawn(api: Api, count: int) -> None:
    leases = [{"task": "draw", "options": {"idempotency_key": str(number)}} for number in range(count)]
    api.rows("spawn_leases", queue="big", leases=leases)


def analyze(api: Api, statistics: str) -> None:
    """Let the planner know the queue as it is now: empty, or drained of what was there."""
    if statistics == "of a drained queue":
        spawn(api, SOME)
        for function in ("cancel_leases", "delete_leases"):
            assert len(api.row(function, filter=ALL)["changed"]) == SOME
    if statistics != "none":
        api.conn.execute("analyze")


def pages(api: Api, function: str, wanted: Row, changes: Row | None) -> int:
    """How many pages a call reads that changes some leases."""
    given = {"p_filter": wanted} | ({"p_changes": changes} if changes else {})
    call = f"select * from hwqueue.{function}({', '.join(f'{name} => %s' for name in given)}"
    explain = f"explain (analyze, buffers, timing off, format json) {call}, p_limit => {SOME})"
    [[plan]] = api.conn.execute(explain.encode(), [*map(Jsonb, given.values())]).fetchone() or [[]]
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


@pytest.mark.parametrize("statistics", ["none", "of an empty queue", "of a drained queue", "of a full queue"])
def test_each_lease_is_read_by_its_key(api: Api, statistics: str) -> None:
    """However many others there are, and whatever they are filtered by."""
    analyze(api, statistics)
    spawn(api, MANY)
    outlive(api.conn)
    for function, wanted, changes, most in CALLS:
        if statistics == "of a full queue":
            api.conn.execute("analyze")
        for asked in ({}, {"labels": {"film": "7"}}, {"error_type": "none"}):
            with explained(api.conn) as work:
                api.row("count_leases", filter={**wanted, **asked}, limit=SOME)
            assert work.most_rows <= 2 * SOME, (function, asked)
        assert pages(api, function, wanted, changes) <= most * SOME, function
    left = [api.row("count_leases", filter={"queue": queue})["lease_count"] for queue in QUEUES]
    assert left == [MANY - 2 * SOME, SOME]
