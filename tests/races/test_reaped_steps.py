"""Claims of steps that expire while settlements of the same join are open: no end is forgotten."""

from datetime import timedelta
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.flows import Flow, broken, finish, step
from tests.races.interleave import Actor

pytestmark = pytest.mark.thorough

LATE = timedelta(minutes=5)  # later than a claim lives


@pytest.fixture(params=["ended", "completed"])
def wants(request: pytest.FixtureRequest) -> str:
    """What the join wants of the parent whose worker died."""
    return str(request.param)


def joined(direct: Direct, wants: str) -> Flow:
    """A join of a step whose worker dies, and of one that completes."""
    dead = {"step": "a", "on": wants}
    steps = [step("a"), step("b"), step("c", dead, "b"), step("d", {"step": "c", "on": "ended"})]
    return Flow(direct, steps, on_failure="continue")


def claims_of(flow: Flow, clock: Clock) -> Row:
    """The claim of a, which has expired, and that of b."""
    claims = flow.items(qty=1)
    clock.advance(LATE)
    claims |= flow.items(qty=1)
    assert list(claims) == ["a", "b"]
    return claims


@pytest.mark.parametrize("first", ["settlement", "reap"])
@pytest.mark.parametrize("commits", [True, False])
def test_one_parent_expires_while_the_other_one_is_settled(
    direct: Direct, one: Actor, clock: Clock, wants: str, *, commits: bool, first: str
) -> None:
    """Whichever is first stays open, and the join waits for it."""
    flow = joined(direct, wants)
    claims = claims_of(flow, clock)

    def settle(direct: Direct) -> None:
        finish(direct, claims["b"])

    def reap(direct: Direct) -> None:
        assert direct.row("reap")["expired"] == 1

    held, other = (settle, reap) if first == "settlement" else (reap, settle)
    held(one.direct)
    other(direct)
    seen = {"a": "failed"} if other is reap else {"b": "completed"}
    assert flow.states().items() >= (seen | {"c": "waiting"}).items()
    assert broken(direct) == []
    one.end(commits)
    if not commits:
        direct.rows("advance_workflows")
        assert flow.states()["c"] == "waiting"
        held(direct)
    direct.rows("reap")
    assert flow.states()["a"] == "failed"
    if wants == "ended":
        flow.complete("c")
    assert flow.reasons() == ({} if wants == "ended" else {"c": "parent_failed"})
    flow.complete("d")
    assert flow.state == "failed"


def test_both_parents_are_lost_at_once(direct: Direct, one: Actor, clock: Clock, wants: str) -> None:
    """One expires in a reap that stays open; the worker of the other one begins again meanwhile."""
    flow = joined(direct, wants)
    flow.items(qty=1)
    clock.advance(LATE)
    assert one.direct.row("reap")["expired"] == 1
    node, spec = uuid4(), {"name": f"{flow.queue}-other"}
    epoch = direct.value("register_node", node=node, spec=spec | {"instance_id": "first"})
    claim = direct.row("claim_task", queues=[flow.queue], node=node, epoch=epoch)
    direct.rows("register_node", node=node, spec=spec | {"instance_id": "second"})
    assert direct.row("get_lease", lease=claim["lease_id"])["state"] == "failed"
    assert broken(direct) == []
    one.commit()
    direct.rows("reap")
    assert flow.reasons() == {"c": "parent_failed"}
    flow.complete("d")
    assert flow.state == "failed"
