"""A filled queue is what spawning would have made of it."""

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from benchmarks.core.fill import QUEUE, fill, kind, top_up
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.run import Run

pytestmark = pytest.mark.embedded

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
