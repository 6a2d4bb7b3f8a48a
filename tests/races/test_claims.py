"""Claims beside claims, and claims that another session holds."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, node_spec, register
from tests.races.interleave import TIMEOUT, Actor, Actors, Meet
from tests.sql.api import refusing


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_nodes_one_lease(direct: Direct, actor: Actors, first_commits: bool) -> None:
    """While one node's claim is open the other gets nothing, at once; a rollback frees it."""
    lease = direct.spawn(QUEUE)["lease_id"]
    one_node, two_node = register(direct, 1), register(direct, 2)
    one, two = actor().begin(), actor()
    assert [row["lease_id"] for row in one.direct.claim(QUEUE, *one_node)] == [lease]
    assert two.direct.claim(QUEUE, *two_node) == []
    one.end(first_commits)
    later = [row["lease_id"] for row in two.direct.claim(QUEUE, *two_node)]
    assert later == ([] if first_commits else [lease])


def test_an_open_claim_holds_up_no_other_node(direct: Direct, actor: Actors) -> None:
    """Claims of other nodes pass by an open claim, with counted capacity, too."""
    placement = {"resources": {"cpu_milli": 1000}}
    direct.spawn_many(QUEUE, [{"placement": placement}] * 4)
    capacity = {"cpu_milli": 4000}
    one_node, two_node = (register(direct, n, capacity=capacity) for n in (1, 2))
    one, two = actor().begin(), actor()
    first = one.direct.claim(QUEUE, *one_node, qty=2)
    second = two.direct.claim(QUEUE, *two_node, qty=2)
    taken = {row["lease_id"] for row in first} | {row["lease_id"] for row in second}
    assert len(taken) == len(first) + len(second) == 4


LIKED = {"placement": {"prefer": [{"weight": 1, "when": {"tags": {"zone": "a"}}}]}}
KINDS: dict[str, list[dict[str, Any]]] = {
    "one class": [{}],
    "two classes": [{"labels": {"kind": "one"}}, {"labels": {"kind": "other"}}],
    "one is liked better": [LIKED, {}],
}


