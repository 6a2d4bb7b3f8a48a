-- Writes spawns down that are read and checked: keys, entries in ready or scheduled, leases.
-- Locks: idempotency keys in sorted order, lease ids of the caller's own; else only new rows. Raises: QHT01, QHL06 own id exists
-- already. Idempotent: per idempotency key. Wakes: waiting workers, when something is claimable at once.
create or replace function hwqueue.write_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns table (ordinal int, lease_id uuid, created boolean, state text)
language plpgsql volatile
as $$
declare
  v_spawns hwqueue.spawn_request[] := p_spawns;
  v_fresh hwqueue.spawn_request[] := p_spawns;
  v_own boolean;
  v_wake boolean;
begin
  if exists (select 1 from unnest(p_spawns) s where s.idempotency_key is not null) then
    v_spawns := hwqueue.reserve_keys(p_spawns, p_queue.queue_id, p_shard);
    v_fresh := array(select s from unnest(v_spawns) s where s.stands_for is null order by s.ordinal);
  end if;
  select bool_or(s.own_id), bool_or(s.notify and s.available_at <= p_now) into v_own, v_wake from unnest(v_fresh) s;
  if v_own then
    perform hwqueue.insert_own_spawns(v_fresh, p_queue, p_now, p_shard);
  else
    perform hwqueue.insert_spawns(v_fresh, p_queue, p_now, p_shard);
  end if;
  if v_wake then
    perform hwqueue.wake_workers(p_queue, p_shard);
  end if;
  return query
    select s.ordinal, coalesce(s.stands_for, s.lease_id), s.stands_for is null,
           case when s.stands_for is not null then hwqueue.lease_state(s.stands_for, p_shard)
                when s.available_at > p_now then 'scheduled' else 'pending' end
    from unnest(v_spawns) s order by s.ordinal;
end
$$;

-- The same as insert_spawns where producers chose ids themselves.
-- Locks: as insert_spawns. Raises: QHL06. Idempotent: no.
create or replace function hwqueue.insert_own_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_spawn record;
begin
  select o.lease_id, o.ordinal - 1 as index into v_spawn
  from (select s.lease_id, s.ordinal, row_number() over (partition by s.lease_id order by s.ordinal) as turn
        from unnest(p_spawns) s where s.own_id) o
  where o.turn > 1 or exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = o.lease_id)
  order by o.ordinal limit 1;
  if found then
    perform hwqueue.refuse('QHL06', format('lease %s exists already', v_spawn.lease_id),
      jsonb_build_object('field', 'options.lease_id', 'lease_id', v_spawn.lease_id, 'index', v_spawn.index),
      'use a fresh id, or idempotency_key to spawn once');
  end if;
  perform hwqueue.insert_spawns(p_spawns, p_queue, p_now, p_shard);
exception when unique_violation then  -- another session has just spawned with the same id
  perform hwqueue.refuse('QHL06', 'a lease with one of these ids exists already', jsonb_build_object('field', 'options.lease_id'),
    'use a fresh id, or idempotency_key to spawn once');
end
$$;
