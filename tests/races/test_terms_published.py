"""Terms that are being published, and what has been published, while others claim, spawn and end."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import OTHER, QUEUE, node_spec, register, started
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import (
    FAR,
    away,
    counts,
    ids,
    known,
    lease,
    never,
    paused,
    place,
    publish,
    soon_granted,
    spread,
    unpublished,
    with_lease,
)
from tests.races.test_terms_moving import ENDS
from tests.sql.api import outlive

SERVICE = str(uuid4())
NAMED = str(uuid4())

# who is in flight, and who then asks to be away from it
ASKING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "labels": (lease("web"), {"placement": away("web")}),
    "every lease": (
        {},
        {"placement": {"require": [{"leases": {"labels": {}}, "domain": "rack", "away": True}]}},
    ),
    "service": (
        {"service_id": SERVICE},
        {"placement": {"require": [{"service": SERVICE, "domain": "rack", "away": True}]}},
    ),
    "service, its own domain": (
        {"service_id": SERVICE},
        {"placement": {"require": [{"service": SERVICE, "away": True}]}},
    ),
    "same task": (
        {},
        {"placement": {"require": [{"leases": {"same": "task"}, "domain": "rack", "away": True}]}},
    ),
    "one lease": ({"lease_id": NAMED}, with_lease(NAMED, away=True)),
    "max_per_domain": (lease("web"), lease("web", spread("web", max_per_domain=1))),
}
asking = pytest.mark.parametrize("who", ASKING)


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("is_new", [True, False], ids=["new class", "known class"])
@asking
def test_a_claim_in_flight(
    direct: Direct, actor: Actors, who: str, is_new: bool, *, first_commits: bool
) -> None:
    """It was granted before the term was known: nobody is granted beside it, now or later."""
    match, holder = ASKING[who]
    queue = QUEUE if who != "same task" else OTHER
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    if not is_new:  # a claim that judges a class holds the one row, and with it all new terms
        like = {key: match[key] for key in match if key != "lease_id"}
        known(direct, like, one_node, queue=queue)
    found = direct.spawn(queue, match)["lease_id"]
    one, two = actor().begin(), actor()
    assert ids(one.direct.claim(queue, *one_node)) == [found]
    held = two.direct.spawn(OTHER, holder)["lease_id"]
    never(two.direct, two_node)
    assert unpublished(direct) > 0
    one.end(first_commits)
    publish(two.direct)
    granted = ids(two.direct.claim(OTHER, *two_node))
    if first_commits:
        assert granted == []
        assert ids(two.direct.claim(OTHER, *elsewhere)) == [held]
    else:
        assert len(granted) == 1


@asking
def test_nobody_reaps(direct: Direct, actor: Actors, clock: Clock, who: str) -> None:
    """Claims alone bring a term into force, and count what runs already, after ten seconds."""
    match, holder = ASKING[who]
    queue = QUEUE if who != "same task" else OTHER
    found = direct.spawn(queue, match)["lease_id"]
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    claim = direct.claim(queue, *one_node)[0]
    assert claim["lease_id"] == found
    held = direct.spawn(OTHER, holder)["lease_id"]
    other = actor()

    def claim_elsewhere() -> list[Row]:
        clock.advance(timedelta(seconds=1))
        assert other.direct.claim(OTHER, *two_node) == []
        return other.direct.claim(OTHER, *elsewhere)

    assert soon_granted(claim_elsewhere) == [held]
    assert broken(direct) == []
    direct.complete(found, claim["claim_token"])


def test_a_single_node_brings_it_into_force(direct: Direct) -> None:
    """Although nothing is new to the node from its second claim on."""
    node = place(direct, 1, 1)
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    assert soon_granted(lambda: direct.claim(OTHER, *node)) == [held]


@pytest.mark.parametrize("named", [False, True], ids=["by labels", "by id"])
def test_a_lease_is_edited_so_that_it_is_selected(direct: Direct, actor: Actors, named: bool) -> None:
    """The edit was open before the term was known, and gives the lease the class of others."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    known(direct, lease("new"), one_node, two_node, elsewhere)
    edited = direct.spawn(QUEUE)["lease_id"]
    target = {"lease": str(edited)} if named else {"leases": {"labels": {"app": "new"}}}
    asked = {"require": [target | {"domain": "rack", "away": True}]}
    editor, other = actor().begin(), actor()
    editor.direct.update(edited, {"labels": {"app": "new"}})
    held = other.direct.spawn(OTHER, {"placement": asked})["lease_id"]
    never(other.direct, two_node)
    editor.commit()
    publish(other.direct)
    assert ids(other.direct.claim(OTHER, *two_node)) == [held]
    assert other.direct.claim(QUEUE, *one_node) == []
    assert ids(other.direct.claim(QUEUE, *elsewhere)) == [edited]


