"""Claims of leases that have to do with each other, at the same instant: one of two, at once."""

from typing import Any
from uuid import uuid4

import pytest

from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE
from tests.races.interleave import TIMEOUT, Actors, Meet
from tests.races.terms import (
    ZONE,
    away,
    domains,
    ids,
    lease,
    leases,
    paused,
    place,
    publish,
    spread,
    toward,
    with_lease,
)

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
    """While one claim is open the other gets nothing, at once; later only if that is undone."""
    first, second = two_queues(direct, (sides(domain) | apart(domain))[kind])
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 2 if kind in apart(domain) else 1)
    place(direct, 3, 2)
    one, two = actor().begin(), actor().begin()
    assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
    assert two.direct.claim(OTHER, *two_node) == []
    one.end(first_commits)
    later = ids(two.direct.claim(OTHER, *two_node))
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


@pytest.mark.parametrize("first_commits", [True, False])
@domains
def test_two_first_members(direct: Direct, actor: Actors, domain: str, first_commits: bool) -> None:
    """Of a group that requires to be together only one starts; the other joins where that is."""
    member = lease("web", toward("web", domain))
    first, second = two_queues(direct, (member, member))
    one_node, two_node, beside = place(direct, 1, 1), place(direct, 2, 2), place(direct, 3, 1)
    one, two = actor().begin(), actor().begin()
    assert ids(one.direct.claim(QUEUE, *one_node)) == [first]
    assert two.direct.claim(OTHER, *two_node) == []
    assert two.direct.claim(OTHER, *beside) == []  # nobody is there yet that counts
    one.end(first_commits)
    elsewhere = ids(two.direct.claim(OTHER, *two_node))
    assert elsewhere == ([] if first_commits else [second])
    if first_commits:
        assert ids(two.direct.claim(OTHER, *beside)) == [second]
    two.commit()


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
