"""node_headroom: what is left of a node's devices, whether some are shared or none is."""

from uuid import uuid4

import psycopg
import pytest

_ROOM = """
  select r.gpu_free, r.gpu_sorted, r.gpu_total, r.gpu_most, r.gpu_whole
  from jsonb_populate_record(null::hwqueue.node, jsonb_build_object(
    'custom', '{}'::jsonb, 'gpu_ids', to_jsonb(%(ids)s::uuid[]), 'gpu_parents', '[]'::jsonb,
    'core_ids', '[]'::jsonb)) n
  cross join jsonb_populate_record(null::hwqueue.node_load, jsonb_build_object(
    'gpu_used', to_jsonb(%(used)s::int[]))) u
  cross join hwqueue.node_headroom(n, u) r
"""


@pytest.mark.parametrize(
    "used",
    [
        [0],
        [1000],
        [0, 0, 0],
        [1000, 0, 1000, 0],
        [0, 1000, 1000],
        [250, 0, 1000, 0],
        [999, 1, 500],
    ],
)
def test_devices(conn: psycopg.Connection, used: list[int]) -> None:
    free = [1000 - one for one in used]
    row = conn.execute(_ROOM, {"ids": [uuid4() for _ in used], "used": used}).fetchone()
    assert row == (free, sorted(free), sum(free), max(free), used.count(0))
