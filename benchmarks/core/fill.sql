-- Copies spawned leases: writes the rows of lease and ready that hwqueue.spawn_leases would have written, had it been called
-- %(first)s to %(last)s with the leases of %(templates)s in turn, in the moment in which those were spawned. The templates differ from
-- each other in class or rank. Only for leases that are claimable at once; tests/benchmarks/test_fill.py compares the columns.
with template as (
  select u.ordinality, r.queue_id, r.tier, r.attempt_count, r.claim_count, r.rank, r.class_id, r.eligible_at, r.deadline,
         l.task_name, l.params, l.headers, l.priority, l.max_attempts, l.retry, l.claim_timeout, l.available_at, l.created_at
  from unnest(%(templates)s::uuid[]) with ordinality u(lease_id, ordinality)
  join hwqueue.lease l on l.lease_id = u.lease_id
  join hwqueue.ready r on r.lease_id = u.lease_id
),
entry as (
  insert into hwqueue.ready (queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
  select t.queue_id, t.tier, t.attempt_count, t.claim_count, t.rank, t.class_id, hwqueue.new_id(), t.eligible_at, t.deadline
  from generate_series(%(first)s::bigint, %(last)s::bigint) n
  join template t on t.ordinality = 1 + n %% cardinality(%(templates)s::uuid[])
  order by n
  returning queue_id, tier, rank, class_id, lease_id, position
)
insert into hwqueue.lease (lease_id, queue_id, class_id, task_name, params, headers, priority, tier, rank, position,
  max_attempts, retry, claim_timeout, deadline, available_at, created_at)
select e.lease_id, e.queue_id, e.class_id, t.task_name, t.params, t.headers, t.priority, e.tier, e.rank, e.position,
  t.max_attempts, t.retry, t.claim_timeout, t.deadline, t.available_at, t.created_at
from entry e
join template t on t.class_id = e.class_id and t.rank = e.rank
