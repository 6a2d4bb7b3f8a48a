"""A spawn whose snapshot is older than the end of its class: a lease that can run, or 40001."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, completed, node_spec, set_policy
from tests.races.interleave import Actor, Actors
from tests.races.terms import publish
from tests.sql.api import outlive

PRUNE = "select classes from hwqueue.prune()"
HOUR = timedelta(hours=1)
# Of each claim: whether its class is its lease's.
_AS_CLAIMED = """
  select l.class_id = k.class_id from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  join hwqueue.lease l on l.lease_id = c.lease_id
"""


def spawn_late(producer: Actor) -> UUID | None:
    """Spawn a lease of that class in the open transaction; None if that was refused."""
    try:
        lease = producer.direct.spawn(QUEUE, {"labels": {"app": "web"}})["lease_id"]
    except psycopg.errors.SerializationFailure:
        producer.rollback()
        return None
    assert isinstance(lease, UUID)
    return lease


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("retain", [0, 1], ids=["kept by none", "kept for a second"])
def test_no_lease_is_lost(
    direct: Direct, actor: Actors, node: Node, clock: Clock, isolation: str, *, before: int, retain: int
) -> None:
    """The class is retired, stamped, deleted: a producer may spawn after any of these steps."""
    set_policy(direct, retain_completed=retain)
    completed(direct, node, {"labels": {"app": "web"}})
    clock.advance(2 * HOUR)
    producer = actor().begin(isolation)
    seen = producer.direct.states(QUEUE)  # it has a snapshot
    assert set(seen.values()) == ({"completed"} if retain else set())
    for _ in range(before):
        direct.conn.execute(PRUNE)
        outlive(direct.conn)
    lease = spawn_late(producer)
    for _ in range(3):
        direct.conn.execute(PRUNE)
    if lease is not None:
        producer.commit()
        for _ in range(3):
            direct.conn.execute(PRUNE)
        assert [row["lease_id"] for row in direct.claim(QUEUE, *node)] == [lease]
        assert direct.lease(lease)["state"] == "claimed"
    else:
        assert before > 0
        assert isolation != "read committed"
        assert direct.states(QUEUE) == {}


def test_a_registration_that_idles(direct: Direct, actor: Actors, node: Node, clock: Clock) -> None:
    """It holds what its node may run; prune leaves such a class alone until it has ended."""
    set_policy(direct, retain_completed=1)
    pinned = {"placement": {"require": [{"node": [str(node[0])]}]}}
    lease = direct.spawn(QUEUE, pinned)["lease_id"]
    direct.complete(lease, direct.claim(QUEUE, *node)[0]["claim_token"])
    clock.advance(2 * HOUR)
    direct.conn.execute(PRUNE)  # the lease goes, and the class is retired
    older, restarted = actor().begin(has_id=True), actor()
    direct.conn.execute(PRUNE)  # stamps it
    restarted.begin()
    restarted.direct.register(node[0], node_spec(0, labels={"zone": "b"}))
    older.commit()
    assert direct.conn.execute(PRUNE).fetchone() == (0,)
    restarted.commit()
    outlive(direct.conn)
    assert direct.conn.execute(PRUNE).fetchone() == (1,)


def test_a_claim_of_a_lease_with_a_class_of_its_own_by_now(direct: Direct, node: Node, clock: Clock) -> None:
    """It runs as the class that it was claimed with, which no lease has any more: that stays."""
    set_policy(direct, retain_completed=1)
    named = direct.spawn(QUEUE, {"labels": {"app": "web"}})["lease_id"]
    [claim] = direct.claim(QUEUE, *node)
    direct.spawn(QUEUE, {"placement": {"require": [{"lease": str(named)}]}})
    publish(direct)
    assert direct.conn.execute(_AS_CLAIMED).fetchall() == [(False,)]
    clock.advance(2 * HOUR)
    for _ in range(3):  # retired, stamped, deleted
        direct.conn.execute(PRUNE)
        outlive(direct.conn)
    assert direct.conn.execute(_AS_CLAIMED).fetchall() == [(False,)]
    direct.complete(named, claim["claim_token"])
    outlive(direct.conn)
    assert direct.conn.execute(PRUNE).fetchone() == (1,)