def test_the_last_to_end_is_looked_at(direct: Direct, actor: Actors) -> None:
    """Who judged before the term was known, and ends while it is told, is told of it, too."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    known(direct, lease("web"), one_node)
    running = direct.spawn(QUEUE, lease("web"))["lease_id"]
    judge, publisher = actor().begin(), actor()
    [claim] = judge.direct.claim(QUEUE, *elsewhere)
    assert claim["lease_id"] == running
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    for _ in range(FAR):
        direct.reap()
    with paused(direct, publisher, lambda d: d.reap(), at=("publish_terms", "if v_changed")) as published:
        judge.commit()
    published.result(TIMEOUT)
    publish(direct)
    direct.complete(running, claim["claim_token"])
    assert ids(direct.claim(OTHER, *elsewhere)) == [held]
    direct.spawn(QUEUE, lease("web"))
    assert direct.claim(QUEUE, *elsewhere) == []
    assert len(direct.claim(QUEUE, *two_node)) == 1


def test_who_was_told_late_may_have_told_others(direct: Direct, actor: Actors) -> None:
    """Somebody judged before the term was known; who claims by that must end, too."""
    one_node = place(direct, 1, 1)
    there, beside, third = (place(direct, number, 2) for number in (2, 3, 4))
    known(direct, lease("web"), one_node)
    judge, late = actor().begin(), actor()
    known(judge.direct, lease("web"), there)
    direct.spawn(OTHER, lease("db", away("web")))
    never(direct, third)
    judge.commit()
    direct.spawn(QUEUE, lease("web"))
    late.begin()
    assert len(late.direct.claim(QUEUE, *beside)) == 1
    never(direct, third)
    late.commit()
    publish(direct)
    assert direct.claim(OTHER, *third) == []


def test_an_old_transaction_with_an_id(direct: Direct, actor: Actors) -> None:
    """Terms wait for it, all else goes on; without an id nobody waits for it."""
    node = place(direct, 1, 1)
    older = actor().begin()
    older.conn.execute("select count(*) from hwqueue.affinity_term")
    old = actor().begin(has_id=True)
    direct.spawn(OTHER, lease("db", away("web")))
    never(direct, node)
    plain = direct.spawn(OTHER)["lease_id"]
    assert ids(direct.claim(OTHER, *node)) == [plain]
    old.commit()
    publish(direct)
    assert len(direct.claim(OTHER, *node)) == 1


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("carrier", [True, False])
def test_adopted(direct: Direct, actor: Actors, carrier: bool, before: bool) -> None:
    """Adopted work counts, of whichever side, before the term is published and after it."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    holder, match = lease("db", away("web")), lease("web")
    mine, others = (holder, match) if carrier else (match, holder)
    if not before:
        direct.spawn(QUEUE, holder)
        publish(direct)
        assert len(direct.claim(QUEUE, *elsewhere)) == 1
        elsewhere = place(direct, 4, 3)
    agent, other = actor().begin(), actor()
    adopted = agent.direct.adopt(QUEUE, one_node[0], mine)
    late = other.direct.spawn(OTHER, others)["lease_id"]
    if before and not carrier:
        never(other.direct, two_node)
    agent.commit()
    publish(other.direct)
    assert other.direct.claim(OTHER, *two_node) == []
    assert ids(other.direct.claim(OTHER, *elsewhere)) == [late]
    assert broken(direct) == []
    direct.complete(adopted["lease_id"], adopted["claim_token"])


