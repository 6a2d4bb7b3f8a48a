"""Tables that are large enough for the planner to mind, made in a few seconds."""

from uuid import UUID

import psycopg

from tests.calls import TASK, Row
from tests.sql.api import Api, Node, completed, outlive

# Tables that grow with the work there is: nobody may read one of them from end to end.
BIG = ("ready", "lease", "claim", "scheduled", "outcome")

READY = 50_000
FEW = 1_000
CLAIMS = 5_000
ENDED = 3_000
SCHEDULED = 5_000
CLASSES = 3_000
FILLER = "filler"  # the queue whose leases are all claimed


def fill(api: Api, classes: int = CLASSES) -> None:
    """Leases that run, are scheduled or have ended, and classes, beside what a test looks at."""
    idle = api.queue()
    for first in range(0, classes, 500):
        batch(api, idle, [{"affinity_tags": {"class": first + n}} for n in range(500)])
    batch(api, idle, [{"delay": 86400}] * SCHEDULED)
    busy = api.node()
    kept = api.queue()
    api.spawn(kept)
    multiply(api.conn, kept, ENDED)
    while claims := api.claim(busy, kept, qty=1000):
        api.rows("settle_and_claim", **busy.who, **completed(*claims), settle=[], queues=[kept], qty=0)
    api.rows("create_queue", queue=FILLER, policy={"claim_timeout": 86400})
    api.spawn(FILLER)
    multiply(api.conn, FILLER, CLAIMS)
    while api.claim(busy, FILLER, qty=1000):
        pass


def batch(api: Api, queue: str, options: list[Row]) -> list[UUID]:
    """Spawn leases with these options; their ids."""
    leases = [{"task": TASK, "options": given} for given in options]
    return [row["lease_id"] for row in api.rows("spawn_leases", queue=queue, leases=leases)]


def multiply(conn: psycopg.Connection, queue: str, times: int) -> None:
    """Copy each of the queue's waiting leases so many times."""
    conn.execute(
        """
        with entry as (
          insert into hwqueue.ready (queue_id, tier, attempt_count, claim_count, rank,
                                     class_id, lease_id, eligible_at)
          select r.queue_id, r.tier, r.attempt_count, r.claim_count, r.rank,
                 r.class_id, hwqueue.new_id(), r.eligible_at
          from hwqueue.ready r
          join hwqueue.queue q using (queue_id)
          cross join generate_series(1, %(times)s)
          where q.name = %(queue)s
          returning *
        )
        insert into hwqueue.lease (lease_id, queue_id, class_id, task_name, params,
                                   priority, tier, rank, position, available_at, created_at)
        select e.lease_id, e.queue_id, e.class_id, c.task_name, '{}',
               -e.rank, e.tier, e.rank, e.position, e.eligible_at, e.eligible_at
        from entry e join hwqueue.placement_class c using (class_id)
        """,
        {"queue": queue, "times": times},
    )


def warm(api: Api, node: Node, queue: str) -> None:
    """Let the node judge what is new, and the session plan: neither is what a claim costs.

    Classes count as new while a transaction is open, anywhere on the server, that is older than
    they are.
    """
    outlive(api.conn)
    for _ in range(2):
        api.claim(node, queue)