@pytest.mark.parametrize("qty", [1, 10, 200, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_large_claim_that_is_open(direct: Direct, actor: Actors, kind: str, qty: int) -> None:
    """Others look past all that it holds, and get exactly what comes next."""
    spawned = direct.spawn_many(QUEUE, KINDS[kind] * (4_400 // len(KINDS[kind])))
    in_order = [row["lease_id"] for row in spawned]
    if kind == "one is liked better":
        in_order = in_order[::2] + in_order[1::2]
    large, small = (register(direct, number, labels={"zone": "a"}) for number in (1, 2))
    one, two = actor().begin(), actor()
    held = one.direct.claim(QUEUE, *large, qty=1000)
    got = two.direct.claim(QUEUE, *small, qty=qty)
    one.rollback()
    assert [row["lease_id"] for row in held] == in_order[:1000]
    assert [row["lease_id"] for row in got] == in_order[1000 : 1000 + qty]


def test_one_node_claims_twice_at_once(direct: Direct, meet: Meet) -> None:
    """Two claims of one node queue up: the second sees what the first has taken."""
    placement = {"resources": {"cpu_milli": 3000}}
    direct.spawn_many(QUEUE, [{"placement": placement}] * 2)
    node = register(direct, capacity={"cpu_milli": 4000})
    first, second = meet(lambda d: d.claim(QUEUE, *node), lambda d: d.claim(QUEUE, *node))
    assert (len(first), second.result(TIMEOUT)) == (1, [])


BUSY = "QHL09"
NODE_BUSY = "QHN06"
COUNTED = {"resources": {"cpu_milli": 1000}}
CAPACITY = {"cpu_milli": 4000}

Settle = Callable[[Direct, Node, list[Row]], list[Row]]


class Scene:
    """Two claims of one node; a producer has cancelled the first, and leaves it at that."""

    def __init__(self, direct: Direct, producer: Actor, counted: bool) -> None:
        self.direct = direct
        direct.conn.execute("set lock_timeout = '100ms'")  # all of it is waited out
        self.node = register(direct, capacity=CAPACITY if counted else {})
        needs = {"placement": COUNTED} if counted else {}
        for _ in range(3):
            self.direct.spawn(QUEUE, needs)
        self.claims = self.direct.claim(QUEUE, *self.node, qty=2)
        self.held, self.free = self.claims
        self.producer = producer
        producer.begin().direct.cancel(self.held["lease_id"])

    def states(self) -> list[str]:
        return [self.direct.lease(claim["lease_id"])["state"] for claim in self.claims]


@pytest.fixture(params=[False, True], ids=["plain", "counted"])
def scene(direct: Direct, actor: Actors, request: pytest.FixtureRequest) -> Scene:
    return Scene(direct, actor(), request.param)


def as_json(direct: Direct, node: Node, claims: list[Row]) -> list[Row]:
    return direct.settle_and_claim(QUEUE, *node, claims)


def as_lists(direct: Direct, node: Node, claims: list[Row]) -> list[Row]:
    return direct.settle_and_claim(QUEUE, *node, [], completed=claims)


def as_both(direct: Direct, node: Node, claims: list[Row]) -> list[Row]:
    return direct.settle_and_claim(QUEUE, *node, claims[:1], completed=claims[1:])


def in_a_batch(direct: Direct, node: Node, claims: list[Row]) -> list[Row]:
    return direct.complete_many(claims)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("settle", [as_json, as_lists, as_both, in_a_batch])
def test_a_batch_settles_all_but_the_busy_claim(scene: Scene, settle: Settle, commits: bool) -> None:
    rows = settle(scene.direct, scene.node, scene.claims)
    verdicts = {row["lease_id"]: row["verdict"] for row in rows if row.get("kind") != "claimed"}
    assert verdicts.pop(scene.held["lease_id"]) == "busy"
    assert set(verdicts.values()) <= {"ok"}
    assert scene.states() == ["claimed", "completed"]
    if settle is not in_a_batch:
        assert len([row for row in rows if row["kind"] == "claimed"]) == 1
    scene.producer.end(commits)
    again = settle(scene.direct, scene.node, [scene.held])
    assert [row["verdict"] for row in again if row.get("kind") != "claimed"] in ([], ["ok"])
    assert scene.states() == ["completed", "completed"]


def test_one_completion_alone_is_busy(scene: Scene) -> None:
    [row] = scene.direct.settle_and_claim(QUEUE, *scene.node, [], qty=0, completed=[scene.held])
    assert (row["verdict"], row["state"]) == ("busy", "claimed")


@pytest.mark.parametrize(
    "call",
    [
        lambda d, claim: d.complete(claim["lease_id"], claim["claim_token"]),
        lambda d, claim: d.fail(claim["lease_id"], claim["claim_token"]),
        lambda d, claim: d.release(claim["lease_id"], claim["claim_token"]),
        lambda d, claim: d.extend(claim["lease_id"], claim["claim_token"], timedelta(minutes=1)),
    ],
    ids=["complete", "fail", "release", "extend"],
)
def test_a_single_call_says_that_the_claim_is_busy(
    scene: Scene, call: Callable[[Direct, Row], object]
) -> None:
    with pytest.raises(psycopg.DatabaseError) as refused:
        call(scene.direct, scene.held)
    assert refused.value.sqlstate == BUSY
    pid = scene.producer.conn.info.backend_pid
    assert f'"sessions": [{pid}]' in str(refused.value.diag.message_detail)
    scene.producer.rollback()
    call(scene.direct, scene.held)


@pytest.mark.parametrize("call", ["complete", "fail"])
def test_a_call_that_waits_for_a_plain_claim_does_not_hold_its_node(
    direct: Direct, actor: Actors, call: str
) -> None:
    scene, settler = Scene(direct, actor(), counted=False), actor()
    lease, token = scene.held["lease_id"], scene.held["claim_token"]
    settled = settler.parked(lambda d: getattr(d, call)(lease, token), behind=scene.producer)
    assert len(scene.direct.claim(QUEUE, *scene.node)) == 1
    scene.producer.rollback()
    assert settled.result() in {"completed", "pending", "scheduled"}


def test_a_registration_says_that_the_node_is_busy(scene: Scene) -> None:
    """A new instance would end the claims, one of which it cannot have."""
    spec = node_spec(0, instance_id="second")
    with refusing(NODE_BUSY):
        scene.direct.register(scene.node[0], spec)
    assert scene.states() == ["claimed", "claimed"]
    scene.producer.rollback()
    assert scene.direct.register(scene.node[0], spec) > scene.node[1]
    assert scene.states() == ["pending", "pending"]


@pytest.mark.parametrize(
    "command",
    [
        "select hwqueue.drain_node(%s, '1 minute')",
        """select hwqueue.taint_node(%s, '{"key": "k", "effect": "no_execute"}')""",
        "select hwqueue.revoke_attestation(%s, 'vault')",
        "select hwqueue.hand_over_node(%s, 'hwqueue_worker')",
        "select hwqueue.deregister_node(%s)",
    ],
    ids=["drain", "taint", "revoke", "hand over", "deregister"],
)
def test_an_operator_is_told_that_the_node_is_busy(scene: Scene, command: LiteralString) -> None:
    """It holds the node's row while it waits for the claim, and the node cannot claim then."""
    conn = scene.direct.conn
    conn.execute("select hwqueue.attest_node(%s, 'vault')", [scene.node[0]])
    with refusing(NODE_BUSY):
        conn.execute(command, [scene.node[0]])
    assert scene.states() == ["claimed", "claimed"]
    scene.producer.rollback()
    conn.execute(command, [scene.node[0]])


def test_a_session_without_a_limit_of_its_own_does_not_wait_for_ever(scene: Scene) -> None:
    scene.direct.conn.execute("set lock_timeout = 0")
    rows = as_lists(scene.direct, scene.node, scene.claims)
    assert [row["verdict"] for row in rows if row["kind"] == "settled"] == ["busy"]
    assert scene.direct.conn.execute("show lock_timeout").fetchone() == ("0",)


def test_a_stale_token_waits_for_nobody(scene: Scene) -> None:
    stale = dict(scene.held, claim_token=scene.held["claim_token"] - 1)
    scene.direct.conn.execute("set lock_timeout = 0")
    [row] = scene.direct.settle_and_claim(QUEUE, *scene.node, [], qty=0, completed=[stale])
    assert row["verdict"] == "lost"


def test_heartbeats_go_on(scene: Scene) -> None:
    rows = scene.direct.heartbeat(*scene.node, scene.claims)
    assert [row["verdict"] for row in rows] == ["ok", "ok"]


def in_a_savepoint(holder: Actor, claim: Row) -> None:
    holder.conn.execute("savepoint one")
    holder.direct.cancel(claim["lease_id"])


def in_a_released_savepoint(holder: Actor, claim: Row) -> None:
    in_a_savepoint(holder, claim)
    holder.conn.execute("release savepoint one")


def shared_with_itself(holder: Actor, claim: Row) -> None:
    """Locked twice, so that the row names a multixact."""
    holder.conn.execute("select from hwqueue.claim where lease_id = %s for share", [claim["lease_id"]])
    in_a_savepoint(holder, claim)


@pytest.mark.parametrize("hold", [in_a_savepoint, in_a_released_savepoint, shared_with_itself])
@pytest.mark.parametrize("settle", [as_json, as_lists, as_both, in_a_batch])
def test_a_batch_does_not_wait_for_a_claim_that_a_savepoint_holds(
    direct: Direct, actor: Actors, settle: Settle, hold: Callable[[Actor, Row], None]
) -> None:
    """A snapshot names no subtransactions, and a later transaction has ended meanwhile."""
    scene = Scene(direct, actor(), False)
    scene.producer.rollback()
    hold(scene.producer.begin(), scene.held)
    direct.conn.execute("select pg_current_xact_id()")
    rows = settle(scene.direct, scene.node, scene.claims)
    verdicts = {row["lease_id"]: row["verdict"] for row in rows if row.get("kind") != "claimed"}
    assert verdicts.pop(scene.held["lease_id"]) == "busy"
    assert scene.states() == ["claimed", "completed"]
    scene.producer.commit()
    settle(scene.direct, scene.node, [scene.held])
    assert scene.states() == ["completed", "completed"]


@pytest.mark.parametrize("settle", [as_lists, in_a_batch])
def test_a_claim_that_a_later_transaction_holds_is_busy(
    direct: Direct, actor: Actors, settle: Settle
) -> None:
    """Whose id was given out after the settler's."""
    scene = Scene(direct, actor(), False)
    scene.producer.rollback()
    with direct.conn.transaction():
        direct.conn.execute("select pg_current_xact_id()")
        scene.producer.begin().direct.cancel(scene.held["lease_id"])
        rows = settle(scene.direct, scene.node, scene.claims)
        verdicts = {row["lease_id"]: row["verdict"] for row in rows if "verdict" in row}
        assert verdicts[scene.held["lease_id"]] == "busy"
    assert scene.states() == ["claimed", "completed"]
    scene.producer.rollback()
