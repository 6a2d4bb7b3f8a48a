"""Classes and profiles of nodes: judged, told apart, and judged again."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from hwqueue.testing import Clock, install_clock
from tests.fix_db import fresh_database
from tests.races.interleave import interleave
from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough


def zone(name: str) -> dict[str, Any]:
    return {"affinity_tags": {"zone": name}}


def relabel(api: Api, node: Node, **spec: Any) -> Node:
    """The same instance with other facts."""
    return api.node(node.node_id, name=node.name, **spec)


def test_a_class_that_is_new(api: Api) -> None:
    """In a queue that is made anew, too."""
    queue, node = api.queue(), api.node(labels={"zone": "a", "n": 1})
    assert api.claim(node, queue) == []
    for _ in range(2):
        for options in (zone("a"), {}, {"placement": {"require": [{"tags": {"n": 1}}]}}):
            lease = api.spawn(queue, **options)
            assert api.claimed(node, queue) == [lease]
        api.spawn(queue, **zone("b"))
        assert api.claim(node, queue) == []
        api.rows("drop_queue", queue=queue, force=True)
        api.rows("create_queue", queue=queue)


def test_a_node_that_is_new(api: Api) -> None:
    """With the profile of another, and with one of its own."""
    queue, first = api.queue(), api.node(labels={"zone": "x"})
    leases = [api.spawn(queue, **zone("x")) for _ in range(2)]
    assert api.claimed(first, queue) == leases[:1]
    assert api.claimed(api.node(labels={"zone": "x", "more": 1}), queue) == leases[1:]
    lease = api.spawn(queue, **zone("x"))
    assert api.claimed(api.node(labels={"zone": "x"}), queue) == [lease]


def test_labels_rack_and_resources_to_and_fro(api: Api) -> None:
    queue, disk = api.queue(), str(uuid4())
    node = api.node(labels={"zone": "a"})
    for name, other in ("ab", "ba", "ab", "ba"):
        node = relabel(api, node, labels={"zone": name})
        leases = [api.spawn(queue, **zone(z)) for z in (other, name)]
        assert api.claimed(node, queue, qty=5) == leases[1:]
        relabel(api, node, labels={"zone": other})
        assert api.claimed(node, queue, qty=5) == leases[:1]
    in_rack = api.spawn(queue, placement={"require": [{"rack": [2, 3]}]})
    with_disk = api.spawn(queue, placement={"require": [{"resource": disk}]})
    assert api.claim(relabel(api, node, rack=1), queue) == []
    assert api.claimed(relabel(api, node, rack=2), queue, qty=5) == [in_rack]
    assert api.claimed(relabel(api, node, resources=[disk]), queue, qty=5) == [with_disk]
    api.spawn(queue, placement={"require": [{"resource": disk}]})
    assert api.claim(relabel(api, node), queue) == []


def test_classes_that_name_a_node(api: Api) -> None:
    """One that does not exist yet among them."""
    queue, node, other, later = api.queue(), api.node(), api.node(), uuid4()
    for lease_node, expected in [(node, 1), (other, 0)]:
        api.spawn(queue, placement={"require": [{"node": str(lease_node.node_id)}]})
        assert len(api.claim(node, queue)) == expected
    assert len(api.claim(other, queue)) == 1
    api.spawn(queue, placement={"require": [{"node": str(node.node_id), "away": True}]})
    assert api.claim(node, queue) == []
    assert len(api.claim(other, queue)) == 1
    lease = api.spawn(queue, placement={"require": [{"node": str(later)}]})
    assert api.claim(node, queue) == []
    assert api.claimed(api.node(later), queue) == [lease]


def test_a_class_that_was_pruned_and_comes_back(api: Api, clock: Clock) -> None:
    queue, node = api.queue(retain_completed=0), api.node(labels={"zone": "a"})
    for _ in range(2):
        lease = api.spawn(queue, **zone("a"))
        claim = api.granted(lease, node, queue)
        api.complete(claim)
        clock.advance(timedelta(days=1))
        while sum(api.row("prune").values()):
            pass


def test_a_class_from_a_transaction_that_began_before(api: Api, queue: str, node: Node, dsn: str) -> None:
    """It commits after the node has judged later ones."""
    with psycopg.connect(dsn) as early:
        slow = Api(early).spawn(queue, labels={"early": ""})
        fast = api.spawn(queue, labels={"late": ""})
        assert api.claimed(node, queue, qty=5) == [fast]
        early.commit()
    assert api.claimed(node, queue, qty=5) == [slow]


def test_a_transaction_sees_its_own_spawns_and_a_rolled_back_judgement_is_made_again(
    api: Api, conn: psycopg.Connection
) -> None:
    queue, node = api.queue(), api.node()
    with conn.transaction():
        lease = api.spawn(queue, labels={"own": ""})
        assert api.claimed(node, queue) == [lease]
    later = api.spawn(queue, labels={"own": ""})
    assert api.claimed(node, queue) == [later]
    again = api.spawn(queue, labels={"again": ""})
    with conn.transaction(force_rollback=True):
        assert api.claimed(node, queue) == [again]
    assert api.claimed(node, queue) == [again]


OTHER_SERVER = """
  update hwqueue.installation set system_identifier = system_identifier + 1,
    server_started_at = server_started_at - interval '1 hour'
