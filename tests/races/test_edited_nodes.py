"""An operator's edit and a claim at the same moment: one of them comes first."""

from typing import LiteralString
from uuid import UUID

import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of
from tests.sql.api import Api, Node
from tests.sql.placed import spawn_placed

TAINT: LiteralString = 'select hwqueue.taint_node(%s, \'{"key": "k", "effect": "no_execute"}\'::jsonb)'
ATTEST: LiteralString = "select hwqueue.attest_node(%s, 'd')"
REVOKE: LiteralString = "select hwqueue.revoke_attestation(%s, 'd')"
# what keeps the lease away, and what the node needs beforehand
EDITS = {"taint": (TAINT, None), "revoke": (REVOKE, ATTEST)}


def edit(direct: Direct, statement: LiteralString | None, node: UUID) -> None:
    """Edit a node as an operator does."""
    if statement:
        direct.conn.execute(statement, [node])


def trusting(direct: Direct, node: UUID) -> UUID:
    """Spawn a lease that requires trust and tolerates nothing; the node has seen such a class."""
    api = Api(direct.conn)
    lease = spawn_placed(api, QUEUE, require=[{"trust": "d"}])
    with direct.conn.transaction(force_rollback=True):
        edit(direct, ATTEST, node)
        assert api.claimed(Node(node, 1, ""), QUEUE) == [lease]
    return lease


@pytest.mark.parametrize("claims_first", [True, False])
@pytest.mark.parametrize("how", EDITS)
def test_a_claim_beside_an_edit(direct: Direct, meet: Meet, how: str, claims_first: bool) -> None:
    """The second of them waits: the edit then asks the lease to stop, the claim gets nothing."""
    node, epoch = register(direct)
    trusting(direct, node)
    statement, before = EDITS[how]
    edit(direct, before or ATTEST, node)
    if not claims_first:
        _, claimed = meet(lambda d: edit(d, statement, node), lambda d: d.claim(QUEUE, node, epoch))
        assert claimed.result(TIMEOUT) == []
        return
    claims, edited = meet(lambda d: d.claim(QUEUE, node, epoch), lambda d: edit(d, statement, node))
    assert len(claims) == 1
    edited.result(TIMEOUT)
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"


@pytest.mark.parametrize("commits", [True, False])
def test_two_nodes_of_one_name(meet: Meet, commits: bool) -> None:
    """The later registration waits for the earlier one, and is refused unless that is undone."""
    _, second = meet(
        lambda d: register(d, 1, labels={"zone": "a"}),
        lambda d: register(d, 1, labels={"zone": "b"}),
        commits=commits,
    )
    if commits:
        assert sqlstate_of(second) == "QHN02"
    else:
        assert second.result(TIMEOUT)[1] == 1


def test_a_registration_does_not_lose_a_taint(direct: Direct, meet: Meet) -> None:
    """Read before the lock, the operator's taints may be others when it has it."""
    node, epoch = register(direct)
    _, registered = meet(
        lambda d: edit(d, TAINT, node), lambda d: d.register(node, node_spec(0, labels={"zone": "a"}))
    )
    assert registered.result(TIMEOUT) == epoch
    direct.spawn(QUEUE)
    assert direct.claim(QUEUE, node, epoch) == []
    [[taints]] = direct.conn.execute("select taints from hwqueue.list_nodes()")
    assert [taint["by"] for taint in taints] == ["operator"]


def test_a_taint_does_not_undo_a_registration(direct: Direct, actor: Actors) -> None:
    """The node has the taint, and the profile of what it is now."""
    node, epoch = register(direct)
    operator, agent = actor(), actor().begin()
    agent.direct.register(node, node_spec(0, labels={"zone": "a"}))
    tainted = operator.parked(lambda d: edit(d, TAINT, node))
    agent.commit()
    tainted.result(TIMEOUT)
    [[taints]] = direct.conn.execute("select taints from hwqueue.list_nodes()")
    assert len(taints) == 1
    tolerate = [{"op": "exists"}]
    require = [{"label": "zone", "op": "in", "values": ["a"]}]
    lease = spawn_placed(Api(direct.conn), QUEUE, require=require, tolerate=tolerate)
    assert [row["lease_id"] for row in direct.claim(QUEUE, node, epoch)] == [lease]


OTHER: LiteralString = 'select hwqueue.taint_node(%s, \'{"key": "other", "effect": "no_schedule"}\'::jsonb)'
UNTAINT: LiteralString = "select hwqueue.untaint_node(%s, 'other')"
CORDON: LiteralString = "select hwqueue.cordon_node(%s)"


@pytest.mark.parametrize("how", ["register", "taint"])
def test_nobody_waits_for_a_profile_with_a_node_in_hand(direct: Direct, actor: Actors, how: str) -> None:
    """Else who is waited for could not edit that node: a circle."""
    node, _ = register(direct, 0, labels={"kind": "old" if how == "register" else "new"})
    if how == "taint":
        edit(direct, OTHER, node)
    twin, _ = register(direct, 1)
    edit(direct, TAINT, twin)
    stranger, operator, caller = actor().begin(), actor(), actor()
    # the first of such a profile: labels and the operator's taint
    stranger.direct.register(twin, node_spec(1, labels={"kind": "new"}))
    operator.begin()
    edit(operator.direct, TAINT if how == "register" else UNTAINT, node)
    called = caller.parked(  # on the node
        (lambda d: d.register(node, node_spec(0, labels={"kind": "new"})))
        if how == "register"
        else (lambda d: edit(d, TAINT, node))
    )
    operator.commit()
    caller.wait_until_behind(called, stranger)  # on its profile, with no node in hand
    edit(stranger.direct, CORDON, node)
    stranger.commit()
    called.result(TIMEOUT)
    [found] = Api(direct.conn).rows("list_nodes", name="node-0")
    assert found["labels"] == {"kind": "new"}
    assert [taint["key"] for taint in found["taints"]] == ["k"]


IN_A = {"label": "zone", "op": "in", "values": ["a"], "during": "execution"}
WITH_CACHE = {"leases": {"labels": {"app": "cache"}}, "domain": "label:zone", "during": "execution"}


def test_a_relabel_waits_for_the_claim_and_asks_it_to_stop(direct: Direct, meet: Meet) -> None:
    node, epoch = register(direct, labels={"zone": "a"})
    direct.spawn(QUEUE, {"placement": {"require": [IN_A]}})
    spec = node_spec(0, labels={"zone": "b"})
    claims, moved = meet(lambda d: d.claim(QUEUE, node, epoch), lambda d: d.register(node, spec))
    assert (len(claims), moved.result(TIMEOUT)) == (1, epoch)
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"


def test_a_claim_beside_a_partner_that_moves_away_meanwhile(direct: Direct, actor: Actors) -> None:
    """Neither waits for the other: the next reap finds what both have made."""
    node, epoch = register(direct, labels={"zone": "a"})
    beside, _ = register(direct, 1, labels={"zone": "a"})
    direct.adopt(QUEUE, beside, {"labels": {"app": "cache"}})
    direct.spawn(QUEUE, {"placement": {"require": [WITH_CACHE]}})
    direct.settle_terms()
    worker, agent = actor().begin(), actor()
    claims = worker.direct.claim(QUEUE, node, epoch)
    assert len(claims) == 1
    agent.direct.register(beside, node_spec(1, labels={"zone": "b"}))
    agent.direct.reap()  # the claim is not there yet
    worker.commit()
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "ok"
    direct.reap()
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"
