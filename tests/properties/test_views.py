"""Views and matches of a random fleet say what each node by itself says."""

from pathlib import Path
from typing import Any

import psycopg
from hypothesis import event, given
from hypothesis import strategies as st
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.properties import test_isolation as isolation
from tests.properties.cluster import CONTRADICTORY, Specs, apart, registered
from tests.properties.strategies import NODE_IDS, exprs, labels, node_specs, placements, resources
from tests.properties.test_agreement import start_load
from tests.properties.test_taints import taints, tolerations

NODES = 3
_AMOUNTS = Path(__file__).with_name("amounts.sql").read_bytes()
_CLASS = "select class_id from hwqueue.lease where lease_id = %s"
_SILENCE = "update hwqueue.node_state set seen_at = seen_at - interval '1 day' where node_id = %s"


@st.composite
def specs(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A node with labels, capacity and devices, or with cores and parts of devices as well."""
    spec: dict[str, Any] = draw(st.one_of(node_specs(number), isolation.specs(number)))
    base: dict[str, Any] = {"instance_id": "first", "labels": draw(labels)}
    spec = base | spec
    return spec | {"taints": draw(st.one_of(st.just([]), st.just([]), taints))}


def needing(amounts: dict[str, int]) -> dict[str, Any]:
    """A placement that asks for nothing else."""
    return {"resources": amounts}


fleets: st.SearchStrategy[Specs] = st.tuples(*map(specs, range(NODES))).map(list)
tolerant = st.one_of(st.just({}), tolerations.map(lambda items: {"tolerate": items}))
trusting = st.fixed_dictionaries(
    {"require": st.lists(st.one_of(exprs, st.just({"trust": "acme"})), min_size=1, max_size=3)}
)
asked = st.tuples(
    st.one_of(placements, resources.map(needing), isolation.placements(), trusting), tolerant
).map(lambda parts: parts[0] | parts[1])
some: st.SearchStrategy[set[int]] = st.one_of(
    st.just(set()), st.just(set()), st.sets(st.integers(0, NODES - 1), max_size=2)
)


edits = st.fixed_dictionaries({"cordoned": some, "silent": some, "trusted": some})


@given(
    fleet=fleets,
    load=st.lists(resources, max_size=6),
    wanted=st.lists(asked, min_size=1, max_size=6),
    edited=edits,
)
def test_views_and_match_nodes_agree(
    conn: psycopg.Connection,
    fleet: Specs,
    load: list[dict[str, int]],
    wanted: list[dict[str, Any]],
    edited: dict[str, set[int]],
) -> None:
    """Nodes that match and nodes that are free; upkeep remembers what operators change then."""
    direct = Direct(conn)
    with registered(direct, fleet) as (queue, epochs):
        start_load(direct, queue, epochs, load)
        nodes = list(epochs)
        leases = {lease: p for p in wanted if (lease := spawned(direct, queue, p)) is not None}
        conn.execute("select hwqueue.reap()")  # remembers which nodes suit them
        for number in edited["trusted"]:
            conn.execute("select hwqueue.attest_node(%s, 'acme')", [nodes[number]])
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.cordon_node(%s)", [nodes[number]])
        for number in edited["silent"]:
            conn.execute(_SILENCE, [nodes[number]])
        found = pending(conn, queue)
        for lease, placement in leases.items():
            [class_id] = conn.execute(_CLASS, [lease]).fetchone() or [0]
            check(found[class_id], direct.match(placement, {"queue": queue}), placement)
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.uncordon_node(%s)", [nodes[number]])


def spawned(direct: Direct, queue: str, placement: dict[str, Any]) -> Any:
    """Spawn such a lease; None if it contradicts itself."""
    try:
        return direct.spawn(queue, {"placement": placement})["lease_id"]
    except psycopg.DatabaseError as error:
        if error.sqlstate != CONTRADICTORY:
            raise
        return None


def pending(conn: psycopg.Connection, queue: str) -> dict[int, Row]:
    """The pending classes of a queue, by id."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("select * from hwqueue.pending_reasons(p_queue => %s)", [queue])
        return {row["class_id"]: row for row in rows}


def check(row: Row, nodes: list[Row], placement: dict[str, Any]) -> None:
    """Compare a class with what each node says."""
    matching = [node for node in nodes if not any(map(is_against, node["reasons"]))]
    free = [node for node in nodes if node["eligible"]]
    event(f"{len(matching)} match, {len(free)} are free")
    assert row["nodes_matching"] == len(matching), (placement, row, nodes)
    assert row["nodes_free"] == len(free), (placement, row, nodes)
    if matching:
        assert row["nodes_near"] == 0
        assert not row["permanent"]
        expected = {None, "waiting_for_preferred"} if free else {"nodes_support_but_contended"}
        assert row["code"] in expected
        return
    codes = {reason["code"] for node in nodes for reason in node["reasons"]}
    assert row["code"] in codes, (placement, row, nodes)
    # one thing keeps out a node that is near: several reasons of one kind may be behind it
    bounds = [node for node in nodes if len(steps(node)) == 1 and is_open(node)]
    assert row["nodes_near"] <= sum(is_open(node) for node in nodes)
    if bounds:
        assert row["nodes_near"] > 0


def is_against(reason: Row) -> bool:
    """A reason that no end of other leases would take away, or a node that is out of the count."""
    return reason["permanent"] or reason["code"] in ("node_draining", "node_not_live")


def is_open(node: Row) -> bool:
    return {"node_draining", "node_not_live"}.isdisjoint(r["code"] for r in node["reasons"])


def steps(node: Row) -> list[Row]:
    """What would have to change for good."""
    return [reason for reason in node["reasons"] if reason["permanent"]]


headrooms = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([None, -500, 0, 1000, 3000, 9000]),
        "memory_mib": st.sampled_from([None, 0, 1024]),
        "slots": st.sampled_from([None, 0, 1]),
        "custom": st.dictionaries(st.sampled_from(["license", "tape"]), st.integers(-1, 2)),
        "gpu_most": st.sampled_from([0, 300, 1000]),
        "gpu_whole": st.integers(0, 2),
        "gpu_parts_free": st.integers(0, 2),
        "cores": st.sampled_from([None, None, (0, 0, 0), (1500, 1, 1), (4000, 3, 2)]),
    }
)
needs = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([0, 500, 1000, 2000, 3000]),
        "memory_mib": st.sampled_from([0, 512, 2048]),
        "gpus": st.sampled_from([(0, 0), (1, 0), (2, 0), (1, 300), (1, 500)]),
        "custom": st.one_of(
            st.none(), st.dictionaries(st.sampled_from(["license", "tape"]), st.integers(0, 2), min_size=1)
        ),
        "cpu_isolation": st.sampled_from([None, "whole_core", "strict_isolated"]),
        "gpu_exclusivity": st.sampled_from([None, "device_exclusive", "partition_exclusive"]),
    }
)