"""
MARKS = [
    "update hwqueue.profile set classes_seen = {}",
    "update hwqueue.node_state set classes_seen = {}",
    "update hwqueue.placement_class set created_xid = {}",
]
AHEAD = "((pg_current_xact_id()::text::bigint + 60)::text::xid8)"


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_marks_of_another_server(api: Api, conn: psycopg.Connection, pinned: bool, passed: bool) -> None:
    """A dump loaded elsewhere: its transaction ids lie ahead, until this server has passed them."""
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    about = {"affinity_with": str(node.node_id)} if pinned else {}
    old = [api.spawn(queue, **about) for _ in range(2)]
    assert api.claimed(node, queue) == old[:1]
    for statement in MARKS:
        conn.execute(sql.SQL(statement).format(sql.SQL(AHEAD)))
    conn.execute(OTHER_SERVER)
    conn.execute("update hwqueue.node_state set server_started_at = null")
    new = api.spawn(queue, "fresh", **about)
    for _ in range(100 if passed else 0):
        conn.execute("select pg_current_xact_id()")
    assert api.claimed(node, queue, qty=5) == [old[1], new]
    later = api.spawn(queue, "later", **about)
    assert api.claimed(node, queue, qty=5) == [later]


@pytest.mark.parametrize(
    ("expr", "before", "after"),
    [
        ({"label": "f", "op": "contains_all", "values": ["b"]}, ["a", "b"], ["a"]),
        ({"tags": {"f": {"n": 1}}}, {"n": 1}, {"n": 2}),
        ({"label": "f", "op": "contains_any", "values": ["b"]}, ["b"], []),
    ],
)
def test_a_label_that_is_a_list_or_an_object(api: Api, expr: dict[str, Any], before: Any, after: Any) -> None:
    """Its anchors are the same before and after; the next claim sees the change all the same."""
    queue, node = api.queue(), api.node(labels={"f": before})
    options = {"affinity_with": str(node.node_id), "placement": {"require": [expr]}}
    leases = [api.spawn(queue, **options) for _ in range(2)]
    assert api.claimed(node, queue) == leases[:1]
    assert api.claim(relabel(api, node, labels={"f": after}), queue) == []
    assert api.claimed(relabel(api, node, labels={"f": before}), queue) == leases[1:]


def test_a_node_of_a_new_kind_catches_up(api: Api) -> None:
    """Its first claim looks past many classes that came before and are not for its queue."""
    other, queue = api.queue(), api.queue()
    leases = [{"task": f"t{number}"} for number in range(1100)]
    api.rows("spawn_leases", queue=other, leases=leases)
    lease = api.spawn(queue)
    assert api.claimed(api.node(labels={"kind": "new"}), queue) == [lease]


ELIGIBLE = """
  select count(*) from hwqueue.eligibility join hwqueue.queue using (queue_id) where name = %(queue)s
