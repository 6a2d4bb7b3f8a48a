"""Labels that nearly every node has another value of do not make each node a kind of its own."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock, install_clock
from tests.fix_db import fresh_database
from tests.races.interleave import interleave
from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough

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
        api.spawn(queue, labels={"class": str(number)}, affinity_tags={"zone": "a"})
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
