"""New classes whose transactions commit late, or are the claim's own: none stays unjudged."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.counted import counting
from tests.direct import Direct
from tests.races.cluster import QUEUE, register
from tests.races.interleave import Actor, interleave
from tests.races.terms import OTHER, RACK, ids, place, publish
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
    return {"labels": {"class": name}, **about}


def spawn_many(direct: Direct, name: str, count: int, node: UUID | None = None) -> list[UUID]:
    """Spawn leases of classes of their own, in one transaction."""
    options = [label(f"{name}-{number}", node) for number in range(count)]
    return [row["lease_id"] for row in direct.spawn_many(QUEUE, options)]


def drain(direct: Direct, node: tuple[UUID, int], qty: int = 1000) -> list[UUID]:
    """Claim until there is nothing; what was claimed."""
    got: list[UUID] = []
    while found := ids(direct.claim(QUEUE, *node, qty=qty)):
        got += found
    return got


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_class_that_commits_late(conn: psycopg.Connection, dsn: str, pinned: bool, end: str) -> None:
    """Others that came before, while and after it ran have been judged meanwhile."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    about = node[0] if pinned else None
    with interleave(dsn) as actor:
        late, later = actor(), actor()
        assert drain(direct, node) == []
        late.begin()
        slow = late.direct.spawn(QUEUE, label("slow", about))["lease_id"]
        first = direct.spawn(QUEUE, label("first", about))["lease_id"]
        assert drain(direct, node) == [first]
        later.begin()
        slower = later.direct.spawn(QUEUE, label("slower", about))["lease_id"]
        second = direct.spawn(QUEUE, label("second", about))["lease_id"]
        assert drain(direct, node) == [second]
        getattr(late, end)()
        assert drain(direct, node) == ([slow] if end == "commit" else [])
        third = direct.spawn(QUEUE, label("third", about))["lease_id"]
        assert drain(direct, node) == [third]
        later.commit()
        assert drain(direct, node) == [slower]
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("pinned", [False, True])
def test_many_classes_that_commit_while_a_node_catches_up(
    conn: psycopg.Connection, dsn: str, pinned: bool
) -> None:
    """A batch ends amid the classes of one transaction; older ones commit before the next."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    about = node[0] if pinned else None
    with interleave(dsn) as actor:
        early, late = actor(), actor()
        early.begin()
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
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_claim_judges_its_own_transactions_classes(
    conn: psycopg.Connection, dsn: str, pinned: bool
) -> None:
    """However many: those of others get their turn in between, and later ones of its own."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    about = node[0] if pinned else None
    with interleave(dsn) as actor:
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
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


def test_reap_judges_ahead(conn: psycopg.Connection, dsn: str) -> None:
    """For each profile in use, up to its limit a call; the claim then has nothing to judge."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = [register(conn, number, labels={"pool": number % 2}) for number in range(4)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    with interleave(dsn) as actor:
        late = actor()
        late.begin()
        slow = late.direct.spawn(QUEUE, label("slow"))["lease_id"]
        leases = spawn_many(direct, "new", 700)
        for _ in range(2):  # 1,400 judgements: the third ends below the limit
            assert conn.execute("select more from hwqueue.reap(500)").fetchall() == [(True,)]
            assert conn.execute(_BEHIND).fetchall() != [(0,)]
        conn.execute("select from hwqueue.reap(500)")
        assert conn.execute(_BEHIND).fetchall() == [(0,)]
        late.commit()
        conn.execute("select hwqueue.reap()")
        assert conn.execute(_BEHIND).fetchall() == [(0,)]
    assert drain(direct, nodes[0]) == [slow, *leases]


def test_reap_judges_for_all_profiles_in_turn(conn: psycopg.Connection) -> None:
    """Also where there are more of them than its limit."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = [register(conn, number, labels={"pool": number}) for number in range(3)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    direct.spawn(QUEUE, label("new"))
    assert conn.execute(_BEHIND).fetchall() == [(len(nodes),)]
    for _ in range(2 * len(nodes)):  # a profile, and that it has no more
        conn.execute("select from hwqueue.reap(p_limit => 1)")
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


def test_reap_judges_nothing_for_nodes_that_are_gone(conn: psycopg.Connection) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    nodes = [register(conn, number, labels={"pool": number}) for number in range(2)]
    for node in nodes:
        assert direct.claim(QUEUE, *node) == []
    direct.deregister(nodes[0][0])
    leases = [direct.spawn(QUEUE, label("new"))["lease_id"]]
    direct.reap()
    assert conn.execute(_BEHIND).fetchall() == [(1,)]
    back = register(conn, 0, labels={"pool": 0})
    assert drain(direct, back) == leases
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


