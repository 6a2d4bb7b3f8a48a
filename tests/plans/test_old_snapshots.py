"""What has been reaped stays in the indexes while an old snapshot is held: nobody walks it."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.fix_db import fresh_database
from tests.patience import looks
from tests.plans.backlog import batch, fill, warm
from tests.plans.conftest import leave_alone
from tests.plans.explain import explained
from tests.races.marks import NOWHERE
from tests.sql.api import Api, Node, count_all, outlive

MANY = 2000
PAGES = 20  # that the dead entries may cost a call; walking those of one scan costs 30 and more

OF = " where queue_id = (select queue_id from hwqueue.queue where name = %s)"
DUE = "update hwqueue.scheduled set available_at = clock_timestamp()" + OF
SILENT = "update hwqueue.claim set expires_at = clock_timestamp(), check_at = clock_timestamp()" + OF
LATE = "update hwqueue.ready set deadline = clock_timestamp(), eligible_at = clock_timestamp()" + OF


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    """A database with fewer classes than that of other files: each reap looks at all of them."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            fill(Api(conn), classes=500)
            leave_alone(conn)
        yield made


def catch_up(api: Api) -> None:
    """Reap until the marks are past all that was: they follow two calls behind.

    And behind transactions of other tests, anywhere on the server.
    """
    for _ in range(3):
        outlive(api.conn)
        api.rows("reap", limit=100_000)


def reaped(api: Api, what: str) -> int:
    """How many reap finds; a call stops when its time is used up."""
    row = api.row("reap", limit=100_000)
    found = int(row[what])
    while found < MANY and row["more"]:
        row = api.row("reap", limit=100_000)
        found += int(row[what])
    return found


def pages(api: Api, node: Node, queue: str) -> tuple[int, int]:
    """What an empty claim and a reap that finds nothing touch."""
    warm(api, node, queue)
    catch_up(api)
    count_all(api.conn)  # what is left to count is not what the scans cost
    with explained(api.conn) as claim:
        assert api.claim(node, queue) == []
    with explained(api.conn) as reap:
        api.rows("reap", limit=10)  # and so many classes it looks at
    return claim.buffers, reap.buffers


