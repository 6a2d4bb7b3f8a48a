"""Settling against everything that may end the claim first: reap, restart, cancel."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE, Node, node_spec, register, set_policy
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of
from tests.races.terms import with_lease
from tests.sql.api import refusing

LOST = "QHL01"
FINISHED = "QHL03"
SUPERSEDED = "QHN03"
AT_ONCE = {"kind": "fixed", "base": 0, "jitter": 0}
COUNTED = {"resources": {"cpu_milli": 1000}}
CAPACITY = {"cpu_milli": 4000}
RESTARTED = node_spec(0, instance_id="second", capacity=CAPACITY)
Call = Callable[[Direct, Node, Row], None]


@pytest.fixture(params=[{"capacity": CAPACITY}, {}], ids=["counted", "uncounted"])
def node(request: pytest.FixtureRequest, direct: Direct) -> Node:
    """A node: claims that set something aside end in another way than the rest."""
    set_policy(direct, retry=AT_ONCE)
    return register(direct, **request.param)


@pytest.fixture
def claim(direct: Direct, node: Node) -> Row:
    """A running claim of that node."""
    direct.spawn(QUEUE, {"placement": COUNTED, "max_attempts": 3})
    return direct.claim(QUEUE, *node)[0]


def complete(direct: Direct, claim: Row) -> str:
    return direct.complete(claim["lease_id"], claim["claim_token"])


def test_stale_token_after_reap(direct: Direct, actor: Actors, clock: Clock, node: Node, claim: Row) -> None:
    """A reaped claim cannot settle, nor can it once granted anew; who is back in a reap waits not for it."""
    other, _ = register(direct, 1)
    clock.advance(timedelta(minutes=5))
    holder, sweeper = actor().begin(), actor()
    holder.conn.execute("select from hwqueue.lease where lease_id = %s for update", [claim["lease_id"]])
    swept = sweeper.parked(lambda d: d.reap())
    direct.register(other, node_spec(1))
    holder.commit()
    assert swept.result(TIMEOUT)["expired"] == 1
    with refusing(LOST):
        complete(direct, claim)
    again = direct.claim(QUEUE, *node)[0]
    assert (again["lease_id"], again["claim_token"] > claim["claim_token"]) == (claim["lease_id"], True)
    with refusing(LOST):
        complete(direct, claim)
    assert complete(direct, again) == "completed"


def test_settle_wins_over_reap(direct: Direct, actor: Actors, clock: Clock, claim: Row) -> None:
    """Until it is reaped it may; a reap that comes while the settlement is open passes the lease over."""
    clock.advance(timedelta(minutes=5))
    worker, sweeper = actor().begin(), actor()
    assert complete(worker.direct, claim) == "completed"
    swept = sweeper.start(lambda d: d.reap())
    worker.commit()
    assert swept.result(TIMEOUT)["expired"] == 0
    assert direct.lease(claim["lease_id"])["state"] == "completed"


def reap(direct: Direct, _node: Node, _claim: Row) -> None:
    assert direct.reap()["expired"] == 1


def restart(direct: Direct, node: Node, _claim: Row) -> None:
    assert direct.register(node[0], RESTARTED) > node[1]


def settle(direct: Direct, _node: Node, claim: Row) -> None:
    assert complete(direct, claim) == "completed"


def cancel(direct: Direct, _node: Node, claim: Row) -> None:
    direct.cancel(claim["lease_id"])


MEETINGS: dict[str, tuple[Call, Call, str | None, str]] = {
    "a settlement waits for a reap": (reap, settle, LOST, "pending"),
    "a restart waits for a settlement": (settle, restart, None, "completed"),
    "a settlement waits for a restart": (restart, settle, LOST, "pending"),
    "a cancellation waits for a settlement": (settle, cancel, FINISHED, "completed"),
}


@pytest.mark.parametrize("which", MEETINGS)
def test_a_settlement_and_another_end_of_its_claim(
    direct: Direct, meet: Meet, clock: Clock, node: Node, claim: Row, *, which: str
) -> None:
    """What came first stays; what waited for it finds the claim lost, or is refused."""
    first, then, code, state = MEETINGS[which]
    if first is reap:
        clock.advance(timedelta(minutes=5))
    _, waited = meet(lambda d: first(d, node, claim), lambda d: then(d, node, claim))
    if code is None:
        waited.result(TIMEOUT)
    else:
        assert sqlstate_of(waited) == code
    assert direct.lease(claim["lease_id"])["state"] == state


def test_node_restarted_under_a_running_claim(direct: Direct, node: Node, claim: Row) -> None:
    """A new instance ends the old one's claims at once; the old one is fenced off."""
    epoch = direct.register(node[0], RESTARTED)
    assert epoch > node[1]
    with refusing(LOST):
        complete(direct, claim)
    with pytest.raises(psycopg.DatabaseError) as claiming:
        direct.claim(QUEUE, *node)
    with pytest.raises(psycopg.DatabaseError) as beating:
        direct.heartbeat(*node, [claim])
    assert claiming.value.sqlstate == beating.value.sqlstate == SUPERSEDED
    again = direct.claim(QUEUE, node[0], epoch)
    assert [(row["lease_id"], row["attempt"]) for row in again] == [(claim["lease_id"], 2)]


