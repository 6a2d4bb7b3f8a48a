"""A class that is for one lease only is no candidate while that is scheduled, and no longer."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import OTHER, QUEUE
from tests.races.interleave import Actors
from tests.races.terms import away, ids, lease, place, publish, soon_granted, with_lease

NOT_NOW: dict[str, Any] = {"delay": 3600}


def named(direct: Direct, **options: Any) -> UUID:
    """A lease that is due in an hour, and another one that must be with it."""
    first: UUID = direct.spawn(QUEUE, NOT_NOW | options)["lease_id"]
    direct.spawn(OTHER, with_lease(first))
    return first


@pytest.mark.parametrize("dump", [False, True])
def test_a_policy_after_a_named_lease_is_pruned(direct: Direct, clock: Clock, dsn: str, dump: bool) -> None:
    """Its class outlives it, and gets terms that have to come into force."""
    node = place(direct, 1, 1)
    service = str(uuid4())
    first = named(direct, service_id=service)
    publish(direct)
    direct.update(first, {"available_at": clock.now().isoformat()})
    [claim] = direct.claim(QUEUE, *node)
    direct.complete(first, claim["claim_token"])
    clock.advance(timedelta(days=8))
    direct.reap()
    with psycopg.connect(dsn) as open_for_long:
        if dump:  # as long as it lasts, however often somebody prunes
            open_for_long.execute("select pg_current_xact_id()")
        for _ in range(5 if dump else 1):
            direct.conn.execute("select hwqueue.prune()")
        direct.conn.execute(
            "select hwqueue.set_service_policy(%s,"
            " jsonb_build_object('anti_affinity_services', jsonb_build_array(%s::text)))",
            [service, service],
        )
        direct.reap()


def test_a_term_comes_into_force_after_a_scheduled_lease_is_pruned(
    direct: Direct, clock: Clock, dsn: str
) -> None:
    """The term waited for a writer meanwhile."""
    direct.conn.execute("update hwqueue.queue set retain_completed = '0', retain_failed = '0'")
    with psycopg.connect(dsn) as idle:
        idle.execute("select pg_current_xact_id()")
        first = named(direct, **lease("web", away("web")))
        direct.reap()
        direct.reap()
        direct.cancel(first)
        clock.advance(timedelta(hours=3))
        direct.conn.execute("select hwqueue.prune()")
        idle.rollback()
    publish(direct)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_lease_that_ended_while_scheduled_is_requeued(direct: Direct, clock: Clock, how: str) -> None:
    """It is a candidate at once."""
    node = place(direct, 1, 1)
    first = named(direct)
    publish(direct)
    if how == "cancel":
        direct.cancel(first)
    else:
        late = (clock.now() + timedelta(seconds=60)).isoformat()
        direct.update(first, {"deadline": late})
        clock.advance(timedelta(seconds=61))
        direct.reap()
    assert direct.requeue(first) == "pending"
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_a_scheduled_lease_is_adopted_and_released(direct: Direct) -> None:
    """Its key stood for a lease that was scheduled; it is a candidate at once."""
    node = place(direct, 1, 1)
    first = named(direct, idempotency_key="key")
    publish(direct)
    adopted = direct.adopt(QUEUE, node[0], {"idempotency_key": "key"})
    direct.release(first, adopted["claim_token"])
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_a_ready_lease_gets_the_class_that_it_had_while_scheduled(direct: Direct, clock: Clock) -> None:
    """The lease had lost its class for a while, and was brought forward in between."""
    direct.conn.execute("update hwqueue.queue set retain_completed = '0', retain_failed = '0'")
    first = direct.spawn(QUEUE, {"delay": 360000})["lease_id"]
    asks = with_lease(first)
    second = direct.spawn(OTHER, asks)["lease_id"]
    publish(direct)
    direct.cancel(second)
    clock.advance(timedelta(hours=2))
    for _ in looks():  # until nobody asks any more
        direct.conn.execute("select hwqueue.prune()")
        if direct.conn.execute("select 1 from hwqueue.affinity_term").fetchone() is None:
            break
    direct.update(first, {"labels": {"app": "web"}})
    direct.update(first, {"labels": {}, "available_at": clock.now().isoformat()})
    direct.spawn(OTHER, asks)
    node = place(direct, 1, 1)
    for _ in range(8):
        direct.conn.execute("select from hwqueue.publish_terms(9, true, hwqueue.clock())")
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_an_id_is_used_again(direct: Direct, clock: Clock) -> None:
    """Its class is one that a pruned lease of that id has left behind, as it was."""
    clock.freeze()  # a slow machine would reach the ten seconds below
    direct.conn.execute("update hwqueue.queue set retain_completed = '0', retain_failed = '0'")
    node = place(direct, 1, 1)
    first = named(direct, lease_id=str(uuid4()))
    publish(direct)
    direct.cancel(first)
    for _ in range(3):
        clock.advance(timedelta(seconds=3))
        direct.reap()
    direct.conn.execute("select hwqueue.prune()")
    waits = direct.conn.execute("select target from hwqueue.placement_class where waits").fetchall()
    assert (first,) in waits  # reap looks after such classes each ten seconds
    direct.spawn(QUEUE, {"lease_id": str(first)})
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_terms_are_written_while_the_lease_falls_due(direct: Direct, actor: Actors, clock: Clock) -> None:
    """Who writes its terms sees the lease scheduled, who promotes it the class a candidate."""
    node = place(direct, 1, 1)
    first = named(direct)
    direct.spawn(OTHER, lease("web", away("web")))
    publish(direct)
    direct.update(first, {"labels": {"app": "web"}, "placement": away("web")})
    clock.advance(timedelta(seconds=3600))
    one = actor().begin()
    one.conn.execute(
        "select hwqueue.promote_due(array(select q.queue_id from hwqueue.queue q), 9, hwqueue.clock())"
    )
    direct.conn.execute("select from hwqueue.publish_terms(2, true, hwqueue.clock())")
    one.commit()
    assert ids(direct.claim(QUEUE, *node)) == [first]


def test_terms_do_not_wait_for_a_producer_that_came_later(
    direct: Direct, actor: Actors, clock: Clock
) -> None:
    """It brought a scheduled lease forward; all that was open at the terms' writing has ended."""
    node = place(direct, 1, 1)
    idle = actor().begin(has_id=True)
    first = named(direct, **lease("web", away("web")))
    other = direct.spawn(OTHER, lease("web", away("web")))["lease_id"]
    for _ in range(5):
        direct.reap()
        assert direct.claim(OTHER, *node) == []
    producer = actor().begin()
    producer.direct.update(first, {"available_at": clock.now().isoformat()})
    idle.rollback()

    def claim() -> list[Row]:
        direct.reap()
        return direct.claim(OTHER, *node)

    assert soon_granted(claim) == [other]
    producer.commit()