def test_an_open_spawn_of_a_new_term_holds_up_nobody(direct: Direct, actor: Actors) -> None:
    """Others spawn the same, and are granted it as soon as that is theirs alone to wait for."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2)
    keeping = lease("web", away("web"))
    idle, other = actor().begin(), actor()
    unseen = idle.direct.spawn(QUEUE, keeping)["lease_id"]
    same = other.direct.spawn(QUEUE, keeping)["lease_id"]
    plain = other.direct.spawn_many(QUEUE, [{}, lease("web"), lease("db")])
    for _ in range(FAR):
        other.direct.reap()
        for row in other.direct.claim(QUEUE, *one_node, qty=10):
            assert row["lease_id"] in ids(plain)
            other.direct.complete(row["lease_id"], row["claim_token"])
    assert set(direct.states(QUEUE).values()) == {"completed", "pending"}
    idle.commit()
    publish(other.direct)
    got = ids(other.direct.claim(QUEUE, *one_node)) + ids(other.direct.claim(QUEUE, *two_node))
    assert sorted(got) == sorted([unseen, same])


@pytest.mark.parametrize("how", ["complete", "complete many", "settle and claim", "fail for good"])
def test_a_claim_that_wants_a_new_term_stays_open(direct: Direct, actor: Actors, how: str) -> None:
    """Other nodes heartbeat and settle what is to be counted: only reap holds that."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    running = started(direct, one_node, lease("web"))
    direct.spawn(OTHER, lease("db", away("web")))
    idle, worker = actor(), actor()
    for _ in range(4):
        assert idle.direct.claim(OTHER, *two_node) == []
    assert unpublished(direct) == 1
    idle.begin()
    assert idle.direct.claim(OTHER, *two_node) == []
    [beat] = worker.direct.heartbeat(*one_node, [running])
    assert (beat["verdict"], beat["expires_at"] > running["expires_at"]) == ("ok", True)
    ENDS[how](worker.direct, one_node, running)
    assert direct.lease(running["lease_id"])["state"] in ("completed", "failed")
    idle.commit()
    assert counts(direct, "away") == {}


def test_a_node_that_is_being_edited_holds_up_no_term(direct: Direct, actor: Actors) -> None:
    """What was judged for that node alone is deleted there, and marked by who publishes."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2)
    pinned = {"require": [{"node": str(one_node[0])}]}
    running = started(direct, one_node, lease("web", pinned))
    direct.complete(running["lease_id"], running["claim_token"])
    agent, other = actor().begin(), actor()
    agent.direct.register(one_node[0], node_spec(1, rack=1, labels={"zone": "new"}))
    held = other.direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    never(other.direct, two_node)
    agent.commit()
    publish(other.direct)
    direct.spawn(QUEUE, lease("web", pinned))
    beside = place(direct, 3, 1)
    assert ids(other.direct.claim(OTHER, *beside)) == [held]
    assert other.direct.claim(QUEUE, *one_node) == []


def test_a_node_that_judges_holds_up_no_term(direct: Direct, actor: Actors) -> None:
    """Its claim is open and holds its profile: who publishes passes by, and tells it later."""
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 2), place(direct, 3, 3)
    known(direct, lease("web"), one_node)
    known(direct, lease("new"), two_node)
    new = direct.spawn(QUEUE, lease("new"))["lease_id"]
    judge, other = actor().begin(), actor()
    assert ids(judge.direct.claim(QUEUE, *one_node)) == [new]
    held = other.direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    never(other.direct, elsewhere)
    judge.commit()
    publish(other.direct)
    beside = place(direct, 4, 1)
    assert ids(other.direct.claim(OTHER, *beside)) == [held]
    other.direct.spawn(QUEUE, lease("web"))
    assert other.direct.claim(QUEUE, *one_node) == []


def test_a_class_that_was_judged_beside_who_writes_the_term(direct: Direct, actor: Actors) -> None:
    """Its claims are checked anyway, for another term: they must know of this one first."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    direct.spawn(OTHER, lease("db", away("web", "label:zone")))
    publish(direct)
    only_there = lease("web", {"require": [{"node": str(one_node[0])}]})
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    publisher, other = actor().begin(), actor()
    publisher.direct.reap()  # the term is written; the class below it cannot see
    known(other.direct, only_there, one_node)
    publisher.commit()
    running = direct.spawn(QUEUE, only_there)["lease_id"]
    publisher.begin()
    publisher.direct.reap()
    assert ids(other.direct.claim(QUEUE, *one_node)) == [running]
    publisher.commit()
    publish(direct)
    assert broken(direct) == []
    assert held not in ids(direct.claim(OTHER, *two_node, qty=9))