@given(room=headrooms, need=needs)
def test_amounts_are_what_shortage_says(
    conn: psycopg.Connection, room: dict[str, Any], need: dict[str, Any]
) -> None:
    cores = room["cores"] or (None, None, None)
    values = {
        "r_cpu": room["cpu_milli"],
        "r_memory": room["memory_mib"],
        "r_custom": Jsonb(room["custom"]),
        "r_slots": room["slots"],
        "gpu_most": room["gpu_most"],
        "gpu_whole": room["gpu_whole"],
        "core_milli": cores[0],
        "core_whole": cores[1],
        "core_numa": cores[2],
        "parts": room["gpu_parts_free"],
        "cpu": need["cpu_milli"],
        "memory": need["memory_mib"],
        "gpus": need["gpus"][0],
        "milli": need["gpus"][1],
        "custom": None if need["custom"] is None else Jsonb(need["custom"]),
        "isolation": need["cpu_isolation"],
        "exclusivity": need["gpu_exclusivity"],
    }
    [(fits, told)] = conn.execute(_AMOUNTS, values).fetchall()
    event(f"fits: {fits}")
    assert fits == told


_SERVES = "update hwqueue.node set queues = %s, tasks = %s where node_id = %s"


def twins(fleet: Specs) -> Specs:
    """The second node as the first, but for its name and its devices."""
    own = {key: fleet[1][key] for key in ("name", "gpus") if key in fleet[1]}
    alike = {key: value for key, value in fleet[0].items() if key not in ("name", "gpus")}
    return [fleet[0], alike | own, fleet[2]]


serving = st.sampled_from([{}, {"tasks": []}, {"queues": ["other"]}, {"tasks": [TASK]}])


@given(
    fleet=st.one_of(fleets, fleets.map(twins)),
    load=st.lists(resources, max_size=6),
    wanted=st.lists(asked, min_size=1, max_size=6),
    changed=st.tuples(edits, serving),
)
def test_groups_are_judged_as_their_nodes(
    conn: psycopg.Connection,
    fleet: Specs,
    load: list[dict[str, int]],
    wanted: list[dict[str, Any]],
    changed: tuple[dict[str, set[int]], dict[str, list[str]]],
) -> None:
    """Reasons word for word and in their order, and scores."""
    edited, served = changed
    direct = Direct(conn)
    with registered(direct, fleet) as (queue, epochs):
        start_load(direct, queue, epochs, load)
        for number in edited["trusted"]:
            conn.execute("select hwqueue.attest_node(%s, 'acme')", [NODE_IDS[number]])
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.cordon_node(%s)", [NODE_IDS[number]])
        for number in edited["silent"]:
            conn.execute(_SILENCE, [NODE_IDS[number]])
        conn.execute(_SERVES, [served.get("queues"), served.get("tasks"), NODE_IDS[0]])
        for placement in wanted:
            try:
                differing = apart(conn, placement, {"queue": queue, "task": TASK})
            except psycopg.DatabaseError as error:
                if error.sqlstate != CONTRADICTORY:
                    raise
                continue
            assert differing == [], (placement, fleet)
            event("judged")
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.uncordon_node(%s)", [NODE_IDS[number]])
