-- Claims the idempotency keys of a batch, or finds who has them; gives for each request whose key is taken the lease that
-- it stands for.
-- Locks: the keys, in sorted order, so that two batches never wait in a circle. Raises: QHT01 same key, other content.
-- Idempotent: yes.
create or replace function hwqueue.reserve_keys(p_spawns hwqueue.spawn_request[], p_queue_id int, p_shard int)
returns table (ordinal int, lease_id uuid)
language plpgsql volatile
as $$
declare
  v_spawn record;
  v_found hwqueue.idempotency;
  v_claimed boolean;
begin
  for v_spawn in
    select s.* from unnest(p_spawns) s where s.idempotency_key is not null
    order by s.tenant collate "C", s.idempotency_key collate "C", s.ordinal
  loop
    loop
      insert into hwqueue.idempotency as i (shard_id, tenant, queue_id, idempotency_key, lease_id, content)
      values (p_shard, v_spawn.tenant, p_queue_id, v_spawn.idempotency_key, v_spawn.lease_id, v_spawn.content)
      on conflict do nothing
      returning i.* into v_found;
      v_claimed := found;
      exit when v_claimed;
      select i.* into v_found from hwqueue.idempotency i
      where i.shard_id = p_shard and i.tenant = v_spawn.tenant and i.queue_id = p_queue_id
        and i.idempotency_key = v_spawn.idempotency_key;
      exit when found;  -- else it was pruned in between: try again
    end loop;
    if v_found.content <> v_spawn.content then
      perform hwqueue.refuse('QHT01', format('idempotency key %s belongs to lease %s, which has other content',
          to_json(v_spawn.idempotency_key), v_found.lease_id),
        jsonb_build_object('field', 'options.idempotency_key', 'idempotency_key', v_spawn.idempotency_key,
          'lease_id', v_found.lease_id, 'index', v_spawn.ordinal - 1),
        'a key stands for one task, params, placement and labels: use another key for other content');
    end if;
    continue when v_claimed;
    ordinal := v_spawn.ordinal;
    lease_id := v_found.lease_id;
    return next;
  end loop;
end
$$;
