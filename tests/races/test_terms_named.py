"""A lease that a term names comes to a class of its own, whoever has it in hand then."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import OTHER, QUEUE, node_spec
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import away, ids, known, lease, never, paused, place, publish, soon_granted, with_lease

NAMED = str(uuid4())
_OWN_CLASS = """
  select c.target is not null from hwqueue.ready r
  join hwqueue.placement_class c on c.class_id = r.class_id
  where r.lease_id = %s
"""
# As if the node's profile had seen all classes at once.
_ALL_SEEN = """
  update hwqueue.profile_queue p set classes_seen = s.classes_seen
  from hwqueue.node_state s where s.node_id = %s and s.profile_id = p.profile_id
"""


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_named_lease_is_spawned_later(direct: Direct, actor: Actors, first_commits: bool) -> None:
    """Its spawn was open before the term was known: it has the class of others, and is checked."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    direct.spawn(QUEUE)  # a lease of the same class: the class is known to all nodes
    direct.spawn(QUEUE)
    assert len(direct.claim(QUEUE, *one_node)) == 1
    assert len(direct.claim(QUEUE, *elsewhere)) == 1
    producer, other = actor().begin(), actor()
    producer.direct.spawn(QUEUE, {"lease_id": NAMED})
    held = other.direct.spawn(OTHER, with_lease(NAMED, away=True))["lease_id"]
    never(other.direct, two_node)
    producer.end(first_commits)
    publish(other.direct)
    other.begin()
    assert ids(other.direct.claim(OTHER, *two_node)) == [held]
    if first_commits:
        assert direct.claim(QUEUE, *one_node) == []  # the holder is not committed yet
        other.commit()
        assert direct.claim(QUEUE, *one_node) == []
        assert ids(direct.claim(QUEUE, *elsewhere)) == [UUID(NAMED)]
    else:
        other.commit()


@pytest.mark.parametrize("edited", [False, True])
def test_a_named_lease_comes_when_the_term_is_in_force(direct: Direct, actor: Actors, edited: bool) -> None:
    """It gets a class of its own, whose claims are checked, and keeps one when it is edited."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    known(direct, {}, one_node, elsewhere)
    known(direct, lease("web"), one_node, elsewhere)
    held = direct.spawn(OTHER, with_lease(NAMED, away=True))["lease_id"]
    publish(direct)
    one, two = actor().begin(), actor()
    assert ids(one.direct.claim(OTHER, *two_node)) == [held]
    direct.spawn(QUEUE, {"lease_id": NAMED})
    if edited:
        direct.update(UUID(NAMED), {"labels": {"app": "web"}})
    assert two.direct.claim(QUEUE, *one_node) == []
    one.commit()
    assert two.direct.claim(QUEUE, *one_node) == []
    assert ids(two.direct.claim(QUEUE, *elsewhere)) == [UUID(NAMED)]


def test_a_named_lease_that_shares_a_class(direct: Direct, actor: Actors) -> None:
    """Spawned before anybody named it: it is kept out, the others of its class are not."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    named = direct.spawn(QUEUE)["lease_id"]
    like = [direct.spawn(QUEUE)["lease_id"] for _ in range(2)]
    early, other, third = actor().begin(), actor(), actor()
    assert ids(early.direct.claim(QUEUE, *elsewhere)) == [named]
    held = other.direct.spawn(OTHER, with_lease(named, away=True))["lease_id"]
    never(other.direct, two_node)
    early.rollback()
    publish(other.direct)
    other.begin()
    assert ids(other.direct.claim(OTHER, *two_node)) == [held]
    # the named lease is the oldest, and must not come here
    assert ids(third.direct.claim(QUEUE, *one_node)) == like[:1]
    other.commit()
    assert ids(third.direct.claim(QUEUE, *one_node, qty=9)) == like[1:]
    assert ids(third.direct.claim(QUEUE, *elsewhere)) == [named]


