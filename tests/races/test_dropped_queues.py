"""drop_queue against what is on the way: it waits for nobody, and loses nothing that runs."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, Actor, interleave
from tests.sql.api import outlive

PRUNE = "select from hwqueue.prune()"
QUEUES = """
  select (select count(*) from hwqueue.queue where name = %(name)s), (
    select count(*) from hwqueue.profile_queue s
    join hwqueue.queue q
      on q.queue_id = s.queue_id and q.name = %(name)s
  )
"""
LEFT = """
  select (select count(*) from hwqueue.lease) + (select count(*) from hwqueue.ready)
       + (select count(*) from hwqueue.claim) + (select count(*) from hwqueue.idempotency)
"""

LEFT_OF_QUEUES = """
  select (select count(*) from hwqueue.queue), (select count(*) from hwqueue.placement_class)
"""


def prune(conn: psycopg.Connection) -> None:
    """Delete all that can be deleted while others have something open."""
    for _ in range(4):
        conn.execute(PRUNE)


def purge(conn: psycopg.Connection) -> None:
    """Delete all that can be deleted once nobody has."""
    conn.execute(PRUNE)
    outlive(conn)
    prune(conn)


def outlive_older(conn: psycopg.Connection, actor: Actor) -> None:
    """Wait until no transaction is open, anywhere on the server, that is older than the actor's."""
    mine = actor.conn.execute("select pg_current_xact_id()::text").fetchone()
    for _ in looks():
        if conn.execute("select pg_snapshot_xmin(pg_current_snapshot())::text").fetchone() == mine:
            return
    raise AssertionError("some session on this server keeps a transaction open")


def spawn_once(producer: Actor) -> str | None:
    """Spawn a lease in the open transaction; the SQLSTATE if that was refused."""
    try:
        producer.direct.spawn(QUEUE, {"idempotency_key": "once"})
    except psycopg.DatabaseError as refused:
        return refused.sqlstate
    return None


@pytest.fixture
def node(conn: psycopg.Connection) -> tuple[UUID, int]:
    """A node with one slot, and a queue."""
    Direct(conn).create_queue(QUEUE)
    return register(conn, slots=1)


@pytest.mark.parametrize("outcome", ["complete", "release", "settle_and_claim", "reap"])
def test_a_claim_in_flight(
    conn: psycopg.Connection, dsn: str, clock: Clock, node: tuple[UUID, int], outcome: str
) -> None:
    """It settles like any other, its room is free again, and nothing of it is left."""
    direct = Direct(conn)
    lease = direct.spawn(QUEUE)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        [claim] = worker.direct.claim(QUEUE, *node)
        operator.direct.drop_queue(QUEUE)
        prune(conn)
        worker.commit()
    purge(conn)
    direct.create_queue("other")
    next_lease = direct.spawn("other")["lease_id"]
    assert direct.claim("other", *node) == []
    if outcome == "complete":
        assert direct.complete(lease, claim["claim_token"]) == "completed"
    elif outcome == "release":
        assert direct.release(lease, claim["claim_token"]) in ("pending", "cancelled")
    elif outcome == "reap":
        clock.advance(timedelta(hours=1))
        assert direct.reap()["expired"] == 1
    else:
        rows = direct.settle_and_claim("other", *node, [claim])
        assert [row["verdict"] for row in rows if row["kind"] == "settled"] == ["ok"]
        assert [row["lease_id"] for row in rows if row["kind"] == "claimed"] == [next_lease]
    if outcome != "settle_and_claim":
        assert [row["lease_id"] for row in direct.claim("other", *node)] == [next_lease]
    purge(conn)
    assert conn.execute(LEFT).fetchone() == (2,)  # the next lease and its claim


def test_a_spawn_in_flight(conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]) -> None:
    """It ends as its producer wishes; only then does it go with its queue, whose name is free."""
    direct = Direct(conn)
    with interleave(dsn, SHORT) as actor:
        producer, operator = actor(), actor()
        producer.begin()
        lost = producer.direct.spawn(QUEUE, {"idempotency_key": "once"})["lease_id"]
        operator.direct.drop_queue(QUEUE)
        operator.direct.create_queue(QUEUE, {"max_attempts": 7})
        kept = operator.direct.spawn(QUEUE, {"idempotency_key": "once"})["lease_id"]
        assert kept != lost
        prune(conn)
        assert producer.direct.lease(lost)["state"] == "pending"
        producer.commit()
    assert [row["lease_id"] for row in direct.claim(QUEUE, *node, qty=5)] == [kept]
    purge(conn)
    with pytest.raises(psycopg.DatabaseError) as gone:
        direct.lease(lost)
    assert gone.value.sqlstate == "QHL04"
    assert conn.execute(LEFT).fetchone() == (3,)  # the kept lease, its claim, its key


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("before", range(4))
def test_a_spawn_that_has_looked_already(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], isolation: str, before: int
) -> None:
    """If its snapshot still shows the queue, what it writes goes with the queue, or is refused."""
    direct = Direct(conn)
    with interleave(dsn, SHORT) as actor:
        producer = actor()
        producer.begin(isolation)
        assert producer.direct.states(QUEUE) == {}
        direct.drop_queue(QUEUE)
        for _ in range(before):
            conn.execute(PRUNE)
            outlive(conn)
        code = spawn_once(producer)
        prune(conn)
        producer.rollback() if code else producer.commit()
        assert code in (["QHQ01"] if isolation == "read committed" else [None, "40001"])
    purge(conn)
    assert conn.execute(LEFT).fetchone() == (0,)


