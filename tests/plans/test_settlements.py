"""What keeps a lease moving finds its rows by index, however many there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.calls import TASK, Row
from tests.flows import finish_all
from tests.plans.backlog import BIG, FILLER, batch, warm
from tests.plans.explain import explained
from tests.sql.api import Api, beat, completed, count_all, outlive, settlement, token

ROWS = 6  # of each large table that a call about one lease may read
PAGES = 150  # that it may touch; 12 to 60 seen
LIMIT = 100  # of what a call of upkeep may take and look at
MORE = 60  # for every further lease of a batch; 20 to 50 seen


@contextmanager
def bounded(api: Api, leases: int = 1) -> Iterator[None]:
    """What a call inside, about so many leases, may do."""
    with explained(api.conn) as work:
        yield
    assert work.whole_table_scans(*BIG) == []
    for table in BIG:
        assert work.rows_read(table) <= ROWS * leases, table
    assert work.buffers <= PAGES + MORE * (leases - 1)


SETTLING: list[tuple[str, Row]] = [
    ("complete_lease", {"result": {"n": 1}}),
    ("fail_lease", {"error": {}}),
    ("fail_lease", {"error": {}, "retry": False}),
    ("release_lease", {}),
    ("release_lease", {"delay": timedelta(minutes=1)}),
    ("extend_claim", {"extend": timedelta(minutes=1)}),
]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("function", "more"), SETTLING)
def test_settling(api: Api, function: str, more: Row, counted: bool) -> None:
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 10**6} if counted else {})
    needs = {"resources": {"cpu_milli": 1}}
    first, second = (api.running(queue, node, placement=needs) for _ in range(2))
    api.rows(function, **token(first), **more)
    with bounded(api):
        api.rows(function, **token(second), **more)


@pytest.mark.parametrize("as_lists", [False, True], ids=["json", "lists"])
def test_settling_and_claiming(api: Api, as_lists: bool) -> None:
    queue, node = api.queue(), api.node()
    warm(api, node, queue)
    claims = [api.running(queue, node) for _ in range(10)]
    api.spawn(queue)
    lists = completed(*(claims if as_lists else []))
    settle = [] if as_lists else [settlement(claim) for claim in claims]
    with bounded(api, leases=11):
        rows = api.rows("settle_and_claim", **node.who, **lists, settle=settle, queues=[queue])
    assert len(rows) == 1 + len(settle)


@pytest.mark.parametrize("counted", [False, True])
def test_completing_many(api: Api, counted: bool) -> None:
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 10**6} if counted else {})
    needs = {"resources": {"cpu_milli": 1}}
    claims = [api.running(queue, node, placement=needs) for _ in range(10)]
    with bounded(api, leases=10):
        finish_all(api, claims)


def test_heartbeats(api: Api) -> None:
    """One leaves its transaction's id on the claim, which then looks as if somebody held it.

    It costs the completion nothing.
    """
    queue, node = api.queue(), api.node()
    claims = [api.running(queue, node) for _ in range(20)]
    with bounded(api, leases=20):
        assert len(api.rows("heartbeat_node", **node.who, claims=beat(*claims))) == 20
    first, second = (api.running(queue, node) for _ in range(2))
    api.complete(first)
    with explained(api.conn) as without:
        api.complete(second)
    with explained(api.conn) as after:
        api.complete(claims[0])
    assert len(after.plans) == len(without.plans)


@pytest.mark.parametrize("due", [0, 10])
def test_reaping(api: Api, conn: psycopg.Connection, due: int) -> None:
    """It looks at what is due, and at nothing else."""
    queue, node = api.queue(), api.node()
    while api.row("reap", limit=100_000)["reaches"]:
        pass  # what is new in the database, once
    count_all(conn)  # and what has ended: another test's transaction may put that off
    outlive(conn)
    api.rows("reap", limit=100_000)  # its marks are past what earlier tests left
    claims = [api.running(queue, node) for _ in range(due)]
    late = "2020-01-01T00:00:00Z"
    for _ in range(due):
        api.spawn(queue, deadline=late)
        api.spawn(queue, deadline=late, delay=60)
    leases = [claim["lease_id"] for claim in claims]
    conn.execute(
        "update hwqueue.claim set expires_at = clock_timestamp(), check_at = clock_timestamp()"
        " where lease_id = any(%s)",
        [leases],
    )
    queues = api.one("select count(*) from hwqueue.queue")
    # what it does every ten seconds has a guard of its own
    conn.execute("update hwqueue.reap_cursor set estimated_at = hwqueue.clock()")
    with explained(api.conn) as work:
        row = api.row("reap", limit=LIMIT)
    assert (row["expired"], row["deadlines"]) == (due, 2 * due)
    ended = 3 * due + row["promoted"]  # retries of the tests before may have become due
    for table in BIG:
        # and the entry that the next scan is to start at, in each queue's schedule one
        assert work.rows_read(table) <= ROWS * ended + queues, table
    assert work.rows_read("placement_class") <= 3 * LIMIT  # of thousands, in turn
    assert work.whole_table_scans(*BIG) == []
    # each queue is asked for the first that has ended in each way
    assert work.buffers <= 2 * PAGES + 4 * LIMIT + MORE * ended + 12 * queues


def test_counting(api: Api, conn: psycopg.Connection) -> None:
    """What ended since the last reap is read, and nothing of what has been counted."""
    queue, node = api.queue(), api.node()
    for settle in ("complete_lease", "fail_lease"):
        for _ in range(40):
            more: Row = {"error": {}} if settle == "fail_lease" else {}
            api.rows(settle, **token(api.running(queue, node)), **more)
    for _ in range(2):  # a call looks again at what the one before has counted
        count_all(conn)
    claims = [api.running(queue, node) for _ in range(6)]
    api.complete(*claims[:3])
    for claim in claims[3:]:
        api.rows("fail_lease", **token(claim), error={})
    with explained(conn) as work:
        count_all(conn)
    assert work.whole_table_scans(*BIG, "attempt") == []
    assert work.rows_read("attempt") >= 3
    for table in ("outcome", "attempt", "lease"):
        # to find the first, the last, and to count them
        assert work.rows_read(table) <= 3 * ROWS, table


def test_reaping_looks_at_nodes_and_classes_in_turn(api: Api, conn: psycopg.Connection) -> None:
    """At five times as many nodes as it may take of each kind, and at as many classes."""
    queue = api.queue()
    for number in range(150):
        api.node(labels={"n": number})
    api.spawn(queue, placement={"require": [{"label": "nowhere", "op": "exists"}]})
    api.rows("reap", limit=100_000)
    conn.execute("update hwqueue.reap_cursor set estimated_at = '-infinity'")
    nodes = api.one("select count(*) from hwqueue.node")
    with explained(conn) as work:
        api.rows("reap", limit=10)
    # All of them a few times, however many classes: for their digest, labels, taints, capacity; and
    # a sample for a class that is told now, which depends on the machine.
    assert work.rows_read("node_state") <= 6 * nodes + 5 * 10 + 2 * 10 + 10 * 20
    assert work.rows_read("ready") <= 10 * ROWS
    assert work.whole_table_scans(*BIG) == []


def test_pruning(api: Api) -> None:
    api.rows("prune")
    for _ in range(30):  # finished, and kept
        api.rows("complete_lease", **token(api.running(FILLER)))
    with explained(api.conn) as work:
        assert api.row("prune")["leases"] == 0
    assert work.rows_read("lease") == 0
    claim = api.running(api.queue(retain_completed=0), idempotency_key="k")
    api.complete(claim)
    batch(api, api.queue(), [{"idempotency_key": str(n)} for n in range(500)])
    count_all(api.conn)  # before that it stays
    with explained(api.conn) as work:
        assert api.row("prune", limit=LIMIT)["leases"] == 1
    assert work.whole_table_scans(*BIG) == []
    assert work.rows_read("ready") == 0
    assert work.rows_read("idempotency") <= 2
    assert work.rows_read("placement_class") <= 3 * LIMIT + ROWS  # of thousands


def test_purging(api: Api, conn: psycopg.Connection) -> None:
    """What a dropped queue held is found without reading what others hold."""
    queue = api.queue()
    batch(api, queue, [{"delay": 60}] * 20 + [{}] * 20)
    for _ in range(5):
        [claim] = api.claim(api.node(), queue)
        api.complete(claim)
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("prune", limit=1)  # stamped
    outlive(conn)
    with explained(conn) as work:
        api.rows("prune")
    assert api.one("select count(*) from hwqueue.queue where dropped_at is not null") == 0
    for table in ("ready", "scheduled", "lease", "outcome"):
        assert work.rows_read(table) <= 45 * ROWS, table


ONE_LEASE: list[tuple[str, dict[str, Any]]] = [
    ("get_lease", {}),
    ("update_lease", {"changes": {"priority": 3}}),
    ("cancel_lease", {}),
]


@pytest.mark.parametrize(("function", "more"), ONE_LEASE)
@pytest.mark.parametrize("delay", [0, 60])
def test_calls_about_a_waiting_lease(api: Api, function: str, more: dict[str, Any], delay: int) -> None:
    first, second = (api.spawn(api.queue(), delay=delay) for _ in range(2))
    api.rows(function, lease=first, **more)
    with bounded(api):
        api.rows(function, lease=second, **more)


def test_spawning(api: Api) -> None:
    """Of a class that exists already; a key is looked up like the rest."""
    queue = api.queue()
    api.spawn(queue, idempotency_key="a")
    with bounded(api):
        api.spawn(queue, idempotency_key="b")
    batch = [{"task": TASK, "options": {"idempotency_key": str(n)}} for n in range(50)]
    with bounded(api, leases=50):
        api.rows("spawn_leases", queue=queue, leases=batch)


def test_a_token_that_settles_nothing(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    settle = [settlement(claim | {"claim_token": claim["claim_token"] + 1})]
    call = partial(api.rows, "settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    call()  # it is planned
    with bounded(api):
        call()


# what workers announced that they serve: many whose apps have no hooks for dead leases
OTHERS = """
  insert into hwqueue.node (node_id, name, instance_id, profile_id, labels, anchors, heartbeat_timeout,
    registered_at, queues, tasks, hears_deaths)
  select gen_random_uuid(), 'other-' || i, '1', 0, '{}', '{}', '1 minute', now(), array['elsewhere'],
    array[%s], i <= %s
  from generate_series(1, 2000) i
