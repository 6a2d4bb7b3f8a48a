"""Counts of terms follow what runs: every way in which a claim ends, or its node moves."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import install_clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, node_spec
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import (
    away,
    broken,
    counts,
    ids,
    lease,
    pause_at,
    pause_closed,
    pauses,
    place,
    publish,
    spread,
    toward,
    unpublished,
)

OTHER = "other"
Node = tuple[UUID, int]
End = Callable[[Direct, Node, Row], Any]
EVERYTHING = {
    "require": [
        {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True},
        {"leases": {"labels": {"app": "web"}}, "domain": "label:zone"},
    ],
    "spread": [
        {"domain": "rack", "max_skew": 9, "select": {"labels": {"app": "web"}}},
        {
            "domain": "rack",
            "max_skew": 9,
            "select": {"labels": {"app": "web"}},
            "count_nodes": {"taints": "honor"},  # counted node by node
        },
        {"domain": "label:zone", "max_per_domain": 9, "select": {"labels": {"app": "web"}}},
    ],
}


def cancel_and_settle(direct: Direct, claim: Row) -> None:
    """The worker stops when it is asked to."""
    direct.cancel(claim["lease_id"])
    direct.fail(claim["lease_id"], claim["claim_token"])


def drain_and_settle(direct: Direct, node: Node, claim: Row) -> None:
    """The node runs dry."""
    direct.drain(node[0], timedelta(0))
    direct.complete(claim["lease_id"], claim["claim_token"])


ENDS: dict[str, End] = {
    "complete": lambda d, _n, c: d.complete(c["lease_id"], c["claim_token"]),
    "complete many": lambda d, _n, c: d.complete_many([c]),
    "settle and claim": lambda d, n, c: d.settle_and_claim(QUEUE, *n, [c], qty=0),
    "fail for good": lambda d, _n, c: d.fail(c["lease_id"], c["claim_token"], retry=False),
    "fail": lambda d, _n, c: d.fail(c["lease_id"], c["claim_token"]),
    "release": lambda d, _n, c: d.release(c["lease_id"], c["claim_token"], timedelta(hours=1)),
    "cancel and settle": lambda d, _n, c: cancel_and_settle(d, c),
    "deregister": lambda d, n, _c: d.deregister(n[0]),
    "superseded": lambda d, n, _c: d.register(n[0], node_spec(1, rack=1, instance_id="second")),
    "drain and settle": drain_and_settle,
    "drop the queue": lambda d, _n, _c: d.drop_queue(QUEUE),
}
USES = ("away", "toward", "cap", "skew", "tally")


def all_counts(conn: psycopg.Connection[Any]) -> list[Any]:
    """What is counted for any term."""
    return [counts(conn, use) for use in USES]


@pytest.mark.parametrize("counted", [False, True], ids=["plain", "with capacity"])
@pytest.mark.parametrize("how", ENDS)
def test_ends(conn: psycopg.Connection, how: str, counted: bool) -> None:
    """With the claim go its counts, in the same transaction."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = place(conn, 1, 1)
    placement = dict(EVERYTHING)
    if counted:
        spec = node_spec(1, rack=1, labels={"zone": "1"}, capacity={"cpu_milli": 4000})
        node = node[0], direct.register(node[0], spec)
        placement |= {"resources": {"cpu_milli": 500}}
    direct.spawn(QUEUE, lease("web", placement))
    publish(direct)
    [claim] = direct.claim(QUEUE, *node)
    assert all(all_counts(conn)), all_counts(conn)
    assert broken(conn) == []
    ENDS[how](direct, node, claim)
    if how == "drop the queue":  # what runs is asked to stop
        assert all(all_counts(conn))
    else:
        assert all_counts(conn) == [{}] * len(USES)
    assert broken(conn) == []


def test_reaped(conn: psycopg.Connection) -> None:
    """An expired claim counts until it is reaped."""
    clock = install_clock(conn)
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = place(conn, 1, 1)
    direct.spawn(QUEUE, lease("web", EVERYTHING))
    publish(direct)
    assert len(direct.claim(QUEUE, *node)) == 1
    clock.advance(timedelta(hours=1))
    assert all(all_counts(conn))
    assert broken(conn) == []
    direct.reap()
    assert all_counts(conn) == [{}] * len(USES)
    assert broken(conn) == []


