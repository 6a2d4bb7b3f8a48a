"""What people look at often reads what it is about, however much else there is."""

from uuid import UUID

import psycopg
import pytest

from tests.calls import Row
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


def test_one_class_reads_its_own_leases(api: Api) -> None:
    """So do one lease's life line, and a queue."""
    lease, class_id = api.one(
        "select array[r.lease_id::text, r.class_id::text] from hwqueue.ready r"
        " join hwqueue.queue q on q.queue_id = r.queue_id where q.name = 'small' limit 1"
    )
    with explained(api.conn) as work:
        rows = api.conn.execute(
            "select event from hwqueue.lease_history where lease_id = %s", [UUID(lease)]
        ).fetchall()
    assert rows == [("spawned",), ("ready",)]
    assert work.rows_read("lease") <= 10
    assert work.rows_read("ready") <= 2
    asked: list[tuple[str, Row]] = [
        ("pending_reasons", {"class": int(class_id)}),
        ("queue_depth", {"queue": "small"}),
    ]
    for function, arguments in asked:
        with explained(api.conn) as work:
            [row] = api.rows(function, **arguments)
        assert row["pending"] == FEW + 1
        assert work.rows_read("ready") <= FEW + 1


def test_all_classes_read_each_lease_once(api: Api) -> None:
    ready = api.one("select count(*) from hwqueue.ready")
    with explained(api.conn) as work:
        rows = api.rows("pending_reasons", limit=1)
    assert len(rows) == 1
    assert READY < ready == work.rows_read("ready")
    assert work.rows_read("lease") == 0
