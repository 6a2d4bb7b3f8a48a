"""What a claim from several queues touches: each class is looked for where its own queue begins."""

import pytest

from tests.plans.backlog import batch
from tests.plans.explain import explained
from tests.races.marks import FAR, NOWHERE
from tests.sql.api import Api, Node, completed, outlive

pytestmark = pytest.mark.usefixtures("fresh")  # what an old snapshot keeps slows every queue

CYCLES, BATCH = 250, 20  # leases that are spawned, claimed and completed together
FIRST = 5  # cycles before the first look
MORE = 60  # pages more than at the start: 200 if the dead entries of the busy queue are walked


def pages(api: Api, node: Node, queues: list[str], qty: int = 1) -> int:
    """What a claim touches now."""
    found = []
    for _ in range(2):  # the first one may plan
        with explained(api.conn) as work:
            assert len(api.claim(node, *queues, qty=qty)) == qty
        found.append(work.buffers)
    return min(found)


@pytest.mark.usefixtures("eager_marks", "old_snapshot")
@pytest.mark.parametrize("priority", [0, 5])
def test_a_queue_that_is_idle_keeps_no_mark_of_another(api: Api, priority: int) -> None:
    """Its only lease may run nowhere, and is older than all work, or comes before it."""
    idle, busy, node = api.queue(), api.queue(), api.node()
    api.spawn(idle, priority=priority, **NOWHERE)
    outlive(api.conn)
    found = []
    for cycles in (FIRST, CYCLES):
        for cycle in range(cycles):
            if cycles - cycle == FIRST:
                outlive(api.conn)  # other tests' transactions hold marks back
            batch(api, busy, [{}] * BATCH)
            ended = completed(*api.claim(node, idle, busy, qty=BATCH))
            api.rows("settle_and_claim", **node.who, **ended, settle=[], queues=[busy], qty=0)
        api.conn.execute("analyze")
        batch(api, busy, [{}] * 2)
        found.append(pages(api, node, [idle, busy]))
    assert found[1] <= found[0] + MORE, found


@pytest.mark.usefixtures("eager_marks")
@pytest.mark.slow
def test_a_front_that_stands_among_many_queues(api: Api) -> None:
    """The marks of a class are looked for in its queue, and not in all of them."""
    queues, node = [api.queue() for _ in range(20)], api.node()
    for queue in queues:
        batch(api, queue, [{"labels": {str(n): "n"}} for n in range(10)])
    outlive(api.conn)
    while api.claim(node, *queues, qty=1000):
        pass  # all is judged
    for queue in queues:
        batch(api, queue, [{"labels": {str(n): "n"}} for n in range(10)])
    api.conn.execute("analyze")
    before = pages(api, node, queues)
    api.spawn(queues[0], priority=9, **NOWHERE)
    outlive(api.conn)  # a new class is judged by each claim meanwhile
    api.conn.execute(FAR)
    api.spawn(queues[0], priority=8)
    assert len(api.claim(node, *queues)) == 1
    assert api.one("select bool_or(version < blocked_to_version) from hwqueue.low_water")
    assert pages(api, node, queues) <= before + 10 * 10 * len(queues)  # a few for each class


def test_a_batch_from_two_queues(api: Api) -> None:
    """It is taken at once, with more classes than are looked for one by one, too."""
    queues = [api.queue(tuning={"probe_size": 10}) for _ in range(2)]
    node = api.node()
    for queue in queues:
        batch(api, queue, [{"labels": {str(n): "n"}} for n in range(30)])
    outlive(api.conn)
    assert len(api.claim(node, *queues)) == 1
    one, many = pages(api, node, queues), pages(api, node, queues, 25)
    assert many <= 3 * one + 25 * 30  # some for each lease: its entry, its row, its claim