def test_reap_leaves_a_profile_that_a_claim_judges_for(conn: psycopg.Connection, dsn: str) -> None:
    """It does not wait, and judges when the claim has ended."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    with interleave(dsn, "300ms") as actor:
        claimer = actor()
        direct.spawn(QUEUE, label("one"))
        direct.spawn(QUEUE, label("two"))
        claimer.begin()
        assert len(claimer.direct.claim(QUEUE, *node)) == 1
        conn.execute("select hwqueue.reap()")
        claimer.rollback()
        assert conn.execute(_BEHIND).fetchall() == [(1,)]
        conn.execute("select hwqueue.reap()")
        assert conn.execute(_BEHIND).fetchall() == [(0,)]


def test_transactions_that_have_ended_are_forgotten(conn: psycopg.Connection, dsn: str) -> None:
    """A busy moment leaves nothing behind that claims would have to ask about for ever."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    with interleave(dsn) as actor:
        writers = [actor() for _ in range(3)]
        held = []
        for writer in writers:
            writer.begin()
            [row] = writer.conn.execute("select pg_current_xact_id()::text").fetchall()
            held.append(row[0])
        left = writers[1].direct.spawn(QUEUE, label("left"))["lease_id"]
        direct.spawn(QUEUE, label("one"))
        assert len(direct.claim(QUEUE, *node)) == 1
        for found in unseen(conn):
            assert set(held) <= found
        for writer in writers[:2]:
            writer.commit()
        # what has ended and left a class stays until the class is judged
        direct.heartbeat(*node, [])
        assert set(held) & unseen(conn)[2] == set(held[1:])
        conn.execute("select hwqueue.reap()")
        assert ids(direct.claim(QUEUE, *node)) == [left]
        direct.heartbeat(*node, [])
        conn.execute("select hwqueue.reap()")
        for found in unseen(conn):
            assert set(held) & found == set(held[2:])
        writers[2].commit()
        direct.heartbeat(*node, [])
        conn.execute("select hwqueue.reap()")  # which has nothing to judge
        for found in unseen(conn):
            assert set(held) & found == set()


def unseen(conn: psycopg.Connection) -> list[set[str]]:
    """The transactions whose classes the profile, its queue and the node have not seen."""
    [found] = conn.execute(_UNSEEN).fetchall()
    return [set(column) for column in found]


def test_a_restored_dump_starts_again(conn: psycopg.Connection) -> None:
    """Its ids are ahead of the server's: all classes are judged again, new ones among them."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn)
    pinned = label("pinned", node[0])
    old = [direct.spawn(QUEUE, given)["lease_id"] for given in ({}, pinned) for _ in range(2)]
    assert ids(direct.claim(QUEUE, *node)) == old[:1]
    for statement in _AHEAD:
        conn.execute(statement)
    conn.execute(
        "update hwqueue.installation set system_identifier = system_identifier + 1,"
        " server_started_at = server_started_at - interval '1 hour'"
    )
    conn.execute("update hwqueue.node_state set server_started_at = null")
    new = [direct.spawn(QUEUE, label(str(uuid4())))["lease_id"]]
    assert drain(direct, node) == [*old[1:], *new]
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_class_that_the_claims_own_transaction_wakes(
    conn: psycopg.Connection, dsn: str, pinned: bool, again: bool
) -> None:
    """It is older than classes of that transaction that were judged before it was woken.

    It is a candidate in that transaction and, once that is committed, for every node.
    """
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    node, twin = place(conn, 1, 1), place(conn, 2, 1)
    first = direct.spawn(QUEUE)["lease_id"]
    beside = [{"lease": str(first), "domain": RACK}, *([{"node": str(node[0])}] if pinned else [])]
    waiting = [direct.spawn(OTHER, {"placement": {"require": beside}})["lease_id"] for _ in range(2)]
    publish(direct)
    for one in (node, twin):
        assert direct.claim(OTHER, *one) == []
    with interleave(dsn) as actor:
        own = actor()
        own.begin()
        mine = [own.direct.spawn(OTHER, label(f"own-{number}"))["lease_id"] for number in range(3)]
        mine += [
            own.direct.spawn(OTHER, label(f"pinned-{number}", node[0]))["lease_id"] for number in range(3)
        ]
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
    assert conn.execute(_BEHIND).fetchall() == [(0,)]


def test_a_transaction_judges_its_own_classes_once(conn: psycopg.Connection, dsn: str) -> None:
    """Also when it judges others' in between, or wakes an older class, which it judges each time.

    Counted by the expression about a label that each of the classes has.
    """
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    node = place(conn, 1, 1)
    zoned = {"label": "zone", "op": "exists"}
    first = direct.spawn(QUEUE)["lease_id"]
    beside = {"lease": str(first), "domain": RACK}
    direct.spawn(OTHER, {"placement": {"require": [zoned, beside]}})
    publish(direct)
    assert direct.claim(OTHER, *node) == []
    judged = []
    with interleave(dsn) as actor:
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


def test_a_restored_dump_is_tidied_up(conn: psycopg.Connection) -> None:
    """Queues and classes that were on their way out go, though their ids are ahead, too."""
    direct = Direct(conn)
    direct.reap()  # writes down which server this is
    for queue in (QUEUE, "gone"):
        direct.create_queue(queue)
        lease = direct.spawn(queue)["lease_id"]
        direct.cancel(lease)
    conn.execute("delete from hwqueue.lease")
    conn.execute("delete from hwqueue.outcome")
    conn.execute(
        "update hwqueue.queue set dropped_at = now(), dropped_before = %s::text::xid8 where name = 'gone'",
        [FAR_AHEAD],
    )
    conn.execute(
        "update hwqueue.placement_class set retired_at = now(), retired_before = %s::text::xid8",
        [FAR_AHEAD],
    )
    conn.execute(
        "update hwqueue.installation set system_identifier = system_identifier + 1,"
        " server_started_at = server_started_at - interval '1 hour'"
    )
    direct.reap()
    for _ in range(3):
        conn.execute("select from hwqueue.prune()")
        outlive(conn)
    assert conn.execute("select name from hwqueue.queue").fetchall() == [(QUEUE,)]
    assert conn.execute("select from hwqueue.placement_class").fetchall() == []
