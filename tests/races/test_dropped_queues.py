"""drop_queue against what is on the way: it waits for nobody, and loses nothing that runs."""

from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet, sqlstate_of
from tests.sql.api import outlive, refusing

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
  select (select count(*) from hwqueue.queue where name = 'races'),
         (select count(*) from hwqueue.placement_class)
"""


def prune(direct: Direct) -> None:
    """Delete all that can be deleted while others have something open."""
    for _ in range(4):
        direct.conn.execute(PRUNE)


def purge(direct: Direct) -> None:
    """Delete all that can be deleted once nobody has."""
    direct.conn.execute(PRUNE)
    outlive(direct.conn)
    prune(direct)


def outlive_older(direct: Direct, actor: Actor) -> None:
    """Wait until no transaction is open, anywhere on the server, that is older than the actor's."""
    mine = actor.conn.execute("select pg_current_xact_id()::text").fetchone()
    for _ in looks():
        if direct.conn.execute("select pg_snapshot_xmin(pg_current_snapshot())::text").fetchone() == mine:
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
def node(direct: Direct) -> Node:
    return register(direct, slots=1)


@pytest.mark.parametrize("outcome", ["complete", "release", "settle_and_claim", "reap"])
def test_a_claim_in_flight(direct: Direct, actor: Actors, clock: Clock, node: Node, *, outcome: str) -> None:
    """It settles like any other, its room is free again, and nothing of it is left."""
    lease = direct.spawn(QUEUE)["lease_id"]
    worker, operator = actor().begin(), actor()
    [claim] = worker.direct.claim(QUEUE, *node)
    operator.direct.drop_queue(QUEUE)
    prune(direct)
    worker.commit()
    purge(direct)
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
    purge(direct)
    assert direct.conn.execute(LEFT).fetchone() == (2,)  # the next lease and its claim


def test_a_spawn_in_flight(direct: Direct, actor: Actors, node: Node) -> None:
    """It ends as its producer wishes; only then does it go with its queue, whose name is free."""
    producer, operator = actor().begin(), actor()
    lost = producer.direct.spawn(QUEUE, {"idempotency_key": "once"})["lease_id"]
    operator.direct.drop_queue(QUEUE)
    operator.direct.create_queue(QUEUE, {"max_attempts": 7})
    kept = operator.direct.spawn(QUEUE, {"idempotency_key": "once"})["lease_id"]
    assert kept != lost
    prune(direct)
    assert producer.direct.lease(lost)["state"] == "pending"
    producer.commit()
    assert [row["lease_id"] for row in direct.claim(QUEUE, *node, qty=5)] == [kept]
    purge(direct)
    with refusing("QHL04"):
        direct.lease(lost)
    assert direct.conn.execute(LEFT).fetchone() == (3,)  # the kept lease, its claim, its key


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("before", range(4))
def test_a_spawn_that_has_looked_already(
    direct: Direct, actor: Actors, node: Node, isolation: str, *, before: int
) -> None:
    """If its snapshot still shows the queue, what it writes goes with the queue, or is refused."""
    producer = actor().begin(isolation)
    assert producer.direct.states(QUEUE) == {}
    direct.drop_queue(QUEUE)
    for _ in range(before):
        direct.conn.execute(PRUNE)
        outlive(direct.conn)
    code = spawn_once(producer)
    prune(direct)
    producer.rollback() if code else producer.commit()
    assert code in (["QHQ01"] if isolation == "read committed" else [None, "40001"])
    purge(direct)
    assert direct.conn.execute(LEFT).fetchone() == (0,)


def test_twice_at_once(meet: Meet) -> None:
    """The second waits for the first, and finds no queue."""
    _, second = meet(lambda d: d.drop_queue(QUEUE), lambda d: d.drop_queue(QUEUE))
    assert sqlstate_of(second) == "QHQ01"


