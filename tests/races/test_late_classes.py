"""Classes that commit late, and classes that are retired while somebody uses them."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.counted import counting
from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE, Node, completed, node_spec, prune, register, set_policy
from tests.races.interleave import Actor, Actors
from tests.races.terms import RACK, ids, place, publish
from tests.sql.api import outlive

_ID = "(pg_current_xact_id()::text::bigint + 1000)::text::xid8"
_AHEAD = [
    *(
        f"update hwqueue.{table} set classes_seen = {_ID}, classes_unseen = array[{_ID}]".encode()
        for table in ("profile", "profile_queue", "node_state")
    ),
    f"update hwqueue.placement_class set created_xid = {_ID}".encode(),
]
FAR_AHEAD = 4 * 10**12  # no transaction of this server has such an id
MANY = 1200  # more than two batches

_STILL_AHEAD = """
  select count(*) from hwqueue.placement_class where created_xid > pg_snapshot_xmax(pg_current_snapshot())
"""
_BEHIND = """
  select count(*) from hwqueue.profile p
  where hwqueue.has_new_classes(p.classes_seen, p.classes_unseen)
"""
_UNSEEN = """
  select array(select unnest(p.classes_unseen)::text),
         array(select unnest(s.classes_unseen)::text), array(select unnest(n.classes_unseen)::text)
  from hwqueue.profile p
  join hwqueue.profile_queue s using (profile_id)
  join hwqueue.node_state n using (profile_id)