LEAVING: dict[str, Callable[[Direct, Node, Row, Any], Any]] = {
    "cancelled": lambda d, _n, c, _t: d.cancel(c["lease_id"]),
    "drained": lambda d, n, _c, _t: d.drain(n[0], timedelta(hours=1)),
    "expired": lambda _d, _n, _c, t: t.advance(timedelta(minutes=6)),
}


@pytest.mark.parametrize("how", LEAVING)
def test_about_to_leave(conn: psycopg.Connection, how: str) -> None:
    """It counts for away still, no longer for toward; for a cap until it must stop."""
    clock = install_clock(conn)
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"claim_timeout": "5 minutes"})
    direct.create_queue(OTHER)
    running = direct.spawn(QUEUE, lease("web"))["lease_id"]
    node, beside = place(conn, 1, 1), place(conn, 2, 1)
    [claim] = direct.claim(QUEUE, *node)
    assert claim["lease_id"] == running
    toward_it = direct.spawn(OTHER, lease("db", toward("web")))["lease_id"]
    publish(direct)
    assert ids(direct.claim(OTHER, *beside)) == [toward_it]
    LEAVING[how](direct, node, claim, clock)
    third = place(conn, 3, 1)
    direct.spawn(OTHER, lease("db", toward("web")))
    direct.spawn(OTHER, lease("db", away("web")))
    capped = direct.spawn(QUEUE, lease("web", spread("web", max_per_domain=1)))["lease_id"]
    publish(direct, "select hwqueue.publish_terms(9, true, hwqueue.clock())")
    assert direct.claim(OTHER, *third) == []
    # what has expired may go on after all
    assert ids(direct.claim(QUEUE, *third)) == [capped] * (how != "expired")
    assert broken(conn) == []


def test_expired_and_not_reaped(conn: psycopg.Connection) -> None:
    """A claim that heartbeats have kept counts for toward until it expires, reaped or not."""
    clock = install_clock(conn)
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"claim_timeout": "5 minutes"})
    direct.create_queue(OTHER)
    node, beside = place(conn, 1, 1), place(conn, 2, 1)
    direct.spawn(QUEUE, lease("web"))
    [claim] = direct.claim(QUEUE, *node)
    waiting = [direct.spawn(OTHER, lease("db", toward("web")))["lease_id"] for _ in range(2)]
    publish(direct)
    assert ids(direct.claim(OTHER, *beside)) == waiting[:1]
    clock.advance(timedelta(minutes=4))
    direct.heartbeat(*node, [claim])
    direct.heartbeat(*beside, [])
    clock.advance(timedelta(minutes=2))
    direct.reap()  # the claim lives, and is looked at again later
    direct.heartbeat(*beside, [])
    clock.advance(timedelta(minutes=4))
    direct.heartbeat(*beside, [])
    assert direct.claim(OTHER, *beside) == []
    assert broken(conn) == []


