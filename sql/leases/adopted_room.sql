-- What adopted work runs on.

-- Its devices: those named, else those with most left, over their limit if need be; what has devices to itself must find them free.
-- Locks: node_state is held by the caller. Raises: QHA01 for devices that the node does not have, or others have to themselves.
create or replace function hwqueue.adopted_devices(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load, p_gpus jsonb)
returns int[]
language plpgsql stable
as $$
declare
  v_named uuid[] := hwqueue.json_uuids(p_gpus, 'options.gpus');
  v_exclusivity text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_alone uuid[];
  v_devices int[];
begin
  if p_class.gpu_count = 0 then
    v_devices := '{}';
  elsif v_exclusivity is not null then
    v_devices := hwqueue.choose_devices(p_class.gpu_count, 0, v_named, v_exclusivity, hwqueue.node_headroom(p_node, p_load));
  else
    v_alone := array(
      select (g.value ->> 'resource_id')::uuid
      from hwqueue.claim c cross join lateral jsonb_array_elements(c.assignment -> 'gpus') g
      where c.shard_id = p_node.shard_id and c.node_id = p_node.node_id and c.assignment ? 'gpu_exclusivity');
    v_alone := v_alone || array(select d.parent from unnest(p_node.gpu_ids, p_node.gpu_parents) d(id, parent) where d.id = any (v_alone));
    v_devices := array(
      select d.position::int from unnest(p_node.gpu_ids, p_node.gpu_parents, p_load.gpu_used) with ordinality d(id, parent, used, position)
      where (v_named = '{}' or d.id = any (v_named)) and d.parent is null and (d.id = any (v_alone)) is not true
      order by d.used, d.position limit p_class.gpu_count);
  end if;
  if v_devices is null or cardinality(v_devices) < p_class.gpu_count or cardinality(v_named) not in (0, p_class.gpu_count)
     or not v_named <@ p_node.gpu_ids then
    perform hwqueue.refuse('QHA01', format('node %s does not have the %s devices that this work runs on', p_node.node_id, p_class.gpu_count),
      jsonb_build_object('field', 'options.gpus', 'node_id', p_node.node_id),
      'name as many of the node''s own devices as the lease asks for, none that another lease has to itself');
  end if;
  return v_devices;
end
$$;

-- Its cores, chosen as for a claim: whoever runs the work has to pin it to them. Null when the node counts none.
-- Locks: node_state is held by the caller. Raises: QHA01 when it has too few left.
create or replace function hwqueue.adopted_cores(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load) returns int[]
language plpgsql immutable
as $$
declare
  v_cores int[];
begin
  if p_node.core_ids = '{}' then
    return null;
  end if;
  v_cores := hwqueue.choose_cores(p_node, p_load.core_used, p_class.cpu_milli,
    hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation));
  if v_cores is null then
    perform hwqueue.refuse('QHA01', format('node %s has not enough cores left for this work', p_node.node_id),
      jsonb_build_object('field', 'p_node', 'node_id', p_node.node_id), 'wait until running leases have ended, or adopt it elsewhere');
  end if;
  return v_cores;
end
$$;
