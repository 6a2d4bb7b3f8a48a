"""A lease that goes when it completes, beside those who want something of it at that moment."""

from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, set_policy, started
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of
from tests.races.test_ends import DAY, GONE, OPEN, PRUNE
from tests.sql.api import refusing

TAKEN = "QHL06"
LEASES = "select count(*) from hwqueue.lease"
OUTCOMES = "select state from hwqueue.outcome"


@pytest.fixture
def claim(direct: Direct, clock: Clock, node: Node) -> Row:
    """A claim of a queue that keeps nothing."""
    set_policy(direct, retain_completed=0, retain_failed=0)
    return started(direct, node, {"lease_id": str(uuid4())})


def complete(direct: Direct, claim: Row, *, in_batch: bool = False) -> None:
    if in_batch:
        assert direct.complete_many([claim]) == []
    else:
        assert direct.complete(claim["lease_id"], claim["claim_token"]) == "completed"


def call(direct: Direct, name: str, lease: UUID) -> str:
    """Ask something of the lease."""
    if name == "update":
        return direct.update(lease, {"priority": 1})
    return str(getattr(direct, name)(lease))


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("name", ["cancel", "update"])
def test_who_waits_for_the_claim_finds_no_lease(
    direct: Direct, meet: Meet, claim: Row, name: str, in_batch: bool
) -> None:
    """Or finds it as it was, if the completion is undone."""
    for commits in (False, True):
        _, also = meet(
            lambda d: complete(d, claim, in_batch=in_batch),
            lambda d: call(d, name, claim["lease_id"]),
            commits=commits,
        )
        if commits:
            assert sqlstate_of(also) == GONE
        elif name == "update":
            assert sqlstate_of(also) == OPEN
        else:
            assert also.result(TIMEOUT) == "claimed"
    assert direct.conn.execute(LEASES).fetchall() == [(0,)]


def test_a_requeue_waits_for_nothing(actor: Actors, claim: Row) -> None:
    worker, operator = actor().begin(), actor()
    complete(worker.direct, claim)
    for end, code in (("keep", OPEN), ("commit", GONE)):
        if end == "commit":
            worker.commit()
        with refusing(code):
            operator.direct.requeue(claim["lease_id"])


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_completion_waits_for_a_cancellation_and_wins(
    direct: Direct, meet: Meet, claim: Row, in_batch: bool
) -> None:
    state, done = meet(lambda d: d.cancel(claim["lease_id"]), lambda d: complete(d, claim, in_batch=in_batch))
    assert state == "claimed"
    done.result(TIMEOUT)
    assert direct.conn.execute(LEASES).fetchall() == [(0,)]
    assert direct.conn.execute(OUTCOMES).fetchall() == [("completed",)]


@pytest.mark.parametrize("commits", [True, False])
def test_prune_beside_an_open_completion(
    direct: Direct, actor: Actors, clock: Clock, claim: Row, commits: bool
) -> None:
    """It takes the outcome when that is there, and leaves a lease alone that still runs."""
    worker, sweeper = actor().begin(), actor()
    complete(worker.direct, claim)
    clock.advance(DAY)
    assert sweeper.conn.execute(PRUNE).fetchall() == [(0,)]
    worker.end(commits)
    left = 1 if commits else 0
    assert sweeper.conn.execute(PRUNE).fetchall() == [(left,)]
    assert direct.conn.execute(LEASES).fetchall() == [(1 - left,)]
    assert direct.conn.execute(OUTCOMES).fetchall() == []


@pytest.mark.parametrize("commits", [True, False])
def test_its_id_is_taken_before_and_after(actor: Actors, claim: Row, commits: bool) -> None:
    """A spawn does not wait for the completion to say so."""
    worker, producer = actor().begin(), actor()
    complete(worker.direct, claim)
    for _ in range(2):
        with refusing(TAKEN):
            producer.direct.spawn(QUEUE, {"lease_id": str(claim["lease_id"])})
        if worker.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            worker.end(commits)


def test_of_two_completions_one_is_told_that_it_is_over(meet: Meet, claim: Row) -> None:
    _, also = meet(lambda d: complete(d, claim), lambda d: complete(d, claim))
    assert sqlstate_of(also) == "QHL03"
