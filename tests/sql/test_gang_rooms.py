"""gang_rooms, which reads all nodes at once, answers what one gets by asking node by node."""

import random
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.sql.api import Api, Node
from tests.sql.isolation_support import CPU, GPU, asking, cores, devices

PART = "partition_exclusive"
NODES = 48
TAINT: Row = {"key": "gone", "value": "yes", "effect": "no_schedule"}
BY_NODE = Path(__file__).with_name("rooms_by_node.sql")

# without those that name a node or a device: these are made for the nodes that there are
PLACEMENTS: list[Row] = [
    asking(),
    asking(cpu_milli=1500),
    asking(cpu_milli=700, memory_mib=300),
    asking(gpu=1),
    asking(gpu=2, cpu_milli=100),
    asking(gpu_milli=300),
    asking(gpu_milli=700, memory_mib=200),
    asking("whole_core", cpu_milli=1500),
    asking("strict_isolated", cpu_milli=2000),
    asking("best_effort", cpu_milli=500),
    asking(None, "shared", gpu_milli=100),
    asking(None, "device_exclusive", gpu=1),
    asking(None, PART, gpu=1),
    asking(None, PART, gpu=2),
    asking(license=2, cpu_milli=1),
    asking(license=1, seat=1, gpu=1),
    {"require": [{"label": "zone", "op": "in", "values": ["a"]}], "resources": {"gpu": 1}},
    {"require": [{"trust": "pci"}], "resources": {"cpu_milli": 1000}},
    {"tolerate": [{"key": "gone", "op": "exists"}], "resources": {"gpu": 1}},
]


def machine(draw: random.Random, number: int) -> Row:
    """What a node says of itself."""
    gpus = draw.choice(
        [
            [],
            devices(None),
            devices(*[None] * 4),
            devices(None, 0, 0, None),
            devices(None, 0, 0, None, 3, 3),
            [one for one in devices(None, 0, 0, None, 3) if "partitionable" not in one],
        ]
    )
    capacity: Row = {}
    if draw.random() < 0.7:
        capacity |= {"cpu_milli": draw.choice([2000, 4000]), "memory_mib": 1000}
    if draw.random() < 0.5:
        capacity |= {"license": draw.choice([1, 5]), "seat": 1}
    spec: Row = {
        "labels": {"zone": draw.choice("ab")},
        "gpus": gpus,
        "capacity": capacity,
        "gpu_exclusivity": [*GPU, PART],
        "gpu_share_mode": draw.choice(["fractional", "fractional", "exclusive"]),
    }
    if draw.random() < 0.4:
        spec["cpu_isolation"] = CPU
        spec["cores"] = cores(*draw.choice([(2, 2), (4,), (1, 3)]))
        spec["default_cpu_isolation"] = draw.choice(["best_effort", "whole_core"])
    if draw.random() < 0.3:
        spec["slots"] = draw.choice([1, 3])
    if draw.random() < 0.2:
        spec["taints"] = [TAINT]
    if draw.random() < 0.6:
        spec["concurrency"] = draw.choice([1, 3])
    if number % 9 == 0:
        spec["tasks"] = ["another"]
    return spec


def use(conn: psycopg.Connection[Any], draw: random.Random, node: Node) -> None:
    """Put a load on the node, which may be more than it has: an earmark does that."""
    conn.execute(
        """
        update hwqueue.node_load u
        set claim_count = %(claims)s, cpu_used = %(cpu)s, memory_used = %(memory)s,
          gpu_used = array(
            select (%(each)s::int[])[1 + d %% 7] from generate_subscripts(u.gpu_used, 1) d),
          core_used = array(
            select (%(each)s::int[])[1 + d %% 5] from generate_subscripts(u.core_used, 1) d),
          custom_used = %(custom)s
        where u.node_id = %(node)s
        """,
        {
            "claims": draw.choice([0, 1, 2, 4]),
            "cpu": draw.choice([0, 0, 500, 2500, 4000, 9000]),
            "memory": draw.choice([0, 0, 300, 900, 2000]),
            "each": [draw.choice([0, 0, 300, 1000, 1000, 1300]) for _ in range(7)],
            "custom": Jsonb(draw.choice([{}, {"license": 1}, {"license": 4, "seat": 1}])),
            "node": node.node_id,
        },
    )


