"""Claims of leases that have to do with each other, at the same instant: one of two, at once."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import (
    ZONE,
    away,
    broken,
    domains,
    ids,
    lease,
    leases,
    pause_at,
    pause_closed,
    pauses,
    place,
    publish,
    spread,
    toward,
)

NAMED = str(uuid4())
OTHER = "other"  # a queue for the other side, so that each claims the lease that is meant


def sides(domain: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of leases that must not run in one place."""
    keeping = lease("web", away("web", domain))
    holder, match = lease("db", away("web", domain)), lease("web")
    capped = lease("web", spread("web", domain, max_per_domain=1))
    level = lease("web", spread("web", domain, max_skew=1))
    nowhere = [{"label": "zone", "op": "in", "values": ["none"]}]
    either = {"require": [{"any": [[leases("web", domain, away=True)], nowhere]}]}
    named = {"placement": {"require": [{"lease": NAMED, "domain": domain, "away": True}]}}
    served = {"placement": {"require": [{"service": NAMED, "domain": domain, "away": True}]}}
    return {
        "match and either": (match, lease("db", either)),  # not symmetric: only this way round
        "named and holder": ({"lease_id": NAMED}, named),
        "holder and named": (named, {"lease_id": NAMED}),
        "service and holder": ({"service_id": NAMED}, served),
        "holder and service": (served, {"service_id": NAMED}),
        "holder and holder": (keeping, keeping),
        "holder and match": (holder, match),
        "match and holder": (match, holder),
        "max_per_domain": (capped, capped),
        "max_per_domain and match": (match, capped),
        "max_skew": (level, level),
        "max_skew and match": (match, level),
    }


KINDS = pytest.mark.parametrize("kind", sides(ZONE))


def two_queues(conn: psycopg.Connection[Any], options: tuple[dict[str, Any], ...]) -> list[Any]:
    """One lease in each of the queues, all that they ask published; the leases."""
    direct = Direct(conn)
    for queue in (QUEUE, OTHER):
        direct.create_queue(queue)
    spawned = [
        direct.spawn(queue, one)["lease_id"] for queue, one in zip((QUEUE, OTHER), options, strict=True)
    ]
    publish(direct)
    return spawned


@pytest.mark.parametrize("first_commits", [True, False])
@domains
@KINDS
def test_one_of_two(conn: psycopg.Connection, dsn: str, kind: str, domain: str, first_commits: bool) -> None:
    """While one claim is open the other gets nothing, at once; later only if that is undone."""
    first, second = two_queues(conn, sides(domain)[kind])
    one_node, two_node, _elsewhere = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 2)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        two.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        assert two.direct.claim(OTHER, *two_node) == []
        one.commit() if first_commits else one.rollback()
        later = ids(two.direct.claim(OTHER, *two_node))
        two.commit()
    assert later == ([] if first_commits else [second])
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
@domains
@KINDS
def test_what_was_read_before_the_stripe(
    conn: psycopg.Connection, dsn: str, kind: str, domain: str, first_commits: bool
) -> None:
    """A claim that read before another one committed, and has the stripe after it, reads again."""
    first, second = two_queues(conn, sides(domain)[kind])
    one_node, two_node, _elsewhere = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 2)
    pause_at(conn, "admit_class", "v_locked := 0;")
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        pauses(two)
        with pause_closed(conn):
            claimed = two.start(lambda d: d.claim(OTHER, *two_node))
            two.wait_until_parked()
            one.commit() if first_commits else one.rollback()
        assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
@domains
def test_what_was_read_before_the_stripe_where_one_runs(
    conn: psycopg.Connection, dsn: str, domain: str, first_commits: bool
) -> None:
    """Two may run in a place where one does, and two claims looked before either was counted."""
    capped = lease("web", spread("web", domain, max_per_domain=2))
    direct = Direct(conn)
    _first, second = two_queues(conn, (capped, capped))
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 1)
    assert len(direct.claim(QUEUE, *one_node)) == 1
    direct.spawn(QUEUE, capped)
    pause_at(conn, "admit_class", "v_locked := 0;")
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert len(one.direct.claim(QUEUE, *one_node)) == 1
        pauses(two)
        with pause_closed(conn):
            claimed = two.start(lambda d: d.claim(OTHER, *two_node))
            two.wait_until_parked()
            one.commit() if first_commits else one.rollback()
        assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