def crowd(direct: Direct, size: int, *nodes: Node) -> list[Row]:
    """Leases of one term that run, all in rack 1."""
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    direct.spawn(OTHER, lease("db", away("web")))
    for _ in range(size):
        direct.spawn(QUEUE, lease("web"))
    publish(direct)
    return [row for node in nodes for row in direct.claim(QUEUE, *node, qty=size // len(nodes))]


@pytest.mark.parametrize("how", ["complete", "complete many", "settle and claim", "release"])
def test_two_settlements_in_one_place(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """The second does not wait for the first, whichever is undone; nor does the one who claims."""
    direct = Direct(conn)
    one_node, two_node, three_node = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 1)
    first, second = crowd(direct, 2, one_node, two_node)
    third = direct.spawn(QUEUE, lease("web"))["lease_id"]
    with interleave(dsn, SHORT) as actor:
        one, two, three = actor(), actor(), actor()
        one.begin()
        two.begin()
        three.begin()
        ENDS[how](one.direct, one_node, first)
        ENDS[how](two.direct, two_node, second)
        assert third in ids(three.direct.claim(QUEUE, *three_node))
        three.commit()
        two.commit()
        assert counts(conn, "away") == {"1": (2, 0)}
        one.rollback()
        assert counts(conn, "away") == {"1": (2, 0)}
    assert broken(conn) == []


def test_many_versions_of_a_count(conn: psycopg.Connection, dsn: str) -> None:
    """Rows are rewritten now and then, also while another session has one of them."""
    direct = Direct(conn)
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 1)
    claims = crowd(direct, 120, one_node, two_node)
    while len(claims) < 120:
        claims += direct.claim(QUEUE, *one_node)
    with interleave(dsn, SHORT) as actor:
        idle, other = actor(), actor()
        for step in range(0, 120, 3):
            idle.begin()
            ENDS["complete"](idle.direct, one_node, claims[step])
            ENDS["complete"](other.direct, one_node, claims[step + 1])
            ENDS["complete"](other.direct, one_node, claims[step + 2])
            idle.commit() if step % 2 else idle.rollback()
            assert broken(conn) == []


@pytest.mark.parametrize("edit_commits", [True, False])
def test_an_edit_during_a_claim(conn: psycopg.Connection, dsn: str, edit_commits: bool) -> None:
    """The claim waits for its own node, then counts where the node is now; others go on."""
    direct = Direct(conn)
    one_node, beside, beyond = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 2)
    crowd(direct, 2, one_node)
    other_lease = direct.spawn(QUEUE, lease("web"))["lease_id"]
    more = direct.spawn(QUEUE, lease("web"))["lease_id"]
    with interleave(dsn) as actor:
        agent, worker, other = actor(), actor(), actor()
        agent.begin()
        agent.direct.register(one_node[0], node_spec(1, rack=2, labels={"zone": "2"}))
        claimed = worker.start(lambda d: d.claim(QUEUE, *one_node))
        worker.wait_until_parked()
        other.conn.execute("select set_config('lock_timeout', %s, false)", [SHORT])
        # in flight on the worker's side is nothing yet: the entry is free
        assert ids(other.direct.claim(QUEUE, *beside)) == [other_lease]
        agent.commit() if edit_commits else agent.rollback()
        assert ids(claimed.result(TIMEOUT)) == [more]
    rack = "2" if edit_commits else "1"
    expected = {"1": (1, 0), "2": (3, 0)} if edit_commits else {"1": (4, 0)}
    assert counts(conn, "away") == expected, rack
    assert broken(conn) == []
    held = ids(direct.claim(OTHER, *beyond))
    assert (held == []) is edit_commits


def test_a_claim_during_an_edit(conn: psycopg.Connection, dsn: str) -> None:
    """The edit waits for the claim of its node, and moves what that has counted."""
    direct = Direct(conn)
    one_node = place(conn, 1, 1)
    crowd(direct, 1, one_node)
    direct.spawn(QUEUE, lease("web"))
    with interleave(dsn) as actor:
        worker, agent = actor(), actor()
        worker.begin()
        assert len(worker.direct.claim(QUEUE, *one_node)) == 1
        spec = node_spec(1, rack=2, labels={"zone": "2"})
        edited = agent.start(lambda d: d.register(one_node[0], spec))
        agent.wait_until_parked()
        worker.commit()
        edited.result(TIMEOUT)
    assert counts(conn, "away") == {"2": (2, 0)}
    assert broken(conn) == []


@pytest.mark.parametrize("settles", [True, False])
def test_an_edit_during_a_settlement(conn: psycopg.Connection, dsn: str, settles: bool) -> None:
    """The edit waits for the claim that is being settled, and moves only what is left."""
    direct = Direct(conn)
    one_node = place(conn, 1, 1)
    first, _second = crowd(direct, 2, one_node)
    with interleave(dsn) as actor:
        worker, agent = actor(), actor()
        worker.begin()
        ENDS["complete"](worker.direct, one_node, first)
        spec = node_spec(1, rack=2, labels={"zone": "2"})
        edited = agent.start(lambda d: d.register(one_node[0], spec))
        agent.wait_until_parked()
        worker.commit() if settles else worker.rollback()
        edited.result(TIMEOUT)
    assert counts(conn, "away") == {"2": (1 if settles else 2, 0)}
    assert broken(conn) == []


