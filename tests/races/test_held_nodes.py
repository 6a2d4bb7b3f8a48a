"""What was set aside is given back under its node's lock; an old token locks nothing."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register, set_policy
from tests.races.interleave import TIMEOUT, Actors
from tests.sql.api import refusing

Settle = Callable[[Direct, Row], object]
NEEDS = {"placement": {"resources": {"cpu_milli": 1000}}}
SETTLING: dict[str, Settle] = {
    "complete": lambda d, c: d.complete(c["lease_id"], c["claim_token"]),
    "complete many": lambda d, c: d.complete_many([c]),
    "fail": lambda d, c: d.fail(c["lease_id"], c["claim_token"], retry=False),
    "release": lambda d, c: d.release(c["lease_id"], c["claim_token"], timedelta(hours=1)),
    "extend": lambda d, c: d.extend(c["lease_id"], c["claim_token"], timedelta(minutes=1)),
}


def used(direct: Direct, node: UUID) -> int:
    """The CPU that is counted on a node."""
    [row] = [row for row in direct.rows("list_nodes") if row["node_id"] == node]
    return int(row["used"].get("cpu_milli", 0))


@pytest.mark.parametrize("how", [how for how in SETTLING if how != "extend"])
def test_a_node_begins_to_count_under_a_settlement(direct: Direct, actor: Actors, how: str) -> None:
    """When the settlement looks nothing is set aside for the claim; when it acts, there is."""
    set_policy(direct, max_result_bytes=1)  # none is less
    direct.spawn_many(QUEUE, [NEEDS] * 2)
    node, epoch = register(direct)
    claim = direct.claim(QUEUE, node, epoch)[0]
    agent, worker, other = actor().begin(), actor(), actor()
    agent.direct.register(node, node_spec(0, capacity={"cpu_milli": 4000}))
    worker.begin()
    settled = worker.parked(lambda d: SETTLING[how](d, claim))
    agent.commit()
    settled.result(TIMEOUT)
    claimed = other.parked(lambda d: d.claim(QUEUE, node, epoch))  # what the node has left is not known yet
    worker.commit()
    assert len(claimed.result(TIMEOUT)) == 1
    assert used(direct, node) == 1000


@pytest.mark.parametrize("how", SETTLING)
def test_an_old_token_waits_for_nobody(direct: Direct, actor: Actors, how: str) -> None:
    """Whoever has the lease now may settle it in a transaction that lasts."""
    direct.spawn(QUEUE, NEEDS)
    before, now = (register(direct, number, capacity={"cpu_milli": 4000}) for number in (1, 2))
    old = direct.claim(QUEUE, *before)[0]
    direct.release(old["lease_id"], old["claim_token"])
    current = direct.claim(QUEUE, *now)[0]
    worker, late = actor().begin(), actor()
    worker.direct.complete(current["lease_id"], current["claim_token"])
    if how == "complete many":
        assert [row["verdict"] for row in late.direct.complete_many([old])] == ["lost"]
    else:
        with refusing("QHL01"):
            SETTLING[how](late.direct, old)
    [row] = late.direct.settle_and_claim(QUEUE, *before, [old], qty=0)
    assert row["verdict"] == "lost"


@pytest.mark.parametrize("how", [how for how in SETTLING if how != "extend"])
def test_a_settlement_whose_node_waits_for_its_claim(direct: Direct, actor: Actors, how: str) -> None:
    """Its session has extended the claim, against the order of locks: it gives way, and is told so."""
    direct.spawn(QUEUE, NEEDS)
    node = register(direct, capacity={"cpu_milli": 4000})
    [claim] = direct.claim(QUEUE, *node)
    worker, holder = actor().begin(), actor()
    worker.conn.execute("set deadlock_timeout = '10ms'")
    holder.conn.execute("set deadlock_timeout = '1min'")
    SETTLING["extend"](worker.direct, claim)
    settled = holder.parked(lambda d: d.settle_and_claim(QUEUE, *node, [claim], qty=0), behind=worker)
    if how == "complete many":
        assert [row["verdict"] for row in worker.direct.complete_many([claim])] == ["busy"]
    else:
        with refusing("QHL09"):
            SETTLING[how](worker.direct, claim)
    worker.rollback()
    assert [row["verdict"] for row in settled.result(TIMEOUT)] == ["ok"]


def test_a_node_that_another_session_holds(direct: Direct, actor: Actors) -> None:
    """A claim on it that commits under a batch is busy; an instance that was superseded is told so."""
    direct.spawn_many(QUEUE, [NEEDS] * 4)
    first, (node, epoch) = (register(direct, number, capacity={"cpu_milli": 4000}) for number in (1, 2))
    now = direct.register(node, node_spec(2, instance_id="second", capacity={"cpu_milli": 4000}))
    seen, held, agent, worker, late = direct.claim(QUEUE, *first), *(actor().begin() for _ in range(4))
    held.direct.claim(QUEUE, *first)
    claims = seen + agent.direct.claim(QUEUE, node, now)
    SETTLING["extend"](late.direct, seen[0])  # holds the claim
    settled = late.parked(lambda d: d.complete_many(claims))
    agent.commit()
    worker.direct.claim(QUEUE, node, now)
    held.commit()
    assert [(row["ordinal"], row["verdict"]) for row in settled.result(TIMEOUT)] == [(2, "busy")]
    with refusing("QHN03"):
        direct.heartbeat(node, epoch, [])
