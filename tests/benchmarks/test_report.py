"""Spreads, aims and figures; a filled queue is what spawning would have made of it."""

import re
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from benchmarks.core.fill import QUEUE, fill, kind, top_up
from benchmarks.core.looks import PATHS
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.report import at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.spread import Spread, percentile
from hwqueue.dashboard.pages import ROUTES
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings

pytestmark = pytest.mark.embedded


def test_a_spread_tells_median_and_extremes() -> None:
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3)
    assert str(Spread(1234.5, 0.12345, 10)) == "1,234 [0.123-10]"


def test_ratios_are_taken_round_by_round() -> None:
    assert Spread.of_ratios([2, 8, 9], [1, 2, 3]) == Spread(3, 2, 4)
    with pytest.raises(ValueError, match="zip"):
        Spread.of_ratios([1, 2], [1])


def test_percentiles() -> None:
    for percent, value in ((0, 1), (50, 50), (99, 99), (100, 100)):
        assert percentile(range(1, 101), percent) == value
        assert percentile([7], percent) == 7
    assert percentile([1, 2, 3, 4, 5], 50) == 3
    assert percentile(range(1, 150), 99) == 148


def test_an_aim_is_met_by_the_median() -> None:
    assert at_most(1.2).met_by(Spread(1.2, 1.1, 9))
    assert not at_most(1.2).met_by(Spread(1.21, 0, 2))
    assert at_least(0.8).met_by(Spread(0.8, 0.1, 1))
    assert not at_least(0.8).met_by(Spread(0.79, 0.1, 9))


def test_every_page_and_every_read_of_the_api_is_measured() -> None:
    described = create_app(ServerSettings(dsn="")).openapi()["paths"]
    api = [path for path, methods in described.items() if "get" in methods]
    assert len(api) > 20
    pages = [route.path for route in ROUTES]
    asked = [urlsplit(path).path for path in PATHS]
    unread = [path for path in [*api, *pages] if not any(map(_pattern(path).fullmatch, asked))]
    assert unread == [
        "/api/v1/nodes/{node_id}/wait",
        "/api/v1/leases/{lease_id}/logs/stream",
        "/api/v1/runs/{run_id}/stream",
        "/api/v1/events/stream",
        "/events/stream",
    ]


def _pattern(path: str) -> "re.Pattern[str]":
    """What addresses of a path look like, with {...} where an id or a name goes."""
    return re.compile(re.sub(r"{\w+(:\w+)?}", r"({\\w+}|others)", path))


# What two leases spawned in one moment do not share.
OWN = {"lease_id", "position"}
KINDS = [
    kind(payload(), priority=3, headers={"h": 1}, max_attempts=2, retry={"kind": "none"}),
    kind(affinity_tags={"gpu": True}, claim_timeout=30, deadline="2100-01-01T00:00:00Z"),
]


@pytest.mark.parametrize("table", ["lease", "ready"])
def test_copies_are_as_if_spawned(run: Run, dsn: str, conn: psycopg.Connection, table: str) -> None:
    create_queue(dsn)
    fill(run, dsn, KINDS, 6)
    rows = rows_of(conn, table)
    assert len(rows) == 6
    for spawned, *copies in (rows[0::2], rows[1::2]):
        for copy in copies:
            assert copy.keys() == spawned.keys()
            assert shared(copy) == shared(spawned)


def test_copies_agree_with_themselves(run: Run, dsn: str, conn: psycopg.Connection) -> None:
    create_queue(dsn)
    fill(run, dsn, KINDS, 6)
    by_id = {row["lease_id"]: row for row in rows_of(conn, "lease")}
    for entry in rows_of(conn, "ready"):
        lease = by_id.pop(entry["lease_id"])
        for column in entry.keys() & lease.keys():
            assert entry[column] == lease[column], column
    assert not by_id


def test_a_queue_is_topped_up(run: Run, dsn: str, conn: psycopg.Connection) -> None:
    create_queue(dsn)
    top_up(run, dsn, kind(), 5)
    top_up(run, dsn, kind(), 12)
    top_up(run, dsn, kind(), 3)
    [[pending]] = conn.execute(
        "select pending from hwqueue.list_queues() where queue = %s", [QUEUE]
    ).fetchall()
    assert pending == 12


def rows_of(conn: psycopg.Connection, table: str) -> list[dict[str, Any]]:
    """All rows, in the order in which they are claimed within their class."""
    with conn.cursor(row_factory=dict_row) as cursor:
        query = {"lease": "select * from hwqueue.lease", "ready": "select * from hwqueue.ready"}
        return cursor.execute(query[table] + " order by position").fetchall()


def shared(row: dict[str, Any]) -> dict[str, Any]:
    """The columns that a copy has in common with what it is a copy of."""
    return {column: value for column, value in row.items() if column not in OWN}
