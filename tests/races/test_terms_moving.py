"""Claims of leases that have to do with each other, and counts of terms that follow what runs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import OTHER, QUEUE, Node, node_spec, set_policy, started
from tests.races.interleave import TIMEOUT, Actors, Meet
from tests.races.terms import (
    RACK,
    ZONE,
    away,
    counts,
    domains,
    ids,
    lease,
    leases,
    paused,
    place,
    publish,
    spread,
    toward,
    unpublished,
    with_lease,
)

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
MOVED = node_spec(1, rack=2, labels={"zone": "2"})  # the first node
USES = ("away", "toward", "cap", "skew", "tally")


def all_counts(direct: Direct) -> list[Any]:
    """What is counted for any term."""
    return [counts(direct, use) for use in USES]


@pytest.mark.parametrize("counted", [False, True], ids=["plain", "with capacity"])
@pytest.mark.parametrize("how", ENDS)
def test_ends(direct: Direct, how: str, counted: bool) -> None:
    """With the claim go its counts, in the same transaction."""
    node = place(direct, 1, 1)
    placement = dict(EVERYTHING)
    if counted:
        spec = node_spec(1, rack=1, labels={"zone": "1"}, capacity={"cpu_milli": 4000})
        node = node[0], direct.register(node[0], spec)
        placement |= {"resources": {"cpu_milli": 500}}
    direct.spawn(QUEUE, lease("web", placement))
    publish(direct)
    [claim] = direct.claim(QUEUE, *node)
    assert all(all_counts(direct)), all_counts(direct)
    assert broken(direct) == []
    ENDS[how](direct, node, claim)
    if how == "drop the queue":  # what runs is asked to stop
        assert all(all_counts(direct))
    else:
        assert all_counts(direct) == [{}] * len(USES)


def test_reaped(direct: Direct, clock: Clock) -> None:
    """An expired claim counts until it is reaped."""
    node = place(direct, 1, 1)
    direct.spawn(QUEUE, lease("web", EVERYTHING))
    publish(direct)
    assert len(direct.claim(QUEUE, *node)) == 1
    clock.advance(timedelta(hours=1))
    assert all(all_counts(direct))
    assert broken(direct) == []
    direct.reap()
    assert all_counts(direct) == [{}] * len(USES)


LEAVING: dict[str, Callable[[Direct, Node, Row, Any], Any]] = {
    "cancelled": lambda d, _n, c, _t: d.cancel(c["lease_id"]),
    "drained": lambda d, n, _c, _t: d.drain(n[0], timedelta(hours=1)),
    "expired": lambda _d, _n, _c, t: t.advance(timedelta(minutes=6)),
}


@pytest.mark.parametrize("how", LEAVING)
def test_about_to_leave(direct: Direct, clock: Clock, how: str) -> None:
    """It counts for away still, no longer for toward; for a cap until it must stop."""
    set_policy(direct, claim_timeout="5 minutes")
    running = direct.spawn(QUEUE, lease("web"))["lease_id"]
    node, beside = place(direct, 1, 1), place(direct, 2, 1)
    [claim] = direct.claim(QUEUE, *node)
    assert claim["lease_id"] == running
    toward_it = direct.spawn(OTHER, lease("db", toward("web")))["lease_id"]
    publish(direct)
    assert ids(direct.claim(OTHER, *beside)) == [toward_it]
    LEAVING[how](direct, node, claim, clock)
    third = place(direct, 3, 1)
    direct.spawn(OTHER, lease("db", toward("web")))
    direct.spawn(OTHER, lease("db", away("web")))
    capped = direct.spawn(QUEUE, lease("web", spread("web", max_per_domain=1)))["lease_id"]
    publish(direct, "select hwqueue.publish_terms(9, true, hwqueue.clock())")
    assert direct.claim(OTHER, *third) == []
    # what has expired may go on after all
    assert ids(direct.claim(QUEUE, *third)) == [capped] * (how != "expired")


def test_expired_and_not_reaped(direct: Direct, clock: Clock) -> None:
    """A claim that heartbeats have kept counts for toward until it expires, reaped or not."""
    set_policy(direct, claim_timeout="5 minutes")
    node, beside = place(direct, 1, 1), place(direct, 2, 1)
    claim = started(direct, node, lease("web"))
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


def crowd(direct: Direct, size: int, *nodes: Node) -> list[Row]:
    """Leases of one term that run, all in rack 1."""
    direct.spawn(OTHER, lease("db", away("web")))
    for _ in range(size):
        direct.spawn(QUEUE, lease("web"))
    publish(direct)
    return [row for node in nodes for row in direct.claim(QUEUE, *node, qty=size // len(nodes))]


@pytest.mark.parametrize("how", ["complete", "complete many", "settle and claim", "release"])
def test_two_settlements_in_one_place(direct: Direct, actor: Actors, how: str) -> None:
    """The second does not wait for the first, whichever is undone; nor does the one who claims."""
    one_node, two_node, three_node = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 1)
    first, second = crowd(direct, 2, one_node, two_node)
    third = direct.spawn(QUEUE, lease("web"))["lease_id"]
    one, two, three = actor().begin(), actor().begin(), actor().begin()
    ENDS[how](one.direct, one_node, first)
    ENDS[how](two.direct, two_node, second)
    assert third in ids(three.direct.claim(QUEUE, *three_node))
    three.commit()
    two.commit()
    assert counts(direct, "away") == {"1": (2, 0)}
    one.rollback()
    assert counts(direct, "away") == {"1": (2, 0)}


@pytest.mark.parametrize("edit_commits", [True, False])
def test_an_edit_during_a_claim(direct: Direct, actor: Actors, edit_commits: bool) -> None:
    """The claim waits for its own node, then counts where the node is now; others go on."""
    one_node, beside, beyond = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    crowd(direct, 2, one_node)
    other_lease = direct.spawn(QUEUE, lease("web"))["lease_id"]
    more = direct.spawn(QUEUE, lease("web"))["lease_id"]
    agent, worker, other = actor().begin(), actor(), actor()
    agent.direct.register(one_node[0], MOVED)
    claimed = worker.parked(lambda d: d.claim(QUEUE, *one_node))
    # in flight on the worker's side is nothing yet: the entry is free
    assert ids(other.direct.claim(QUEUE, *beside)) == [other_lease]
    agent.end(edit_commits)
    assert ids(claimed.result(TIMEOUT)) == [more]
    rack = "2" if edit_commits else "1"
    expected = {"1": (1, 0), "2": (3, 0)} if edit_commits else {"1": (4, 0)}
    assert counts(direct, "away") == expected, rack
    assert broken(direct) == []
    held = ids(direct.claim(OTHER, *beyond))
    assert (held == []) is edit_commits


def test_a_claim_during_an_edit(direct: Direct, meet: Meet) -> None:
    """The edit waits for the claim of its node, and moves what that has counted."""
    one_node = place(direct, 1, 1)
    crowd(direct, 1, one_node)
    direct.spawn(QUEUE, lease("web"))
    claims, edited = meet(lambda d: d.claim(QUEUE, *one_node), lambda d: d.register(one_node[0], MOVED))
    edited.result(TIMEOUT)
    assert len(claims) == 1
    assert counts(direct, "away") == {"2": (2, 0)}


@pytest.mark.parametrize("settles", [True, False])
def test_an_edit_during_a_settlement(direct: Direct, meet: Meet, settles: bool) -> None:
    """The edit waits for the claim that is being settled, and moves only what is left."""
    one_node = place(direct, 1, 1)
    first, _second = crowd(direct, 2, one_node)
    _, edited = meet(
        lambda d: ENDS["complete"](d, one_node, first),
        lambda d: d.register(one_node[0], MOVED),
        commits=settles,
    )
    edited.result(TIMEOUT)
    assert counts(direct, "away") == {"2": (1 if settles else 2, 0)}


def test_an_edit_while_running_leases_are_counted(direct: Direct, actor: Actors) -> None:
    """Whoever counts what runs holds the claims; the edit comes after, and moves the counts."""
    one_node = place(direct, 1, 1)
    direct.spawn(QUEUE, lease("web"))
    assert len(direct.claim(QUEUE, *one_node)) == 1
    direct.spawn(OTHER, lease("db", away("web")))
    publisher, agent = actor(), actor()
    publisher.direct.reap()
    with paused(direct, publisher, publish, at=("publish_term", "for v_count in")) as counting:
        edited = agent.parked(lambda d: d.register(one_node[0], MOVED))
    counting.result(TIMEOUT)
    edited.result(TIMEOUT)
    assert counts(direct, "away") == {"2": (1, 0)}


def test_a_settlement_while_running_leases_are_counted(direct: Direct, actor: Actors) -> None:
    """The settlement waits for whoever counts its claim, and takes back what that has counted."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    claim = started(direct, one_node, lease("web"))
    held = direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    publisher, worker = actor(), actor()
    with paused(direct, publisher, publish, at=("publish_term", "for v_count in")) as counting:
        settled = worker.parked(lambda d: d.complete(claim["lease_id"], claim["claim_token"]))
    counting.result(TIMEOUT)
    settled.result(TIMEOUT)
    assert counts(direct, "away") == {}
    assert ids(direct.claim(OTHER, *two_node)) == [held]


