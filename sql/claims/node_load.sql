-- What is in use on a node now: its newest version, which is the last of its index, so that none of those before is looked at.
-- A node without one uses nothing.
-- Locks: none; whoever goes on to write holds node_state. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.read_load(p_node uuid, p_shard int) returns hwqueue.node_load
language plpgsql stable
as $$
declare
  v_load hwqueue.node_load;
begin
  select u.* into v_load from hwqueue.node_load u
  where u.shard_id = p_shard and u.node_id = p_node order by u.version desc limit 1;
  if not found then
    v_load := row(p_shard, p_node, 0, 0, 0, 0, 0, '{}', '{}', '{}');
  end if;
  return v_load;
end
$$;

-- Writes what is in use on a node now: in place, and every 32 times in a fresh row.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: no.
create or replace function hwqueue.write_load(p_load hwqueue.node_load) returns void
language plpgsql volatile
as $$
begin
  if p_load.version > 0 and p_load.updates < 32 then
    update hwqueue.node_load u
    set updates = p_load.updates + 1, claim_count = p_load.claim_count, cpu_used = p_load.cpu_used, memory_used = p_load.memory_used,
        gpu_used = p_load.gpu_used, custom_used = p_load.custom_used, core_used = p_load.core_used
    where u.shard_id = p_load.shard_id and u.node_id = p_load.node_id and u.version = p_load.version;
  else
    delete from hwqueue.node_load u
    where u.shard_id = p_load.shard_id and u.node_id = p_load.node_id and u.version = p_load.version;
    insert into hwqueue.node_load (shard_id, node_id, version, claim_count, cpu_used, memory_used, gpu_used, custom_used,
                                   core_used)
    values (p_load.shard_id, p_load.node_id, p_load.version + 1, p_load.claim_count, p_load.cpu_used, p_load.memory_used, p_load.gpu_used,
            p_load.custom_used, p_load.core_used);
  end if;
end
$$;