def test_an_entry_gets_a_class_of_its_own_while_it_is_chosen(direct: Direct, actor: Actors) -> None:
    """Somebody names it: the claim that had looked at it leaves it, to be checked anew."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    licensed = node_spec(2, rack=1, labels={"zone": "1"}, capacity={"license": 9})
    direct.register(two_node[0], licensed)  # not plain: it looks at the front of several classes
    keeping = lease("web", away("db"))
    direct.spawn(OTHER, lease("db"))
    direct.spawn(OTHER, keeping)
    publish(direct)
    assert len(direct.claim(OTHER, *one_node)) == 1
    first = direct.spawn(QUEUE, keeping)["lease_id"]
    rest = [direct.spawn(QUEUE, lease(f"app-{n}"))["lease_id"] for n in range(20)]
    assert ids(direct.claim(QUEUE, *two_node)) == rest[:1]  # all classes are judged
    worker, publisher = actor(), actor()
    with paused(
        direct,
        worker,
        lambda d: d.claim(QUEUE, *two_node),
        at=("choose_from_groups", "v_taken := hwqueue.choose_seen"),
    ) as claimed:
        publisher.direct.spawn(OTHER, {"placement": {"require": [{"lease": str(first)}]}})
        publisher.direct.reap()
        assert direct.conn.execute(_OWN_CLASS, [first]).fetchall() == [(True,)]
    assert ids(claimed.result(TIMEOUT)) == rest[1:2]
    publish(direct)


@pytest.mark.parametrize("qty", [1, 3])
@pytest.mark.parametrize("more", [{}, {"away": True}], ids=["with", "away"])
def test_the_claim_that_learns_a_lease_is_named(direct: Direct, more: dict[str, Any], qty: int) -> None:
    """It gives the lease a class of its own, and grants it in its turn."""
    node = place(direct, 1, 1)
    plain = [direct.spawn(QUEUE, {"lease_id": NAMED})["lease_id"]]
    plain += [direct.spawn(QUEUE)["lease_id"] for _ in range(2)]
    asks = {"placement": {"require": [{"lease": NAMED} | more]}, "priority": 5}
    asking_lease = direct.spawn(QUEUE, asks)["lease_id"]
    got = [found for _ in range(4) for found in ids(direct.claim(QUEUE, *node, qty=qty))]
    assert [found for found in got if found != asking_lease] == plain


@pytest.mark.parametrize("qty", [1, 3])
def test_the_claim_that_writes_a_term_grants_the_lease_it_names(
    direct: Direct, actor: Actors, qty: int
) -> None:
    """The class was judged while another session held that row, so the term came later."""
    node = place(direct, 1, 1)
    others = [direct.spawn(QUEUE)["lease_id"] for _ in range(3)]
    rest = [direct.spawn(QUEUE, {"lease_id": NAMED})["lease_id"]]
    rest += [direct.spawn(QUEUE)["lease_id"] for _ in range(3)]
    asking = direct.spawn(QUEUE, {"placement": {"require": [{"lease": NAMED}]}, "priority": 5})
    idle = actor()
    for found in others:
        idle.begin()
        idle.conn.execute("select from hwqueue.installation for no key update")
        assert ids(direct.claim(QUEUE, *node)) == [found]
        idle.rollback()
    direct.conn.execute(_ALL_SEEN, [node[0]])
    claims = [ids(direct.claim(QUEUE, *node, qty=qty)) for _ in range(5)]
    granted = [found for claim in claims for found in claim]
    for _ in looks():  # other sessions on the server may keep its term from being published
        if asking["lease_id"] in granted:
            break
        granted += ids(direct.claim(QUEUE, *node))
    granted.remove(asking["lease_id"])  # as soon as its term is published and the other one runs
    assert granted == rest


def test_what_is_decided_for_one_lease_is_not_taken_for_the_named_one(direct: Direct, actor: Actors) -> None:
    """One that had ended when it was named, and is requeued, is in its class beside others."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    known(direct, {}, one_node, elsewhere)
    named = direct.spawn(QUEUE)["lease_id"]
    direct.cancel(named)
    held = direct.spawn(OTHER, with_lease(named, away=True))["lease_id"]
    publish(direct)
    assert ids(direct.claim(OTHER, *two_node)) == [held]
    first = direct.spawn(QUEUE)["lease_id"]
    direct.requeue(named)
    # with so many classes a claim looks at the front of the queue, where it sees both
    rest = [direct.spawn(QUEUE, lease(f"app-{n}"))["lease_id"] for n in range(20)]
    assert direct.conn.execute(_OWN_CLASS, [named]).fetchall() == [(False,)]
    worker = actor()
    with paused(
        direct, worker, lambda d: d.claim(QUEUE, *one_node), at=("choose_seen", "if v_verdict.is_choice then")
    ) as claimed:
        assert ids(direct.claim(QUEUE, *elsewhere)) == [first]
    assert ids(claimed.result(TIMEOUT)) == rest[:1]
    assert ids(direct.claim(QUEUE, *elsewhere)) == [named]


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
        "select hwqueue.promote_due(array(select q.queue_id from hwqueue.queue q), 9, false, hwqueue.clock())"
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
