"""Bulk calls whatever the statistics say: none yet, or those of a queue that was empty."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_db import fresh_database
from tests.plans.explain import explained
from tests.sql.api import Api, outlive

BIG = """
select l.lease_id from hwqueue.lease l join hwqueue.queue q using (queue_id) where q.name = 'big'
"""
REQUEUE = """
explain (analyze, buffers, timing off, format json)
select * from hwqueue.requeue_leases('{"queue": "big", "state": "cancelled"}', %s)
"""
LOCK = "select hwqueue.lock_leases(%s, %s, 0)"


@pytest.fixture
def fresh(server_dsn: str, template: str) -> Iterator[psycopg.Connection]:
    """A database that nobody has analyzed, nor will."""
    with (
        fresh_database(server_dsn, template) as made,
        psycopg.connect(made, autocommit=True) as conn,
    ):
        for table in ("lease", "ready", "outcome", "placement_class"):
            conn.execute(f"alter table hwqueue.{table} set (autovacuum_enabled = off)".encode())
        yield conn


@pytest.mark.parametrize("statistics", ["none", "of an empty queue"])
def test_each_lease_is_read_by_its_key(fresh: psycopg.Connection, statistics: str) -> None:
    """However many there are: what is locked, and what each that is requeued reads."""
    api, many = Api(fresh), 4000
    for queue in ("big", "other"):
        api.rows("create_queue", queue=queue)
    if statistics != "none":
        fresh.execute("analyze")
    for queue in ("big", "other"):
        for _ in range(4):
            batch = Jsonb([{"task": "draw"}] * (many // 4))
            api.rows("spawn_leases", queue=queue, leases=batch)
    outlive(fresh)
    leases = [row[0] for row in fresh.execute(BIG).fetchall()]
    for state in ("pending", "cancelled"):
        if state == "cancelled":
            api.rows("cancel_leases", filter=Jsonb({"queue": "big"}), limit=10000)
        with explained(fresh) as work:
            [locked] = fresh.execute(LOCK, [leases, state]).fetchone() or ([],)
        assert len(locked) == many
        for table in ("lease", "ready", "outcome"):
            assert work.rows_read(table) <= 1.1 * many
    pages = []
    for limit in (many // 8, many // 8 * 7):
        [[plan]] = fresh.execute(REQUEUE, [limit]).fetchone() or ([{}],)
        pages.append(plan["Plan"]["Shared Hit Blocks"] / limit)
    assert pages[1] <= 1.1 * pages[0] <= 150
