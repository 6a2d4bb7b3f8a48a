"""Positions and low-water marks after a server that did not bring its sequences."""

from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.plans.backlog import batch
from tests.sql.api import Api, outlive, token

_WRONG = "select hwqueue.count_wrong_marks()"


def repairs(api: Api) -> list[Row]:
    """The events of all repairs in this file's database, newest first."""
    return api.rows("list_events", filter={"code": "positions_repaired"})


@pytest.fixture(autouse=True)
def _eager(eager_marks: None) -> None:
    """Every claim moves the marks."""


def move_marks(api: Api, conn: psycopg.Connection, queue: str, count: int = 6) -> None:
    """Work some leases off, each in the knowledge that the one before has ended."""
    node = api.node()
    for _ in range(count):
        api.rows("complete_lease", **token(api.running(queue, node)))
        outlive(conn)
    marks = conn.execute("select count(*) from hwqueue.low_water where tiers <> '{}'").fetchone()
    assert marks is not None
    assert marks[0] > 0


def test_new_leases_are_claimed_when_the_sequence_was_set_back(
    api: Api, conn: psycopg.Connection, dsn: str
) -> None:
    """Marks pass no spawn that was open during the repair, whose position is low."""
    queue, node = api.queue(), api.node()
    move_marks(api, conn, queue)
    conn.execute("select setval('hwqueue.ready_position_seq', 1)")
    with psycopg.connect(dsn) as producer:
        late = Api(producer).spawn(queue)
        api.rows("reap")
        event = repairs(api)[0]
        assert event["detail"]["to"] > event["detail"]["from"]
        for _ in range(6):
            api.rows("complete_lease", **token(api.running(queue, node)))
        producer.commit()
    assert api.claimed(node, queue) == [late]


def test_reap_finds_a_sequence_that_was_set_back_a_little(api: Api, conn: psycopg.Connection) -> None:
    """Also where no claim has recorded what was drawn: else spawns would meet positions that leases have."""
    queue = api.queue()
    batch(api, queue, [{}] * 9)
    outlive(conn)
    api.rows("reap")
    sequence = "hwqueue.ready_position_seq"
    conn.execute(f"select setval('{sequence}', last_value - 5) from {sequence}")
    api.rows("reap")
    batch(api, queue, [{}] * 9)


def test_marks_move_by_what_is_granted(api: Api, conn: psycopg.Connection) -> None:
    """A worker asks for all its free slots, of which most stay free."""
    conn.execute(
        "create or replace function hwqueue.should_advance_low_water(p_qty int) returns boolean"
        " language sql volatile as 'select p_qty >= 32'"
    )
    queue, node = api.queue(), api.node()
    for granted in (1, 32):
        outlive(conn)
        before = conn.execute("select max(version) from hwqueue.position_horizon").fetchone()
        batch(api, queue, [{}] * granted)
        assert len(api.claim(node, queue, qty=32)) == granted
        after = conn.execute("select max(version) from hwqueue.position_horizon").fetchone()
        assert (after == before) == (granted == 1)


def test_a_reserved_lease_keeps_its_position_to_itself(
    api: Api, conn: psycopg.Connection, clock: Clock
) -> None:
    """It is in no line meanwhile, and comes back to where it was: before those that came later."""
    queue, node = api.queue(), api.node()
    move_marks(api, conn, queue)
    first = api.spawn(queue)
    epoch = api.value("lead_planner", holder="me", ttl=timedelta(hours=1))
    place = {"lease": str(first), "node": str(node.node_id)}
    [row] = api.rows("reserve_leases", places=[place], hold=timedelta(minutes=1), round=1, epoch=epoch)
    assert row["verdict"] == "reserved"
    conn.execute("select setval('hwqueue.ready_position_seq', 1)")
    api.rows("reap")
    rest = [api.spawn(queue) for _ in range(3)]
    api.reap_after(clock, timedelta(minutes=2))
    assert api.state(first) == "pending"
    assert api.claimed(node, queue, qty=4) == [first, *rest]


def test_leases_below_a_mark_are_found_by_the_sweep(api: Api, conn: psycopg.Connection, clock: Clock) -> None:
    """Spawned before anybody noticed; the marks speak for other positions. A sweep does what it can."""
    conn.execute("create or replace function hwqueue.upkeep_budget() returns interval return interval '0'")
    queue, node = api.queue(), api.node()
    api.rows("reap")
    move_marks(api, conn, queue)
    conn.execute("select setval('hwqueue.ready_position_seq', 1)")
    lease = api.spawn(queue)
    conn.execute("select setval('hwqueue.ready_position_seq', 1000000)")
    assert api.claim(node, queue) == []
    assert conn.execute(_WRONG).fetchone() == (1,)
    api.rows("reap")
    assert conn.execute(_WRONG).fetchone() == (1,), "swept too often"
    move_marks(api, conn, api.queue())  # more than one
    while conn.execute(_WRONG).fetchone() != (0,):
        before = len(repairs(api))
        api.reap_after(clock, timedelta(minutes=6))
        assert [event["detail"]["marks"] for event in repairs(api)[:-before]] == [1]
    assert [row["lease_id"] for row in api.claim(node, queue)] == [lease]


def test_nothing_is_repaired_when_nothing_is_wrong(api: Api, conn: psycopg.Connection, clock: Clock) -> None:
    queue = api.queue()
    api.rows("reap")
    before = repairs(api)
    move_marks(api, conn, queue)
    api.spawn(queue)
    for _ in range(3):
        api.reap_after(clock, timedelta(minutes=6))
    assert repairs(api) == before


def test_the_horizon_moves_where_it_holds_marks_back(api: Api, conn: psycopg.Connection) -> None:
    """Far ahead of what is claimed it stays, but for its record of what was drawn (reap_positions)."""
    queue, node = api.queue(), api.node()
    batch(api, queue, [{}] * 12)

    def versions(claims: int) -> list[int]:
        for _ in range(claims):
            assert api.claim(node, queue)
            outlive(conn)
        marks = "select sum(version)::int from hwqueue.low_water"
        rows = conn.execute(marks + " union all select max(version) from hwqueue.position_horizon")
        return [row[0] for row in rows]

    marks, horizon = versions(3)
    assert versions(6) == [marks + 6, horizon]
    sequence = "hwqueue.ready_position_seq"
    conn.execute(f"select setval('{sequence}', last_value + 1000) from {sequence}")
    assert versions(1) == [marks + 7, horizon + 1]
