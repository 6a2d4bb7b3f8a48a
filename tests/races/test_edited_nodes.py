"""An operator's edit and a claim at the same moment: one of them comes first."""

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, interleave
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


def trusting(conn: psycopg.Connection, node: UUID) -> UUID:
    """Spawn a lease that requires trust and tolerates nothing; the node has seen such a class."""
    api = Api(conn)
    lease = spawn_placed(api, QUEUE, require=[{"trust": "d"}])
    with conn.transaction(force_rollback=True):
        edit(Direct(conn), ATTEST, node)
        assert api.claimed(Node(node, 1, ""), QUEUE) == [lease]
    return lease


@pytest.mark.parametrize("how", EDITS)
def test_the_claim_comes_first(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """The edit waits, and then asks the lease to stop."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    trusting(conn, node)
    statement, before = EDITS[how]
    edit(direct, before or ATTEST, node)
    with interleave(dsn) as actor:
        worker, operator = actor(), actor()
        worker.begin()
        claims = worker.direct.claim(QUEUE, node, epoch)
        assert len(claims) == 1
        edited = operator.start(lambda d: edit(d, statement, node))
        operator.wait_until_parked()
        worker.commit()
        edited.result(TIMEOUT)
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"


@pytest.mark.parametrize("how", EDITS)
def test_the_edit_comes_first(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """The claim waits, and then gets nothing."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    trusting(conn, node)
    statement, before = EDITS[how]
    edit(direct, before or ATTEST, node)
    with interleave(dsn) as actor:
        worker, operator = actor(), actor()
        operator.begin()
        edit(operator.direct, statement, node)
        claimed = worker.start(lambda d: d.claim(QUEUE, node, epoch))
        worker.wait_until_parked()
        operator.commit()
        assert claimed.result(TIMEOUT) == []


def test_a_registration_does_not_lose_a_taint(conn: psycopg.Connection, dsn: str) -> None:
    """Read before the lock, the operator's taints may be others when it has it."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    with interleave(dsn) as actor:
        operator, agent = actor(), actor()
        operator.begin()
        edit(operator.direct, TAINT, node)
        registered = agent.start(lambda d: d.register(node, node_spec(0, labels={"zone": "a"})))
        agent.wait_until_parked()
        operator.commit()
        assert registered.result(TIMEOUT) == epoch
    direct.spawn(QUEUE)
    assert direct.claim(QUEUE, node, epoch) == []
    [[taints]] = conn.execute("select taints from hwqueue.list_nodes()")
    assert [taint["by"] for taint in taints] == ["operator"]


def test_a_taint_does_not_undo_a_registration(conn: psycopg.Connection, dsn: str) -> None:
    """The node has the taint, and the profile of what it is now."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    with interleave(dsn) as actor:
        operator, agent = actor(), actor()
        agent.begin()
        agent.direct.register(node, node_spec(0, labels={"zone": "a"}))
        tainted = operator.start(lambda d: edit(d, TAINT, node))
        operator.wait_until_parked()
        agent.commit()
        tainted.result(TIMEOUT)
    [[taints]] = conn.execute("select taints from hwqueue.list_nodes()")
    assert len(taints) == 1
    tolerate = [{"op": "exists"}]
    require = [{"label": "zone", "op": "in", "values": ["a"]}]
    lease = spawn_placed(Api(conn), QUEUE, require=require, tolerate=tolerate)
    assert [row["lease_id"] for row in direct.claim(QUEUE, node, epoch)] == [lease]


OTHER: LiteralString = 'select hwqueue.taint_node(%s, \'{"key": "other", "effect": "no_schedule"}\'::jsonb)'
UNTAINT: LiteralString = "select hwqueue.untaint_node(%s, 'other')"
CORDON: LiteralString = "select hwqueue.cordon_node(%s)"


@pytest.mark.parametrize("how", ["register", "taint"])
def test_nobody_waits_for_a_profile_with_a_node_in_hand(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """Else who is waited for could not edit that node: a circle."""
    node, _ = register(conn, 0, labels={"kind": "old" if how == "register" else "new"})
    if how == "taint":
        edit(Direct(conn), OTHER, node)
    twin, _ = register(conn, 1)
    edit(Direct(conn), TAINT, twin)
    with interleave(dsn) as actor:
        stranger, operator, caller = actor(), actor(), actor()
        stranger.begin()
        # the first of such a profile: labels and the operator's taint
        stranger.direct.register(twin, node_spec(1, labels={"kind": "new"}))
        operator.begin()
        edit(operator.direct, TAINT if how == "register" else UNTAINT, node)
        called = caller.start(
            (lambda d: d.register(node, node_spec(0, labels={"kind": "new"})))
            if how == "register"
            else (lambda d: edit(d, TAINT, node))
        )
        caller.wait_until_parked()  # on the node
        operator.commit()
        caller.wait_until_blocked_by(stranger)  # on its profile, with no node in hand
        edit(stranger.direct, CORDON, node)
        stranger.commit()
        called.result(TIMEOUT)
    [found] = Api(conn).rows("list_nodes", name="node-0")
    assert found["labels"] == {"kind": "new"}
    assert [taint["key"] for taint in found["taints"]] == ["k"]
