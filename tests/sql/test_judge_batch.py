"""Many new classes at once: a claim judges a bounded number, and what it judged is kept."""

import psycopg
import pytest

from tests.sql.api import Api

pytestmark = pytest.mark.thorough

ELIGIBLE = """
  select (select count(*) from hwqueue.profile_eligibility join hwqueue.queue using (queue_id)
          where name = %s)
       + (select count(*) from hwqueue.node_eligibility join hwqueue.queue using (queue_id)
          where name = %s)
"""


def eligible(api: Api, queue: str) -> int:
    """How many classes of the queue have been judged, each being eligible once."""
    row = api.conn.execute(ELIGIBLE, [queue, queue]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("foreign", [False, True])
def test_many_new_classes(api: Api, dsn: str, pinned: bool, batches: int, foreign: bool) -> None:
    """A claim judges 500 at most, and keeps them: however they came, and whoever has work open."""
    queue, node = api.queue(), api.node()
    require = [{"node": str(node.node_id)}] if pinned else []
    about = {"placement": {"require": require}}
    assert api.claim(node, queue) == []
    with psycopg.connect(dsn) as other:
        if foreign:
            other.execute("select pg_current_xact_id()")
        for number in range(batches):
            tasks = range(number * 1200 // batches, (number + 1) * 1200 // batches)
            batch = [{"task": f"t{task}", "options": about} for task in tasks]
            api.rows("spawn_leases", queue=queue, leases=batch)
        got, judged = 0, []
        for _ in range(4):
            got += len(api.claim(node, queue))
            judged.append(eligible(api, queue))
        assert (got, judged) == (4, [500, 1000, 1200, 1200])
        got += len(api.claim(node, queue, qty=1000)) + len(api.claim(node, queue, qty=1000))
        assert got == 1200
        lease = api.spawn(queue, "late", **about)
        assert api.claimed(node, queue) == [lease]
    lease = api.spawn(queue, "later", **about)
    assert api.claimed(node, queue) == [lease]
