"""Bulk calls on a large queue: a page reads its rows, however few of them a filter means."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.fix_db import fresh_database
from tests.plans.explain import explained
from tests.sql.api import Api, outlive

LEASES = 20_000
LIMIT = 100
SPAWN = f"""
select count(*) from hwqueue.spawn_leases('big', (
  select jsonb_agg(jsonb_build_object('task', 'draw', 'options', jsonb_build_object('delay',
    case when n % 4 = 0 then '1 h' else '0 s' end))) from generate_series(1, {LEASES}) n))
"""
CANCEL = "select cardinality(changed), next_cursor from hwqueue.cancel_leases(%s, p_limit => 5000)"


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    """A queue of many leases: a quarter scheduled, half pending, a quarter cancelled."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            conn.execute("select hwqueue.create_queue('big')")
            conn.execute(SPAWN.encode())
            conn.execute(CANCEL, ['{"queue": "big", "state": "pending"}'])
            conn.execute("vacuum analyze")
            outlive(conn)
        yield made


@pytest.mark.parametrize("state", ["scheduled", "pending", "cancelled"])
@pytest.mark.parametrize("task", ["draw", "never"])
def test_each_page_reads_as_many_rows(api: Api, state: str, task: str) -> None:
    wanted = {"queue": "big", "state": state, "task": task}
    cursor = None
    for _ in range(7):  # the plan of the sixth call may be generic
        with explained(api.conn) as work:
            page = api.row("count_leases", filter=wanted, limit=LIMIT, cursor=cursor)
        cursor = page["next_cursor"]
        assert page["lease_count"] == (LIMIT if task == "draw" else 0)
        assert cursor is not None
        assert work.rows_read("lease") <= 2 * LIMIT
        for table in ("ready", "scheduled", "claim"):
            assert work.rows_read(table) <= 2 * LIMIT
