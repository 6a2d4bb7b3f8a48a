"""The search for a place of a gang reads each node a few times, and calls nothing node by node."""

from collections import Counter
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.counted import counting
from tests.plans.explain import explained
from tests.sql.api import Api

KINDS = 10
SEARCH = """
  select count(*) from hwqueue.gang_places(%s, '{rack}', '{}', null, null, %s, hwqueue.clock())
"""


def grow(api: Api, count: int) -> None:
    """Nodes of three kinds: idle ones, full ones, and some of whose devices are in use."""
    nodes = [
        api.node(
            labels={"pool": "gangs"},
            rack=number // 3 % 3,
            capacity={"cpu_milli": 64_000},
            gpus=[{"resource_id": str(uuid4())} for _ in range(4)],
            concurrency=100,
        ).node_id
        for number in range(count)
    ]
    for remainder, used in ((1, [1000] * 4), (2, [1000, 300, 0, 0])):
        api.conn.execute(
            "update hwqueue.node_load set gpu_used = %s, claim_count = 1 where node_id = any (%s)",
            [used, nodes[remainder::3]],
        )


def classes(api: Api) -> list[int]:
    """Of a gang of ten kinds of members, which waits."""
    require = [{"label": "pool", "op": "in", "values": ["gangs"]}]
    resources = [{"gpu": 1 + number % 4, "cpu_milli": 1000 + number} for number in range(KINDS)]
    members: list[Row] = [
        {"task": "train", "count": 2, "options": {"placement": {"require": require, "resources": each}}}
        for each in resources
    ]
    rows = api.rows("spawn_gang", queue=api.queue(), members=Jsonb(members), options={})
    [gang_id] = {row["gang_id"] for row in rows}
    ids: list[int] = api.one(
        "select array_agg(l.class_id) from hwqueue.lease l where l.team_id = %s", gang_id
    )
    return ids


def calls(api: Api, ids: list[int], is_idle: bool) -> Counter[str]:
    """How often a search calls each function that Postgres does not inline."""
    with counting(api.conn) as called:
        assert api.one(SEARCH, ids, is_idle) == 3
    return called


@pytest.mark.parametrize("is_idle", [False, True])
def test_each_node_is_read_a_few_times(api: Api, is_idle: bool) -> None:
    """Not once for each of ten kinds of members: the search names each table so many times."""
    grow(api, 60)
    api.conn.execute("analyze hwqueue.node, hwqueue.node_load, hwqueue.node_state")
    nodes, ids = api.one("select count(*) from hwqueue.node"), classes(api)
    with explained(api.conn) as work:
        api.conn.execute(SEARCH, [ids, is_idle])
    for table, times in (("node", 5), ("node_load", 1), ("node_state", 1), ("served", 1)):
        assert work.rows_read(table) <= times * nodes + 10, table


@pytest.mark.parametrize("is_idle", [False, True])
def test_calls_do_not_grow_with_nodes(api: Api, is_idle: bool) -> None:
    grow(api, 30)
    ids = classes(api)
    few = calls(api, ids, is_idle)
    grow(api, 60)
    assert calls(api, ids, is_idle) == few
    assert few["node_headroom"] <= 4