@pytest.mark.parametrize("settles", [True, False])
def test_a_claim_is_held_when_it_is_to_be_counted(direct: Direct, actor: Actors, settles: bool) -> None:
    """Nobody waits for it: its term is not published until the settlement has come to an end."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    claim = started(direct, one_node, lease("web"))
    old, worker, publisher = actor().begin(has_id=True), actor(), actor()
    held = publisher.direct.spawn(OTHER, lease("db", away("web")))["lease_id"]
    for _ in range(5):
        publisher.direct.reap()  # now it waits for those that were open, only
    worker.begin()
    ENDS["complete"](worker.direct, one_node, claim)
    old.commit()
    for _ in range(5):
        publisher.direct.reap()
        assert publisher.direct.claim(OTHER, *two_node) == []
    assert unpublished(direct) == 1
    worker.end(settles)
    publish(publisher.direct)
    assert ids(publisher.direct.claim(OTHER, *two_node)) == ([held] if settles else [])


def test_an_idle_claim_holds_up_nobody(direct: Direct, actor: Actors) -> None:
    """Others settle, heartbeat and claim, in its place as elsewhere."""
    one_node, two_node, three_node = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    running = crowd(direct, 3, two_node)
    direct.spawn(QUEUE, lease("web"))
    idle, other = actor().begin(), actor()
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
    assert counts(direct, "away") == {"1": (3, 0), "2": (0, 1)}


def test_a_node_that_moves_counts_what_a_new_term_counts(direct: Direct, actor: Actors) -> None:
    """Whoever comes second finds it counted."""
    node, epoch = place(direct, 0, 0)
    direct.spawn(QUEUE, lease("x"))
    assert direct.claim(QUEUE, node, epoch)
    direct.spawn(QUEUE, lease("old", away("x", ZONE)))
    publish(direct)  # the claim counts for something: a move counts it anew
    direct.spawn(QUEUE, lease("new", away("x", RACK)))
    reaping, agent = actor(), actor()
    with paused(direct, reaping, publish, at=("publish_term", "select count(*) into v_locked")) as published:
        agent.direct.register(node, node_spec(0, rack=1, labels={"zone": "1"}))
    published.result(TIMEOUT)


NAMED = str(uuid4())
Sides = dict[str, tuple[dict[str, Any], dict[str, Any]]]
LOOKED = ("admit_class", "v_locked := 0;")  # a claim that has looked, and has no stripe yet


def sides(domain: str) -> Sides:
    """Pairs of leases that must not run in one place."""
    keeping = lease("web", away("web", domain))
    holder, match = lease("db", away("web", domain)), lease("web")
    capped = lease("web", spread("web", domain, max_per_domain=1))
    level = lease("web", spread("web", domain, max_skew=1))
    nowhere = [{"label": "zone", "op": "in", "values": ["none"]}]
    either = {"require": [{"any": [[leases("web", domain, away=True)], nowhere]}]}
    named = with_lease(NAMED, domain, away=True)
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


def apart(domain: str) -> Sides:
    """Pairs of leases that must not both start, each in a place of its own."""
    alone = lease("web", spread("web", "fleet", max_per_domain=1))
    member = lease("web", toward("web", domain))
    labels = {"app": "web", "tier": "front"}  # each is one of the other's group
    by_tier = {"require": [{"leases": {"labels": {"tier": "front"}}, "domain": domain}]}
    return {
        "one at once in the whole fleet": (alone, alone),
        "first members of a group": (member, member),
        "first members of two groups in one": (
            {"labels": labels, "placement": toward("web", domain)},
            {"labels": labels, "placement": by_tier},
        ),
    }


KINDS = pytest.mark.parametrize("kind", sides(ZONE))
ALL_KINDS = pytest.mark.parametrize("kind", [*sides(ZONE), *apart(ZONE)])


def two_queues(direct: Direct, options: tuple[dict[str, Any], ...]) -> list[Any]:
    """One lease in each of the queues, all that they ask published; the leases."""
    spawned = [
        direct.spawn(queue, one)["lease_id"] for queue, one in zip((QUEUE, OTHER), options, strict=True)
    ]
    publish(direct)
    return spawned


@pytest.mark.parametrize("first_commits", [True, False])
@domains
@ALL_KINDS
def test_one_of_two(direct: Direct, actor: Actors, kind: str, domain: str, first_commits: bool) -> None:
    """While one claim is open the other gets nothing, at once; later only if that is undone.

    A member of a group then joins the first one, where that is; not before it counts.
    """
    first, second = two_queues(direct, (sides(domain) | apart(domain))[kind])
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2 if kind in apart(domain) else 1)
    place(direct, 3, 2)
    beside = place(direct, 4, 1)
    one, two = actor().begin(), actor().begin()
    assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
    for node in (two_node, beside):
        assert two.direct.claim(OTHER, *node) == []
    one.end(first_commits)
    later = ids(two.direct.claim(OTHER, *two_node))
    joins = first_commits and kind.startswith("first members")
    assert not joins or ids(two.direct.claim(OTHER, *beside)) == [second]
    two.commit()
    assert later == ([] if first_commits else [second])


@pytest.mark.parametrize("first_commits", [True, False])
@domains
@ALL_KINDS
def test_what_was_read_before_the_stripe(
    direct: Direct, actor: Actors, kind: str, domain: str, first_commits: bool
) -> None:
    """A claim that read before another one committed, and has the stripe after it, reads again."""
    first, second = two_queues(direct, (sides(domain) | apart(domain))[kind])
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2 if kind in apart(domain) else 1)
    place(direct, 3, 2)
    one, two = actor().begin(), actor()
    assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
    with paused(direct, two, lambda d: d.claim(OTHER, *two_node), at=LOOKED) as claimed:
        one.end(first_commits)
    assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])


@pytest.mark.parametrize("first_commits", [True, False])
@domains
def test_what_was_read_before_the_stripe_where_one_runs(
    direct: Direct, actor: Actors, domain: str, first_commits: bool
) -> None:
    """Two may run in a place where one does, and two claims looked before either was counted."""
    capped = lease("web", spread("web", domain, max_per_domain=2))
    _first, second = two_queues(direct, (capped, capped))
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    assert len(direct.claim(QUEUE, *one_node)) == 1
    direct.spawn(QUEUE, capped)
    one, two = actor().begin(), actor()
    assert len(one.direct.claim(QUEUE, *one_node)) == 1
    with paused(direct, two, lambda d: d.claim(OTHER, *two_node), at=LOOKED) as claimed:
        one.end(first_commits)
    assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])


@domains
@KINDS
def test_in_another_place(direct: Direct, actor: Actors, kind: str, domain: str) -> None:
    """In two places both get their lease at the same instant: a lock stripe is one place's."""
    first, second = two_queues(direct, sides(domain)[kind])
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2)
    one, two = actor().begin(), actor().begin()
    assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
    assert ids(two.direct.claim(OTHER, *two_node)) == [second]
    one.commit()
    two.commit()