def test_one_at_once_in_the_whole_fleet(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """Two nodes of different racks claim at the same instant: the second leaves its lease."""
    alone = lease("web", spread("web", "fleet", max_per_domain=1))
    _first, second = two_queues(conn, (alone, alone))
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert len(one.direct.claim(QUEUE, *one_node)) == 1
        assert two.direct.claim(OTHER, *two_node) == []
        one.commit() if first_commits else one.rollback()
        assert ids(two.direct.claim(OTHER, *two_node)) == ([] if first_commits else [second])
    assert broken(conn) == []


@domains
@KINDS
def test_in_another_place(conn: psycopg.Connection, dsn: str, kind: str, domain: str) -> None:
    """In two places both get their lease at the same instant: a lock stripe is one place's."""
    first, second = two_queues(conn, sides(domain)[kind])
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        two.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        assert ids(two.direct.claim(OTHER, *two_node)) == [second]
        one.commit()
        two.commit()
    assert broken(conn) == []


def test_matches_do_not_hold_up_each_other(conn: psycopg.Connection, dsn: str) -> None:
    """They only change the count that others decide by: all at once, in one place."""
    direct = Direct(conn)
    holder, _match = two_queues(conn, (lease("db", away("web")), lease("web")))
    direct.spawn(OTHER, lease("web"))
    nodes = [place(conn, number, 1) for number in (1, 2, 3)]
    with interleave(dsn, SHORT) as actor:
        one, two, three = actor(), actor(), actor()
        for side in (one, two, three):
            side.begin()
        assert len(one.direct.claim(OTHER, *nodes[0])) == 1
        assert len(two.direct.claim(OTHER, *nodes[1])) == 1
        assert three.direct.claim(QUEUE, *nodes[2]) == []
        one.rollback()
        assert three.direct.claim(QUEUE, *nodes[2]) == []  # one of them is still there
        two.rollback()
        assert ids(three.direct.claim(QUEUE, *nodes[2])) == [holder]
        three.commit()
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
def test_one_node_claims_twice(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """On a node of its own a place needs no lock stripe: its claims take turns."""
    keeping = lease("web", away("web", "node"))
    _first, second = two_queues(conn, (keeping, keeping))
    direct, node = Direct(conn), place(conn, 1, 1)
    [judged] = direct.claim(QUEUE, *node)  # there is nothing else to be written about the node
    direct.release(judged["lease_id"], judged["claim_token"])
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert len(one.direct.claim(QUEUE, *node)) == 1
        claimed = two.start(lambda d: d.claim(OTHER, *node))
        two.wait_until_parked()
        one.commit() if first_commits else one.rollback()
        assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])
    assert broken(conn) == []


def test_a_held_stripe_is_passed_by(conn: psycopg.Connection, dsn: str) -> None:
    """While its lock stripe is held a lease is left where it is, and the next one is granted."""
    direct = Direct(conn)
    two_queues(conn, (lease("web", away("web")), lease("web", away("web"))))
    plain = direct.spawn(OTHER)["lease_id"]
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 1)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        assert len(one.direct.claim(QUEUE, *one_node)) == 1
        assert ids(two.direct.claim(OTHER, *two_node, qty=5)) == [plain]
        one.commit()
    assert broken(conn) == []


def test_what_was_passed_by_is_left_to_others(conn: psycopg.Connection, dsn: str) -> None:
    """A claim that stays open has only what it was granted: elsewhere the others can be had."""
    direct = Direct(conn)
    _first, second = two_queues(conn, (lease("web"), lease("db", away("web"))))
    one_node, two_node, elsewhere = place(conn, 1, 1), place(conn, 2, 1), place(conn, 3, 2)
    assert len(direct.claim(QUEUE, *one_node)) == 1
    plain = direct.spawn(OTHER)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        idle, other = actor(), actor()
        idle.begin()
        assert ids(idle.direct.claim(OTHER, *two_node)) == [plain]
        assert ids(other.direct.claim(OTHER, *elsewhere)) == [second]
        idle.commit()


@pytest.mark.parametrize("first_commits", [True, False])
@domains
def test_two_first_members(conn: psycopg.Connection, dsn: str, domain: str, first_commits: bool) -> None:
    """Of a group that requires to be together only one starts; the other joins where that is."""
    member = lease("web", toward("web", domain))
    first, second = two_queues(conn, (member, member))
    one_node, two_node, beside = place(conn, 1, 1), place(conn, 2, 2), place(conn, 3, 1)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        two.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        assert two.direct.claim(OTHER, *two_node) == []
        assert two.direct.claim(OTHER, *beside) == []  # nobody is there yet that counts
        one.commit() if first_commits else one.rollback()
        elsewhere = ids(two.direct.claim(OTHER, *two_node))
        assert elsewhere == ([] if first_commits else [second])
        if first_commits:
            assert ids(two.direct.claim(OTHER, *beside)) == [second]
        two.commit()
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_first_members_that_both_looked(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """The claim that has the stripe second looks again, and finds the group elsewhere."""
    member = lease("web", toward("web"))
    first, second = two_queues(conn, (member, member))
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    pause_at(conn, "admit_class", "v_locked := 0;")
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        pauses(two)
        with pause_closed(conn):
            claimed = two.start(lambda d: d.claim(OTHER, *two_node))
            two.wait_until_parked()
            one.commit() if first_commits else one.rollback()
        assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])


