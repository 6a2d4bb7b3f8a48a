"""Two prunes at once: neither waits, nothing is removed twice, nothing is left out for good."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import broken, lease, place, publish, spread
from tests.sql.api import outlive

DAY = timedelta(days=1)
PRUNE = "select leases from hwqueue.prune(p_limit => %s)"
REGULAR = "select leases from hwqueue.prune(p_limit => %s, p_unless_within => '10 s')"
LOOK = "select hwqueue.refresh_fleet_cache(class_id, hwqueue.clock()) from hwqueue.placement_class"
REMEMBERED = "select (select count(*) from hwqueue.spread_floor), (select count(*) from hwqueue.class_range)"
CLASSES = "select count(*) from hwqueue.placement_class"
FIND_OUT = (
    "select hwqueue.cache_class_fleets(array_agg(class_id), hwqueue.clock()) from hwqueue.placement_class"
)
DELETE_CLASSES = "select hwqueue.delete_classes(array_agg(class_id), 10) from hwqueue.placement_class"


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_beside_an_open_prune(conn: psycopg.Connection, dsn: str, clock: Clock, end: str) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"retain_completed": 1})
    node = register(conn)
    for number in range(4):
        lease = direct.spawn(QUEUE, {"labels": {"n": str(number)}})["lease_id"]
        [claim] = direct.claim(QUEUE, *node)
        direct.complete(lease, claim["claim_token"])
    clock.advance(DAY)
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        sleeper.begin()
        assert sleeper.conn.execute(PRUNE, [2]).fetchall() == [(2,)]
        assert other.conn.execute(PRUNE, [10]).fetchall() == [(2,)]
        getattr(sleeper, end)()
        left = 0 if end == "commit" else 2
        assert other.conn.execute(PRUNE, [10]).fetchall() == [(left,)]
    for _ in range(4):
        outlive(conn)
        conn.execute(PRUNE, [10])
    assert conn.execute(CLASSES).fetchall() == [(0,)]


def test_a_lease_is_pruned_while_it_is_read(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """The reader has found the lease, and waits for a table when it goes: an error, not nothing."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"retain_completed": 1})
    node = register(conn)
    lease = direct.spawn(QUEUE)["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    direct.complete(lease, claim["claim_token"])
    clock.advance(DAY)
    with interleave(dsn, SHORT) as actor:
        pruner, reader = actor(), actor()
        pruner.begin()
        assert pruner.conn.execute(PRUNE, [10]).fetchall() == [(1,)]
        pruner.conn.execute("lock table hwqueue.attempt in access exclusive mode")
        reading = reader.start(
            lambda d: d.conn.execute("select state from hwqueue.get_lease(%s)", [lease]).fetchall()
        )
        reader.wait_until_parked()
        pruner.commit()
        with pytest.raises(psycopg.Error) as refused:
            reading.result(TIMEOUT)
    assert refused.value.sqlstate == "QHL04"


def test_one_of_many_prunes_at_a_time(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """While one is at it the others have nothing to do, unless it takes very long."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"retain_completed": 1})
    node = register(conn)
    for _ in range(4):
        lease = direct.spawn(QUEUE)["lease_id"]
        [claim] = direct.claim(QUEUE, *node)
        direct.complete(lease, claim["claim_token"])
    clock.advance(DAY)
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        assert other.conn.execute(REGULAR, [1]).fetchall() == [(1,)]
        clock.advance(timedelta(seconds=10))
        sleeper.begin()
        assert sleeper.conn.execute(REGULAR, [1]).fetchall() == [(1,)]
        assert other.conn.execute(REGULAR, [10]).fetchall() == [(0,)]
        clock.advance(timedelta(minutes=2))
        assert other.conn.execute(REGULAR, [10]).fetchall() == [(2,)]
        sleeper.commit()
        assert other.conn.execute(REGULAR, [10]).fetchall() == [(0,)]


def test_a_lease_runs_as_a_class_that_it_has_no_more(
    conn: psycopg.Connection, dsn: str, clock: Clock
) -> None:
    """It got one of its own while it ran: the other one stays until it has run."""
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"claim_timeout": "1 day"})
    node = register(conn)
    named = direct.spawn(QUEUE, lease("web"))["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    direct.spawn(QUEUE, {"placement": {"require": [{"lease": str(named), "away": True}]}})
    publish(direct)
    clock.advance(timedelta(hours=2))
    for _ in range(4):
        outlive(conn)
        conn.execute(PRUNE, [10])
    assert broken(conn) == []
    direct.complete(named, claim["claim_token"])
    [(classes,)] = conn.execute(CLASSES).fetchall()
    for _ in range(4):
        outlive(conn)
        conn.execute(PRUNE, [10])
    assert conn.execute(CLASSES).fetchall() == [(classes - 1,)]
    assert broken(conn) == []


def test_beside_an_open_look_at_the_fleet(conn: psycopg.Connection, dsn: str) -> None:
    """What is remembered for what is gone now is held: prune does not wait, and comes back."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    place(conn, 1, 1)
    direct.spawn(QUEUE, lease("web", spread("web", max_skew=1)))
    direct.spawn(QUEUE, {"placement": {"prefer": [{"weight": 1, "when": {"rack": 2}}]}})
    publish(direct)
    conn.execute(LOOK)
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        sleeper.begin()
        sleeper.conn.execute(LOOK)
        other.conn.execute("delete from hwqueue.lease")
        other.conn.execute("delete from hwqueue.ready")
        other.conn.execute(DELETE_CLASSES)
        other.conn.execute("select hwqueue.prune_terms(10)")
        assert other.conn.execute(PRUNE, [10]).fetchall() == [(0,)]
        sleeper.commit()
        other.conn.execute(PRUNE, [10])
        assert other.conn.execute(REMEMBERED).fetchall() == [(0, 0)]


def test_beside_an_open_reap(conn: psycopg.Connection, dsn: str) -> None:
    """What it has found out of a class is held: prune leaves the class, and comes back."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    register(conn)
    direct.spawn(QUEUE)
    conn.execute("select hwqueue.reap()")
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        sleeper.begin()
        sleeper.conn.execute(FIND_OUT)
        other.conn.execute("delete from hwqueue.lease")
        other.conn.execute("delete from hwqueue.ready")
        assert other.conn.execute(DELETE_CLASSES).fetchall() == [(0,)]
        sleeper.commit()
        assert other.conn.execute(DELETE_CLASSES).fetchall() == [(1,)]
    assert conn.execute("select from hwqueue.class_fleet").rowcount == 0
    assert conn.execute("select from hwqueue.class_mask").rowcount == 0


def test_a_class_that_stays_is_still_told_of(conn: psycopg.Connection, dsn: str) -> None:
    """What was judged of it is held: the event that no node may run it is not told again."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    direct.spawn(QUEUE)
    direct.claim(QUEUE, *node)
    conn.execute("select hwqueue.reap()")
    conn.execute("update hwqueue.class_fleet set reported_at = hwqueue.clock()")
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        sleeper.begin()
        held = sleeper.conn.execute("select from hwqueue.profile_eligibility for update").rowcount
        assert held == 1
        assert other.conn.execute(DELETE_CLASSES).fetchall() == [(0,)]
        told = other.conn.execute("select reported_at is not null from hwqueue.class_fleet").fetchall()
        assert told == [(True,)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("placement", [{}, {"require": [{"label": "nowhere", "op": "exists"}]}])
def test_reap_beside_an_open_prune(
    conn: psycopg.Connection, dsn: str, clock: Clock, end: str, placement: dict[str, Any]
) -> None:
    """Nothing is found out or told of a class that is being pruned, and reap does not wait."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    register(conn)
    direct.spawn(QUEUE, {"placement": placement})
    conn.execute("select hwqueue.reap()")
    conn.execute("delete from hwqueue.lease")
    conn.execute("delete from hwqueue.ready")
    with interleave(dsn, SHORT) as actor:
        sleeper, other = actor(), actor()
        sleeper.begin()
        assert sleeper.conn.execute(DELETE_CLASSES).fetchall() == [(1,)]
        conn.execute("select hwqueue.cordon_node(node_id) from hwqueue.node")
        for _ in range(2):  # the node is another one, and then it stays as it is
            clock.advance(timedelta(seconds=11))
            other.conn.execute("select hwqueue.reap()")
        getattr(sleeper, end)()
        clock.advance(timedelta(seconds=11))
        other.conn.execute("select hwqueue.reap()")
    left = 0 if end == "commit" else 1
    assert conn.execute("select from hwqueue.class_fleet").rowcount == left
    assert conn.execute("select from hwqueue.class_mask").rowcount == left
    assert conn.execute("select from hwqueue.class_fleet where reported_at is not null").rowcount == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_node_registers_while_its_rows_are_deleted(
    conn: psycopg.Connection, dsn: str, clock: Clock, end: str
) -> None:
    """It waits, and gets an epoch above the one that is deleted."""
    node, epoch = register(conn)
    spec = {"name": "again", "instance_id": "later"}
    conn.execute("select hwqueue.deregister_node(%s)", [node])
    clock.advance(31 * DAY)
    with interleave(dsn) as actor:
        sleeper, worker = actor(), actor()
        sleeper.begin()
        [(gone,)] = sleeper.conn.execute("select nodes from hwqueue.prune()").fetchall()
        assert gone == 1
        registering = worker.start(lambda d: d.register(node, spec))
        worker.wait_until_parked()
        getattr(sleeper, end)()
        assert registering.result(TIMEOUT) > epoch


def test_prune_passes_by_a_node_that_registers(conn: psycopg.Connection, dsn: str, clock: Clock) -> None:
    """It waits for no worker, and the node is there."""
    node, epoch = register(conn)
    spec = {"name": "again", "instance_id": "later"}
    conn.execute("select hwqueue.deregister_node(%s)", [node])
    clock.advance(31 * DAY)
    with interleave(dsn, SHORT) as actor:
        worker, other = actor(), actor()
        worker.begin()
        assert worker.conn.execute("select hwqueue.is_known_node(%s)", [node]).fetchall() == [(True,)]
        assert other.conn.execute("select nodes from hwqueue.prune()").fetchall() == [(0,)]
        assert worker.direct.register(node, spec) > epoch
        worker.commit()
        assert other.conn.execute("select nodes from hwqueue.prune()").fetchall() == [(0,)]
