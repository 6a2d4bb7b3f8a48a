"""A requirement during execution breaks at the moment of the claim: one of them comes first."""

import psycopg

from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, interleave

IN_A = {"label": "zone", "op": "in", "values": ["a"], "during": "execution"}
WITH_CACHE = {
    "leases": {"labels": {"app": "cache"}},
    "domain": "label:zone",
    "during": "execution",
}


def test_a_relabel_waits_for_the_claim_and_asks_it_to_stop(conn: psycopg.Connection, dsn: str) -> None:
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn, labels={"zone": "a"})
    direct.spawn(QUEUE, {"placement": {"require": [IN_A]}})
    with interleave(dsn) as actor:
        worker, agent = actor(), actor()
        worker.begin()
        claims = worker.direct.claim(QUEUE, node, epoch)
        assert len(claims) == 1
        moved = agent.start(lambda d: d.register(node, node_spec(0, labels={"zone": "b"})))
        agent.wait_until_parked()
        worker.commit()
        assert moved.result(TIMEOUT) == epoch
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"


def test_a_claim_beside_a_partner_that_moves_away_meanwhile(conn: psycopg.Connection, dsn: str) -> None:
    """Neither waits for the other: the next reap finds what both have made."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = register(conn, labels={"zone": "a"})
    beside, _ = register(conn, 1, labels={"zone": "a"})
    direct.adopt(QUEUE, beside, {"labels": {"app": "cache"}})
    direct.spawn(QUEUE, {"placement": {"require": [WITH_CACHE]}})
    direct.settle_terms()
    with interleave(dsn) as actor:
        worker, agent = actor(), actor()
        worker.begin()
        claims = worker.direct.claim(QUEUE, node, epoch)
        assert len(claims) == 1
        agent.direct.register(beside, node_spec(1, labels={"zone": "b"}))
        agent.direct.reap()  # the claim is not there yet
        worker.commit()
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "ok"
    direct.reap()
    [beat] = direct.heartbeat(node, epoch, claims)
    assert beat["verdict"] == "preempted"
