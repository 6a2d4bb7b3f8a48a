"""A lease takes the place of another one while other sessions hold what it needs."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import interleave
from tests.races.terms import ids

GPU = {"placement": {"resources": {"gpu": 1}}}


def running(conn: psycopg.Connection[Any]) -> tuple[tuple[UUID, int], dict[str, Any]]:
    """A node with a GPU, and the claim that has it."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = register(conn, 1, gpus=[{"resource_id": str(uuid4())}])
    direct.spawn(QUEUE, GPU)
    [claim] = direct.claim(QUEUE, *node)
    return node, claim


def test_others_that_hold_the_node_or_the_lease(conn: psycopg.Connection, dsn: str) -> None:
    """Upkeep waits for nobody, and asks nobody to stop before it has the place."""
    direct = Direct(conn)
    node, claim = running(conn)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
    with interleave(dsn, SHORT) as actor:
        other = actor()
        for hold in (
            lambda: other.direct.claim(QUEUE, *node),
            lambda: other.direct.cancel(old),
            lambda: other.direct.update(new, {"priority": 1}),
        ):
            other.begin()
            hold()
            direct.reap()
            assert direct.lease(old)["stop_reason"] is None
            assert direct.lease(new)["state"] == "scheduled"
            other.rollback()
        direct.reap()
        assert direct.lease(old)["stop_reason"] == "cancelled"
        other.begin()
        other.direct.release(old, claim["claim_token"])
        direct.reap()
        assert other.direct.claim(QUEUE, *node) == []
        other.commit()
        direct.reap()
        assert ids(direct.claim(QUEUE, *node)) == [new]
    assert direct.rows("verify_invariants") == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_tick_that_is_open(conn: psycopg.Connection, dsn: str, commits: bool) -> None:
    """What it has booked nobody gets; what it rolls back was never there."""
    direct = Direct(conn)
    _, claim = running(conn)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
    with interleave(dsn, SHORT) as actor:
        ticks = actor()
        ticks.begin()
        ticks.direct.reap()
        assert ticks.direct.lease(old)["stop_reason"] == "cancelled"
        assert direct.lease(old)["stop_reason"] is None
        ticks.commit() if commits else ticks.rollback()
    assert direct.lease(new)["state"] == ("claimed" if commits else "scheduled")
    assert direct.rows("verify_invariants") == []
