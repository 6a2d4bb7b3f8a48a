-- Gives back what a claim had set aside. Devices and cores are found by id: the node may have been registered anew meanwhile, and
-- one that is gone needs nothing back.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: no.
create or replace function hwqueue.give_back(p_node uuid, p_assignment jsonb, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_load hwqueue.node_load;
begin
  if p_assignment is null then
    return;
  end if;
  v_load := hwqueue.read_load(p_node, p_shard);
  v_load.claim_count := v_load.claim_count - 1;
  v_load.cpu_used := v_load.cpu_used - coalesce((p_assignment ->> 'cpu_milli')::bigint, 0);
  v_load.memory_used := v_load.memory_used - coalesce((p_assignment ->> 'memory_mib')::bigint, 0);
  if p_assignment ? 'gpus' then
    v_load.gpu_used := array(
      select u.used - case when p_assignment -> 'gpus' @> jsonb_build_array(jsonb_build_object('resource_id', n.gpu_ids[u.ordinality]))
                           then (p_assignment ->> 'gpu_milli')::int else 0 end
      from hwqueue.node n, unnest(v_load.gpu_used) with ordinality u(used, ordinality)
      where n.shard_id = p_shard and n.node_id = p_node
      order by u.ordinality);
  end if;
  if p_assignment ?| array['cores', 'unpinned'] then
    v_load.core_used := array(
      select u.used - coalesce(c.milli, 0) - case when p_assignment ? 'unpinned' then 1 else 0 end
      from hwqueue.node n
      cross join lateral unnest(v_load.core_used, n.core_ids) with ordinality u(used, core, ordinality)
      left join hwqueue.cores_of(p_assignment) c on c.core = u.core
      where n.shard_id = p_shard and n.node_id = p_node
      order by u.ordinality);
  end if;
  if p_assignment ? 'custom' then
    v_load.custom_used := hwqueue.add_amounts(v_load.custom_used, p_assignment -> 'custom', -1);
  end if;
  perform hwqueue.write_load(v_load);
end
$$;

-- The cores of an assignment and how much it has of each, in thousandths.
create or replace function hwqueue.cores_of(p_assignment jsonb) returns table (core int, milli int)
language sql immutable
as $$
  select c.core::int, (p_assignment -> 'core_milli' ->> (c.ordinality::int - 1))::int
  from jsonb_array_elements_text(p_assignment -> 'cores') with ordinality c(core, ordinality)
$$;