def test_matches_do_not_hold_up_each_other(direct: Direct, actor: Actors) -> None:
    """They only change the count that others decide by: all at once, in one place."""
    holder, _match = two_queues(direct, (lease("db", away("web")), lease("web")))
    direct.spawn(OTHER, lease("web"))
    nodes = [place(direct, number, 1) for number in (1, 2, 3)]
    one, two, three = (actor().begin() for _ in range(3))
    assert len(one.direct.claim(OTHER, *nodes[0])) == 1
    assert len(two.direct.claim(OTHER, *nodes[1])) == 1
    assert three.direct.claim(QUEUE, *nodes[2]) == []
    one.rollback()
    assert three.direct.claim(QUEUE, *nodes[2]) == []  # one of them is still there
    two.rollback()
    assert ids(three.direct.claim(QUEUE, *nodes[2])) == [holder]
    three.commit()


@pytest.mark.parametrize("first_commits", [True, False])
def test_one_node_claims_twice(direct: Direct, meet: Meet, first_commits: bool) -> None:
    """On a node of its own a place needs no lock stripe: its claims take turns."""
    keeping = lease("web", away("web", "node"))
    _first, second = two_queues(direct, (keeping, keeping))
    node = place(direct, 1, 1)
    [judged] = direct.claim(QUEUE, *node)  # there is nothing else to be written about the node
    direct.release(judged["lease_id"], judged["claim_token"])
    first, claimed = meet(
        lambda d: d.claim(QUEUE, *node), lambda d: d.claim(OTHER, *node), commits=first_commits
    )
    assert len(first) == 1
    assert ids(claimed.result(TIMEOUT)) == ([] if first_commits else [second])


