-- Moves waiting leases to another queue: what a spawn into that queue checks, and the idempotency keys.
--
-- Example: the nodes of queue gpu-a are down, so an operator moves what waits there to gpu-b with
-- update_leases and {"queue": "gpu-b"}. A lease whose params are larger than gpu-b takes stays, and so does
-- one whose unique key an open lease of gpu-b holds. A moved lease gets another class, which names the queue.
--
-- Invariant: the row of a lease's key names the queue that its lease is in.

-- Refuses to move a lease where a spawn of it would be refused, and moves its key.
-- Locks: the caller holds the lease's entry; as move_keys. Raises: QHA01 for params that are too large,
-- QHT02 when another lease holds the key, or a spawn in progress, QHG03 for a member of a gang, or a lease
-- of an everywhere task.
create or replace function hwqueue.check_move(p_lease hwqueue.lease, p_queue hwqueue.queue) returns void
language plpgsql volatile
as $$
declare
  v_holder uuid;
begin
  if p_lease.team_id is not null then
    perform hwqueue.refuse('QHG03', case when hwqueue.is_everywhere(p_lease.lease_id, p_lease.team_id)
        then format('lease %s is of an everywhere task, whose leases share a queue', p_lease.lease_id)
        else format('lease %s is a member of gang %s, whose members share a queue', p_lease.lease_id,
          p_lease.team_id) end,
      jsonb_build_object('lease_id', p_lease.lease_id, 'gang_id', p_lease.team_id, 'field', 'changes.queue'),
      case when hwqueue.is_everywhere(p_lease.lease_id, p_lease.team_id)
        then 'stop it, and spawn it into the other queue'
        else 'cancel the gang, and spawn it into the other queue' end);
  end if;
  perform hwqueue.check_payload(p_lease.params, 'params', p_queue.max_params_bytes);
  if p_lease.idempotency_key is null or p_lease.queue_id = p_queue.queue_id
    or hwqueue.move_keys(array[p_lease.lease_id], p_queue) <> '{}' then
    return;
  end if;
  select i.lease_id into v_holder
  from hwqueue.spawned_keys(array[p_lease.lease_id]) s
  join hwqueue.idempotency i on i.tenant = s.tenant
    and i.queue_id = p_queue.queue_id and i.idempotency_key = s.idempotency_key;
  perform hwqueue.refuse('QHT02',
    format('%s holds the key %s in queue %s', coalesce('lease ' || v_holder, 'a spawn in progress'),
      to_json(p_lease.idempotency_key), to_json(p_queue.name)),
    jsonb_build_object('field', 'changes.queue', 'key', p_lease.idempotency_key, 'lease_id', v_holder,
      'queue', p_queue.name),
    'a queue has one lease of a key: move it when that one has ended, or repeat the call');
end
$$;

-- Moves the keys of leases to a queue, and returns the leases that have their key there, or have none. As
-- at a spawn, a unique key is free when its lease has ended or its time is over (take_key).
-- A key that a spawn has locked stays: that spawn may wait for the lease's entry (take_unique_key).
-- Locks: the caller holds the leases' entries; their keys, skip locked; new keys in sorted order.
create or replace function hwqueue.move_keys(p_leases uuid[], p_queue hwqueue.queue) returns uuid[]
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_old hwqueue.idempotency;
  v_new hwqueue.idempotency;
  v_left uuid[] := '{}';
begin
  for v_old in
    select k.* from hwqueue.spawned_keys(p_leases) s
    cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
      select x.* from hwqueue.idempotency x
      where x.tenant = s.tenant and x.queue_id = s.queue_id
        and x.idempotency_key = s.idempotency_key offset 0) k
    where s.queue_id <> p_queue.queue_id and k.lease_id = s.lease_id
    order by exists (  -- new keys first, as regain_keys
        select from hwqueue.idempotency n where n.tenant = k.tenant
          and n.queue_id = p_queue.queue_id and n.idempotency_key = k.idempotency_key),
      k.tenant collate "C", k.idempotency_key collate "C"
  loop
    select i.* into v_new from hwqueue.idempotency i
    where i.tenant = v_old.tenant and i.queue_id = v_old.queue_id
      and i.idempotency_key = v_old.idempotency_key and i.lease_id = v_old.lease_id for update skip locked;
    v_new.queue_id := p_queue.queue_id;
    if found and hwqueue.take_key(v_new, '{}', false, v_now) = v_old.lease_id then
      delete from hwqueue.idempotency i
      where i.tenant = v_old.tenant and i.queue_id = v_old.queue_id
        and i.idempotency_key = v_old.idempotency_key;
    else
      v_left := v_left || v_old.lease_id;
    end if;
  end loop;
  return array(select l from unnest(p_leases) l where l <> all (v_left));
end
$$;
