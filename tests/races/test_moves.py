"""Nodes that are handed over or edited, and leases that move, while others claim."""

from collections.abc import Iterator
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE, Node, node_spec, register
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet, sqlstate_of
from tests.sql import api as calls
from tests.sql.api import Api, refusing, token
from tests.sql.placed import spawn_placed

HERE, THERE, ELSEWHERE = QUEUE, OTHER, "elsewhere"
KEYED = {"unique": {"key": "k", "on_conflict": "replace"}}
TO_THERE = {"queue": THERE}


@pytest.fixture
def node(direct: Direct) -> Node:
    """A node, and a third queue."""
    direct.create_queue(ELSEWHERE)
    return register(direct)


@pytest.fixture
def lease(direct: Direct, node: Node) -> UUID:
    """A lease that waits in the first of them, with a unique key."""
    found: UUID = direct.spawn(HERE, KEYED)["lease_id"]
    return found


def moved(direct: Direct) -> tuple[list[UUID], list[UUID]]:
    """Move all from here to there; which did, and which were skipped."""
    row = direct.row("update_leases", filter={"queue": HERE}, changes=TO_THERE)
    return row["changed"], row["skipped"]


def test_no_claim_gets_it_on_the_way(actor: Actors, node: Node, lease: UUID) -> None:
    mover, worker = actor().begin(), actor()
    mover.direct.update(lease, TO_THERE)
    for queue in (HERE, THERE):
        assert worker.direct.claim(queue, *node) == []
    assert worker.direct.claim_any([HERE, THERE], *node) == []
    mover.commit()
    assert worker.direct.claim(HERE, *node) == []
    [claim] = worker.direct.claim_any([HERE, THERE], *node)
    assert claim["lease_id"] == lease


@pytest.mark.parametrize("kept", [True, False], ids=["claimed", "not claimed"])
def test_a_claim_comes_first(direct: Direct, actor: Actors, node: Node, lease: UUID, kept: bool) -> None:
    worker, mover = actor().begin(), actor()
    assert len(worker.direct.claim(HERE, *node)) == 1
    late = mover.parked(lambda d: d.update(lease, TO_THERE), behind=worker)
    if kept:
        worker.commit()
        error = late.exception(TIMEOUT)
        assert isinstance(error, psycopg.Error)
        assert error.sqlstate == "QHL07"
    else:
        worker.rollback()
        assert late.result(TIMEOUT) == "pending"
    assert direct.lease(lease)["queue"] == (HERE if kept else THERE)


def test_a_claim_passes_by_a_page_that_moves(direct: Direct, actor: Actors, node: Node, lease: UUID) -> None:
    other = direct.spawn(HERE)["lease_id"]
    worker, mover = actor().begin(), actor()
    [claim] = worker.direct.claim(HERE, *node)
    assert claim["lease_id"] == lease
    assert moved(mover.direct) == ([other], [lease])
    worker.commit()


@pytest.mark.parametrize("case", [(q, first) for q in (HERE, THERE) for first in (True, False)])
def test_a_pause_beside_it(
    direct: Direct, actor: Actors, node: Node, lease: UUID, case: tuple[str, bool]
) -> None:
    """Neither waits for the other; the queue where the lease is then decides."""
    queue, pause_first = case
    mover, operator = actor(), actor()
    first, second = (operator, mover) if pause_first else (mover, operator)
    for one in (first, second):
        one.begin()
        if one is mover:
            one.direct.update(lease, TO_THERE)
        else:
            one.direct.rows("pause_queue", queue=queue)
    second.commit()
    first.commit()
    found = direct.claim_any([HERE, THERE], *node)
    assert [row["lease_id"] for row in found] == ([lease] if queue == HERE else [])


def test_of_two_moves_the_second_goes_on_from_the_first(direct: Direct, meet: Meet, lease: UUID) -> None:
    _, late = meet(lambda d: d.update(lease, TO_THERE), lambda d: d.update(lease, {"queue": ELSEWHERE}))
    assert late.result(TIMEOUT) == "pending"
    keys = direct.conn.execute(
        "select q.name from hwqueue.idempotency i join hwqueue.queue q using (queue_id)"
    ).fetchall()
    assert (direct.lease(lease)["queue"], keys) == (ELSEWHERE, [(ELSEWHERE,)])


def test_a_spawn_that_holds_its_key(actor: Actors, lease: UUID) -> None:
    """The spawn waits for the entry, so the move must not wait for the key."""
    producer, mover = actor().begin(), actor()
    producer.conn.execute("select 1 from hwqueue.idempotency for update")
    with refusing("QHT02"):
        mover.direct.update(lease, TO_THERE)
    assert moved(mover.direct) == ([], [lease])
    assert producer.direct.spawn(HERE, KEYED)["lease_id"] == lease
    producer.commit()
    assert moved(mover.direct) == ([lease], [])


@pytest.mark.parametrize("kept", [True, False], ids=["moved", "not moved"])
def test_a_spawn_there_waits_for_the_key(meet: Meet, lease: UUID, kept: bool) -> None:
    keyed = {"unique": {"key": "k"}}
    _, late = meet(lambda d: d.update(lease, TO_THERE), lambda d: d.spawn(THERE, keyed), commits=kept)
    assert (late.result(TIMEOUT)["lease_id"] == lease) is kept


def test_two_that_swap_a_key_leave_both(direct: Direct, actor: Actors, lease: UUID) -> None:
    """Each finds the other's lease with the key, and waits for nothing."""
    other = direct.spawn(THERE, KEYED)["lease_id"]
    one, two = actor().begin(), actor().begin()
    assert moved(one.direct) == ([], [lease])
    row = two.direct.row("update_leases", filter={"queue": THERE}, changes={"queue": HERE})
    assert (row["changed"], row["skipped"]) == ([], [other])
    one.commit()
    two.commit()


