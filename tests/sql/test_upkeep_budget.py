"""reap under a statement timeout: what one call does is bounded, kept, and gone on with."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock, install_clock
from tests.calls import Row
from tests.counted import counting
from tests.fix_db import fresh_database
from tests.sql.api import Api, Node
from tests.sql.test_placement_cost import dear

pytestmark = pytest.mark.thorough

NODES = 12
CLASSES = 3  # so many are one batch, and no more
MINUTE = timedelta(minutes=1)

LEFT = """
  select array[
    (select count(*) from hwqueue.claim), (select count(*) from hwqueue.ready where deadline is not null),
    (select count(*) from hwqueue.scheduled),
    (select count(*) from hwqueue.profile p
     where exists (select from hwqueue.node n where n.profile_id = p.profile_id and n.deregistered_at is null)
       and hwqueue.has_new_classes(p.classes_seen, p.classes_unseen))]
"""
"""What there is still to do: claims, deadlines, due leases, profiles that have not judged."""


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A database of the test's own: what others left to be done would be counted."""
    with fresh_database(server_dsn, template) as made:
        yield made


@pytest.fixture
def clock(conn: psycopg.Connection[Any]) -> Clock:
    return install_clock(conn)


@pytest.fixture
def nodes(api: Api) -> list[Node]:
    """Nodes that are no two alike."""
    return [api.node(labels={"host": f"n{number}"}, slots=1000) for number in range(NODES)]


def much_to_do(api: Api, clock: Clock, nodes: list[Node], claims: int) -> None:
    """Claims that have expired, leases past their deadline, due ones, and classes to be judged."""
    queue, dears = api.queue(claim_timeout=60), api.queue()
    api.rows("spawn_leases", queue=queue, leases=[{"task": "t"}] * claims)
    for node in nodes:
        api.claim(node, queue, qty=-(-claims // len(nodes)))
    for _ in range(5):
        api.spawn(dears, deadline=(clock.now() + MINUTE).isoformat())
        api.spawn(dears, delay=60)
    for number in range(CLASSES):
        api.spawn(dears, placement=dear(number))
    clock.advance(2 * MINUTE)


def test_a_call_without_time_does_a_step_of_each(api: Api, clock: Clock, nodes: list[Node]) -> None:
    much_to_do(api, clock, nodes, claims=NODES)
    assert api.one(LEFT) == [NODES, 5, 5, NODES]
    no_time = "create or replace function hwqueue.upkeep_budget() returns interval return interval '0'"
    api.conn.execute(no_time)
    batch, calls = CLASSES * 8, list[Row]()
    while not calls or calls[-1]["more"]:
        assert len(calls) < 5 * NODES
        before = api.one(LEFT)
        with counting(api.conn) as counted:
            calls.append(api.row("reap"))
        assert calls[-1]["expired"] <= 1
        assert before[-1] - api.one(LEFT)[-1] <= 1
        # estimates, and either what is watched or the next profile
        assert counted["label_holds"] <= batch * (NODES + NODES)
    assert api.one(LEFT) == [0, 0, 0, 0]
    assert sum(row["expired"] for row in calls) == NODES
    assert sum(row["deadlines"] for row in calls) == 5


def test_it_gets_done_under_a_statement_timeout(api: Api, clock: Clock, nodes: list[Node]) -> None:
    """Ended claims alone take several times as long."""
    much_to_do(api, clock, nodes, claims=1500)
    calls, done, timeout = 0, False, 300
    while not done:
        calls += 1
        api.conn.execute("select set_config('statement_timeout', %s, false)", [str(timeout)])
        try:
            done = not api.row("reap", limit=10_000)["more"]
        except psycopg.errors.QueryCanceled:
            timeout *= 2  # a busy machine; what earlier calls did is kept
    api.conn.execute("set statement_timeout = 0")
    assert calls > 1
    assert api.one(LEFT) == [0, 0, 0, 0]


def test_the_budget_is_a_quarter_of_the_timeout(api: Api) -> None:
    for timeout, budget in (("0", 1000), ("1min", 1000), ("4s", 1000), ("2s", 500), ("100ms", 25)):
        with api.conn.transaction(force_rollback=True):
            api.conn.execute("select set_config('statement_timeout', %s, true)", [timeout])
            assert api.one("select hwqueue.upkeep_budget()") == timedelta(milliseconds=budget)
