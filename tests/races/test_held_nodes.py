"""What was set aside is given back under its node's lock; an old token locks nothing."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, Actors
from tests.sql.api import refusing

Settle = Callable[[Direct, Row], Any]
NEEDS = {"placement": {"resources": {"cpu_milli": 1000}}}
SETTLING: dict[str, Settle] = {
    "complete": lambda d, c: d.complete(c["lease_id"], c["claim_token"]),
    "complete many": lambda d, c: d.complete_many([c]),
    "fail": lambda d, c: d.fail(c["lease_id"], c["claim_token"], retry=False),
    "release": lambda d, c: d.release(c["lease_id"], c["claim_token"], timedelta(hours=1)),
}


def used(direct: Direct, node: UUID) -> int:
    """The CPU that is counted on a node."""
    [(number,)] = direct.conn.execute(
        "select coalesce((used ->> 'cpu_milli')::int, 0) from hwqueue.list_nodes() where node_id = %s",
        [node],
    ).fetchall()
    return int(number)


@pytest.mark.parametrize("how", SETTLING)
def test_a_node_begins_to_count_under_a_settlement(direct: Direct, actor: Actors, how: str) -> None:
    """When the settlement looks nothing is set aside for the claim; when it acts, there is."""
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


@pytest.mark.parametrize("how", [*SETTLING, "extend"])
def test_an_old_token_waits_for_nobody(direct: Direct, actor: Actors, how: str) -> None:
    """Whoever has the lease now may settle it in a transaction that lasts."""
    direct.spawn(QUEUE, NEEDS)
    capacity = {"cpu_milli": 4000}
    before, now = (register(direct, number, capacity=capacity) for number in (1, 2))
    old = direct.claim(QUEUE, *before)[0]
    direct.release(old["lease_id"], old["claim_token"])
    current = direct.claim(QUEUE, *now)[0]
    settle: dict[str, Settle] = SETTLING | {
        "extend": lambda d, c: d.extend(c["lease_id"], c["claim_token"], timedelta(minutes=1))
    }
    worker, late = actor().begin(), actor()
    worker.direct.complete(current["lease_id"], current["claim_token"])
    if how == "complete many":
        assert [row["verdict"] for row in late.direct.complete_many([old])] == ["lost"]
    else:
        with refusing("QHL01"):
            settle[how](late.direct, old)
    [row] = late.direct.settle_and_claim(QUEUE, *before, [old], qty=0)
    assert row["verdict"] == "lost"
    worker.commit()


def test_a_heartbeat_that_is_refused_waits_for_nobody(direct: Direct, actor: Actors) -> None:
    """An instance that was superseded is told so while the new one's transaction is open."""
    node, epoch = register(direct)
    now = direct.register(node, node_spec(0, instance_id="second"))
    worker, late = actor().begin(), actor()
    worker.direct.claim(QUEUE, node, now)
    with refusing("QHN03"):
        late.direct.heartbeat(node, epoch, [])
    worker.commit()
