-- How many leases of a class a node takes at once when it is idle, by the rules of shortage and choose_cores; null: it counts nothing of what they need, so as
-- many as it likes. The class suits the node.
create or replace function hwqueue.fits_at_once(p_class hwqueue.placement_class, p_node hwqueue.node) returns bigint
language plpgsql stable
as $$
declare
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node));
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_need bigint := hwqueue.cpu_needed(p_class.cpu_milli, v_cpu);
  v_gpus bigint;
  v_cores bigint;
  v_custom bigint;
begin
  if hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) <> 0 then
    return 0;
  end if;
  if p_class.gpu_count > 0 and p_class.gpu_milli > 0 then
    v_gpus := case when p_class.gpu_wanted <> '{}' then 1 else (select count(*) from unnest(v_room.gpu_free) f where f >= p_class.gpu_milli) end
      * (1000 / p_class.gpu_milli);
  elsif p_class.gpu_count > 0 then
    v_gpus := case when p_class.gpu_wanted <> '{}' then 1
                   when v_gpu = 'partition_exclusive' then v_room.gpu_parts_free / p_class.gpu_count
                   else v_room.gpu_whole / p_class.gpu_count end;
  end if;
  if v_room.core_milli is not null then
    v_cores := case
      when v_cpu is null then v_room.core_milli / greatest(v_need, 1)
      when v_cpu = 'whole_core' then 1000 * v_room.core_whole / v_need
      else (select sum(1000 * n.cores / v_need) from (select count(*) as cores from unnest(p_node.core_numa) u(numa) group by u.numa) n) end;
  end if;
  v_custom := (select min((v_room.custom ->> c.key)::bigint / nullif(c.value::bigint, 0)) from jsonb_each(p_class.custom) c);
  return least(v_room.cpu_milli / nullif(v_need, 0), v_room.memory_mib / nullif(p_class.memory_mib, 0), v_room.slots, v_gpus, v_cores, v_custom);
end
$$;
