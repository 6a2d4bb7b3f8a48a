"""Alternatives that several sessions claim, reserve, add and cancel at once: one of them runs."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.races.cluster import QUEUE, SHORT, register
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import ids

KINDS = ("a100", "v100")


def alternatives(conn: psycopg.Connection[Any]) -> tuple[UUID, list[UUID], list[tuple[UUID, int]]]:
    """A choice with an alternative for each kind of node; its id, the leases, the nodes."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    choice = uuid4()
    leases = [direct.spawn(QUEUE, wants(kind, choice))["lease_id"] for kind in KINDS]
    nodes = [register(conn, n, labels={"gpu": kind}) for n, kind in enumerate(KINDS)]
    return choice, leases, nodes


def wants(kind: str, choice: UUID) -> dict[str, Any]:
    asks = {"label": "gpu", "op": "in", "values": [kind]}
    return {"one_of": str(choice), "placement": {"require": [asks]}}


@pytest.mark.parametrize("commits", [True, False])
def test_two_nodes_claim_one_each(conn: psycopg.Connection, dsn: str, commits: bool) -> None:
    """The second claims nothing and waits for nobody; if the first is rolled back, it may."""
    _, leases, nodes = alternatives(conn)
    with interleave(dsn, SHORT) as actor:
        one, two = actor(), actor()
        one.begin()
        assert ids(one.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
        assert two.direct.claim(QUEUE, *nodes[1]) == []
        one.commit() if commits else one.rollback()
        assert ids(two.direct.claim(QUEUE, *nodes[1])) == ([] if commits else [leases[1]])
    assert Direct(conn).rows("verify_invariants") == []


def test_a_choice_that_is_taken_while_a_claim_reads(conn: psycopg.Connection, dsn: str) -> None:
    """A claim whose statement began before another one committed sees what it has taken."""
    _, leases, nodes = alternatives(conn)
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        assert ids(one.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
        # holds the other claim up right before it looks for an alternative
        conn.execute("begin")
        conn.execute("select 1 from hwqueue.node_state where node_id = %s for update", [nodes[1][0]])
        blocked = two.start(lambda d: d.claim(QUEUE, *nodes[1]))
        two.wait_until_parked()
        one.commit()
        conn.execute("commit")
        assert blocked.result(TIMEOUT) == []


def test_upkeep_passes_by_what_others_hold(conn: psycopg.Connection, dsn: str) -> None:
    """A lease that another session is changing is cancelled by a later reap."""
    _, leases, nodes = alternatives(conn)
    direct = Direct(conn)
    with interleave(dsn, SHORT) as actor:
        other = actor()
        assert ids(direct.claim(QUEUE, *nodes[0])) == [leases[0]]
        other.begin()
        other.direct.update(leases[1], {"priority": 1})
        direct.reap()
        assert direct.lease(leases[1])["state"] == "pending"
        other.commit()
        direct.reap()
        assert direct.lease(leases[1])["state"] == "cancelled"


def test_an_alternative_added_while_another_is_taken(conn: psycopg.Connection, dsn: str) -> None:
    """The spawn waits for the claim; upkeep misses none, whichever commits first."""
    choice, leases, nodes = alternatives(conn)
    direct = Direct(conn)
    with interleave(dsn) as actor:
        claims, spawns = actor(), actor()
        claims.begin()
        assert ids(claims.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
        late = spawns.start(lambda d: d.spawn(QUEUE, wants("v100", choice))["lease_id"])
        spawns.wait_until_blocked_by(claims)
        claims.commit()
        added = late.result(TIMEOUT)
        direct.reap()
        states = [direct.lease(lease)["state"] for lease in (*leases, added)]
        assert states == ["claimed", "cancelled", "cancelled"]
        spawns.begin()
        added = spawns.direct.spawn(QUEUE, wants("v100", choice))["lease_id"]
        direct.reap()
        spawns.commit()
        direct.reap()
        assert direct.lease(added)["state"] == "cancelled"
    assert direct.rows("verify_invariants") == []


def test_a_gang_while_a_claim_holds_the_choice(conn: psycopg.Connection, dsn: str) -> None:
    """The tick reserves nothing and waits for nobody."""
    choice, leases, nodes = alternatives(conn)
    direct = Direct(conn)
    members = Jsonb([{"task": "work", "count": 2}])
    gang_id = direct.rows("spawn_gang", queue=QUEUE, members=members, options={"one_of": str(choice)})[0][
        "gang_id"
    ]
    with interleave(dsn, SHORT) as actor:
        claims = actor()
        claims.begin()
        assert ids(claims.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
        direct.reap()
        found = direct.row("get_gang", gang=gang_id)
        assert (found["state"], found["reason"]) == ("waiting", "busy")
        claims.rollback()
        direct.reap()
        assert direct.row("get_gang", gang=gang_id)["state"] == "reserved"
        # members, no alternative; both may be on one node
        assert sum(len(direct.claim(QUEUE, *node)) for node in nodes) >= 1
    assert direct.rows("verify_invariants") == []
