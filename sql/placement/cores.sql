-- Cores and devices one by one: what is idle, and which of it a lease gets. Asked only of nodes that count them.

-- How much of each device is in use to those that want whole ones: all of a part, and all of a device that has parts in use.
create or replace function hwqueue.use_of_devices(p_node hwqueue.node, p_used int[]) returns int[]
language sql immutable parallel safe
as $$
  select array_agg(case when d.parent is not null or d.id in (
                          select x.parent from unnest(p_node.gpu_parents, p_used) x(parent, used) where x.parent is not null and x.used > 0)
                        then 1000 else d.used end order by d.ordinality)
  from unnest(p_node.gpu_ids, p_node.gpu_parents, p_used) with ordinality d(id, parent, used, ordinality)
$$;

-- Which parts of devices are free and in which order they are given, lowest number first: those of devices that are broken already, the
-- fewest free parts first, so that most devices stay whole. 0: in use, its device is, or no part.
create or replace function hwqueue.parts_of_devices(p_node hwqueue.node, p_used int[]) returns int[]
language sql immutable parallel safe
as $$
  select array_agg(case when d.parent is null or d.used > 0 or w.used > 0 then 0
                        else 1000 + case when d.parts_used > 0 then 0 else 2000 end + d.parts_free end order by d.ordinality)
  from (select x.*, sum(x.used) over p as parts_used, count(*) filter (where x.used = 0) over p as parts_free
        from unnest(p_node.gpu_parents, p_used) with ordinality x(parent, used, ordinality) window p as (partition by x.parent)) d
  left join unnest(p_node.gpu_ids, p_used) w(id, used) on w.id = d.parent
$$;

-- How many thousandths of each core a lease gets, in the order of core_ids; null when it does not fit. p_isolation is what its class
-- comes to on the node, p_cpu_milli what it needs.
-- whole_core: idle cores, of NUMA nodes that are in use already before untouched ones, so that few are left broken. strict_isolated:
-- idle cores of the NUMA node with the fewest that suffice. Best effort: as few cores as can be, never one that is full; the
-- rest of its amount on the core where it leaves the least.
create or replace function hwqueue.choose_cores(p_node hwqueue.node, p_used int[], p_cpu_milli bigint, p_isolation text) returns int[]
language plpgsql immutable
as $$
declare
  v_need bigint := case when p_isolation is null then greatest(p_cpu_milli, 1) else hwqueue.cpu_needed(p_cpu_milli, p_isolation) end;
  v_full int[];
  v_rest bigint;
  v_last int;
begin
  if p_isolation is not null then
    v_full := array(
      select c.position
      from (select u.position, u.used, u.numa, count(*) filter (where u.used = 0) over n as idle, count(*) over n as cores
            from unnest(p_used, p_node.core_numa) with ordinality u(used, numa, position) window n as (partition by u.numa)) c
      where c.used = 0 and (p_isolation = 'whole_core' or c.idle >= v_need / 1000)
      order by p_isolation = 'whole_core' and c.idle = c.cores, c.idle, c.numa, c.position
      limit v_need / 1000);
    v_rest := v_need - 1000 * cardinality(v_full);
  else
    select coalesce(array_agg(c.position::int) filter (where c.so_far <= v_need), '{}'),
           v_need - coalesce(max(c.so_far) filter (where c.so_far <= v_need), 0)
    into v_full, v_rest
    from (select f.position, sum(f.free) over (order by f.free desc, f.idle, f.numa, f.position rows unbounded preceding) as so_far
          from (select u.position, u.numa, 1000 - u.used as free, count(*) filter (where u.used = 0) over (partition by u.numa) as idle
                from unnest(p_used, p_node.core_numa) with ordinality u(used, numa, position)) f
          where f.free > 0) c;
    if v_rest > 0 then
      select u.position into v_last
      from unnest(p_used) with ordinality u(used, position)
      where 1000 - u.used >= v_rest and u.position <> all (v_full) order by u.used desc, u.position limit 1;
      v_rest := case when v_last is null then v_rest else 0 end;
    end if;
  end if;
  if v_rest > 0 then
    return null;
  end if;
  v_rest := v_need - coalesce((select sum(1000 - p_used[p]) from unnest(v_full) p), 0);
  return array(
    select case when u.position = any (v_full) then 1000 - u.used when u.position = v_last then v_rest else 0 end
    from unnest(p_used) with ordinality u(used, position) order by u.position);
end
$$;

-- What an assignment says of cores: {"cpu_isolation", "cores", "core_milli", "numa", "cpus"}: the ids, how much of each, the NUMA
-- nodes and the threads they have. Null when the node counts none.
create or replace function hwqueue.assigned_cores(p_node hwqueue.node, p_taken int[], p_isolation text) returns jsonb
language sql immutable
as $$
  select jsonb_build_object('cpu_isolation', coalesce(p_isolation, 'best_effort'),
    'cores', jsonb_agg(t.core order by t.position), 'core_milli', jsonb_agg(t.milli order by t.position),
    'numa', jsonb_agg(distinct t.numa),
    'cpus', (select jsonb_agg(cpu order by cpu) from (
               select c::int as cpu from unnest(p_taken) with ordinality x(milli, position)
               cross join lateral jsonb_array_elements_text(p_node.cores -> (x.position::int - 1) -> 'threads') c where x.milli > 0) cpus))
  from unnest(p_taken, p_node.core_ids, p_node.core_numa) with ordinality t(milli, core, numa, position)
  where t.milli > 0
  having count(*) > 0
$$;
