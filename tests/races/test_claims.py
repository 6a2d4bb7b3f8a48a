"""Claims against claims: no lease twice, none lost, and no waiting where none is due."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.races.cluster import QUEUE, register
from tests.races.interleave import TIMEOUT, Actors, Meet

CLAIMERS = 20
LEASES = 2_000


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_nodes_one_lease(direct: Direct, actor: Actors, first_commits: bool) -> None:
    """While one node's claim is open the other gets nothing, at once; a rollback frees it."""
    lease = direct.spawn(QUEUE)["lease_id"]
    one_node, two_node = register(direct, 1), register(direct, 2)
    one, two = actor().begin(), actor()
    assert [row["lease_id"] for row in one.direct.claim(QUEUE, *one_node)] == [lease]
    assert two.direct.claim(QUEUE, *two_node) == []
    one.end(first_commits)
    later = [row["lease_id"] for row in two.direct.claim(QUEUE, *two_node)]
    assert later == ([] if first_commits else [lease])


def test_an_open_claim_holds_up_no_other_node(direct: Direct, actor: Actors) -> None:
    """Claims of other nodes pass by an open claim, with counted capacity, too."""
    placement = {"resources": {"cpu_milli": 1000}}
    direct.spawn_many(QUEUE, [{"placement": placement}] * 4)
    capacity = {"cpu_milli": 4000}
    one_node, two_node = (register(direct, n, capacity=capacity) for n in (1, 2))
    one, two = actor().begin(), actor()
    first = one.direct.claim(QUEUE, *one_node, qty=2)
    second = two.direct.claim(QUEUE, *two_node, qty=2)
    taken = {row["lease_id"] for row in first} | {row["lease_id"] for row in second}
    assert len(taken) == len(first) + len(second) == 4


LIKED = {"placement": {"prefer": [{"weight": 1, "when": {"tags": {"zone": "a"}}}]}}
KINDS: dict[str, list[dict[str, Any]]] = {
    "one class": [{}],
    "two classes": [{"labels": {"kind": "one"}}, {"labels": {"kind": "other"}}],
    "one is liked better": [LIKED, {}],
}


@pytest.mark.parametrize("qty", [1, 10, 200, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_large_claim_that_is_open(direct: Direct, actor: Actors, kind: str, qty: int) -> None:
    """Others look past all that it holds, and get exactly what comes next."""
    spawned = direct.spawn_many(QUEUE, KINDS[kind] * (4_400 // len(KINDS[kind])))
    in_order = [row["lease_id"] for row in spawned]
    if kind == "one is liked better":
        in_order = in_order[::2] + in_order[1::2]
    large, small = (register(direct, number, labels={"zone": "a"}) for number in (1, 2))
    one, two = actor().begin(), actor()
    held = one.direct.claim(QUEUE, *large, qty=1000)
    got = two.direct.claim(QUEUE, *small, qty=qty)
    one.rollback()
    assert [row["lease_id"] for row in held] == in_order[:1000]
    assert [row["lease_id"] for row in got] == in_order[1000 : 1000 + qty]


def test_one_node_claims_twice_at_once(direct: Direct, meet: Meet) -> None:
    """Two claims of one node queue up: the second sees what the first has taken."""
    placement = {"resources": {"cpu_milli": 3000}}
    direct.spawn_many(QUEUE, [{"placement": placement}] * 2)
    node = register(direct, capacity={"cpu_milli": 4000})
    first, second = meet(lambda d: d.claim(QUEUE, *node), lambda d: d.claim(QUEUE, *node))
    assert (len(first), second.result(TIMEOUT)) == (1, [])


def test_twenty_claimers_share_two_thousand_leases(direct: Direct, dsn: str) -> None:
    """None is granted twice, none is lost."""
    spawned = {row["lease_id"] for row in direct.spawn_many(QUEUE, [{}] * LEASES)}
    nodes = [register(direct, number) for number in range(CLAIMERS)]
    with ThreadPoolExecutor(CLAIMERS) as pool:
        jobs = [pool.submit(drain, dsn, node, epoch) for node, epoch in nodes]
        grants = Counter(lease for job in jobs for lease in job.result())
    assert [lease for lease, times in grants.items() if times > 1] == []
    assert set(grants) == spawned
    states = {direct.lease(lease)["state"] for lease in spawned}
    assert states == {"completed"}


def drain(dsn: str, node: UUID, epoch: int) -> list[UUID]:
    """Settle and claim until nothing is left; returns every lease that was granted.

    Others may hold entries locked for a moment: only an empty queue ends it.
    """
    granted: list[UUID] = []
    held: list[Row] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        direct = Direct(conn)
        while held or _is_anything_left(direct):
            rows = direct.settle_and_claim(QUEUE, node, epoch, held[:1], qty=5, completed=held[1:])
            assert [row["verdict"] for row in rows if row["kind"] == "settled"] == ["ok"] * bool(held)
            held = [row for row in rows if row["kind"] == "claimed"]
            granted += [row["lease_id"] for row in held]
    return granted


def _is_anything_left(direct: Direct) -> bool:
    [(found,)] = direct.conn.execute("select exists (select 1 from hwqueue.ready)").fetchall()
    return bool(found)
