"""Leases of limits are found by key: those that are parked in other lanes, or behind them, cost nothing."""

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tests.calls import Row
from tests.flows import finish_all
from tests.plans.backlog import BIG, batch
from tests.plans.explain import explained
from tests.plans.test_settlements import bounded
from tests.sql.api import Api, token

KEYS, PARKED, MANY = 100, 10, 300  # keys with so many parked leases each, and one that has more
FOLDED = 20
FOLD = "select hwqueue.fold_changes(20, '', '{}')"
LARGE = """
  update pg_class set reltuples = 1000000
  where relnamespace = 'hwqueue'::regnamespace and relname = any (%s)
"""
LIMITS: dict[str, Row] = {
    "slots": {"slots": 30, "by": "key"},
    "fair": {"fair": True, "by": "key", "weights": {"k": 8}},
    "rate": {"rate": {"count": 100_000, "per": 1, "burst": 30}, "by": "key"},
}


@pytest.fixture(scope="module", params=[False, True], ids=["as_it_is", "a_million"])
def queues(request: pytest.FixtureRequest, database: str) -> Iterator[dict[str, str]]:
    """A queue for each kind of limit; the planner knows how much is parked, or takes it for a million."""
    with psycopg.connect(database, autocommit=True) as conn:
        api = Api(conn)
        made = {kind: api.queue() for kind in LIMITS}
        for kind, queue in made.items():
            api.rows("create_limit", name=queue, spec=LIMITS[kind])
            keys = [str(n) for n in range(KEYS)] * PARKED + ["k"] * MANY
            for first in range(0, len(keys), 500):
                batch(api, queue, [{"limits": {queue: key}} for key in keys[first : first + 500]])
        while api.row("reap")["more"]:
            pass
        conn.execute("vacuum analyze")
        if request.param:
            conn.execute(LARGE, [[*BIG, "lane", "lane_change"]])
        yield made


@pytest.mark.parametrize("kind", LIMITS)
def test_a_life(api: Api, queues: dict[str, str], kind: str) -> None:
    """What each call about a lease, or ten, and who takes its place reads the second time."""
    queue, node = queues[kind], api.node()
    lane = {"limits": {queue: "k"}}
    for made in (partial(explained, api.conn), partial(bounded, api, leases=2)):
        with made():
            last = api.spawn(queue, **lane)
        for end in ("complete_lease", "fail_lease", "release_lease"):
            with made():
                [claim] = api.claim(node, queue)
            with made():
                api.rows(end, **token(claim), **({"error": {}} if end == "fail_lease" else {}))
        with made():
            api.rows("update_lease", lease=last, changes={"priority": 1})
        with made():
            api.rows("cancel_lease", lease=last)
    for made in (partial(explained, api.conn), partial(bounded, api, leases=10)):
        with made():
            batch(api, queue, [lane] * 10)
        with made():
            claims = api.claim(node, queue, qty=10)
        with made():
            finish_all(api, claims)
    assert api.rows("verify_invariants") == []


def test_what_is_told_of_lanes(api: Api, queues: dict[str, str]) -> None:
    """Each entry is counted once, and of leases those are read that are first in their lanes, or named."""
    queue = queues["slots"]
    [lease, *_] = batch(api, queue, [{"limits": {queue: "k"}}] * 10)
    parked = api.one("select count(*) from hwqueue.scheduled where lane_id is not null")
    lanes = api.one("select count(*) from hwqueue.lane")
    for function, more, leases in (
        ("list_limits", {}, lanes),
        ("limit_lanes", {"name": queue, "limit": 5}, KEYS + 1),
        ("explain_lease", {"lease": lease}, 2),
    ):
        with explained(api.conn) as work:
            api.rows(function, **more)
        assert work.whole_table_scans("ready", "lease", "scheduled", "outcome", "lane") == []
        assert work.rows_read("scheduled") < 2 * parked  # up to 15 the rows of each lane are rounded
        assert work.rows_read("lease") <= leases


@pytest.mark.usefixtures("fresh")
def test_lanes_that_have_become_many(api: Api, dsn: str) -> None:
    """A session that has planned while there were few lanes, and changes, walks neither later."""
    queue, node = api.queue(), api.node()
    api.rows("create_limit", name="one", spec={"slots": 1, "by": "key"})
    for key in range(16):
        if key == 8:
            api.conn.execute("analyze")
        api.spawn(queue, limits={"one": str(key)})
        api.conn.execute(FOLD)
        api.complete(*api.claim(node, queue))
    with psycopg.connect(dsn, autocommit=True) as other:
        for folds in (True, False):
            batch(Api(other), queue, [{"limits": {"one": f"{folds} {n}"}} for n in range(500)])
            while folds and Api(other).row("reap")["more"]:
                pass
    with explained(api.conn) as work:
        api.conn.execute(FOLD)
    assert work.rows_read("lane") <= 6 * FOLDED
    assert work.rows_read("lane_change") <= 6 * FOLDED


@pytest.mark.usefixtures("fresh")
def test_what_is_parked_is_counted_in_part(api: Api) -> None:
    """However much it is: 100,000 entries of all lanes, and more of those that are shown."""
    queue = api.queue()
    api.rows("create_limit", name="many", spec={"slots": 1, "by": "key"})
    api.spawn(queue, limits={"many": "2000"})
    api.conn.execute("""
      insert into hwqueue.lane (lane_id, limit_id, key)
      select n * 4, limit_id, n from hwqueue.limit_rule, generate_series(0, 1998) n
    """)
    api.conn.execute("""
      insert into hwqueue.scheduled
      select (s).*
      from (select jsonb_populate_record(s, jsonb_build_object('lane_id', n % 1999 * 4, 'turn', n,
              'lease_id', gen_random_uuid())) as s
            from hwqueue.scheduled s, generate_series(1, 125000) n) s
    """)
    api.row("reap")
    with explained(api.conn) as work:
        [first] = api.rows("limit_lanes", name="many", limit=1)
    assert first["parked"] == 63
    assert api.rows("limit_lanes", name="many", limit=5000)[0]["parked"] == 21
    assert work.rows_read("scheduled") < 101_000
