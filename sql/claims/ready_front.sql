-- Of the first p_window entries of each queue's global order, those of these classes.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.ready_front(p_queues hwqueue.queue[], p_classes bigint[], p_window int, p_now timestamptz, p_shard int)
returns setof hwqueue.ready
language sql stable
as $$
  select w.*
  from unnest(p_queues) q
  cross join lateral (
    select r.* from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = q.queue_id
    order by r.tier, r.rank, r.position limit p_window
  ) w
  where w.class_id = any (p_classes) and (w.deadline is null or w.deadline > p_now)
$$;