def test_claims_are_held_in_one_order(direct: Direct, actor: Actors) -> None:
    """drop_queue holds claims by id, without their node: so must who settles in two lists."""
    node = register(direct, slots=2)
    direct.spawn_many(QUEUE, [{}] * 2)
    first, second = sorted(direct.claim(QUEUE, *node, qty=2), key=lambda row: row["lease_id"])
    hold = "select from hwqueue.claim where lease_id = %s for update nowait"
    holder, worker = actor().begin(has_id=True), actor()
    holder.conn.execute(hold, [first["lease_id"]])
    settled = worker.parked(
        lambda d: d.settle_and_claim(QUEUE, *node, [second], qty=0, completed=[first]), behind=holder
    )
    direct.conn.execute(hold, [second["lease_id"]])
    holder.commit()
    assert [row["verdict"] for row in settled.result(TIMEOUT)] == ["ok"]


def test_it_leaves_claims_to_reap(direct: Direct, actor: Actors, clock: Clock, node: Node) -> None:
    """A claim that is held does not hold it up, nor does it hold any; a few are asked at a time."""
    wide = register(direct, 1)
    direct.spawn_many(QUEUE, [{}] * 4)
    held, *rest = direct.claim(QUEUE, *wide, qty=4)
    producer, operator, worker = actor().begin(), actor(), actor()
    producer.direct.extend(held["lease_id"], held["claim_token"], timedelta(minutes=2))
    operator.begin()
    operator.direct.drop_queue(QUEUE)
    assert worker.direct.complete_many(rest[:1]) == []
    operator.commit()
    asked = "select count(*) from hwqueue.claim where stop_reason = 'cancelled'"
    counts = []
    for limit in (1, 5, 5):
        direct.conn.execute("select from hwqueue.reap(%s)", [limit])
        counts.append(direct.conn.execute(asked).fetchone())
    assert counts == [(1,), (2,), (2,)]  # the third one is held
    producer.rollback()
    clock.advance(timedelta(seconds=11))
    direct.reap()
    verdicts = direct.heartbeat(*wide, [held, *rest[1:]])
    assert {row["verdict"] for row in verdicts} == {"cancelled"}
    told = "select count(*) from hwqueue.event where code = 'claim_stop_requested'"
    assert direct.conn.execute(told).fetchone() == (3,)


@pytest.mark.parametrize("where", ["ready", "scheduled", "finished"])
def test_somebody_who_holds_a_lease(direct: Direct, actor: Actors, node: Node, where: str) -> None:
    """Cancelled or requeued while the queue is deleted: it and its class stay until that ends."""
    lease = direct.spawn(QUEUE, {"delay": 3600} if where == "scheduled" else {})["lease_id"]
    if where == "finished":
        direct.cancel(lease)
    direct.drop_queue(QUEUE)
    older, user = actor().begin(has_id=True), actor()
    direct.conn.execute(PRUNE)  # stamps the queue
    user.begin()
    user.direct.requeue(lease) if where == "finished" else user.direct.cancel(lease)
    older.commit()
    outlive_older(direct, user)
    prune(direct)
    assert direct.conn.execute(LEFT_OF_QUEUES).fetchone() == (1, 1)
    user.rollback() if where == "scheduled" else user.commit()
    purge(direct)
    assert direct.conn.execute(LEFT_OF_QUEUES).fetchone() == (0, 0)
    assert direct.conn.execute(LEFT).fetchone() == (0,)


def test_a_judge_that_idles(direct: Direct, actor: Actors, node: Node) -> None:
    """It holds what its profile has seen of all queues; prune passes by, and comes back."""
    lease = direct.spawn(QUEUE)["lease_id"]
    direct.complete(lease, direct.claim(QUEUE, *node)[0]["claim_token"])
    direct.drop_queue(QUEUE)
    direct.spawn("other")
    older, worker = actor().begin(has_id=True), actor()
    direct.conn.execute(PRUNE)  # stamps the queue
    worker.begin()
    assert len(worker.direct.claim("other", *node)) == 1
    older.commit()
    outlive_older(direct, worker)
    prune(direct)
    assert not direct.conn.execute("select from hwqueue.postponed").fetchall()  # as what waited in vain
    assert direct.conn.execute(QUEUES, {"name": QUEUE}).fetchone() == (1, 1)
    worker.commit()
    purge(direct)
    assert direct.conn.execute(QUEUES, {"name": QUEUE}).fetchone() == (0, 0)
