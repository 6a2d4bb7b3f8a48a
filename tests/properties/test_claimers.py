"""Several claimers at once, without a schedule: each gets one of the best, and none starves."""

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calls import Row
from tests.sql.api import Api

CLAIMERS = 4
LEASES = 60


class Counter:
    """How many claims had ended when each claim began: what it may have missed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.taken: list[UUID] = []

    def now(self) -> set[UUID]:
        """What has been given out by now."""
        with self._lock:
            return set(self.taken)

    def add(self, leases: list[UUID]) -> None:
        """Note what a claim gave."""
        with self._lock:
            self.taken += leases


@pytest.mark.parametrize("capacity", [{}, {"cpu_milli": 10**6}], ids=["plain", "counted"])
@given(
    priorities=st.lists(st.integers(-2, 2), min_size=LEASES, max_size=LEASES),
    shape=st.tuples(st.sampled_from([1, 3, 40]), st.integers(1, 5)),
)
@settings(max_examples=10)
def test_each_gets_one_of_the_best(
    dsn: str, capacity: dict[str, int], priorities: list[int], shape: tuple[int, int]
) -> None:
    """A claim passes by what the others hold at that moment, and nothing else."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        drain_at_once(Api(conn), dsn, capacity, priorities, shape)


def drain_at_once(
    api: Api, dsn: str, capacity: dict[str, int], priorities: list[int], shape: tuple[int, int]
) -> None:
    """Spawn the leases and let all claimers loose on them."""
    classes, qty = shape
    queue = api.queue()
    nodes = [api.node(capacity=capacity) for _ in range(CLAIMERS)]
    batch: list[Row] = [
        {"task": "t", "options": {"priority": p, "labels": {"n": str(n % classes)}}}
        for n, p in enumerate(priorities)
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    leases = [row["lease_id"] for row in rows]
    order = sorted(range(LEASES), key=lambda n: (-priorities[n], n))
    best = [leases[n] for n in order]
    counter = Counter()

    def drain(node: Any) -> list[str]:
        late: list[str] = []
        with psycopg.connect(dsn, autocommit=True) as own:
            while True:
                before = counter.now()
                got = Api(own).claimed(node, queue, qty=qty)
                open_then = [lease for lease in best if lease not in before]
                # others hold up to a batch each, and finish some more before this one looks
                ended = counter.now() - before
                reach = qty * CLAIMERS + len(ended)
                late += [str(lease) for lease in got if lease not in open_then[:reach]]
                counter.add(got)
                if not got:
                    return late

    with ThreadPoolExecutor(CLAIMERS) as pool:
        assert [late for found in pool.map(drain, nodes) for late in found] == []
    rest = [lease for node in nodes for lease in api.claimed(node, queue, qty=LEASES)]
    assert sorted(counter.taken + rest) == sorted(leases)
    api.rows("drop_queue", queue=queue, force=True)
    for node in nodes:
        api.rows("deregister_node", node=node.node_id)
