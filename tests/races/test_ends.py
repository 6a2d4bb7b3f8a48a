"""What has ended and what is done with it: its outcome is the lease's mutex, as its entry was."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register, set_policy, started
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of
from tests.sql.api import refusing

DAY = timedelta(days=1)
PRUNE = "select leases from hwqueue.prune()"
BROKEN = "select rule, subject from hwqueue.verify_invariants()"
OPEN = "QHL07"
GONE = "QHL04"


@pytest.fixture
def node(direct: Direct, clock: Clock) -> Node:
    """A node, and a queue that keeps nothing."""
    set_policy(direct, retain_completed=0, retain_failed=0)
    return register(direct)


@pytest.fixture
def dead(direct: Direct, node: Node, clock: Clock) -> UUID:
    """A lease that has failed for good, a day ago."""
    lease: UUID = direct.spawn(QUEUE)["lease_id"]
    fail(direct, node)
    clock.advance(DAY)
    return lease


def fail(direct: Direct, node: Node) -> int:
    """Claim the next lease, and fail it for good; its token."""
    [claim] = direct.claim(QUEUE, *node)
    assert direct.fail(claim["lease_id"], claim["claim_token"], retry=False) == "failed"
    return int(claim["claim_token"])


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_requeues_one_wins(direct: Direct, meet: Meet, dead: UUID, commits: bool) -> None:
    state, also = meet(lambda d: d.requeue(dead), lambda d: d.requeue(dead), commits=commits)
    assert state == "pending"
    assert (sqlstate_of(also) if commits else also.result(TIMEOUT)) == (OPEN if commits else "pending")
    assert direct.conn.execute("select count(*) from hwqueue.ready").fetchall() == [(1,)]


def test_a_requeue_finds_that_it_has_failed_again(direct: Direct, meet: Meet, node: Node, dead: UUID) -> None:
    """What it waited for is gone, and there is another end, which it takes."""

    def fail_again(direct: Direct) -> int:
        direct.requeue(dead)
        return fail(direct, node)

    token, also = meet(fail_again, lambda d: d.requeue(dead))
    assert also.result(TIMEOUT) == "pending"
    [again] = direct.claim(QUEUE, *node)
    assert again["claim_token"] > token  # tokens go on rising


def test_prune_passes_by_what_is_requeued(actor: Actors, dead: UUID) -> None:
    operator, sweeper = actor().begin(), actor()
    operator.direct.requeue(dead)
    assert sweeper.conn.execute(PRUNE).fetchall() == [(0,)]
    assert not sweeper.conn.execute("select from hwqueue.postponed").fetchall()  # as what waited in vain
    operator.rollback()
    assert sweeper.conn.execute(PRUNE).fetchall() == [(1,)]


@pytest.mark.parametrize("call", ["requeue", "cancel"])
def test_what_is_pruned_meanwhile_does_not_exist(actor: Actors, dead: UUID, call: str) -> None:
    """A requeue waits for it; a cancellation says what it can see."""
    sweeper, operator = actor().begin(), actor()
    assert sweeper.conn.execute(PRUNE).fetchall() == [(1,)]
    if call == "requeue":
        late = operator.parked(lambda d: d.requeue(dead), behind=sweeper)
        sweeper.commit()
        assert sqlstate_of(late) == GONE
    else:
        with refusing("QHL03"):
            operator.direct.cancel(dead)


def test_a_lease_cannot_end_twice(direct: Direct, node: Node, dead: UUID) -> None:
    """A claim of a lease that has ended is a bug; its settlement does not hide it."""
    claim = started(direct, node)
    direct.conn.execute("update hwqueue.claim set lease_id = %s", [dead])
    lost = ("one_entry", str(claim["lease_id"]))
    assert set(direct.conn.execute(BROKEN)) == {lost, ("one_entry", str(dead))}
    for settle in (Direct.complete, lambda d, *item: d.complete_many([dict(claim, lease_id=dead)])):
        with pytest.raises(psycopg.errors.UniqueViolation):
            settle(direct, dead, claim["claim_token"])
    assert direct.lease(dead)["state"] == "failed"
    direct.conn.execute("update hwqueue.claim set lease_id = %s", [claim["lease_id"]])  # all is well


def test_one_node_takes_a_death(direct: Direct, actor: Actors, clock: Clock) -> None:
    """The other passes it by, and gets it if the first rolls back."""
    set_policy(direct, max_attempts=1)
    hearing = {"hears_deaths": True, "heartbeat_timeout": "1 day"}
    nodes = [register(direct, number, **hearing) for number in range(2)]
    lease = direct.spawn(QUEUE)["lease_id"]
    assert len(direct.claim(QUEUE, *nodes[0])) == 1
    clock.advance(timedelta(minutes=10))
    direct.reap()
    take = "select lease_id from hwqueue.take_deaths(%s, %s)"
    one, two = actor().begin(), actor()
    assert one.conn.execute(take, nodes[0]).fetchall() == [(lease,)]
    assert two.conn.execute(take, nodes[1]).fetchall() == []
    one.rollback()
    assert two.conn.execute(take, nodes[1]).fetchall() == [(lease,)]
    assert one.conn.execute(take, nodes[0]).fetchall() == []
