"""What people look at often reads what it is about, however much else there is."""

from typing import Any

import psycopg
import pytest

from tests.plans.backlog import READY, batch, multiply
from tests.plans.explain import explained
from tests.sql.api import Api

FEW = 20


@pytest.fixture(scope="module")
def database(database: str) -> str:
    """One large class and a small one."""
    with psycopg.connect(database, autocommit=True) as conn:
        api = Api(conn)
        for name, copies in (("large", READY), ("small", FEW)):
            api.rows("create_queue", queue=name)
            batch(api, name, [{"labels": {"queue": name}}])
            multiply(conn, name, copies)
        conn.execute("vacuum analyze")
    return database


def small(conn: psycopg.Connection[Any]) -> tuple[Any, int]:
    """A lease of the small class, and the class."""
    row = conn.execute(
        "select r.lease_id, r.class_id from hwqueue.ready r"
        " join hwqueue.queue q on q.queue_id = r.queue_id where q.name = 'small' limit 1"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def test_the_life_line_of_one_lease(api: Api) -> None:
    lease, _ = small(api.conn)
    with explained(api.conn) as work:
        rows = api.conn.execute(
            "select event from hwqueue.lease_history where lease_id = %s", [lease]
        ).fetchall()
    assert rows == [("spawned",), ("ready",)]
    assert work.rows_read("lease") <= 10
    assert work.rows_read("ready") <= 2


def test_one_class_reads_its_own_leases(api: Api) -> None:
    _, class_id = small(api.conn)
    with explained(api.conn) as work:
        [row] = api.rows("pending_reasons", **{"class": class_id})
    assert row["pending"] == FEW + 1
    assert work.rows_read("ready") <= FEW + 1


def test_a_queue_reads_its_own_leases(api: Api) -> None:
    with explained(api.conn) as work:
        [row] = api.rows("queue_depth", queue="small")
    assert row["pending"] == FEW + 1
    assert work.rows_read("ready") <= FEW + 1


def test_all_classes_read_each_lease_once(api: Api) -> None:
    [ready] = api.conn.execute("select count(*) from hwqueue.ready").fetchone() or [0]
    with explained(api.conn) as work:
        rows = api.rows("pending_reasons", limit=1)
    assert len(rows) == 1
    assert READY < ready == work.rows_read("ready")
    assert work.rows_read("lease") == 0