"""


def label(name: str, node: UUID | None = None) -> dict[str, Any]:
    """Options that make a class of their own; about a node, it is judged for each node."""
    about: dict[str, Any] = {"placement": {"require": [{"node": str(node)}]}} if node else {}
    return {"labels": {name: "class"}, **about}


def spawn_many(direct: Direct, name: str, count: int, node: UUID | None = None) -> list[UUID]:
    """Spawn leases of classes of their own, in one transaction."""
    options = [label(f"{name}-{number}", node) for number in range(count)]
    return [row["lease_id"] for row in direct.spawn_many(QUEUE, options)]


def drain(direct: Direct, node: Node, qty: int = 1000) -> list[UUID]:
    """Claim until there is nothing; what was claimed."""
    got: list[UUID] = []
    while found := ids(direct.claim(QUEUE, *node, qty=qty)):
        got += found
    return got


def become_another(direct: Direct) -> None:
    """Let it look as if this server had not been there before."""
    direct.conn.execute(
        "update hwqueue.installation set system_identifier = system_identifier + 1,"
        " server_started_at = server_started_at - interval '1 hour'"
    )
    direct.conn.execute("update hwqueue.node_state set server_started_at = null")


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("commits", [True, False])
def test_a_class_that_commits_late(
    direct: Direct, actor: Actors, node: Node, pinned: bool, commits: bool
) -> None:
    """Others that came before, while and after it ran have been judged meanwhile."""
    about = node[0] if pinned else None
    assert drain(direct, node) == []
    late, later = actor().begin(), actor()
    slow = late.direct.spawn(QUEUE, label("slow", about))["lease_id"]
    first = direct.spawn(QUEUE, label("first", about))["lease_id"]
    assert drain(direct, node) == [first]
    later.begin()
    slower = later.direct.spawn(QUEUE, label("slower", about))["lease_id"]
    second = direct.spawn(QUEUE, label("second", about))["lease_id"]
    assert drain(direct, node) == [second]
    late.end(commits)
    assert drain(direct, node) == ([slow] if commits else [])
    third = direct.spawn(QUEUE, label("third", about))["lease_id"]
    assert drain(direct, node) == [third]
    later.commit()
    assert drain(direct, node) == [slower]
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("pinned", [False, True])
def test_many_classes_that_commit_while_a_node_catches_up(
    direct: Direct, actor: Actors, node: Node, pinned: bool
) -> None:
    """A batch ends amid the classes of one transaction; older ones commit before the next."""
    about = node[0] if pinned else None
    early, late = actor().begin(), actor()
    expected = spawn_many(early.direct, "early", 700, about)
    expected += spawn_many(direct, "between", MANY, about)
    late.begin()
    expected += spawn_many(late.direct, "late", 700, about)
    got = ids(direct.claim(QUEUE, *node))
    early.commit()
    got += ids(direct.claim(QUEUE, *node))
    late.commit()
    expected += spawn_many(direct, "last", 600, about)
    got += drain(direct, node)
    assert sorted(got) == sorted(expected)
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_claim_judges_its_own_transactions_classes(
    direct: Direct, actor: Actors, node: Node, pinned: bool
) -> None:
    """However many: those of others get their turn in between, and later ones of its own."""
    about = node[0] if pinned else None
    own: Actor = actor()
    own.begin()
    mine = spawn_many(own.direct, "own", MANY, about)
    others = spawn_many(direct, "other", MANY, about)
    got = drain(own.direct, node)
    mine += spawn_many(own.direct, "more", 10, about)
    others += spawn_many(direct, "another", 10, about)
    got += drain(own.direct, node)
    assert sorted(got) == sorted(mine + others)
    own.rollback()
    assert sorted(drain(direct, node)) == sorted(others)
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


def test_reap_judges_ahead(direct: Direct, actor: Actors) -> None:
    """For each profile in use, up to its limit a call; the claim then has nothing to judge."""
    nodes = [register(direct, number, labels={"pool": number % 2}) for number in range(4)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    late = actor().begin()
    slow = late.direct.spawn(QUEUE, label("slow"))["lease_id"]
    leases = spawn_many(direct, "new", 700)
    for _ in range(2):  # 1,400 judgements: the third ends below the limit
        assert direct.conn.execute("select more from hwqueue.reap(500)").fetchall() == [(True,)]
        assert direct.conn.execute(_BEHIND).fetchall() != [(0,)]
    direct.conn.execute("select from hwqueue.reap(500)")
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]
    late.commit()
    direct.conn.execute("select hwqueue.reap()")
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]
    assert drain(direct, nodes[0]) == [slow, *leases]


def test_reap_judges_for_all_profiles_in_turn(direct: Direct) -> None:
    """Also where there are more of them than its limit. Each is done before the next begins."""
    nodes = [register(direct, number, labels={"pool": number}) for number in range(3)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    direct.spawn(QUEUE, label("new"))
    assert direct.conn.execute(_BEHIND).fetchall() == [(len(nodes),)]
    for left in (2, 1, 0):
        for _ in range(2):  # a profile, and that it has no more
            direct.conn.execute("select from hwqueue.reap(p_limit => 1)")
        assert direct.conn.execute(_BEHIND).fetchall() == [(left,)]


def test_reap_judges_nothing_for_nodes_that_are_gone(direct: Direct) -> None:
    nodes = [register(direct, number, labels={"pool": number}) for number in range(2)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    direct.deregister(nodes[0][0])
    leases = [direct.spawn(QUEUE, label("new"))["lease_id"]]
    direct.reap()
    assert direct.conn.execute(_BEHIND).fetchall() == [(1,)]
    back = register(direct, 0, labels={"pool": 0})
    assert drain(direct, back) == leases
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


def test_reap_leaves_a_profile_that_a_claim_judges_for(direct: Direct, actor: Actors, node: Node) -> None:
    """It does not wait, and judges when the claim has ended."""
    direct.spawn(QUEUE, label("one"))
    direct.spawn(QUEUE, label("two"))
    claimer = actor().begin()
    assert len(claimer.direct.claim(QUEUE, *node)) == 1
    direct.conn.execute("select hwqueue.reap()")
    claimer.rollback()
    assert direct.conn.execute(_BEHIND).fetchall() == [(1,)]
    direct.conn.execute("select hwqueue.reap()")
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


def test_transactions_that_have_ended_are_forgotten(direct: Direct, actor: Actors, node: Node) -> None:
    """A busy moment leaves nothing behind that claims would have to ask about for ever."""
    writers = [actor() for _ in range(3)]
    held = []
    for writer in writers:
        writer.begin()
        [row] = writer.conn.execute("select pg_current_xact_id()::text").fetchall()
        held.append(row[0])
    left = writers[1].direct.spawn(QUEUE, label("left"))["lease_id"]
    direct.spawn(QUEUE, label("one"))
    assert len(direct.claim(QUEUE, *node)) == 1
    for found in unseen(direct):
        assert set(held) <= found
    for writer in writers[:2]:
        writer.commit()
    # what has ended and left a class stays until the class is judged
    direct.heartbeat(*node, [])
    assert set(held) & unseen(direct)[2] == set(held[1:])
    direct.conn.execute("select hwqueue.reap()")
    assert ids(direct.claim(QUEUE, *node)) == [left]
    direct.heartbeat(*node, [])
    direct.conn.execute("select hwqueue.reap()")
    for found in unseen(direct):
        assert set(held) & found == set(held[2:])
    writers[2].commit()
    direct.heartbeat(*node, [])
    direct.conn.execute("select hwqueue.reap()")  # which has nothing to judge
    for found in unseen(direct):
        assert set(held) & found == set()


def unseen(direct: Direct) -> list[set[str]]:
    """The transactions whose classes the profile, its queue and the node have not seen."""
    [found] = direct.conn.execute(_UNSEEN).fetchall()
    return [set(column) for column in found]


def test_a_restored_dump_starts_again(direct: Direct, node: Node) -> None:
    """Its ids are ahead of the server's: all classes are judged again, new ones among them."""
    pinned = label("pinned", node[0])
    old = [direct.spawn(QUEUE, given)["lease_id"] for given in ({}, pinned) for _ in range(2)]
    assert ids(direct.claim(QUEUE, *node)) == old[:1]
    for statement in _AHEAD:
        direct.conn.execute(statement)
    become_another(direct)
    new = [direct.spawn(QUEUE, label(str(uuid4())))["lease_id"]]
    assert drain(direct, node) == [*old[1:], *new]
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


