-- Gives back what a claim had set aside. Devices are found by id: the node may have been registered anew meanwhile, and
-- one that is gone needs nothing back.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: no.
create or replace function hwqueue.give_back(p_node uuid, p_assignment jsonb, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_gpu_used int[];
begin
  if p_assignment is null then
    return;
  end if;
  if p_assignment ? 'gpus' then
    select array_agg(u.used - case when p_assignment -> 'gpus' @> jsonb_build_array(jsonb_build_object('resource_id', n.gpu_ids[u.ordinality]))
                                   then (p_assignment ->> 'gpu_milli')::int else 0 end order by u.ordinality)
    into v_gpu_used
    from hwqueue.node n, hwqueue.node_state s, unnest(s.gpu_used) with ordinality u(used, ordinality)
    where n.shard_id = p_shard and n.node_id = p_node and s.shard_id = p_shard and s.node_id = p_node;
  end if;
  update hwqueue.node_state s
  set claim_count = s.claim_count - 1,
      cpu_used = s.cpu_used - coalesce((p_assignment ->> 'cpu_milli')::bigint, 0),
      memory_used = s.memory_used - coalesce((p_assignment ->> 'memory_mib')::bigint, 0),
      gpu_used = coalesce(v_gpu_used, s.gpu_used),
      custom_used = case when p_assignment ? 'custom'
                         then hwqueue.add_amounts(s.custom_used, p_assignment -> 'custom', -1) else s.custom_used end
  where s.shard_id = p_shard and s.node_id = p_node;
end
$$;