@pytest.mark.usefixtures("old_snapshot")
def test_upkeep(api: Api, conn: psycopg.Connection) -> None:
    """Leases in numbers fall due, are claimed, expire, and miss their deadline."""
    busy, idle, node = api.queue(), api.queue(), api.node()
    before = pages(api, node, idle)
    deadline = "2100-01-01T00:00:00Z"
    for _ in range(MANY // 500):
        batch(api, busy, [{"delay": 3600, "deadline": deadline}] * 500)
    conn.execute(DUE, [busy])
    assert reaped(api, "promoted") >= MANY
    assert sum(len(api.claim(node, busy, qty=1000)) for _ in range(2)) == MANY
    conn.execute(SILENT, [busy])
    assert reaped(api, "expired") == MANY
    conn.execute(LATE, [busy])
    assert reaped(api, "deadlines") == MANY
    for _ in looks():  # the marks get there, whatever holds them back for a while
        after = pages(api, node, idle)
        if after[0] <= before[0] + PAGES and after[1] <= before[1] + PAGES:
            return
    raise AssertionError((before, after))


@pytest.mark.usefixtures("old_snapshot", "eager_marks")
def test_waiting_for_a_better_node(api: Api) -> None:
    """A node that comes second walks neither what was claimed of a class nor what waits of it."""
    best, second = api.node(labels={"zone": "a"}), api.node(labels={"zone": "b"})
    waits = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}]}}
    queue = api.queue(patience=3600)
    for claimed, waiting in ((1, 1), (MANY, 1), (1, MANY)):
        batch(api, queue, [waits] * claimed)
        for _ in range(4):
            api.claim(best, queue, qty=max(claimed // 4, 1))
        batch(api, queue, [waits] * waiting)
        assert api.claim(second, queue) == []
        catch_up(api)
        assert api.claim(second, queue) == []
        with explained(api.conn) as claim:
            assert api.claim(second, queue) == []
        scans = [scan for scan in claim.scans("ready") if scan.get("Index Name") == "ready_class"]
        assert scans
        assert sum(int(scan["Shared Hit Blocks"]) for scan in scans) <= PAGES


@pytest.mark.usefixtures("old_snapshot", "eager_marks")
def test_later_ranks_behind_what_may_not_run(api: Api) -> None:
    """Classes start at their own marks: nobody walks what was claimed of all of them."""
    node, queue = api.node(labels={"zone": "a"}), api.queue(patience=0)
    better = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}]}}
    api.spawn(queue, **NOWHERE)
    for _ in range(20):
        batch(api, queue, [{"priority": -1}, {"priority": -1, **better}] * (MANY // 20))
        outlive(api.conn)  # other tests' transactions hold marks back
        while api.claim(node, queue, qty=100):
            pass
    batch(api, queue, [{"priority": -1}])
    with explained(api.conn) as claim:
        assert len(api.claim(node, queue)) == 1
    scans = [scan for scan in claim.scans("ready") if scan.get("Index Name") == "ready_pkey"]
    assert max(int(scan["Shared Hit Blocks"]) for scan in scans) <= PAGES


@pytest.mark.usefixtures("old_snapshot")
def test_asking_who_is_about_to_leave(api: Api, conn: psycopg.Connection) -> None:
    """Whether one that runs here has expired: nobody walks all that ran and are gone."""
    node, busy = api.node(), api.node()
    one = {"domain": "node", "max_per_domain": 1, "select": {"labels": {"app": "one"}}}
    queue, other = api.queue(), api.queue()
    ones = [{"labels": {"app": "one"}, "placement": {"spread": [one]}}] * 2
    batch(api, queue, ones)
    api.settle_terms()
    assert len(api.claim(node, queue)) == 1
    batch(api, other, [{"max_attempts": 1}] * MANY)
    while api.claim(busy, other, qty=1000):
        pass
    conn.execute(SILENT, [other])
    assert reaped(api, "expired") == MANY
    catch_up(api)
    assert api.claim(node, queue) == []
    with explained(api.conn) as claim:
        assert api.claim(node, queue) == []
    assert sum(int(scan["Shared Hit Blocks"]) for scan in claim.scans("claim")) <= PAGES


# Rows of the tables that upkeep hands out from, as calls write them; and how they go.
CAME_AND_WENT = {
    "reap: team_change": """
      insert into hwqueue.team_change (team_id)
      select gen_random_uuid() from generate_series(1, %(many)s);
      delete from hwqueue.team_change""",
    "reap: replacement": """
      insert into hwqueue.replacement (lease_id, old_goes, is_overlapping, next_try_at)
      select gen_random_uuid(), '', false, clock_timestamp() from generate_series(1, %(many)s);
      delete from hwqueue.replacement""",
    "reap: gang": """
      insert into hwqueue.gang (gang_id, queue_id, tenant, size, tier, rank, on_lost, hold, state,
        next_try_at, created_at, together, same, members)
      select gen_random_uuid(), q.queue_id, '', 1, 0, 0, 'stop', '0', 'waiting', clock_timestamp(), now(),
        '{}', '{}', '{}'
      from (select queue_id from hwqueue.queue limit 1) q cross join generate_series(1, %(many)s);
      update hwqueue.gang set state = 'completed', finished_at = now()""",
    "reap: affinity_term": """
      insert into hwqueue.affinity_term (digest, spec, use, domain, anchors, written_xid, created_at)
      select n, '{}', 'away', 'node', '{}', '0', clock_timestamp() from generate_series(1, %(many)s) n;
      update hwqueue.affinity_term set published_at = now()""",
    "reap: placement_class": """
      insert into hwqueue.placement_class (digest, queue_id, task_name, tenant, labels, placement, required,
        preferred, anchors, is_pinned, created_xid, created_at, terms)
      select '', 0, 't', '', '{}', '{}', '[]', '[]', '{}', false, pg_current_xact_id(), clock_timestamp(),
        '[{}]' from generate_series(1, %(many)s);
      update hwqueue.placement_class set terms_written = true where queue_id = 0""",
    "claim_deliveries: webhook_delivery": """
      insert into hwqueue.webhook_delivery (delivery_id, webhook_id, code, body, state,
        created_at, available_at)
      select gen_random_uuid(), w.webhook_id, 'c', '', 'waiting', now(), clock_timestamp()
      from hwqueue.webhook w cross join generate_series(1, %(many)s);
      update hwqueue.webhook_delivery
      set state = 'delivered', finished_at = now(), claimed_until = null""",
    "advance_workflows: arrival": """
      insert into hwqueue.arrival (run_id, step_no, kind, at, tenant)
      select gen_random_uuid(), 0, 'count', clock_timestamp(), 'a' || n %% 2
      from generate_series(1, %(many)s) n;
      delete from hwqueue.arrival""",
    "advance_workflows: arrival: kept": """
      insert into hwqueue.arrival (run_id, step_no, kind, at, tenant, after_xid)
      select gen_random_uuid(), 0, 'state', clock_timestamp(), 'a', '3'
      from generate_series(1, %(many)s) n;
      delete from hwqueue.arrival""",
}


@pytest.mark.usefixtures("old_snapshot")
@pytest.mark.parametrize("what", CAME_AND_WENT)
def test_what_upkeep_hands_out(api: Api, conn: psycopg.Connection, what: str) -> None:
    """Changes of gangs, choices that were taken, deliveries, terms, and so on; once it has caught up."""
    call, table = what.split(": ")[:2]
    options = {"codes": ["lease_failed"]}
    api.rows("set_webhook", name="w", url="https://example.com", options=options)

    def pages() -> int:
        catch_up(api)
        if table in ("arrival", "choice", "replacement"):  # some are left; a sweep takes turns by tenant
            left, many = ("advance_workflows: arrival", 40) if table == "arrival" else (what, 3)
            conn.execute(CAME_AND_WENT[left].split(";\n")[0].encode(), {"many": many})
        api.rows(call, limit=1)  # what is gone for everybody is walked over once
        with explained(conn) as work:
            api.rows(call, limit=1)
        conn.execute("delete from hwqueue.arrival")
        return sum(int(scan["Shared Hit Blocks"]) for scan in work.scans(table))

    before = pages()
    for statement in CAME_AND_WENT[what].split(";\n"):
        conn.execute(statement.encode(), {"many": 5 * MANY})
    assert pages() <= before + PAGES
