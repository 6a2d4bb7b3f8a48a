"""A claim stays as cheap as it was while an old snapshot keeps everything that was ever claimed."""

from collections.abc import Callable

import pytest

from tests.calls import TASK, Row
from tests.plans.explain import explained
from tests.races.marks import NOWHERE
from tests.sql.api import Api, Node, completed, outlive

pytestmark = pytest.mark.usefixtures("fresh")  # what an old snapshot keeps slows every queue

CYCLES, BATCH = 600, 20  # leases that are spawned, claimed and completed together
FIRST = 5  # cycles before the first look: the session has planned, and marks have moved
MORE = 110  # pages more than at the start: marks may lag some batches; without them 200 and more


def claim_and_complete(api: Api, node: Node, queue: str, last: list[Row]) -> list[Row]:
    """Claims, then their ends: a commit for each call."""
    claims = api.claim(node, queue, qty=BATCH)
    ended = completed(*claims)
    api.rows("settle_and_claim", **node.who, **ended, settle=[], queues=[queue], qty=0)
    return claims


def settle_and_claim(api: Api, node: Node, queue: str, last: list[Row]) -> list[Row]:
    """The ends of the last claims and the next ones, in one commit, as workers do."""
    ended = completed(*last)
    return api.rows("settle_and_claim", **node.who, **ended, settle=[], queues=[queue], qty=BATCH)


def pages(api: Api, node: Node, queue: str) -> int:
    """Pages that a claim of one lease touches now."""
    found = []
    for _ in range(2):  # the first one may plan
        api.spawn(queue, **NEEDS)
        with explained(api.conn) as work:
            assert len(api.claim(node, queue)) == 1
        found.append(work.buffers)
    return min(found)


NEEDS = {"placement": {"resources": {"cpu_milli": 1}}}
CAPACITIES: dict[str, dict[str, int]] = {"not counted": {}, "counted": {"cpu_milli": 10**9}}
QUICK = {"claim_and_complete-not counted-front moves", "settle_and_claim-counted-front stands"}
CASES = [
    pytest.param(way, capacity, stands, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for way in (claim_and_complete, settle_and_claim)
    for counted, capacity in CAPACITIES.items()
    for stands in (False, True)
    for name in [f"{way.__name__}-{counted}-front {'stands' if stands else 'moves'}"]
]


@pytest.mark.usefixtures("eager_marks", "old_snapshot")
@pytest.mark.parametrize(("way", "capacity", "stands"), CASES)
def test_an_old_snapshot_costs_claims_nothing(
    api: Api, way: Callable[[Api, Node, str, list[Row]], list[Row]], capacity: dict[str, int], stands: bool
) -> None:
    """Nor does a lease at the front that no node may run, so that the queue's mark stays there."""
    queue, node = api.queue(), api.node(capacity=capacity)
    if stands:
        api.spawn(queue, **NOWHERE)
    batch = [{"task": TASK, "options": NEEDS}] * BATCH
    outlive(api.conn)
    found = []
    last: list[Row] = []
    for cycles in (FIRST, CYCLES):
        for cycle in range(cycles):
            if cycles - cycle == FIRST:
                outlive(api.conn)  # other tests' transactions hold marks back
            api.rows("spawn_leases", queue=queue, leases=batch)
            last = way(api, node, queue, last)
            assert len(last) == BATCH
        api.conn.execute("analyze")  # plans made for small tables are another guard's subject
        looks = []
        for _ in range(3):  # a transaction of another test may hold marks back again
            looks.append(pages(api, node, queue))
            outlive(api.conn)
            api.rows("spawn_leases", queue=queue, leases=batch)
            last = way(api, node, queue, last)
        found.append(min(looks))
    assert found[1] <= found[0] + MORE, found


@pytest.mark.usefixtures("eager_marks", "old_snapshot")
@pytest.mark.slow
def test_nor_do_better_classes_that_are_used_up(api: Api) -> None:
    """Each claim asks whether anything that the node likes better is left: of which much was."""
    queue, node = api.queue(patience=0), api.node(labels={"zone": "a"})
    here, elsewhere = ({"tags": {"zone": zone}} for zone in "ab")
    kinds: list[Row] = [
        {"prefer": [{"weight": share, "when": here}, {"weight": 100 - share, "when": elsewhere}]}
        for share in range(1, 19)
    ]
    leases = [{"task": TASK, "options": {"placement": kind}} for kind in kinds]
    api.rows("spawn_leases", queue=queue, leases=[leases[0]] * 300)
    api.rows("spawn_leases", queue=queue, leases=leases)
    outlive(api.conn)
    found, least = [], 10  # the score of a share of 1
    for cycles in (FIRST, 400):
        for _ in range(cycles):
            api.rows("spawn_leases", queue=queue, leases=leases[-2:] * (BATCH // 2))
            claim_and_complete(api, node, queue, [])
        while api.claim(node, queue)[0]["score"] > least:
            pass  # what is left of those
        api.conn.execute("analyze")
        touched = []
        for _ in range(2):  # the first one plans
            with explained(api.conn) as work:
                assert api.claim(node, queue)[0]["score"] == least
            touched.append(work.buffers)
        found.append(min(touched))
    assert found[1] <= found[0] + MORE, found