def test_many_classes_of_a_restored_dump(direct: Direct, node: Node) -> None:
    """Upkeep gives them ids of this server, a thousand in a call; nobody waits for that."""
    leases = spawn_many(direct, "old", MANY)
    got = ids(direct.claim(QUEUE, *node))
    for statement in _AHEAD:
        direct.conn.execute(statement)
    become_another(direct)
    leases += [new := direct.spawn(QUEUE, label("new"))["lease_id"]]
    got += ids(direct.claim(QUEUE, *node))
    assert direct.conn.execute(_STILL_AHEAD).fetchall() == [(MANY,)]
    got += drain(direct, node)
    assert new in got
    for left in (MANY - 1000, 0):
        direct.reap()
        assert direct.conn.execute(_STILL_AHEAD).fetchall() == [(left,)]
    assert sorted(got + drain(direct, node)) == sorted(leases)
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_class_that_the_claims_own_transaction_wakes(
    direct: Direct, actor: Actors, pinned: bool, again: bool
) -> None:
    """It is older than classes of that transaction that were judged before it was woken.

    It is a candidate in that transaction and, once that is committed, for every node.
    """
    node, twin = place(direct, 1, 1), place(direct, 2, 1)
    first = direct.spawn(QUEUE)["lease_id"]
    beside = [{"lease": str(first), "domain": RACK}, *([{"node": str(node[0])}] if pinned else [])]
    waiting = [direct.spawn(OTHER, {"placement": {"require": beside}})["lease_id"] for _ in range(2)]
    publish(direct)
    for one in (node, twin):
        assert direct.claim(OTHER, *one) == []
    own = actor().begin()
    mine = [own.direct.spawn(OTHER, label(f"own-{number}"))["lease_id"] for number in range(3)]
    mine += [own.direct.spawn(OTHER, label(f"pinned-{number}", node[0]))["lease_id"] for number in range(3)]
    got = ids(own.direct.claim(OTHER, *node))  # judges its own
    assert got[0] in mine
    assert ids(own.direct.claim(QUEUE, *node)) == [first]  # wakes an older class
    assert direct.claim(OTHER, *twin) == []
    if again:
        got += ids(own.direct.claim(OTHER, *node))
        assert got[1] in waiting
    own.commit()
    for one in (twin, node):
        while found := ids(direct.claim(OTHER, *one)):
            got += found
    assert sorted(got) == sorted(mine + waiting)
    assert direct.conn.execute(_BEHIND).fetchall() == [(0,)]


def test_a_transaction_judges_its_own_classes_once(direct: Direct, actor: Actors) -> None:
    """Also when it judges others' in between, or wakes an older class, which it judges each time.

    Counted by the expression about a label that each of the classes has.
    """
    node = place(direct, 1, 1)
    zoned = {"label": "zone", "op": "exists"}
    first = direct.spawn(QUEUE)["lease_id"]
    beside = {"lease": str(first), "domain": RACK}
    direct.spawn(OTHER, {"placement": {"require": [zoned, beside]}})
    publish(direct)
    assert direct.claim(OTHER, *node) == []
    judged = []
    own = actor()

    def spawn(spawner: Direct, name: str) -> None:
        spawner.spawn(OTHER, label(name) | {"placement": {"require": [zoned]}})

    def claim(queue: str) -> None:
        with counting(own.conn) as calls:
            assert len(own.direct.claim(queue, *node)) == 1
        judged.append(calls["label_holds"])

    own.begin()
    for number in range(5):
        spawn(own.direct, f"own-{number}")
    claim(OTHER)
    spawn(direct, "another's")
    claim(OTHER)
    claim(OTHER)
    claim(QUEUE)  # wakes the class
    claim(OTHER)
    claim(OTHER)
    claim(OTHER)
    own.commit()
    assert judged == [5, 1, 0, 0, 1, 1, 1]