@pytest.mark.parametrize("joins", [True, False])
def test_a_join_while_the_last_member_leaves(conn: psycopg.Connection, dsn: str, joins: bool) -> None:
    """A lease that is joining keeps the group where it is, although all others have left."""
    direct = Direct(conn)
    member = lease("web", toward("web"))
    last, other = two_queues(conn, (member, member))
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    running = direct.claim(QUEUE, *one_node)[0]
    assert running["lease_id"] == last
    joining = direct.spawn(QUEUE, member)["lease_id"]
    with interleave(dsn, SHORT) as actor:
        joiner, worker, starter = actor(), actor(), actor()
        joiner.begin()
        assert ids(joiner.direct.claim(QUEUE, *one_node)) == [joining]
        worker.direct.complete(last, running["claim_token"])
        assert starter.direct.claim(OTHER, *two_node) == []
        joiner.commit() if joins else joiner.rollback()
        assert ids(starter.direct.claim(OTHER, *two_node)) == ([] if joins else [other])
    assert broken(conn) == []


@pytest.mark.parametrize("leaves", [True, False])
def test_the_last_member_is_leaving(conn: psycopg.Connection, dsn: str, leaves: bool) -> None:
    """Until its settlement commits it is there: others may join it, and none may start."""
    direct = Direct(conn)
    member = lease("web", toward("web"))
    last, other = two_queues(conn, (member, member))
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    running = direct.claim(QUEUE, *one_node)[0]
    with interleave(dsn, SHORT) as actor:
        worker, starter = actor(), actor()
        worker.begin()
        worker.direct.complete(last, running["claim_token"])
        assert starter.direct.claim(OTHER, *two_node) == []
        worker.commit() if leaves else worker.rollback()
        assert ids(starter.direct.claim(OTHER, *two_node)) == ([other] if leaves else [])
    assert broken(conn) == []


def test_a_join_finds_the_group_gone(conn: psycopg.Connection, dsn: str) -> None:
    """It looked while the last member ran, and would be the first now: not with a shared stripe."""
    direct = Direct(conn)
    member = lease("web", toward("web"))
    last, other = two_queues(conn, (member, member))
    one_node, two_node, beside = place(conn, 1, 1), place(conn, 2, 2), place(conn, 3, 1)
    running = direct.claim(QUEUE, *one_node)[0]
    joining = direct.spawn(QUEUE, member)["lease_id"]
    pause_at(conn, "admit_class", "v_locked := 0;")
    with interleave(dsn) as actor:
        joiner, starter = actor(), actor()
        pauses(joiner)
        with pause_closed(conn):
            joined = joiner.start(lambda d: d.claim(QUEUE, *beside))
            joiner.wait_until_parked()
            direct.complete(last, running["claim_token"])
        assert joined.result(TIMEOUT) == []
        assert ids(starter.direct.claim(OTHER, *two_node)) == [other]
        assert starter.direct.claim(QUEUE, *beside) == []
        assert ids(starter.direct.claim(QUEUE, *two_node)) == [joining]
    assert broken(conn) == []


@pytest.mark.parametrize("first_commits", [True, False])
def test_first_members_of_two_groups_in_one(conn: psycopg.Connection, dsn: str, first_commits: bool) -> None:
    """Each is one of the other's group: whoever comes second goes where the first is."""
    labels = {"app": "web", "tier": "front"}
    by_tier = {"require": [{"leases": {"labels": {"tier": "front"}}, "domain": "rack"}]}
    first, second = two_queues(
        conn,
        ({"labels": labels, "placement": toward("web")}, {"labels": labels, "placement": by_tier}),
    )
    one_node, two_node = place(conn, 1, 1), place(conn, 2, 2)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        two.begin()
        assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
        assert two.direct.claim(OTHER, *two_node) == []
        one.commit() if first_commits else one.rollback()
        assert ids(two.direct.claim(OTHER, *two_node)) == ([] if first_commits else [second])
        two.commit()
    assert broken(conn) == []
