-- What a node has left. GPUs and custom countables a node does not declare it does not have; cpu, memory and slots it
-- does not declare are not counted (null).
create or replace function hwqueue.node_headroom(p_node hwqueue.node, p_load hwqueue.node_load) returns hwqueue.headroom
language plpgsql immutable parallel safe
as $$
declare
  v_room hwqueue.headroom;
  v_used int[];
begin
  v_room.cpu_milli := p_node.cpu_milli - p_load.cpu_used;
  v_room.memory_mib := p_node.memory_mib - p_load.memory_used;
  v_room.slots := p_node.slots - p_load.claim_count;
  v_room.custom := '{}';
  if p_node.custom <> '{}' then
    v_room.custom := (
      select jsonb_object_agg(c.key, c.value::bigint - coalesce((p_load.custom_used ->> c.key)::bigint, 0))
      from jsonb_each(p_node.custom) c);
  end if;
  v_room.gpu_ids := p_node.gpu_ids;
  v_room.gpu_total := 0;
  v_room.gpu_most := 0;
  v_room.gpu_whole := 0;
  v_room.gpu_parts_free := 0;
  if p_node.gpu_ids <> '{}' then
    v_used := case when p_node.gpu_parents = '{}' then p_load.gpu_used
      else hwqueue.use_of_devices(p_node, p_load.gpu_used) end;
    v_room.gpu_whole := cardinality(array_positions(v_used, 0));
    if v_used <> '{}'
      and v_room.gpu_whole + cardinality(array_positions(v_used, 1000)) = cardinality(v_used) then
      -- no device is shared, as on most nodes: said without a query, which costs three times as much
      v_room.gpu_free := array_replace(array_replace(array_replace(v_used, 0, -1), 1000, 0), -1, 1000);
      v_room.gpu_sorted := array_fill(0, array[cardinality(v_used) - v_room.gpu_whole])
        || array_fill(1000, array[v_room.gpu_whole]);
      v_room.gpu_total := 1000 * v_room.gpu_whole;
      v_room.gpu_most := case when v_room.gpu_whole > 0 then 1000 else 0 end;
    else
      select array_agg(1000 - u.used order by u.ordinality), array_agg(1000 - u.used order by 1000 - u.used),
             sum(1000 - u.used), max(1000 - u.used)
      into v_room.gpu_free, v_room.gpu_sorted, v_room.gpu_total, v_room.gpu_most
      from unnest(v_used) with ordinality u(used, ordinality);
    end if;
    if p_node.gpu_parents <> '{}' then
      v_room.gpu_parts := hwqueue.parts_of_devices(p_node, p_load.gpu_used);
      v_room.gpu_parts_free := (select count(*) from unnest(v_room.gpu_parts) p(turn) where p.turn > 0);
    end if;
  end if;
  if p_node.core_ids <> '{}' then
    select sum(n.milli), sum(n.idle), max(n.idle) into v_room.core_milli, v_room.core_whole, v_room.core_numa
    from (select sum(greatest(1000 - u.used, 0)) as milli, count(*) filter (where u.used = 0) as idle
          from unnest(p_load.core_used, p_node.core_numa) u(used, numa) group by u.numa) n;
  end if;
  return v_room;
end
$$;

-- Which devices a class gets: positions in gpu_ids, from 1. A share goes where it leaves the least, whole devices
-- are the lowest free ones, parts those whose turn it is, wanted devices come first. Null when it does not fit.
create or replace function hwqueue.choose_devices(p_count int, p_milli int, p_wanted uuid[], p_exclusivity text, p_room hwqueue.headroom) returns int[]
language sql immutable parallel safe
as $$
  select case when count(*) = p_count
              and not exists (  -- a wanted device of this node that did not make it
                select 1 from unnest(p_room.gpu_ids) with ordinality d(id, position)
                where d.id = any (p_wanted) and d.position <> all (coalesce(array_agg(c.position), '{}')))
         then coalesce(array_agg(c.position::int order by c.position), '{}') end
  from (
    select f.position
    from unnest(case when p_exclusivity = 'partition_exclusive' then p_room.gpu_parts else p_room.gpu_free end, p_room.gpu_ids)
      with ordinality f(free, id, position)
    where f.free >= case when p_milli > 0 then p_milli else 1000 end
    order by (f.id = any (p_wanted)) desc, f.free, f.position
    limit p_count
  ) c