"""


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("foreign", [False, True])
def test_many_new_classes(api: Api, dsn: str, pinned: bool, batches: int, foreign: bool) -> None:
    """A claim judges 500 at most, and keeps them: however they came, and whoever has work open."""
    queue, node = api.queue(), api.node()
    require = [{"node": str(node.node_id)}] if pinned else []
    about = {"placement": {"require": require}}
    assert api.claim(node, queue) == []
    with psycopg.connect(dsn) as other:
        if foreign:
            other.execute("select pg_current_xact_id()")
        for number in range(batches):
            tasks = range(number * 1200 // batches, (number + 1) * 1200 // batches)
            batch = [{"task": f"t{task}", "options": about} for task in tasks]
            api.rows("spawn_leases", queue=queue, leases=batch)
        got, judged = 0, list[Any]()
        for _ in range(4):
            got += len(api.claim(node, queue))
            judged += api.conn.execute(ELIGIBLE, {"queue": queue}).fetchall()
        assert (got, judged) == (4, [(500,), (1000,), (1200,), (1200,)])
        got += len(api.claim(node, queue, qty=1000)) + len(api.claim(node, queue, qty=1000))
        assert got == 1200
        lease = api.spawn(queue, "late", **about)
        assert api.claimed(node, queue) == [lease]
    lease = api.spawn(queue, "later", **about)
    assert api.claimed(node, queue) == [lease]


FEW = 3  # values of a label, beyond which it is left out
_MOST = """
  create or replace function hwqueue.most_label_values() returns int
  language sql immutable parallel safe as 'select 3'
"""
_LABELS = "select key, is_mentioned from hwqueue.ignored_label order by key"


@pytest.fixture
def database(server_dsn: str, template: str) -> Iterator[str]:
    """A database for each test, where a label is left out when it has three values."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            conn.execute(_MOST)
            install_clock(conn).freeze()
        yield made


def fleet(api: Api, count: int, **more: Any) -> list[Node]:
    """Nodes of one zone, each with a host name of its own."""
    return [api.node(labels={"zone": "a", "host": f"h{n}"} | more) for n in range(count)]


def on_host(number: int, **more: Any) -> dict[str, Any]:
    """Options of a lease that is for one host alone."""
    return {"placement": {"require": [{"tags": {"host": f"h{number}"}}], **more}}


def test_nodes_that_differ_in_it_alone_are_judged_as_one(
    api: Api, conn: psycopg.Connection, clock: Clock
) -> None:
    """By claims: other labels still tell them apart, and who only asks sees every label."""
    queue, nodes = api.queue(), fleet(api, 10)
    elsewhere = api.node(labels={"zone": "b", "host": "hb"})
    for number in range(10):
        api.spawn(queue, labels={str(number): "class"}, affinity_tags={"zone": "a"})
    for node in nodes:
        assert len(api.claim(node, queue)) == 1
    judged = "select count(distinct profile_id) from hwqueue.eligibility"
    assert conn.execute(judged).fetchone() == (FEW + 1,)
    assert conn.execute(_LABELS).fetchall() == [("host", False)]
    lease = api.spawn(queue, affinity_tags={"zone": "b"})
    assert api.claim(nodes[-1], queue) == []
    assert api.claimed(elsewhere, queue) == [lease]
    found = api.rows("match_nodes", placement={"require": [{"tags": {"host": "h6"}}]})
    assert [row["node_id"] for row in found if row["eligible"]] == [nodes[6].node_id]
    clock.advance(timedelta(days=1))
    while sum(api.row("prune").values()):
        pass  # keeps the profile that others are judged as
    lease = api.spawn(queue)
    assert api.claimed(nodes[7], queue) == [lease]