def test_cancel_waits_for_an_open_claim(direct: Direct, meet: Meet, node: Node) -> None:
    """It then asks the worker to stop: the lease stays claimed until the worker settles."""
    lease = direct.spawn(QUEUE)["lease_id"]
    [claim], cancelled = meet(lambda d: d.claim(QUEUE, *node), lambda d: d.cancel(lease))
    assert cancelled.result(TIMEOUT) == "claimed"
    verdicts = direct.heartbeat(*node, [claim])
    assert [row["verdict"] for row in verdicts] == ["cancelled"]
    assert direct.release(lease, claim["claim_token"]) == "cancelled"


def test_claim_passes_by_an_open_cancel(direct: Direct, actor: Actors, node: Node) -> None:
    """A lease that is being cancelled is not granted; if the cancel is undone, it is."""
    lease = direct.spawn(QUEUE)["lease_id"]
    operator, worker = actor().begin(), actor()
    assert operator.direct.cancel(lease) == "cancelled"
    assert worker.direct.claim(QUEUE, *node) == []
    operator.rollback()
    assert [row["lease_id"] for row in worker.direct.claim(QUEUE, *node)] == [lease]


@pytest.mark.parametrize("call", ["complete_leases", "settle_and_claim"])
def test_a_batch_completes_a_lease_that_a_new_term_names_meanwhile(
    direct: Direct, meet: Meet, call: str
) -> None:
    """The lease's row changes while the batch waits for its claim; its end is written."""
    plain = register(direct)
    named, also = (direct.spawn(QUEUE)["lease_id"] for _ in range(2))
    claims = direct.claim(QUEUE, *plain, qty=2)
    direct.spawn(OTHER, with_lease(named, away=True))

    def end(direct: Direct) -> list[Row]:
        if call == "complete_leases":
            return direct.complete_many(claims)
        return direct.settle_and_claim(QUEUE, *plain, [], qty=0, completed=claims)

    _, ended = meet(Direct.reap, end)
    assert ended.result(TIMEOUT) == []
    assert [direct.lease(lease)["state"] for lease in (named, also)] == ["completed"] * 2


@pytest.mark.parametrize("node", [{"capacity": CAPACITY}], ids=["counted"], indirect=True)
def test_reap_does_not_hold_claims_of_a_node_at_work(
    direct: Direct, actor: Actors, clock: Clock, node: Node, *, claim: Row
) -> None:
    """It passes the node by; the claim, which it has seen to be over, stays free as well."""
    direct.spawn(QUEUE, {"placement": COUNTED})
    clock.advance(timedelta(minutes=5))
    worker, sweeper = actor().begin(), actor()
    worker.conn.execute("select from hwqueue.node_state for no key update")
    sweeper.begin()
    assert sweeper.direct.reap()["expired"] == 0
    worker.conn.execute("select from hwqueue.claim for update nowait")


def test_an_adoption_takes_the_node_before_the_entry(direct: Direct, actor: Actors, node: Node) -> None:
    """While it waits for the node, the lease that its key stands for can still be cancelled."""
    key = {"idempotency_key": "once"}
    lease = direct.spawn(QUEUE, key)["lease_id"]
    worker, operator = actor().begin(), actor()
    worker.conn.execute("select from hwqueue.node_state for no key update")
    adopted = operator.parked(lambda d: d.adopt(QUEUE, node[0], key), behind=worker)
    assert worker.direct.cancel(lease) == "cancelled"
    worker.commit()
    assert sqlstate_of(adopted) == "QHL07"
