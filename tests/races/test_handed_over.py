"""A node that changes hands while its worker works: one of them comes first."""

from collections.abc import Iterator
from typing import LiteralString
from uuid import uuid4

import pytest
from psycopg import sql

from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register
from tests.races.interleave import TIMEOUT, Actor, Actors
from tests.sql.api import Api, refusing, token

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