def test_an_edit_while_running_leases_are_counted(conn: psycopg.Connection, dsn: str) -> None:
    """Whoever counts what runs holds the claims; the edit comes after, and moves the counts."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    one_node = place(conn, 1, 1)
    direct.spawn(QUEUE, lease("web"))
    assert len(direct.claim(QUEUE, *one_node)) == 1
    direct.spawn(OTHER, lease("db", away("web")))
    pause_at(conn, "publish_term", "for v_count in")
    with interleave(dsn) as actor:
        publisher, agent = actor(), actor()
        publisher.direct.reap()
        pauses(publisher)
        with pause_closed(conn):
            counting = publisher.start(publish)
            publisher.wait_until_parked()
            spec = node_spec(1, rack=2, labels={"zone": "2"})
            edited = agent.start(lambda d: d.register(one_node[0], spec))
            agent.wait_until_parked()
        counting.result(TIMEOUT)
        edited.result(TIMEOUT)
    assert counts(conn, "away") == {"2": (1, 0)}
    assert broken(conn) == []


def test_a_settlement_while_running_leases_are_counted(conn: psycopg.Connection, dsn: str) -> None:
    """The settlement waits for whoever counts its claim, and takes back what that has counted."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 1)
    direct.spawn(QUEUE, lease("web"))
    [claim] = direct.claim(QUEUE, *one_node)
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    pause_at(conn, "publish_term", "for v_count in")
    with interleave(dsn) as actor:
        publisher, worker = actor(), actor()
        pauses(publisher)
        with pause_closed(conn):
            counting = publisher.start(publish)
            publisher.wait_until_parked()
            settled = worker.start(lambda d: d.complete(claim["lease_id"], claim["claim_token"]))
            worker.wait_until_parked()
        counting.result(TIMEOUT)
        settled.result(TIMEOUT)
    assert counts(conn, "away") == {}
    assert ids(direct.claim(OTHER, *two_node)) == [held]
    assert broken(conn) == []


@pytest.mark.parametrize("settles", [True, False])
def test_a_claim_is_held_when_it_is_to_be_counted(conn: psycopg.Connection, dsn: str, settles: bool) -> None:
    """Nobody waits for it: its term is not published until the settlement has come to an end."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 1)
    direct.spawn(QUEUE, lease("web"))
    [claim] = direct.claim(QUEUE, *one_node)
    with interleave(dsn, SHORT) as actor:
        old, worker, publisher = actor(), actor(), actor()
        old.begin()
        old.conn.execute("select pg_current_xact_id()")
        held = publisher.direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
        for _ in range(5):
            publisher.direct.reap()  # now it waits for those that were open, only
        worker.begin()
        ENDS["complete"](worker.direct, one_node, claim)
        old.commit()
        for _ in range(5):
            publisher.direct.reap()
            assert publisher.direct.claim(OTHER, *two_node) == []
        assert unpublished(conn) == 1
        worker.commit() if settles else worker.rollback()
        publish(publisher.direct)
        assert ids(publisher.direct.claim(OTHER, *two_node)) == ([held] if settles else [])
    assert broken(conn) == []


def test_an_idle_claim_holds_up_nobody(conn: psycopg.Connection, dsn: str) -> None:
    """Others settle, heartbeat and claim, in its place as elsewhere."""
    direct = Direct(conn)
    one_node, two_node, three_node = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 2)
    running = crowd(direct, 3, two_node)
    direct.spawn(QUEUE, lease("web"))
    with interleave(dsn, SHORT) as actor:
        idle, other = actor(), actor()
        idle.begin()
        assert len(idle.direct.claim(QUEUE, *one_node)) == 1
        [beat] = other.direct.heartbeat(*two_node, running[:1])
        assert beat["verdict"] == "ok"
        other.direct.complete(running[0]["lease_id"], running[0]["claim_token"])
        other.direct.settle_and_claim(QUEUE, *two_node, running[1:2])
        new = other.direct.spawn(QUEUE, lease("web"))["lease_id"]
        assert ids(other.direct.claim(QUEUE, *two_node)) == [new]
        assert len(other.direct.claim(OTHER, *three_node)) == 1
        other.direct.reap()
        idle.commit()
    assert counts(conn, "away") == {"1": (3, 0), "2": (0, 1)}
    assert broken(conn) == []
