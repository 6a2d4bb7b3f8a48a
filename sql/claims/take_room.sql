-- What a claim of a class sets aside on a node, given its devices; null when the node counts none of it.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.claim_assignment(p_class hwqueue.placement_class, p_node hwqueue.node, p_gpus jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when a.amounts <> '{}' or p_node.slots is not null then a.amounts end
  from (select jsonb_strip_nulls(jsonb_build_object(
          'cpu_milli', case when p_node.cpu_milli is not null then nullif(p_class.cpu_milli, 0) end,
          'memory_mib', case when p_node.memory_mib is not null then nullif(p_class.memory_mib, 0) end,
          'custom', p_class.custom,
          'gpu_milli', case when p_gpus is not null then coalesce(nullif(p_class.gpu_milli, 0), 1000) end,
          'gpus', p_gpus)) as amounts) a
$$;

-- Sets aside on a node what a class needs: the node's new load and the assignment that says what was taken.
-- The assignment is null when nothing of it is counted; releasing needs nothing else than it.
-- Locks: none, the caller holds node_state and writes the load back. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_room(p_class hwqueue.placement_class, p_node hwqueue.node, p_devices int[],
                                             inout p_load hwqueue.node_load, out assignment jsonb)
language plpgsql immutable
as $$
declare
  v_device int;
begin
  assignment := hwqueue.claim_assignment(p_class, p_node, (
    select jsonb_agg(jsonb_build_object('index', d - 1, 'resource_id', p_node.gpu_ids[d], 'model', p_node.gpu_models[d]) order by d)
    from unnest(p_devices) d));
  if assignment is null then
    return;
  end if;
  p_load.claim_count := p_load.claim_count + 1;
  p_load.cpu_used := p_load.cpu_used + coalesce((assignment ->> 'cpu_milli')::bigint, 0);
  p_load.memory_used := p_load.memory_used + coalesce((assignment ->> 'memory_mib')::bigint, 0);
  foreach v_device in array coalesce(p_devices, '{}') loop
    p_load.gpu_used[v_device] := p_load.gpu_used[v_device] + (assignment ->> 'gpu_milli')::int;
  end loop;
  if p_class.custom is not null then
    p_load.custom_used := hwqueue.add_amounts(p_load.custom_used, p_class.custom, 1);
  end if;
end
$$;

-- Amounts by name, plus or minus others; what comes to nothing is left out.
create or replace function hwqueue.add_amounts(p_amounts jsonb, p_others jsonb, p_sign int) returns jsonb
language sql immutable
as $$
  select coalesce(jsonb_object_agg(n.key, n.amount) filter (where n.amount > 0), '{}')
  from (select a.key, sum(a.amount) as amount
        from (select e.key, e.value::bigint as amount from jsonb_each(p_amounts) e
              union all
              select e.key, p_sign * e.value::bigint from jsonb_each(p_others) e) a
        group by a.key) n
$$;

-- Sets aside on a node what a class needs.
-- Locks: none, the caller holds node_state and writes p_load back. Raises: nothing. Idempotent: no.
create or replace function hwqueue.set_aside(p_class_id bigint, p_node hwqueue.node, p_shard int, inout p_load hwqueue.node_load,
                                             out assignment jsonb)
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_taken record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  v_taken := hwqueue.take_room(v_class, p_node,
    case when v_class.gpu_count > 0 then hwqueue.choose_devices(v_class.gpu_count, v_class.gpu_milli, v_class.gpu_wanted,
      hwqueue.node_headroom(p_node, p_load)) end, p_load);
  p_load := v_taken.p_load;
  assignment := v_taken.assignment;
end
$$;