"""


@pytest.mark.parametrize("hearing", [0, 200])
def test_a_death_beside_many_workers(api: Api, hearing: int) -> None:
    """Only those that take deaths are looked at, and nothing is called for each of them."""
    queue = api.queue(max_attempts=1)
    with api.conn.transaction(force_rollback=True):
        api.conn.execute(OTHERS, [TASK, hearing])
        api.conn.execute("analyze hwqueue.node")
        for _ in range(2):
            held = api.node()
            claim = api.running(queue, held)
            with explained(api.conn) as work:
                api.node(held.node_id, name=held.name, instance_id="second")
            assert api.state(claim["lease_id"]) == "failed"
    assert work.rows_read("node") <= ROWS + hearing
    assert not any("p_queue <> all" in plan["Query Text"] for plan in work.plans)


def test_deaths_of_another_task(api: Api) -> None:
    """A worker passes by what it does not serve, and calls nothing for each."""
    queue = api.queue()
    node = api.node(queues=[queue], tasks=[TASK], hears_deaths=True)
    with api.conn.transaction(force_rollback=True):
        api.conn.execute(
            "insert into hwqueue.death (lease_id, queue_id, task_name, claim_token, died_at)"
            " select gen_random_uuid(), q.queue_id, 'other', 1, now()"
            " from hwqueue.queue q cross join generate_series(1, 50) where q.name = %s",
            [queue],
        )
        with explained(api.conn) as work:
            assert api.rows("take_deaths", **node.who) == []
    assert len(work.plans) < 50