def test_a_prune_that_is_undone_loses_no_class(direct: Direct, actor: Actors) -> None:
    """It held the class as one that nobody uses, while its term came into force."""
    node = place(direct, 1, 1)
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    direct.reap()  # the term is written
    direct.spawn(QUEUE)
    assert len(direct.claim(QUEUE, *node)) == 1  # the node has judged, and passed by the class
    pruner = actor().begin()
    pruner.conn.execute("select from hwqueue.placement_class where terms <> '[]' for update")
    for _ in range(FAR):
        direct.reap()
    pruner.rollback()
    publish(direct)
    assert ids(direct.claim(OTHER, *node)) == [held]


# Of a table with neither, only inserts and truncates pass.
_WITHOUT_IDENTITY = """
  select c.relname from pg_class c
  where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'r' and c.relreplident <> 'f'
    and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
  order by c.relname
"""


def test_only_events_have_no_identity(direct: Direct) -> None:
    found = [row[0] for row in direct.conn.execute(_WITHOUT_IDENTITY).fetchall()]
    assert [name for name in found if not name.startswith("event_")] == []


def test_a_whole_life_under_a_publication(direct: Direct, clock: Clock) -> None:
    """As where Debezium, say, or a blue/green switch-over has subscribed to the database.

    Terms are published, counted, and pruned; claims end in every way; leases are requeued.
    """
    direct.conn.execute("create publication everything for all tables")
    nodes = [register(direct, number, rack=number) for number in range(2)]
    skew = {"spread": [{"domain": "rack", "max_skew": 2, "select": {"labels": {"app": "web"}}}]}
    for _ in range(4):
        direct.spawn(QUEUE, lease("web"))
        direct.spawn(QUEUE, lease("db", away("cache")))
        direct.spawn(QUEUE, {"labels": {"app": "web"}, "placement": skew})
    direct.spawn(QUEUE, lease("cache"))
    publish(direct)
    claims = [direct.claim(QUEUE, *node, qty=5) for node in nodes]
    assert all(len(found) >= 4 for found in claims)
    for found in claims:
        one, two, three, *rest = found
        direct.complete(one["lease_id"], one["claim_token"])
        direct.fail(two["lease_id"], two["claim_token"], retry=False)
        direct.release(three["lease_id"], three["claim_token"])
        assert direct.complete_many(rest) == []
    direct.conn.execute("select * from hwqueue.requeue_failed(%s, %s)", [QUEUE, Jsonb({})])
    lost = direct.claim(QUEUE, *nodes[0], qty=3)
    assert lost
    clock.advance(timedelta(minutes=10))
    assert direct.reap()["expired"] == len(lost)
    direct.drop_queue(QUEUE)
    for _ in range(4):
        clock.advance(timedelta(days=2))
        outlive(direct.conn)
        direct.reap()
        direct.conn.execute("select from hwqueue.prune()")
    terms = ("affinity_term", "term_counter", "class_term")
    for table in (*terms, "undone_end", "lease", "claim", "outcome"):
        [left] = direct.conn.execute(f"select count(*) from hwqueue.{table}").fetchone() or (None,)
        assert left == 0, table
