"""A publication for all tables: every row that is updated or deleted must have an identity."""

from datetime import timedelta

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, register
from tests.races.terms import away, lease, publish
from tests.sql.api import outlive

# Of a table with neither, only inserts and truncates pass.
_WITHOUT_IDENTITY = """
  select c.relname from pg_class c
  where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'r' and c.relreplident <> 'f'
    and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
  order by c.relname
"""


def test_only_events_have_no_identity(direct: Direct) -> None:
    found = [row[0] for row in direct.conn.execute(_WITHOUT_IDENTITY).fetchall()]
    assert [name for name in found if not name.startswith("event_")] == []


def test_a_whole_life_under_a_publication(direct: Direct, clock: Clock) -> None:
    """As where Debezium, say, or a blue/green switch-over has subscribed to the database.

    Terms are published, counted, and pruned; claims end in every way; leases are requeued.
    """
    direct.conn.execute("create publication everything for all tables")
    nodes = [register(direct, number, rack=number) for number in range(2)]
    skew = {"spread": [{"domain": "rack", "max_skew": 2, "select": {"labels": {"app": "web"}}}]}
    for _ in range(4):
        direct.spawn(QUEUE, lease("web"))
        direct.spawn(QUEUE, lease("db", away("cache")))
        direct.spawn(QUEUE, {"labels": {"app": "web"}, "placement": skew})
    direct.spawn(QUEUE, lease("cache"))
    publish(direct)
    claims = [direct.claim(QUEUE, *node, qty=5) for node in nodes]
    assert all(len(found) >= 4 for found in claims)
    for found in claims:
        one, two, three, *rest = found
        direct.complete(one["lease_id"], one["claim_token"])
        direct.fail(two["lease_id"], two["claim_token"], retry=False)
        direct.release(three["lease_id"], three["claim_token"])
        assert direct.complete_many(rest) == []
    direct.conn.execute("select * from hwqueue.requeue_failed(%s, %s)", [QUEUE, Jsonb({})])
    lost = direct.claim(QUEUE, *nodes[0], qty=3)
    assert lost
    clock.advance(timedelta(minutes=10))
    assert direct.reap()["expired"] == len(lost)
    direct.drop_queue(QUEUE)
    for _ in range(4):
        clock.advance(timedelta(days=2))
        outlive(direct.conn)
        direct.reap()
        direct.conn.execute("select from hwqueue.prune()")
    terms = ("affinity_term", "term_counter", "class_term")
    for table in (*terms, "undone_end", "lease", "claim", "outcome"):
        [left] = direct.conn.execute(f"select count(*) from hwqueue.{table}").fetchone() or (None,)
        assert left == 0, table
