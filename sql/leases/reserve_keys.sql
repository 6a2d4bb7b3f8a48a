-- The spawns of a batch that have an idempotency key, with what the key stands for.
create or replace function hwqueue.keyed_spawns(p_spawns hwqueue.spawn_request[], p_shard int)
returns table (ordinal int, tenant text, idempotency_key text, lease_id uuid, content bytea)
language sql stable
as $$
  select s.ordinal, c.tenant, s.idempotency_key, s.lease_id,
         sha256(convert_to(jsonb_build_array(s.task_name, s.params, c.placement, c.labels)::text, 'UTF8'))
  from unnest(p_spawns) s
  -- limit: looked up by key, one by one, whatever the planner thinks of arrays and of tables that have just been filled
  cross join lateral (select c.* from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = s.class_id limit 1) c
  where s.idempotency_key is not null
$$;

-- Claims the idempotency keys of a batch, or finds who has them; gives the spawns back, with stands_for set where the key is
-- taken, be it by an earlier one of the batch.
-- Locks: the keys, in sorted order, so that two batches never wait in a circle. Raises: QHT01 same key, other content.
-- Idempotent: yes.
create or replace function hwqueue.reserve_keys(p_spawns hwqueue.spawn_request[], p_queue_id int, p_shard int)
returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_keyed int := (select count(*) from unnest(p_spawns) s where s.idempotency_key is not null);
  v_claimed hwqueue.idempotency[] := '{}'::hwqueue.idempotency[];
  v_newly hwqueue.idempotency[];
  v_next int;
  v_spawns hwqueue.spawn_request[];
  v_spawn record;
begin
  <<attempt>>
  loop
    with claimed as (
      insert into hwqueue.idempotency as i (shard_id, tenant, queue_id, idempotency_key, lease_id, content)
      select p_shard, k.tenant, p_queue_id, k.idempotency_key, k.lease_id, k.content from hwqueue.keyed_spawns(p_spawns, p_shard) k
      order by k.tenant collate "C", k.idempotency_key collate "C", k.ordinal
      on conflict do nothing
      returning i as key
    )
    select array_agg(c.key) into v_newly from claimed c;
    v_claimed := v_claimed || v_newly;
    v_spawns := p_spawns;
    if cardinality(v_claimed) = v_keyed then
      return v_spawns;
    end if;
    v_claimed := array(select c from unnest(v_claimed) c order by c.tenant collate "C", c.idempotency_key collate "C");
    v_next := 1;
    for v_spawn in
      select k.ordinal, k.tenant, k.idempotency_key, i.lease_id, i.content <> k.content as differs
      from hwqueue.keyed_spawns(p_spawns, p_shard) k
      left join lateral (
        select i.lease_id, i.content from hwqueue.idempotency i
        where i.shard_id = p_shard and i.tenant = k.tenant and i.queue_id = p_queue_id and i.idempotency_key = k.idempotency_key
        limit 1) i on true
      order by k.tenant collate "C", k.idempotency_key collate "C", k.ordinal
    loop
      continue attempt when v_spawn.lease_id is null;  -- pruned in between: try again
      if v_spawn.differs then
        perform hwqueue.refuse('QHT01', format('idempotency key %s belongs to lease %s, which has other content',
            to_json(v_spawn.idempotency_key), v_spawn.lease_id),
          jsonb_build_object('field', 'options.idempotency_key', 'idempotency_key', v_spawn.idempotency_key,
            'lease_id', v_spawn.lease_id, 'index', v_spawn.ordinal - 1),
          'a key stands for one task, params, placement and labels: use another key for other content');
      elsif v_claimed[v_next].tenant = v_spawn.tenant and v_claimed[v_next].idempotency_key = v_spawn.idempotency_key then
        v_next := v_next + 1;  -- claimed just now, by the first spawn that has it
      else
        v_spawns[v_spawn.ordinal].stands_for := v_spawn.lease_id;
      end if;
    end loop;
    return v_spawns;
  end loop;
end
$$;