def test_twice_at_once(conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]) -> None:
    """The second waits for the first, and finds no queue."""
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        one.direct.drop_queue(QUEUE)
        second = two.start(lambda d: d.drop_queue(QUEUE))
        two.wait_until_parked()
        one.commit()
        refused = second.exception(TIMEOUT)
        assert isinstance(refused, psycopg.Error)
        assert refused.sqlstate == "QHQ01"


def test_claims_are_held_in_one_order(conn: psycopg.Connection, dsn: str) -> None:
    """drop_queue holds claims by id, without their node: so must who settles in two lists."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn, slots=2)
    direct.spawn_many(QUEUE, [{}] * 2)
    first, second = sorted(direct.claim(QUEUE, *node, qty=2), key=lambda row: row["lease_id"])
    hold = "select from hwqueue.claim where lease_id = %s for update nowait"
    with interleave(dsn) as actor:
        holder, worker = actor(), actor()
        holder.begin()
        holder.conn.execute(hold, [first["lease_id"]])
        settled = worker.start(lambda d: d.settle_and_claim(QUEUE, *node, [second], qty=0, completed=[first]))
        worker.wait_until_blocked_by(holder)
        conn.execute(hold, [second["lease_id"]])
        holder.commit()
        assert [row["verdict"] for row in settled.result(TIMEOUT)] == ["ok"]


def test_it_leaves_claims_to_reap(
    conn: psycopg.Connection, dsn: str, clock: Clock, node: tuple[UUID, int]
) -> None:
    """A claim that is held does not hold it up, nor does it hold any; a few are asked at a time."""
    direct = Direct(conn)
    wide = register(conn, 1)
    direct.spawn_many(QUEUE, [{}] * 4)
    held, *rest = direct.claim(QUEUE, *wide, qty=4)
    with interleave(dsn, SHORT) as actor:
        producer, operator, worker = actor(), actor(), actor()
        producer.begin()
        producer.direct.extend(held["lease_id"], held["claim_token"], timedelta(minutes=2))
        operator.begin()
        operator.direct.drop_queue(QUEUE)
        assert worker.direct.complete_many(rest[:1]) == []
        operator.commit()
        asked = "select count(*) from hwqueue.claim where stop_reason = 'cancelled'"
        counts = []
        for limit in (1, 5, 5):
            conn.execute("select from hwqueue.reap(%s)", [limit])
            counts.append(conn.execute(asked).fetchone())
        assert counts == [(1,), (2,), (2,)]  # the third one is held
        producer.rollback()
    clock.advance(timedelta(seconds=11))
    direct.reap()
    verdicts = direct.heartbeat(*wide, [held, *rest[1:]])
    assert {row["verdict"] for row in verdicts} == {"cancelled"}
    told = "select count(*) from hwqueue.event where code = 'claim_stop_requested'"
    assert conn.execute(told).fetchone() == (3,)


@pytest.mark.parametrize("where", ["ready", "scheduled", "finished"])
def test_somebody_who_holds_a_lease(
    conn: psycopg.Connection, dsn: str, node: tuple[UUID, int], where: str
) -> None:
    """Cancelled or requeued while the queue is deleted: it and its class stay until that ends."""
    direct = Direct(conn)
    lease = direct.spawn(QUEUE, {"delay": 3600} if where == "scheduled" else {})["lease_id"]
    if where == "finished":
        direct.cancel(lease)
    direct.drop_queue(QUEUE)
    with interleave(dsn, SHORT) as actor:
        older, user = actor(), actor()
        older.begin()
        older.conn.execute("select pg_current_xact_id()")
        conn.execute(PRUNE)  # stamps the queue
        user.begin()
        user.direct.requeue(lease) if where == "finished" else user.direct.cancel(lease)
        older.commit()
        outlive_older(conn, user)
        prune(conn)
        assert conn.execute(LEFT_OF_QUEUES).fetchone() == (1, 1)
        user.rollback() if where == "scheduled" else user.commit()
    purge(conn)
    assert conn.execute(LEFT_OF_QUEUES).fetchone() == (0, 0)
    assert conn.execute(LEFT).fetchone() == (0,)


def test_a_judge_that_idles(conn: psycopg.Connection, dsn: str, node: tuple[UUID, int]) -> None:
    """It holds what its profile has seen of all queues; prune passes by, and comes back."""
    direct = Direct(conn)
    direct.create_queue("other")
    lease = direct.spawn(QUEUE)["lease_id"]
    direct.complete(lease, direct.claim(QUEUE, *node)[0]["claim_token"])
    direct.drop_queue(QUEUE)
    direct.spawn("other")
    with interleave(dsn) as actor:
        older, worker = actor(), actor()
        older.begin()
        older.conn.execute("select pg_current_xact_id()")
        conn.execute(PRUNE)  # stamps the queue
        worker.begin()
        assert len(worker.direct.claim("other", *node)) == 1
        older.commit()
        conn.execute("select set_config('lock_timeout', %s, false)", [SHORT])
        outlive_older(conn, worker)
        prune(conn)
        assert conn.execute(QUEUES, {"name": QUEUE}).fetchone() == (1, 1)
        worker.commit()
    purge(conn)
    assert conn.execute(QUEUES, {"name": QUEUE}).fetchone() == (0, 0)
