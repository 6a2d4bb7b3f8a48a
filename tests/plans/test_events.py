"""Very many events: what list_events reads of them, and that work as usual reads none."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.calls import Row
from tests.fix_db import fresh_database
from tests.flows import finish_all
from tests.plans.explain import Work, explained
from tests.sql.api import Api, beat, outlive, settlement, token

EVENTS = 200_000
DAYS = 15  # the last of them is today
LIMIT = 20
PARTITIONS = tuple(f"event_{slot}" for slot in range(16))
# of each partition two rows beyond those that are asked for: they are read in order, side by side,
# and a follower looks first whether there is anything
ROWS = LIMIT + 2 * len(PARTITIONS)
PAGES = 16 * 12 + 6 * LIMIT

FILL = f"""
insert into hwqueue.event (slot, event_id, at, code, lease_id, node_id, queue, class_id,
                           actor, message)
select hwqueue.event_day(t.at) & 15, n, t.at, 'code_' || n % 30,
       lpad(to_hex(n / 3), 32, '0')::uuid, lpad(to_hex(n % 5000), 32, '0')::uuid,
       'queue-' || n % 50, n % 10000, 'actor-' || n % 10, 'filler'
from generate_series(1, {EVENTS}) n
cross join lateral (
  select hwqueue.clock() - ({EVENTS} - n) * interval '{DAYS - 1} days' / {EVENTS} as at) t
"""


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    """Events of two weeks."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            conn.execute(FILL.encode())
            conn.execute("vacuum analyze")
            outlive(conn)
        yield made


def rows_read(work: Work) -> float:
    return sum(work.rows_read(name) for name in PARTITIONS)


FILTERS: list[Row] = [
    {},
    *({"code": code} for code in ("code_7", ["code_7", "code_8", "code_9"], "never")),
    *({"queue": queue} for queue in ("queue-7", "never")),
    *({"node": str(UUID(int=node))} for node in (77, 10**9)),
    {"lease": str(UUID(int=77))},
    *({"class": number} for number in (77, 10**9)),
    *({"actor": actor} for actor in ("actor-7", "never")),
    {"queue": "queue-7", "code": "code_7"},
    {"final": True},
    {"before": EVENTS // 2},
]


@pytest.mark.parametrize("after", [None, 0, EVENTS // 2, EVENTS])
@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_a_page_reads_little_more_than_itself(api: Api, wanted: Row, after: int | None) -> None:
    for _ in range(2):  # the first time the planner learns what there is
        with explained(api.conn) as work:
            found = api.rows("list_events", after=after, filter=wanted, limit=LIMIT)
    codes = len(wanted["code"]) if isinstance(wanted.get("code"), list) else 1
    if len(wanted) > 1:
        codes = 3  # one of them has the index, the other drops rows: here two of three
    assert len(found) <= LIMIT
    assert work.whole_table_scans(*PARTITIONS) == []
    assert rows_read(work) <= ROWS * codes
    assert work.buffers <= PAGES * codes


def test_a_span_reads_its_days(api: Api, conn: psycopg.Connection) -> None:
    """At most those of the day at each end besides."""
    now, a_day = api.one("select hwqueue.clock()"), EVENTS / (DAYS - 1)
    since, until = ((now - timedelta(days=days)).isoformat() for days in (8, 7))
    for more in ({}, {"code": "never"}):
        span: dict[str, Any] = {"since": since, "until": until}
        with explained(conn) as work:
            api.rows("list_events", filter=span | more, limit=LIMIT)
        assert rows_read(work) <= (a_day if not more else ROWS) + ROWS


def touched(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What this transaction and those before have read and written of events, in rows and pages."""
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select pg_stat_clear_snapshot()")
    return conn.execute(
        "select relname, heap_blks_read + heap_blks_hit, coalesce(idx_blks_read + idx_blks_hit, 0),"
        "  pg_stat_get_tuples_inserted(relid), pg_sequence_last_value('hwqueue.event_number')"
        " from pg_statio_user_tables where relname like 'event%' order by 1"
    ).fetchall()


def test_work_as_usual_touches_no_event(api: Api, conn: psycopg.Connection) -> None:
    """Not a page of the table, not a number of the sequence."""
    queue = api.queue()
    plain, counted = api.node(), api.node(capacity={"cpu_milli": 10**6})
    needs = {"resources": {"cpu_milli": 1}}
    before = touched(conn)
    assert len(before) == len(PARTITIONS)
    for node in (plain, counted):
        for _ in range(3):
            api.complete(api.running(queue, node, placement=needs))
            claim = api.running(queue, node, placement=needs)
            api.rows("heartbeat_node", **node.who, claims=beat(claim))
            again = [settlement(claim)]
            api.rows("settle_and_claim", **node.who, settle=again, queues=[queue])
            claims = [api.running(queue, node, placement=needs) for _ in range(3)]
            finish_all(api, claims)
            api.rows("fail_lease", **token(api.running(queue, node)), error={}, retry_at=LATER)
            api.rows("claim_hint", queues=[queue], node=node.node_id)
    assert touched(conn) == before
    api.rows("pause_queue", queue=queue)
    assert touched(conn) != before  # it would be seen


LATER = "2100-01-01T00:00:00Z"
