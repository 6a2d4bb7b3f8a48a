-- Writes prepared spawns down: keys, entries in ready or scheduled, lease rows, in ordinal order.
-- Locks: idempotency keys in sorted order, lease ids of the caller's own; else only new rows. Raises: QHT01, QHL06 own id exists already.
-- Idempotent: per idempotency key. Wakes: waiting workers, when something is claimable at once.
create or replace function hwqueue.write_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns table (ordinal int, lease_id uuid, created boolean, state text)
language plpgsql volatile
as $$
declare
  v_fresh hwqueue.spawn_request[] := p_spawns;
  v_keyed jsonb := '{}'::jsonb;  -- ordinal to lease_id, for requests whose key stands for another lease
  v_clash uuid;
  v_index int;
  v_written int;
begin
  if exists (select 1 from unnest(p_spawns) s where s.idempotency_key is not null) then
    select coalesce(jsonb_object_agg(k.ordinal, k.lease_id), '{}') into v_keyed
    from hwqueue.reserve_keys(p_spawns, p_queue.queue_id, p_shard) k;
    v_fresh := array(select s from unnest(p_spawns) s where not v_keyed ? s.ordinal::text order by s.ordinal);
  end if;
  select s.lease_id, s.ordinal - 1 into v_clash, v_index from unnest(v_fresh) s
  where s.own_id and (exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = s.lease_id)
                      or exists (select 1 from unnest(v_fresh) o where o.lease_id = s.lease_id and o.ordinal < s.ordinal))
  order by s.ordinal limit 1;
  if found then
    perform hwqueue.refuse('QHL06', format('lease %s exists already', v_clash),
      jsonb_build_object('field', 'options.lease_id', 'lease_id', v_clash, 'index', v_index), 'use a fresh id, or idempotency_key to spawn once');
  end if;
  with entry as (
    insert into hwqueue.ready as r (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
    select p_shard, p_queue.queue_id, 0, 0, 0, s.rank, s.class_id, s.lease_id, greatest(s.available_at, p_now), s.deadline
    from unnest(v_fresh) s where s.available_at <= p_now order by s.ordinal
    returning r.lease_id, r.position
  )
  insert into hwqueue.lease (shard_id, lease_id, queue_id, class_id, task_name, params, headers, priority, tier, rank, position,
    max_attempts, retry, claim_timeout, deadline, idempotency_key, available_at, created_at)
  select p_shard, s.lease_id, p_queue.queue_id, s.class_id, s.task_name, s.params, s.headers, s.priority, 0, s.rank,
    coalesce(e.position, 0), s.max_attempts, s.retry, s.claim_timeout, s.deadline, s.idempotency_key, s.available_at, p_now
  from unnest(v_fresh) s left join entry e on e.lease_id = s.lease_id
  on conflict do nothing;
  get diagnostics v_written = row_count;
  if v_written < cardinality(v_fresh) then  -- another session has just spawned with the same id of its own
    perform hwqueue.refuse('QHL06', 'a lease with one of these ids exists already', jsonb_build_object('field', 'options.lease_id'),
      'use a fresh id, or idempotency_key to spawn once');
  end if;
  insert into hwqueue.scheduled (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, available_at, deadline)
  select p_shard, p_queue.queue_id, 0, 0, 0, s.rank, s.class_id, s.lease_id, s.available_at, s.deadline
  from unnest(v_fresh) s where s.available_at > p_now;
  if exists (select 1 from unnest(v_fresh) s where s.available_at <= p_now and s.notify) then
    perform hwqueue.wake_workers(p_queue, p_shard);
  end if;
  return query
    select s.ordinal, coalesce((v_keyed ->> s.ordinal::text)::uuid, s.lease_id), not v_keyed ? s.ordinal::text,
           case when v_keyed ? s.ordinal::text then hwqueue.lease_state((v_keyed ->> s.ordinal::text)::uuid, p_shard)
                when s.available_at > p_now then 'scheduled' else 'pending' end
    from unnest(p_spawns) s order by s.ordinal;
end
$$;