@pytest.mark.parametrize("call", ["update_leases", "requeue_leases"])
def test_a_page_waits_for_a_new_key_before_it_holds_others(
    direct: Direct, actor: Actors, lease: UUID, call: str
) -> None:
    """A spawn has written the new one, and takes one that was there: neither waits for the other."""
    first = {"unique": {"key": "a"}}
    other = direct.spawn(HERE, first)["lease_id"]
    there, more, filtered = THERE, {"changes": TO_THERE}, {"queue": HERE, "state": "pending"}
    if call == "requeue_leases":
        direct.row("cancel_leases", filter={"queue": HERE})
        direct.conn.execute("delete from hwqueue.idempotency where lease_id = %s", [lease])
        there, more, filtered = HERE, {}, {"queue": HERE, "state": "cancelled"}
    else:
        direct.cancel(direct.spawn(THERE, first)["lease_id"])
    producer, operator = actor().begin(), actor()
    producer.direct.spawn(there, KEYED)
    page = operator.parked(lambda d: d.row(call, filter=filtered, **more), behind=producer)
    assert producer.direct.spawn(there, first)["created"]
    producer.rollback()
    assert set(page.result(TIMEOUT)["changed"]) == {lease, other}


HAND_OVER: LiteralString = "select hwqueue.hand_over_node(%s, 'hwqueue_admin')"


@pytest.fixture
def login(direct: Direct) -> Iterator[str]:
    name = f"hwqueue test {uuid4().hex[:12]}"
    direct.conn.execute(sql.SQL("create role {} login in role hwqueue_worker").format(sql.Identifier(name)))
    yield name
    direct.conn.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def become(actor: Actor, login: str) -> None:
    """Let a session be this login's from here on."""
    actor.conn.execute(sql.SQL("set session authorization {}").format(sql.Identifier(login)))


def owned(direct: Direct, login: str) -> Node:
    """A node of the login's and a lease that it may claim; its id and epoch."""
    node, epoch = register(direct)
    direct.conn.execute("select hwqueue.hand_over_node(%s, %s)", [node, login])
    direct.spawn(QUEUE)
    return node, epoch


@pytest.mark.parametrize("how", ["alone", "listed", "with the next claim"])
def test_a_settlement_waits_and_is_refused(direct: Direct, actor: Actors, login: str, how: str) -> None:
    node, epoch = owned(direct, login)
    worker, operator = actor(), actor()
    become(worker, login)
    [claim] = worker.direct.claim(QUEUE, node, epoch)
    operator.begin()
    operator.conn.execute(HAND_OVER, [node])
    if how == "alone":
        call = worker.parked(lambda d: d.complete(claim["lease_id"], claim["claim_token"]))
    elif how == "listed":
        call = worker.parked(lambda d: str(d.complete_many([claim])))
    else:
        call = worker.parked(lambda d: str(d.settle_and_claim(QUEUE, node, epoch, [], completed=[claim])))
    operator.commit()
    if how == "listed":
        assert "bad_token" in call.result(TIMEOUT)
    else:
        with refusing("QHL08" if how == "alone" else "QHN04"):
            call.result(TIMEOUT)
    api = Api(direct.conn)
    assert api.state(claim["lease_id"]) == "claimed"
    assert api.rows("verify_invariants") == []


def test_a_claim_under_way_goes_with_its_node(direct: Direct, actor: Actors, login: str) -> None:
    node, epoch = owned(direct, login)
    worker, operator = actor(), actor()
    become(worker, login)
    worker.begin()
    [claim] = worker.direct.claim(QUEUE, node, epoch)
    handed = operator.parked(lambda d: d.conn.execute(HAND_OVER, [node]))
    worker.commit()
    handed.result(TIMEOUT)
    with refusing("QHL08"):
        worker.direct.complete(claim["lease_id"], claim["claim_token"])
    api = Api(direct.conn)
    assert api.rows("verify_invariants") == []
    assert api.value("complete_lease", **token(claim)) == "completed"


def test_the_first_of_two_logins_gets_the_node(direct: Direct, actor: Actors, login: str) -> None:
    """Two registrations of a node that nobody had."""
    node = uuid4()
    first, second = actor(), actor()
    become(second, login)
    first.begin()
    Api(first.conn).node(node, name="one")
    late = second.parked(lambda d: Api(d.conn).node(node, name="one", instance_id="second"))
    first.commit()
    with refusing("QHN04"):
        late.result(TIMEOUT)
    assert Api(direct.conn).row("list_nodes", node=node)["node_epoch"] == 1


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
        assert api.claimed(calls.Node(node, 1, ""), QUEUE) == [lease]
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


OTHER_TAINT: LiteralString = (
    'select hwqueue.taint_node(%s, \'{"key": "other", "effect": "no_schedule"}\'::jsonb)'
)
UNTAINT: LiteralString = "select hwqueue.untaint_node(%s, 'other')"
CORDON: LiteralString = "select hwqueue.cordon_node(%s)"


@pytest.mark.parametrize("how", ["register", "taint"])
def test_nobody_waits_for_a_profile_with_a_node_in_hand(direct: Direct, actor: Actors, how: str) -> None:
    """Else who is waited for could not edit that node: a circle."""
    node, _ = register(direct, 0, labels={"kind": "old" if how == "register" else "new"})
    if how == "taint":
        edit(direct, OTHER_TAINT, node)
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
