"""One of several leases runs, or one in the place of another, while sessions hold what they need."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.direct import Direct
from tests.races.cluster import QUEUE, Node, register, started
from tests.races.interleave import TIMEOUT, Actors
from tests.races.terms import ids

KINDS = ("a100", "v100")


def alternatives(direct: Direct) -> tuple[UUID, list[UUID], list[Node]]:
    """A choice with an alternative for each kind of node; its id, the leases, the nodes."""
    choice = uuid4()
    leases = [direct.spawn(QUEUE, wants(kind, choice))["lease_id"] for kind in KINDS]
    nodes = [register(direct, n, labels={"gpu": kind}) for n, kind in enumerate(KINDS)]
    return choice, leases, nodes


def wants(kind: str, choice: UUID) -> dict[str, Any]:
    asks = {"label": "gpu", "op": "in", "values": [kind]}
    return {"one_of": str(choice), "placement": {"require": [asks]}}


@pytest.mark.parametrize("commits", [True, False])
def test_two_nodes_claim_one_each(direct: Direct, actor: Actors, commits: bool) -> None:
    """The second claims nothing and waits for nobody; if the first is rolled back, it may."""
    _, leases, nodes = alternatives(direct)
    one, two = actor().begin(), actor()
    assert ids(one.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
    assert two.direct.claim(QUEUE, *nodes[1]) == []
    one.end(commits)
    assert ids(two.direct.claim(QUEUE, *nodes[1])) == ([] if commits else [leases[1]])


def test_a_choice_that_is_taken_while_a_claim_reads(direct: Direct, actor: Actors) -> None:
    """A claim whose statement began before another one committed sees what it has taken."""
    _, leases, nodes = alternatives(direct)
    one, two = actor().begin(), actor()
    assert ids(one.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
    # holds the other claim up right before it looks for an alternative
    direct.conn.execute("begin")
    direct.conn.execute("select 1 from hwqueue.node_state where node_id = %s for update", [nodes[1][0]])
    blocked = two.parked(lambda d: d.claim(QUEUE, *nodes[1]))
    one.commit()
    direct.conn.execute("commit")
    assert blocked.result(TIMEOUT) == []


def test_upkeep_passes_by_what_others_hold(direct: Direct, actor: Actors) -> None:
    """A lease that another session is changing is cancelled by a later reap; it uses up no limit."""
    _, leases, nodes = alternatives(direct)
    leases += [direct.spawn(QUEUE, wants(kind, c))["lease_id"] for c in (uuid4(),) for kind in KINDS]
    assert [ids(direct.claim(QUEUE, *nodes[0])) for _ in range(2)] == [leases[:1], leases[2:3]]
    other = actor().begin()
    other.direct.update(leases[1], {"priority": 1})
    direct.rows("reap", limit=1)
    assert [direct.lease(lease)["state"] for lease in leases[1::2]] == ["pending", "cancelled"]
    other.commit()
    direct.reap()
    assert direct.lease(leases[1])["state"] == "cancelled"


def test_an_alternative_added_while_another_is_taken(direct: Direct, actor: Actors) -> None:
    """The spawn waits for the claim; upkeep misses none, whichever commits first."""
    choice, leases, nodes = alternatives(direct)
    claims, spawns = actor().begin(), actor()
    assert ids(claims.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
    late = spawns.parked(lambda d: d.spawn(QUEUE, wants("v100", choice))["lease_id"], behind=claims)
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


def test_a_gang_while_a_claim_holds_the_choice(direct: Direct, actor: Actors) -> None:
    """The tick reserves nothing and waits for nobody."""
    choice, leases, nodes = alternatives(direct)
    members = Jsonb([{"task": "work", "count": 2}])
    rows = direct.rows("spawn_gang", queue=QUEUE, members=members, options={"one_of": str(choice)})
    gang_id = rows[0]["gang_id"]
    claims = actor().begin()
    assert ids(claims.direct.claim(QUEUE, *nodes[0])) == [leases[0]]
    direct.reap()
    found = direct.row("get_gang", gang=gang_id)
    assert (found["state"], found["reason"]) == ("waiting", "busy")
    claims.rollback()
    direct.reap()
    assert direct.row("get_gang", gang=gang_id)["state"] == "reserved"
    # members, no alternative; both may be on one node
    assert sum(len(direct.claim(QUEUE, *node)) for node in nodes) >= 1


GPU = {"placement": {"resources": {"gpu": 1}}}


def running(direct: Direct) -> tuple[Node, dict[str, Any]]:
    """A node with a GPU, and the claim that has it."""
    node = register(direct, 1, gpus=[{"resource_id": str(uuid4())}])
    return node, started(direct, node, GPU)


def test_others_that_hold_the_node_or_the_lease(direct: Direct, actor: Actors) -> None:
    """Upkeep waits for nobody, and asks nobody to stop before it has the place."""
    node, claim = running(direct)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
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


@pytest.mark.parametrize("commits", [True, False])
def test_a_tick_that_is_open(direct: Direct, actor: Actors, commits: bool) -> None:
    """What it has booked nobody gets; what it rolls back was never there."""
    _, claim = running(direct)
    old = claim["lease_id"]
    new = direct.spawn(QUEUE, {**GPU, "replaces": {"lease": str(old)}})["lease_id"]
    ticks = actor().begin()
    ticks.direct.reap()
    assert ticks.direct.lease(old)["stop_reason"] == "cancelled"
    assert direct.lease(old)["stop_reason"] is None
    ticks.end(commits)
    assert direct.lease(new)["state"] == ("claimed" if commits else "scheduled")