def test_a_held_stripe_is_passed_by(direct: Direct, actor: Actors) -> None:
    """While its lock stripe is held a lease is left where it is, and the next one is granted."""
    two_queues(direct, (lease("web", away("web")), lease("web", away("web"))))
    plain = direct.spawn(OTHER)["lease_id"]
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    one, two = actor().begin(), actor()
    assert len(one.direct.claim(QUEUE, *one_node)) == 1
    assert ids(two.direct.claim(OTHER, *two_node, qty=5)) == [plain]
    one.commit()


def test_what_was_passed_by_is_left_to_others(direct: Direct, actor: Actors) -> None:
    """A claim that stays open has only what it was granted: elsewhere the others can be had."""
    _first, second = two_queues(direct, (lease("web"), lease("db", away("web"))))
    one_node, two_node, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    assert len(direct.claim(QUEUE, *one_node)) == 1
    plain = direct.spawn(OTHER)["lease_id"]
    idle, other = actor().begin(), actor()
    assert ids(idle.direct.claim(OTHER, *two_node)) == [plain]
    assert ids(other.direct.claim(OTHER, *elsewhere)) == [second]
    idle.commit()


@pytest.mark.parametrize("joins", [True, False])
def test_a_join_while_the_last_member_leaves(direct: Direct, actor: Actors, joins: bool) -> None:
    """A lease that is joining keeps the group where it is, although all others have left."""
    member = lease("web", toward("web"))
    last, other = two_queues(direct, (member, member))
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2)
    running = direct.claim(QUEUE, *one_node)[0]
    assert running["lease_id"] == last
    joining = direct.spawn(QUEUE, member)["lease_id"]
    joiner, worker, starter = actor().begin(), actor(), actor()
    assert ids(joiner.direct.claim(QUEUE, *one_node)) == [joining]
    worker.direct.complete(last, running["claim_token"])
    assert starter.direct.claim(OTHER, *two_node) == []
    joiner.end(joins)
    assert ids(starter.direct.claim(OTHER, *two_node)) == ([] if joins else [other])


