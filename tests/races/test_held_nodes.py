"""What was set aside is given back under its node's lock; an old token locks nothing."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, node_spec, register
from tests.races.interleave import TIMEOUT, interleave

Settle = Callable[[Direct, Row], Any]
NEEDS = {"placement": {"resources": {"cpu_milli": 1000}}}
SETTLING: dict[str, Settle] = {
    "complete": lambda d, c: d.complete(c["lease_id"], c["claim_token"]),
    "complete many": lambda d, c: d.complete_many([c]),
    "fail": lambda d, c: d.fail(c["lease_id"], c["claim_token"], retry=False),
    "release": lambda d, c: d.release(c["lease_id"], c["claim_token"], timedelta(hours=1)),
}


def used(conn: psycopg.Connection[Any], node: UUID) -> int:
    """The CPU that is counted on a node."""
    row = conn.execute(
        "select coalesce((used ->> 'cpu_milli')::int, 0) from hwqueue.list_nodes() where node_id = %s",
        [node],
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("how", SETTLING)
def test_a_node_begins_to_count_under_a_settlement(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """When the settlement looks nothing is set aside for the claim; when it acts, there is."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.spawn_many(QUEUE, [NEEDS] * 2)
    node, epoch = register(conn)
    claim = direct.claim(QUEUE, node, epoch)[0]
    with interleave(dsn) as actor:
        agent, worker, other = actor(), actor(), actor()
        agent.begin()
        agent.direct.register(node, node_spec(0, capacity={"cpu_milli": 4000}))
        worker.begin()
        settled = worker.start(lambda d: SETTLING[how](d, claim))
        worker.wait_until_parked()
        agent.commit()
        settled.result(TIMEOUT)
        claimed = other.start(lambda d: d.claim(QUEUE, node, epoch))
        other.wait_until_parked()  # what the node has left is not known yet
        worker.commit()
        assert len(claimed.result(TIMEOUT)) == 1
    assert used(conn, node) == 1000


@pytest.mark.parametrize("how", [*SETTLING, "extend"])
def test_an_old_token_waits_for_nobody(conn: psycopg.Connection, dsn: str, how: str) -> None:
    """Whoever has the lease now may settle it in a transaction that lasts."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    direct.spawn(QUEUE, NEEDS)
    capacity = {"cpu_milli": 4000}
    before, now = (register(conn, number, capacity=capacity) for number in (1, 2))
    old = direct.claim(QUEUE, *before)[0]
    direct.release(old["lease_id"], old["claim_token"])
    current = direct.claim(QUEUE, *now)[0]
    settle: dict[str, Settle] = SETTLING | {
        "extend": lambda d, c: d.extend(c["lease_id"], c["claim_token"], timedelta(minutes=1))
    }
    with interleave(dsn, SHORT) as actor:
        worker, late = actor(), actor()
        worker.begin()
        worker.direct.complete(current["lease_id"], current["claim_token"])
        if how == "complete many":
            assert [row["verdict"] for row in late.direct.complete_many([old])] == ["lost"]
        else:
            with pytest.raises(psycopg.DatabaseError) as lost:
                settle[how](late.direct, old)
            assert lost.value.sqlstate == "QHL01"
        [row] = late.direct.settle_and_claim(QUEUE, *before, [old], qty=0)
        assert row["verdict"] == "lost"
        worker.commit()


def test_a_heartbeat_that_is_refused_waits_for_nobody(conn: psycopg.Connection, dsn: str) -> None:
    """An instance that was superseded is told so while the new one's transaction is open."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn)
    now = direct.register(node, node_spec(0, instance_id="second"))
    with interleave(dsn, SHORT) as actor:
        worker, late = actor(), actor()
        worker.begin()
        worker.direct.claim(QUEUE, node, now)
        with pytest.raises(psycopg.DatabaseError) as superseded:
            late.direct.heartbeat(node, epoch, [])
        assert superseded.value.sqlstate == "QHN03"
        worker.commit()
