-- Amounts that a class asks for, and what a node has of them: for reasons and explanations.

-- What a class needs on a node of the resources that these bits name (see shortage), as an object of amounts; p_node null: as it was asked.
create or replace function hwqueue.needs_of(p_class hwqueue.placement_class, p_bits int, p_node hwqueue.node) returns jsonb
language sql stable parallel safe
as $$
  select jsonb_strip_nulls(jsonb_build_object(
      'cpu_milli', case when p_bits & 1 > 0 then hwqueue.cpu_needed(p_class.cpu_milli, i.cpu) end,
      'memory_mib', case when p_bits & 2 > 0 then p_class.memory_mib end,
      'slots', case when p_bits & 4 > 0 then 1 end,
      'gpu', case when p_bits & 8 > 0 and p_class.gpu_milli = 0 then p_class.gpu_count end,
      'gpu_milli', case when p_bits & 8 > 0 and p_class.gpu_milli > 0 then p_class.gpu_milli end,
      'cores', case when p_bits & 32 > 0 then hwqueue.cpu_needed(greatest(p_class.cpu_milli, 1), i.cpu) / 1000.0 end))
    || case when p_bits & 16 > 0 then p_class.custom else '{}' end
  from (select hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) as cpu) i
$$;

-- What a node has left of these; with the room of an idle node, what it has in all.
create or replace function hwqueue.room_for(p_class hwqueue.placement_class, p_bits int, p_node hwqueue.node, p_room hwqueue.headroom) returns jsonb
language sql stable parallel safe
as $$
  select jsonb_strip_nulls(jsonb_build_object(
      'cpu_milli', case when p_bits & 1 > 0 then p_room.cpu_milli end,
      'memory_mib', case when p_bits & 2 > 0 then p_room.memory_mib end,
      'slots', case when p_bits & 4 > 0 then p_room.slots end,
      'gpu', case when p_bits & 8 > 0 and p_class.gpu_milli = 0 then
        case when i.gpu = 'partition_exclusive' then p_room.gpu_parts_free else p_room.gpu_whole end end,
      'gpu_milli', case when p_bits & 8 > 0 and p_class.gpu_milli > 0 then p_room.gpu_most end,
      'cores', case when p_bits & 32 = 0 then null
        when i.cpu is null then trim_scale(p_room.core_milli / 1000.0)
        when i.cpu = 'whole_core' then p_room.core_whole else p_room.core_numa end))
    || case when p_bits & 16 > 0 then (
         select coalesce(jsonb_object_agg(c.key, coalesce(p_room.custom -> c.key, '0')), '{}') from jsonb_each(p_class.custom) c) else '{}' end
  from (select hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) as cpu,
               hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode) as gpu) i
$$;