def fleet(api: Api, draw: random.Random) -> list[Node]:
    """Nodes of all kinds, some alike, some gone in each way."""
    conn = api.conn
    queue = api.queue()
    specs = [machine(draw, number) for number in range(NODES // 2)]
    made = [api.node(**spec) for spec in specs]
    for spec in specs:  # one more of each size
        ids = {one["resource_id"]: str(uuid4()) for one in spec["gpus"]}
        gpus = [
            {k: ids.get(v, v) if isinstance(v, str) else v for k, v in one.items()} for one in spec["gpus"]
        ]
        made.append(api.node(**spec | {"gpus": gpus}))
    for node in made:
        if draw.random() < 0.2:
            api.rows("attest_node", node=node.node_id, domain="pci")
        if draw.random() < 0.2:
            api.spawn(queue)
            api.claim(node, queue)
    for node in draw.sample(made, NODES // 2):
        use(conn, draw, node)
    for one, other in zip(made[::2], made[NODES // 2 :: 2], strict=False):
        conn.execute(LIKE, [other.node_id, one.node_id])
    conn.execute("delete from hwqueue.node_load u where u.node_id = %s", [made[3].node_id])
    api.rows("cordon_node", node=made[5].node_id)
    api.rows("deregister_node", node=made[6].node_id)
    conn.execute(
        "update hwqueue.node_state s set seen_at = s.seen_at - interval '1 day' where s.node_id = %s",
        [made[7].node_id],
    )
    return made


def classes(api: Api, nodes: list[Node]) -> list[int]:
    """A class for each placement, and some that name a node or a device."""
    queue = api.queue()
    gpus = devices(None, None)
    idle = api.node(gpus=gpus)
    [(used,)] = api.conn.execute(
        "select n.gpu_ids[1] from hwqueue.node n join hwqueue.node_load u using (node_id)"
        " where 0 < any (u.gpu_used) and n.gpu_parents = '{}' and n.node_id = any (%s)"
        " and n.deregistered_at is null limit 1",
        [[node.node_id for node in nodes]],
    ).fetchall()
    named: list[Row] = [
        {"require": [{"node": str(idle.node_id)}], "resources": {"cpu_milli": 10}},
        {"require": [{"resource": gpus[0]["resource_id"]}], "resources": {"gpu": 1}},
        {"require": [{"resource": gpus[1]["resource_id"]}], "resources": {"gpu_milli": 200}},
        {"require": [{"resource": str(used)}], "resources": {"gpu": 1}},
    ]
    leases = [api.spawn(queue, "train", placement=one) for one in [*PLACEMENTS, *named]]
    rows = api.conn.execute(
        "select distinct class_id from hwqueue.lease where lease_id = any (%s) order by 1", [leases]
    ).fetchall()
    assert len(rows) == len(leases)
    return [class_id for (class_id,) in rows]


# the load of another node of its size, but for the cores in use
LIKE = """
  update hwqueue.node_load u
  set claim_count = o.claim_count, cpu_used = o.cpu_used, memory_used = o.memory_used,
    gpu_used = o.gpu_used, custom_used = o.custom_used
  from hwqueue.node_load o
  where u.node_id = %s and o.node_id = %s
"""


def ours(api: Api, ids: list[int], which: str) -> dict[tuple[int, UUID], tuple[int, int | None]]:
    """By class and node, how many have room now, and would have if nothing ran there."""
    rows = api.conn.execute(
        """
        select a.ids[r.class_no], r.node_id, r.copies, r.emptied
        from (
          select array_agg(k order by k.class_id) as classes,
            array_agg(k.class_id order by k.class_id) as ids,
            array_agg(3 + k.class_id::int %% 3 order by k.class_id) as members
          from hwqueue.placement_class k where k.class_id = any (%s)) a
        cross join lateral unnest(
          hwqueue.gang_rooms(a.classes, a.members, %s, hwqueue.clock())) r
        """,
        [ids, which],
    ).fetchall()
    found = {(class_id, node): (copies, emptied) for class_id, node, copies, emptied in rows}
    assert len(found) == len(rows)
    return found


def by_node(api: Api, ids: list[int], function: LiteralString) -> dict[tuple[int, UUID], int]:
    """The same, of one of the functions that ask node by node."""
    rows = api.conn.execute(
        f"""
        select k.class_id, r.node_id, r.copies
        from hwqueue.placement_class k
        cross join lateral pg_temp.{function}(k, 3 + k.class_id::int %% 3, hwqueue.clock()) r
        where k.class_id = any (%s)
        """,
        [ids],
    ).fetchall()
    return {(class_id, node): copies for class_id, node, copies in rows}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.thorough
def test_all_at_once_is_as_node_by_node(api: Api, seed: int) -> None:
    api.conn.execute(BY_NODE.read_bytes())
    api.leave_all()
    draw = random.Random(seed)
    ids = classes(api, fleet(api, draw))
    # alone, a class leaves out the nodes that are too full for it
    for some in [ids, draw.sample(ids, 3), *([one] for one in draw.sample(ids, 6))]:
        now, emptied = by_node(api, some, "class_rooms"), by_node(api, some, "emptied_rooms")
        assert ours(api, some, "now") == {key: (copies, None) for key, copies in now.items()}
        both = {key: (now.get(key, 0), copies) for key, copies in emptied.items()}
        assert ours(api, some, "both") == both
        assert {key: found[1] for key, found in ours(api, some, "emptied").items()} == emptied
    everywhere = by_node(api, ids, "class_rooms")
    assert set(everywhere.values()) == {1, 2, 3, 4, 5}, "too few different answers"
    assert len(set(ids) - {key[0] for key in everywhere}) <= 1, "classes that have room nowhere"