$$;

-- Custom countables that a class needs more of than there is; null when there is enough.
create or replace function hwqueue.lacking_custom(p_needed jsonb, p_free jsonb) returns text
language sql immutable parallel safe
as $$
  select string_agg(c.key, ', ' order by c.key) from jsonb_each(p_needed) c
  where c.value::bigint > coalesce((p_free ->> c.key)::bigint, 0)
$$;

-- What of a class's needs does not fit now, as bits: 1 cpu_milli, 2 memory_mib, 4 slots, 8 GPUs, 16 custom countables, 32 cores; 0 when
-- all of it fits. p_cpu_isolation and p_gpu_exclusivity are what the class comes to on the node (cpu_isolation_on); p_cpu_milli
-- of one that takes whole cores is theirs (cpu_needed).
-- One expression without subqueries, so that the planner inlines it: a claim asks it of many classes.
create or replace function hwqueue.shortage(p_cpu_milli bigint, p_memory_mib bigint, p_gpu_count int, p_gpu_milli int, p_gpu_wanted uuid[],
                                            p_custom jsonb, p_room hwqueue.headroom, p_cpu_isolation text default null,
                                            p_gpu_exclusivity text default null) returns int
language sql stable parallel safe
as $$
  select case when p_cpu_milli > p_room.cpu_milli then 1 else 0 end
    + case when p_memory_mib > p_room.memory_mib then 2 else 0 end
    + case when p_room.slots < 1 then 4 else 0 end
    + case when p_gpu_count = 0 then 0
           when p_gpu_wanted <> '{}' and hwqueue.choose_devices(p_gpu_count, p_gpu_milli, p_gpu_wanted, p_gpu_exclusivity, p_room) is null then 8
           when p_gpu_exclusivity = 'partition_exclusive' then case when p_gpu_count > p_room.gpu_parts_free then 8 else 0 end
           when p_gpu_milli > 0 and p_gpu_milli > p_room.gpu_most then 8
           when p_gpu_milli = 0 and p_gpu_count > p_room.gpu_whole then 8
           else 0 end
    + case when p_custom is null or hwqueue.lacking_custom(p_custom, p_room.custom) is null then 0 else 16 end
    + case when p_room.core_milli is null then 0
           when p_cpu_isolation is null then case when greatest(p_cpu_milli, 1) > p_room.core_milli then 32 else 0 end
           when p_cpu_milli > 1000 * case when p_cpu_isolation = 'whole_core' then p_room.core_whole else p_room.core_numa end then 32
           else 0 end
$$;

-- The same of a class on a node. In PL/pgSQL, which keeps what each step comes to: shortage is inlined only
-- where its arguments are variables.
create or replace function hwqueue.class_shortage(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load) returns int
language plpgsql stable parallel safe
as $$
declare
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_cpu_milli bigint := hwqueue.cpu_needed(p_class.cpu_milli, v_cpu);
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, p_load);
begin
  return hwqueue.shortage(v_cpu_milli, p_class.memory_mib, p_class.gpu_count, p_class.gpu_milli,
      p_class.gpu_wanted, p_class.custom,
                          v_room, v_cpu, v_gpu);
end
$$;

-- What is short, in words: names of resources, '' when nothing is.
create or replace function hwqueue.lacking(p_shortage int, p_class hwqueue.placement_class, p_room hwqueue.headroom) returns text
language sql stable parallel safe
as $$
  select concat_ws(', ',
    case when p_shortage & 1 > 0 then 'cpu_milli' end,
    case when p_shortage & 2 > 0 then 'memory_mib' end,
    case when p_shortage & 4 > 0 then 'slots' end,
    case when p_shortage & 8 > 0 then case when p_class.gpu_milli > 0 then 'gpu_milli' else 'gpu' end end,
    case when p_shortage & 16 > 0 then hwqueue.lacking_custom(p_class.custom, p_room.custom) end,
    case when p_shortage & 32 > 0 then 'cores' end)
$$;