def test_a_restored_dump_is_tidied_up(direct: Direct) -> None:
    """Queues and classes that were on their way out go, though their ids are ahead, too."""
    direct.reap()  # writes down which server this is
    for queue in (QUEUE, "gone"):
        direct.create_queue(queue)
        lease = direct.spawn(queue)["lease_id"]
        direct.cancel(lease)
    direct.conn.execute("delete from hwqueue.lease")
    direct.conn.execute("delete from hwqueue.outcome")
    direct.conn.execute(
        "update hwqueue.queue set dropped_at = now(), dropped_before = %s::text::xid8 where name = 'gone'",
        [FAR_AHEAD],
    )
    direct.conn.execute(
        "update hwqueue.placement_class set retired_at = now(), retired_before = %s::text::xid8", [FAR_AHEAD]
    )
    become_another(direct)
    direct.reap()
    prune(direct)
    assert set(direct.conn.execute("select name from hwqueue.queue")) == {(QUEUE,), (OTHER,)}
    assert direct.conn.execute("select from hwqueue.placement_class").fetchall() == []


PRUNE = "select classes from hwqueue.prune()"
HOUR = timedelta(hours=1)
# Of each claim: whether its class is its lease's.
_AS_CLAIMED = """
  select l.class_id = k.class_id from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  join hwqueue.lease l on l.lease_id = c.lease_id
"""


def spawn_late(producer: Actor) -> UUID | None:
    """Spawn a lease of that class in the open transaction; None if that was refused."""
    try:
        lease = producer.direct.spawn(QUEUE, {"labels": {"app": "web"}})["lease_id"]
    except psycopg.errors.SerializationFailure:
        producer.rollback()
        return None
    assert isinstance(lease, UUID)
    return lease


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("retain", [0, 1], ids=["kept by none", "kept for a second"])
def test_no_lease_is_lost(
    direct: Direct, actor: Actors, node: Node, clock: Clock, isolation: str, *, before: int, retain: int
) -> None:
    """The class is retired, stamped, deleted: a producer may spawn after any of these steps."""
    set_policy(direct, retain_completed=retain)
    completed(direct, node, {"labels": {"app": "web"}})
    clock.advance(2 * HOUR)
    producer = actor().begin(isolation)
    seen = producer.direct.states(QUEUE)  # it has a snapshot
    assert set(seen.values()) == ({"completed"} if retain else set())
    for _ in range(before):
        direct.conn.execute(PRUNE)
        outlive(direct.conn)
    lease = spawn_late(producer)
    for _ in range(3):
        direct.conn.execute(PRUNE)
    if lease is not None:
        producer.commit()
        for _ in range(3):
            direct.conn.execute(PRUNE)
        assert [row["lease_id"] for row in direct.claim(QUEUE, *node)] == [lease]
        assert direct.lease(lease)["state"] == "claimed"
    else:
        assert before > 0
        assert isolation != "read committed"
        assert direct.states(QUEUE) == {}


def test_a_registration_that_idles(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """It holds what its node may run; prune leaves such a class alone until it has ended."""
    set_policy(direct, retain_completed=1)
    pinned = {"placement": {"require": [{"node": [str(node[0])]}]}}
    lease = direct.spawn(QUEUE, pinned)["lease_id"]
    direct.complete(lease, direct.claim(QUEUE, *node)[0]["claim_token"])
    clock.advance(2 * HOUR)
    direct.conn.execute(PRUNE)  # the lease goes, and the class is retired
    older, restarted = actor().begin(has_id=True), actor()
    direct.conn.execute(PRUNE)  # stamps it
    restarted.begin()
    restarted.direct.register(node[0], node_spec(0, labels={"zone": "b"}))
    older.commit()
    assert direct.conn.execute(PRUNE).fetchone() == (0,)
    restarted.commit()
    outlive(direct.conn)
    assert direct.conn.execute(PRUNE).fetchone() == (1,)


def test_a_claim_of_a_lease_with_a_class_of_its_own_by_now(direct: Direct, node: Node, clock: Clock) -> None:
    """It runs as the class that it was claimed with, which no lease has any more: that stays."""
    set_policy(direct, retain_completed=1)
    named = direct.spawn(QUEUE, {"labels": {"app": "web"}})["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    direct.spawn(QUEUE, {"placement": {"require": [{"lease": str(named)}]}})
    publish(direct)
    assert direct.conn.execute(_AS_CLAIMED).fetchall() == [(False,)]
    clock.advance(2 * HOUR)
    for _ in range(3):  # retired, stamped, deleted
        direct.conn.execute(PRUNE)
        outlive(direct.conn)
    assert direct.conn.execute(_AS_CLAIMED).fetchall() == [(False,)]
    direct.complete(named, claim["claim_token"])
    outlive(direct.conn)
    assert direct.conn.execute(PRUNE).fetchone() == (1,)