@pytest.mark.parametrize("leaves", [True, False])
def test_the_last_member_is_leaving(direct: Direct, actor: Actors, leaves: bool) -> None:
    """Until its settlement commits it is there: others may join it, and none may start."""
    member = lease("web", toward("web"))
    last, other = two_queues(direct, (member, member))
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2)
    running = direct.claim(QUEUE, *one_node)[0]
    worker, starter = actor().begin(), actor()
    worker.direct.complete(last, running["claim_token"])
    assert starter.direct.claim(OTHER, *two_node) == []
    worker.end(leaves)
    assert ids(starter.direct.claim(OTHER, *two_node)) == ([other] if leaves else [])


def test_a_join_finds_the_group_gone(direct: Direct, actor: Actors) -> None:
    """It looked while the last member ran, and would be the first now: not with a shared stripe."""
    member = lease("web", toward("web"))
    last, other = two_queues(direct, (member, member))
    one_node, two_node, beside = place(direct, 1, 1), place(direct, 2, 2), place(direct, 3, 1)
    running = direct.claim(QUEUE, *one_node)[0]
    joining = direct.spawn(QUEUE, member)["lease_id"]
    joiner, starter = actor(), actor()
    with paused(direct, joiner, lambda d: d.claim(QUEUE, *beside), at=LOOKED) as joined:
        direct.complete(last, running["claim_token"])
    assert joined.result(TIMEOUT) == []
    assert ids(starter.direct.claim(OTHER, *two_node)) == [other]
    assert starter.direct.claim(QUEUE, *beside) == []
    assert ids(starter.direct.claim(QUEUE, *two_node)) == [joining]
