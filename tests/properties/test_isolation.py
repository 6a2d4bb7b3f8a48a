"""Nodes fill up as the documents say, and nobody shares what another has to itself."""

from itertools import count
from typing import Any
from uuid import UUID, uuid5

import psycopg
from hypothesis import event, given
from hypothesis import strategies as st
from psycopg.rows import dict_row

from tests.calls import Row
from tests.direct import Direct
from tests.isolated import spawn
from tests.oracle.capacity import check_claims, eligible
from tests.oracle.facts import Claim, Node
from tests.oracle.isolation import IsolatingNode, core_use, device_use, may_run, misgiven
from tests.properties.cluster import Specs, clusters, registered
from tests.properties.strategies import IDS, competing

NODES = tuple(uuid5(IDS, f"isolating-{number}") for number in range(2))
CPU = ["whole_core", "strict_isolated"]
GPU = ["session_exclusive", "device_exclusive", "partition_exclusive"]
_numbers = count()


def subsets(items: list[str]) -> st.SearchStrategy[list[str]]:
    return st.one_of(st.just(items), st.lists(st.sampled_from(items), unique=True))


@st.composite
def specs(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A spec: up to six cores of two NUMA nodes, two devices, one of them in up to two parts.

    The one in parts may be left out: then nobody may have it whole.
    """
    cores = draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=6))
    honoured = draw(subsets(CPU))
    device, halved, *parts = [str(uuid5(IDS, f"device-{number}-{n}")) for n in range(4)]
    gpus = [
        {"resource_id": halved, "partitionable": True},
        *({"resource_id": part, "parent_resource_id": halved} for part in parts[: draw(st.integers(0, 2))]),
    ][draw(st.integers(0, 1)) :]
    return {
        "name": f"isolating-{number}",
        "cores": [{"core": core, "numa": core // 4, "threads": [core, core + 100]} for core in cores],
        "cpu_isolation": honoured,
        "default_cpu_isolation": draw(st.sampled_from(["best_effort", "best_effort", *honoured])),
        "gpu_exclusivity": draw(subsets(GPU)),
        "gpu_share_mode": draw(st.sampled_from(["fractional", "fractional", "exclusive"])),
        "gpus": draw(st.permutations([{"resource_id": device}, *gpus][draw(st.integers(0, 1)) :])),
        "capacity": draw(st.sampled_from([{}, {"cpu_milli": 3000}, {"cpu_milli": 6000}])),
    }


@st.composite
def placements(draw: st.DrawFn) -> dict[str, Any]:
    """A normal placement that asks for cores or devices, alone or not."""
    cpu = draw(st.sampled_from([None, None, "best_effort", *CPU]))
    gpu = draw(st.sampled_from([None, None, "shared", *GPU]))
    kinds: list[dict[str, int]] = [{"gpu": 1}, {"gpu": 2}]
    kinds += [{"gpu_milli": 400}, {"gpu_milli": 999}] if gpu in (None, "shared") else []
    kinds += [{}, {}, {}] if gpu is None else []
    resources = draw(st.sampled_from(kinds))
    milli = draw(st.sampled_from([0, 0, 1, 300, 700, 1000, 1300, 2000, 2500]))
    resources |= {"cpu_milli": milli} if milli else {}
    isolation = {key: value for key, value in (("cpu", cpu), ("gpu", gpu)) if value is not None}
    parts = {"resources": resources, "isolation": isolation}
    return {key: value for key, value in parts.items() if value}


def steps() -> st.SearchStrategy[list[tuple[int, Any]]]:
    """Which node does what: claims such a lease, settles one of its claims, is registered anew."""
    one = st.integers(0, 1).flatmap(
        lambda number: st.tuples(
            st.just(number),
            st.one_of(placements(), placements(), placements(), st.integers(0, 9), specs(number)),
        )
    )
    return st.lists(one, min_size=12, max_size=30)


class Cluster:
    """The nodes of one example, and what runs on each."""

    def __init__(self, conn: psycopg.Connection[Any], first: list[dict[str, Any]]) -> None:
        self.conn, self.direct = conn, Direct(conn)
        self.queue = f"isolated-{next(_numbers)}"
        self.direct.create_queue(self.queue)
        self.facts: list[IsolatingNode] = []
        self.epochs = [0, 0]
        self.claimed = 0
        for number, spec in enumerate(first):
            self.facts.append(IsolatingNode.from_spec(spec))
            self.register(number, spec)

    def register(self, number: int, spec: dict[str, Any]) -> None:
        """Every other time by another instance, which takes the claims over."""
        instance = {"instance_id": str(next(_numbers) // 2), "keep_claims": True}
        self.epochs[number] = self.direct.register(NODES[number], spec | instance)
        self.facts[number] = IsolatingNode.from_spec(spec)

    def running(self, number: int) -> dict[UUID, Row]:
        query = "select * from hwqueue.claim where node_id = %s order by claimed_at, lease_id"
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return {row["lease_id"]: row for row in cursor.execute(query, [NODES[number]])}

    def assignments(self, number: int) -> list[Row]:
        """What its claims hold."""
        return [row["assignment"] or {} for row in self.running(number).values()]

    def claim(self, number: int, placement: dict[str, Any]) -> None:
        """The node claims such a lease if and only if it may, and is given what it should be."""
        node, others = self.facts[number], self.assignments(number)
        lease = spawn(self.conn, self.queue, placement)
        expected = may_run(placement, node, others)
        rows = self.direct.claim(self.queue, NODES[number], self.epochs[number])
        for _ in range(20 if expected else 0):  # a node of a new kind catches up with all classes
            rows = rows or self.direct.claim(self.queue, NODES[number], self.epochs[number])
        assert bool(rows) == expected, (placement, node, others)
        if not rows:
            self.direct.cancel(lease)
            return
        assert misgiven(placement, node, others, rows[0]["assignment"] or {}) == []
        self.claimed += 1

    def settle(self, number: int, which: int) -> None:
        """One of its claims, if there is any, completes."""
        claims = list(self.running(number).values())
        if claims:
            claim = claims[which % len(claims)]
            self.direct.complete(claim["lease_id"], claim["claim_token"])

    def check(self) -> None:
        """Usage is the sum of the assignments, and nothing is given twice."""
        query = """
          select u.core_used, u.gpu_used from hwqueue.node_load u
          where u.node_id = %s order by u.version desc limit 1
        """
        for number, node in enumerate(self.facts):
            given = self.assignments(number)
            cores, devices = core_use(node, given), device_use(node, given)
            assert self.conn.execute(query, [NODES[number]]).fetchone() == (cores, devices)
            pinned = [one for one in given if "cores" in one]
            assert max(core_use(node, pinned), default=0) <= 1000, given
            assert max(devices, default=0) <= 1000, given

    def close(self) -> None:
        """Take the example away."""
        self.direct.drop_queue(self.queue)
        for node in NODES:
            self.direct.deregister(node)


@given(first=st.tuples(specs(0), specs(1)).map(list), todo=steps())
def test_nobody_shares_against_the_rules(
    conn: psycopg.Connection[Any], first: list[dict[str, Any]], todo: list[tuple[int, Any]]
) -> None:
    cluster = Cluster(conn, first)
    try:
        cluster.check()
        for number, what in todo:
            if isinstance(what, int):
                cluster.settle(number, what)
            elif "name" in what:
                cluster.register(number, what)
            else:
                cluster.claim(number, what)
            cluster.check()
        event(f"{cluster.claimed} claimed")
    finally:
        cluster.close()


@given(specs=clusters, asked=st.lists(competing, min_size=3, max_size=10), turns=st.randoms())
def test_nodes_fill_up(
    conn: psycopg.Connection, specs: Specs, asked: list[dict[str, Any]], turns: Any
) -> None:
    """One lease after another is claimed by a node that has room for it, until none has."""
    direct = Direct(conn)
    with registered(direct, specs) as (queue, epochs):
        nodes = [Node.from_spec(*pair) for pair in zip(epochs, specs, strict=True)]
        running: list[Claim] = []
        for placement in asked:
            expected = {node.node_id for node in nodes if eligible(placement, node, running)}
            rows = direct.match(placement, {"queue": queue})
            assert {row["node_id"] for row in rows if row["eligible"]} == expected
            lease = direct.spawn(queue, {"placement": placement})["lease_id"]
            for node in turns.sample(sorted(epochs), len(epochs)):
                claims = direct.claim(queue, node, epochs[node])
                if claims:
                    running.append(Claim(lease, node, placement, claims[0]["assignment"]))
                    assert node in expected
                    break
            else:
                assert expected == set()
                direct.cancel(lease)
            assert check_claims(nodes, running) == []
        event(f"{len(running)} of {len(asked)} run")
