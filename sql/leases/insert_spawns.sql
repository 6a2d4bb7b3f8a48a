-- Writes the rows of spawns that are read, checked and of this call alone, in the order of the batch.
-- Locks: new rows; the caller's own lease ids. Raises: 23505 when a lease has one of those. Idempotent: no.
create or replace function hwqueue.insert_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_ready int;
begin
  insert into hwqueue.ready (shard_id, queue_id, tier, attempt_count, claim_count, rank, position, class_id, lease_id, eligible_at, deadline)
  overriding system value
  select p_shard, p_queue.queue_id, 0, 0, 0, hwqueue.lease_rank(p_queue.ageing_step, p_now, s.priority), s.position, s.class_id,
         s.lease_id, p_now, s.deadline
  from unnest(p_spawns) s where s.available_at <= p_now;
  get diagnostics v_ready = row_count;
  if v_ready < cardinality(p_spawns) then
    insert into hwqueue.scheduled (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, available_at, deadline)
    select p_shard, p_queue.queue_id, 0, 0, 0, hwqueue.lease_rank(p_queue.ageing_step, s.available_at, s.priority), s.class_id,
           s.lease_id, s.available_at, s.deadline
    from unnest(p_spawns) s where s.available_at > p_now;
  end if;
  insert into hwqueue.lease (shard_id, lease_id, queue_id, class_id, task_name, params, headers, priority, tier, rank, position,
    max_attempts, retry, claim_timeout, deadline, idempotency_key, available_at, created_at, wire)
  select p_shard, s.lease_id, p_queue.queue_id, s.class_id, s.task_name, s.params, s.headers, s.priority, 0,
         hwqueue.lease_rank(p_queue.ageing_step, greatest(s.available_at, p_now), s.priority),
         case when s.available_at <= p_now then s.position else 0 end,
         s.max_attempts, s.retry, s.claim_timeout, s.deadline, s.idempotency_key, s.available_at, p_now, s.wire
  from unnest(p_spawns) s;
end
$$;
