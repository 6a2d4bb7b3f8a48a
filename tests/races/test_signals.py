"""Signals against suspensions, in both orders, and checkpoints against the end of their claim."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, set_policy, started
from tests.races.interleave import TIMEOUT, Actors, Meet, sqlstate_of


@pytest.fixture
def claim(direct: Direct, node: Node) -> Row:
    """A running claim of that node."""
    set_policy(direct, retry={"kind": "fixed", "base": 0, "jitter": 0})
    direct.spawn(QUEUE, {"max_attempts": 3})
    return direct.claim(QUEUE, *node)[0]


def held(claim: Row) -> dict[str, Any]:
    """The arguments that say which claim calls."""
    return {"lease": claim["lease_id"], "token": claim["claim_token"]}


def suspend(direct: Direct, claim: Row, near: str | None = None) -> str:
    state = direct.value("suspend_lease", **held(claim), signal="packed", near=near)
    assert isinstance(state, str)
    return state


def signal(direct: Direct, claim: Row) -> str:
    row = direct.row("signal_lease", lease=claim["lease_id"], name="packed")
    state = row["state"]
    assert isinstance(state, str)
    return state


def save(direct: Direct, claim: Row) -> None:
    direct.value("save_checkpoint", **held(claim), name="charge", state=Jsonb(1))


@pytest.mark.parametrize("near", [None, "self"])
def test_a_signal_that_waits_for_a_suspension_wakes_the_lease(
    direct: Direct, meet: Meet, claim: Row, near: str | None
) -> None:
    state, sent = meet(lambda d: suspend(d, claim, near), lambda d: signal(d, claim))
    assert (state, sent.result(TIMEOUT)) == ("scheduled", "pending")
    assert direct.lease(claim["lease_id"])["state"] == "pending"


@pytest.mark.parametrize("near", [None, "self"])
def test_a_suspension_that_waits_for_a_signal_finds_it(
    direct: Direct, meet: Meet, claim: Row, near: str | None
) -> None:
    state, suspended = meet(lambda d: signal(d, claim), lambda d: suspend(d, claim, near))
    assert (state, suspended.result(TIMEOUT)) == ("claimed", "pending")
    lease = direct.lease(claim["lease_id"])
    assert (lease["state"], "prefer" in lease["placement"]) == ("pending", near is not None)


def test_suspensions_near_one_node_do_not_wait_for_the_class(
    direct: Direct, actor: Actors, node: Node, claim: Row
) -> None:
    """Both find no class that prefers it: each writes its own."""
    other = started(direct, node, {"max_attempts": 3})
    one, two = actor().begin(), actor()
    assert suspend(one.direct, claim, "self") == "scheduled"
    assert suspend(two.direct, other, "self") == "scheduled"
    one.commit()
    placements = [direct.lease(row["lease_id"])["placement"] for row in (claim, other)]
    assert placements[0] == placements[1]
    assert placements[0]["prefer"]


def test_a_signal_to_a_waiting_lease_keeps_it_from_being_claimed_meanwhile(
    direct: Direct, actor: Actors, node: Node, claim: Row
) -> None:
    """Else the claim could look for the signal, find none, and be suspended before it commits."""
    direct.value("release_lease", **held(claim))
    sender = actor().begin()
    assert signal(sender.direct, claim) == "pending"
    assert direct.claim(QUEUE, *node) == []
    sender.commit()
    [again] = direct.claim(QUEUE, *node)
    row = direct.row("take_signal", **held(again), signal="packed")
    assert row["verdict"] == "taken"


def test_two_signals_at_once_are_both_kept(direct: Direct, meet: Meet, node: Node, claim: Row) -> None:
    suspend(direct, claim)
    first, second = meet(lambda d: signal(d, claim), lambda d: signal(d, claim))
    assert (first, second.result(TIMEOUT)) == ("pending", "pending")
    [again] = direct.claim(QUEUE, *node)
    for name in ("first", "second"):
        row = direct.row("take_signal", **held(again), signal="packed", name=name)
        assert row["verdict"] == "taken"


def test_a_claim_is_not_reaped_while_its_checkpoint_is_open(
    direct: Direct, actor: Actors, clock: Clock, claim: Row
) -> None:
    clock.advance(timedelta(minutes=5))
    worker = actor().begin()
    save(worker.direct, claim)
    assert direct.reap()["expired"] == 0
    worker.commit()
    assert direct.reap()["expired"] == 1


def test_a_checkpoint_that_waits_for_a_reap_is_refused(
    direct: Direct, meet: Meet, clock: Clock, claim: Row
) -> None:
    clock.advance(timedelta(minutes=5))
    swept, saving = meet(Direct.reap, lambda d: save(d, claim))
    assert (swept["expired"], sqlstate_of(saving)) == (1, "QHL01")
    assert direct.conn.execute("select count(*) from hwqueue.checkpoint").fetchone() == (0,)


def test_two_checkpoints_of_a_claim_do_not_wait_for_each_other(
    direct: Direct, actor: Actors, claim: Row
) -> None:
    one = actor().begin()
    save(one.direct, claim)
    direct.value("save_checkpoint", **held(claim), name="other", state=Jsonb(2))
    one.commit()
    names = direct.conn.execute("select name from hwqueue.checkpoint order by name").fetchall()
    assert names == [("charge",), ("other",)]