def test_a_class_that_mentions_it_waits_for_reap(api: Api, conn: psycopg.Connection) -> None:
    """No node gets it until the nodes are judged by themselves; then the right one does."""
    queue, nodes = api.queue(), fleet(api, 8)
    for node in nodes:
        assert api.claim(node, queue) == []
    plain = api.spawn(queue, priority=-1)
    lease = api.spawn(queue, **on_host(6))
    preferring = api.spawn(
        queue, patience=0, **{"placement": {"prefer": [{"weight": 1, "when": {"tags": {"host": "h5"}}}]}}
    )
    assert api.claimed(nodes[6], queue) == [plain]  # neither of the others: they mention it
    api.rows("reap")
    assert conn.execute(_LABELS).fetchall() == [("host", True)]
    assert api.claimed(nodes[5], queue, qty=9) == [preferring]
    assert api.claimed(nodes[6], queue, qty=9) == [lease]
    late = fleet(api, 1, host="h99")[0]
    for_late = api.spawn(queue, **on_host(99))
    assert api.claimed(late, queue) == [for_late]  # it is left out no more


def test_a_class_for_one_node_that_mentions_it(api: Api) -> None:
    """It is judged for that node, by all its labels."""
    queue, nodes = api.queue(), fleet(api, 8)
    named = {"node": str(nodes[7].node_id)}
    wrong = {"placement": {"require": [named, {"tags": {"host": "h6"}}]}}
    right = {"placement": {"require": [named, {"tags": {"host": "h7"}}]}}
    api.spawn(queue, **wrong)
    lease = api.spawn(queue, **right)
    assert api.claim(nodes[6], queue) == []
    assert api.claimed(nodes[7], queue, qty=9) == [lease]


def test_a_class_that_commits_after_the_label_was_left_out(
    api: Api, conn: psycopg.Connection, dsn: str
) -> None:
    """The registration that left it out could not see the class; nor could the first reap."""
    queue = api.queue()
    with psycopg.connect(dsn) as other:
        lease = Api(other).spawn(queue, **on_host(6))
        nodes = fleet(api, 8)
        api.rows("reap")
        assert conn.execute(_LABELS).fetchall() == [("host", False)]
        assert api.claim(nodes[6], queue) == []
        other.commit()
    assert api.claim(nodes[6], queue) == []
    api.rows("reap")
    assert api.claimed(nodes[6], queue) == [lease]


def test_a_label_that_is_mentioned_is_not_left_out(api: Api, queue: str, conn: psycopg.Connection) -> None:
    lease = api.spawn(queue, **on_host(6))
    nodes = fleet(api, 8)
    assert api.claimed(nodes[6], queue) == [lease]
    assert conn.execute(_LABELS).fetchall() == [("host", True)]


def test_a_node_that_is_held_is_split_later(api: Api, conn: psycopg.Connection, dsn: str) -> None:
    """Reap waits for nobody, and what it could not do it does the next time."""
    queue, nodes = api.queue(), fleet(api, 8)
    for node in nodes:
        assert api.claim(node, queue) == []
    plain = api.spawn(queue, priority=-1)
    with interleave(dsn) as actor:
        worker = actor()
        worker.begin()
        held = worker.direct.claim(queue, nodes[6].node_id, nodes[6].epoch)
        assert [row["lease_id"] for row in held] == [plain]
        lease = api.spawn(queue, **on_host(6))
        other = api.spawn(queue, **on_host(7))
        api.rows("reap")
        assert api.claimed(nodes[7], queue) == [other]
        worker.commit()
        assert api.claim(nodes[6], queue) == []
        api.rows("reap")
        assert api.claimed(nodes[6], queue) == [lease]


def test_waiting_for_a_better_node(api: Api, queue: str, clock: Clock) -> None:
    """Patience goes by nodes that are judged as one, too."""
    worse = [api.node(labels={"zone": "a", "host": f"h{n}"}) for n in range(6)]
    better = [api.node(labels={"zone": "b", "host": f"g{n}"}) for n in range(2)]
    prefer = [{"weight": 1, "when": {"tags": {"zone": "b"}}}]
    lease = api.spawn(queue, patience=60, placement={"prefer": prefer})
    for node in (*better, *worse):
        api.claim(node, api.queue())
    assert api.claim(worse[5], queue) == []
    assert api.claimed(better[1], queue) == [lease]
