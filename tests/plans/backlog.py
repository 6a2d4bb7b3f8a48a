"""Large tables, made fast: copies of leases that were spawned properly."""

import psycopg

from tests.sql.api import Api

BIG = ("ready", "lease", "claim", "scheduled", "attempt", "idempotency", "placement_class")


def multiply(conn: psycopg.Connection, queue: str, total: int) -> None:
    """Copy the queue's waiting leases, class by class, until about `total` of them wait."""
    conn.execute(
        """
        with entry as (
          insert into hwqueue.ready (shard_id, queue_id, tier, attempt_count, claim_count, rank,
                                     class_id, lease_id, eligible_at, deadline)
          select r.shard_id, r.queue_id, r.tier, r.attempt_count, r.claim_count, r.rank,
                 r.class_id, hwqueue.new_id(), r.eligible_at, r.deadline
          from hwqueue.ready r
          join hwqueue.queue q using (shard_id, queue_id)
          cross join generate_series(1, %(total)s / (select count(*) from hwqueue.ready x
                                                     where x.queue_id = r.queue_id) - 1)
          where q.name = %(queue)s
          returning *
        )
        insert into hwqueue.lease (shard_id, lease_id, queue_id, class_id, task_name, params,
                                   priority, tier, rank, position, available_at, created_at)
        select e.shard_id, e.lease_id, e.queue_id, e.class_id, c.task_name, '{}',
               0, e.tier, e.rank, e.position, e.eligible_at, e.eligible_at
        from entry e join hwqueue.placement_class c using (shard_id, class_id)
        """,
        {"queue": queue, "total": total},
    )


def analyze(conn: psycopg.Connection) -> None:
    """What autovacuum would do in a while: statistics for the planner."""
    conn.execute("vacuum analyze")


def waiting(api: Api, queue: str) -> int:
    """How many leases of the queue wait."""
    [row] = [row for row in api.rows("list_queues") if row["queue"] == queue]
    count = row["pending"]
    assert isinstance(count, int)
    return count
