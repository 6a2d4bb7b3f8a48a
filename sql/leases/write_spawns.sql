-- Writes spawns down that are read and checked: keys, entries in ready or scheduled, leases. Gives them back, with stands_for
-- set where a key stands for another lease.
-- Locks: idempotency keys in sorted order, lease ids of the caller's own; else only new rows. Raises: QHT01, QHL06 own id exists
-- already. Idempotent: per idempotency key. Wakes: waiting workers, when something is claimable at once.
create or replace function hwqueue.write_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_spawns hwqueue.spawn_request[] := p_spawns;
  v_fresh hwqueue.spawn_request[] := p_spawns;
  v_spawn hwqueue.spawn_request;
  v_keyed boolean;
  v_own boolean;
  v_wake boolean;
begin
  if cardinality(p_spawns) = 1 then  -- most calls: a statement would cost more than all of this
    v_spawn := p_spawns[1];
    v_keyed := v_spawn.idempotency_key is not null;
    v_own := v_spawn.own_id;
    v_wake := v_spawn.notify and v_spawn.available_at <= p_now;
  else
    select bool_or(s.idempotency_key is not null), bool_or(s.own_id), bool_or(s.notify and s.available_at <= p_now)
    into v_keyed, v_own, v_wake from unnest(p_spawns) s;
  end if;
  if v_keyed then
    v_spawns := hwqueue.reserve_keys(p_spawns, p_queue.queue_id, p_shard);
    v_fresh := array(select s from unnest(v_spawns) s where s.stands_for is null order by s.ordinal);
    v_wake := exists (select 1 from unnest(v_fresh) s where s.notify and s.available_at <= p_now);
  end if;
  if v_own then
    perform hwqueue.insert_own_spawns(v_fresh, p_queue, p_now, p_shard);
  else
    perform hwqueue.insert_spawns(v_fresh, p_queue, p_now, p_shard);
  end if;
  if v_wake then
    perform hwqueue.wake_workers(p_queue, p_shard);
  end if;
  return v_spawns;
end
$$;

-- The state that a spawn answers with.
create or replace function hwqueue.spawned_state(p_stands_for uuid, p_available_at timestamptz, p_now timestamptz, p_shard int) returns text
language sql stable
as $$
  select case when p_stands_for is not null then hwqueue.lease_state(p_stands_for, p_shard)
    when p_available_at > p_now then 'scheduled' else 'pending' end
$$;

-- Refuses ids of the caller's own whose former lease went when it completed, as long as its outcome is there: it would be taken for the end of the
-- new lease, whose tokens would begin where the former one's did.
-- Locks: the caller has inserted the leases, so nobody else can have one of the ids from now on. Raises: QHL06, 23505.
create or replace function hwqueue.check_own_ids(p_spawns hwqueue.spawn_request[], p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_ids uuid[] := array(select s.lease_id from unnest(p_spawns) s where s.own_id);
  v_gone uuid;
begin
  if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    v_gone := (select o.lease_id from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = any (v_ids) limit 1);
    if v_gone is not null then
      perform hwqueue.refuse('QHL06', format('lease %s has just completed', v_gone),
        jsonb_build_object('field', 'options.lease_id', 'lease_id', v_gone,
          'index', (select s.ordinal - 1 from unnest(p_spawns) s where s.lease_id = v_gone)),
        'use a fresh id: what is left of that lease goes with one of the next calls of prune');
    end if;
  else  -- an older snapshot may not show it, but the key knows
    insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claim_token, attempt, state)
    select p_shard, i, 0, p_now, 0, 0, 'completed' from unnest(v_ids) i;
    delete from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = any (v_ids);
  end if;
end
$$;

-- The same as insert_spawns where producers chose ids themselves.
-- Locks: as insert_spawns; classes that wait, skip locked. Raises: QHL06. Idempotent: no.
create or replace function hwqueue.insert_own_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_spawn record;
  v_spawns hwqueue.spawn_request[] := p_spawns;
  v_class_id bigint;
  v_named bigint[] := '{}';
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
  for v_index in 1 .. cardinality(v_spawns) loop
    if v_spawns[v_index].own_id then  -- others may have asked something about it before it is there
      v_class_id := v_spawns[v_index].class_id;
      v_spawns[v_index].class_id := hwqueue.target_class(v_class_id, v_spawns[v_index].lease_id, p_shard);
      if v_spawns[v_index].class_id <> v_class_id and v_spawns[v_index].available_at <= p_now then
        v_named := v_named || v_spawns[v_index].class_id;
      end if;
    end if;
  end loop;
  perform hwqueue.insert_spawns(v_spawns, p_queue, p_now, p_shard), hwqueue.check_own_ids(p_spawns, p_now, p_shard);
  if v_named <> '{}' then  -- a class may be left of an earlier lease with this id
    perform hwqueue.wake_due(v_named, p_shard);
  end if;
exception when unique_violation then  -- another session has just spawned with the same id
  perform hwqueue.refuse('QHL06', 'a lease with one of these ids exists already', jsonb_build_object('field', 'options.lease_id'),
    'use a fresh id, or idempotency_key to spawn once');
end
$$;
