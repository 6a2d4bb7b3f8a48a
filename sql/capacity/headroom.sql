-- Headroom: what a node has left, and whether a class fits into it, in amounts, devices and cores.
--
-- Claims call shortage for each candidate class, and choose_devices and choose_cores for the one granted. The
-- fleet module compares many classes and nodes as amounts by name (needed_amounts, amount_left). The
-- invariant: both ways answer alike; a test holds them together. A class that names devices must be checked
-- with shortage as well, since an amount does not say which devices are free.

-- What a class needs on nodes with these defaults (default_cpu_isolation, gpu_share_mode), as amounts by
-- name.
create or replace function hwqueue.needed_amounts(p_class hwqueue.placement_class, p_default_cpu text,
  p_share_mode text) returns table (name text, amount bigint)
language sql immutable parallel safe
as $$
  select n.name, n.amount
  from (
    select hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_default_cpu) as cpu,
           hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_share_mode) as gpu) i
  cross join lateral (
    select 'cpu_milli', hwqueue.cpu_needed(p_class.cpu_milli, i.cpu)
    union all select 'memory_mib', p_class.memory_mib
    union all select 'slots', 1
    union all
    select case when i.cpu is null then 'core_milli' when i.cpu = 'whole_core' then 'core_whole'
             else 'core_numa' end,
           greatest(hwqueue.cpu_needed(p_class.cpu_milli, i.cpu), 1)
    union all
    select case when i.gpu = 'partition_exclusive' then 'gpu_parts'
                when p_class.gpu_milli > 0 then 'gpu_most' else 'gpu_whole' end,
           case when p_class.gpu_milli > 0 and i.gpu is distinct from 'partition_exclusive'
             then p_class.gpu_milli else p_class.gpu_count end
    where p_class.gpu_count > 0
    union all
    select 'custom:' || c.key, c.value::bigint from jsonb_each(coalesce(p_class.custom, '{}')) c
  ) n(name, amount)
$$;

-- What a node has left of an amount; unlimited for what it does not count.
create or replace function hwqueue.amount_left(p_room hwqueue.headroom, p_name text) returns bigint
language sql immutable parallel safe
as $$
  select case p_name
    when 'cpu_milli' then coalesce(p_room.cpu_milli, 9223372036854775807)
    when 'memory_mib' then coalesce(p_room.memory_mib, 9223372036854775807)
    when 'slots' then coalesce(p_room.slots, 9223372036854775807)
    when 'core_milli' then coalesce(p_room.core_milli, 9223372036854775807)
    when 'core_whole' then coalesce(1000 * p_room.core_whole::bigint, 9223372036854775807)
    when 'core_numa' then coalesce(1000 * p_room.core_numa::bigint, 9223372036854775807)
    when 'gpu_parts' then p_room.gpu_parts_free
    when 'gpu_most' then p_room.gpu_most
    when 'gpu_whole' then p_room.gpu_whole
    else coalesce((p_room.custom ->> substr(p_name, 8))::bigint, 0) end
$$;

-- What a node has left, nothing of what is booked twice (capacity/overbook). GPUs and custom countables that
-- it does not declare it does not have; the cpu, memory and slots are not counted (null).
create or replace function hwqueue.node_headroom(p_node hwqueue.node, p_load hwqueue.node_load)
returns hwqueue.headroom
language plpgsql immutable parallel safe
as $$
declare
  v_room hwqueue.headroom;
  v_used int[];
begin
  v_room.cpu_milli := case when p_load.cpu_used > p_node.cpu_milli then 0
    else p_node.cpu_milli - p_load.cpu_used end;
  v_room.memory_mib := case when p_load.memory_used > p_node.memory_mib then 0
    else p_node.memory_mib - p_load.memory_used end;
  v_room.slots := case when p_load.claim_count > p_node.slots then 0
    else p_node.slots - p_load.claim_count end;
  v_room.custom := '{}';
  if p_node.custom <> '{}' then
    v_room.custom := (
      select jsonb_object_agg(c.key,
        greatest(0, c.value::bigint - coalesce((p_load.custom_used ->> c.key)::bigint, 0)))
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
      -- no device is shared, as on most nodes: computed without a query, which takes three times as long
      v_room.gpu_free := array_replace(array_replace(array_replace(v_used, 0, -1), 1000, 0), -1, 1000);
      v_room.gpu_sorted := array_fill(0, array[cardinality(v_used) - v_room.gpu_whole])
        || array_fill(1000, array[v_room.gpu_whole]);
      v_room.gpu_total := 1000 * v_room.gpu_whole;
      v_room.gpu_most := case when v_room.gpu_whole > 0 then 1000 else 0 end;
    else
      select array_agg(u.free order by u.ordinality), array_agg(u.free order by u.free), sum(u.free),
             max(u.free)
      into v_room.gpu_free, v_room.gpu_sorted, v_room.gpu_total, v_room.gpu_most
      from (select greatest(0, 1000 - x.used) as free, x.ordinality
            from unnest(v_used) with ordinality x(used, ordinality)) u;
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

-- The devices that a class gets, as positions in gpu_ids, from 1; null when it does not fit. A share
-- goes where it leaves the least. Whole devices are the lowest free ones, and parts are those next in
-- order. Wanted devices come first.
create or replace function hwqueue.choose_devices(p_count int, p_milli int, p_wanted uuid[],
  p_exclusivity text, p_room hwqueue.headroom) returns int[]
language plpgsql immutable parallel safe
as $$
begin
  if p_count = 1 and p_milli = 0 and cardinality(p_wanted) = 0 and 1000 = any (p_room.gpu_free)
    and p_exclusivity is distinct from 'partition_exclusive' then
    return array[array_position(p_room.gpu_free, 1000)];  -- most by far: without a query
  end if;
  return (  -- in PL/pgSQL, which keeps the plan
    select case when count(*) = p_count
                and not exists (  -- a wanted device of this node that is not free
                  select 1 from unnest(p_room.gpu_ids) with ordinality d(id, position)
                  where d.id = any (p_wanted) and d.position <> all (coalesce(array_agg(c.position), '{}')))
           then coalesce(array_agg(c.position::int order by c.position), '{}') end
    from (
      select f.position
      from unnest(case when p_exclusivity = 'partition_exclusive' then p_room.gpu_parts
        else p_room.gpu_free end, p_room.gpu_ids)
        with ordinality f(free, id, position)
      where f.free >= case when p_milli > 0 then p_milli else 1000 end
      order by (f.id = any (p_wanted)) desc, f.free, f.position
      limit p_count
    ) c);
end
$$;

-- Custom countables of which a class needs more than there is; null when there is enough.
create or replace function hwqueue.lacking_custom(p_needed jsonb, p_free jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select string_agg(c.key, ', ' order by c.key) from jsonb_each(p_needed) c
  where c.value::bigint > coalesce((p_free ->> c.key)::bigint, 0)
); end $$;

-- Which of a class's needs other than GPUs do not fit now, as bits: 1 cpu_milli, 2 memory_mib, 4 slots,
-- 16 custom countables, 32 cores; 0 when all fit. p_cpu_isolation is the one that applies on the node
-- (cpu_isolation_on). For a class that takes whole cores, p_cpu_milli is the amount of those
-- (cpu_needed). One expression without subqueries, so that the planner inlines it: a claim evaluates it
-- for many classes.
create or replace function hwqueue.shortage(p_cpu_milli bigint, p_memory_mib bigint, p_room hwqueue.headroom,
  p_custom jsonb default null, p_cpu_isolation text default null) returns int
language sql stable parallel safe
as $$
  select case when p_cpu_milli > p_room.cpu_milli then 1 else 0 end
    + case when p_memory_mib > p_room.memory_mib then 2 else 0 end
    + case when p_room.slots < 1 then 4 else 0 end
    + case when p_custom is null or hwqueue.lacking_custom(p_custom, p_room.custom) is null then 0 else 16 end
    + case when p_room.core_milli is null then 0
           when p_cpu_isolation is null then
             case when greatest(p_cpu_milli, 1) > p_room.core_milli then 32 else 0 end
           when p_cpu_milli > 1000 * case when p_cpu_isolation = 'whole_core' then p_room.core_whole
             else p_room.core_numa end then 32
           else 0 end
$$;

-- The bit of GPUs, 8, when these do not fit now; else 0. p_gpu_exclusivity is the one that applies on the
-- node (gpu_exclusivity_on). One expression, as shortage.
create or replace function hwqueue.gpu_shortage(p_gpu_count int, p_gpu_milli int, p_gpu_wanted uuid[],
  p_room hwqueue.headroom, p_gpu_exclusivity text) returns int
language sql stable parallel safe
as $$
  select case when p_gpu_count = 0 then 0
    when case when p_gpu_exclusivity = 'partition_exclusive' then p_gpu_count > p_room.gpu_parts_free
      when p_gpu_milli > 0 then p_gpu_milli > p_room.gpu_most
      else p_gpu_count > p_room.gpu_whole end then 8
    when cardinality(p_gpu_wanted) > 0 and hwqueue.choose_devices(
      p_gpu_count, p_gpu_milli, p_gpu_wanted, p_gpu_exclusivity, p_room) is null then 8
    else 0 end
$$;

-- Both for a class on a node. In PL/pgSQL, whose variables keep each intermediate result: the
-- planner inlines them only where their arguments are variables.
create or replace function hwqueue.class_shortage(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load) returns int
language plpgsql stable parallel safe
as $$
declare
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_cpu_milli bigint := hwqueue.cpu_needed(p_class.cpu_milli, v_cpu);
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, p_load);
begin
  return hwqueue.shortage(v_cpu_milli, p_class.memory_mib, v_room, p_class.custom, v_cpu)
    + hwqueue.gpu_shortage(p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted, v_room, v_gpu);
end
$$;

-- How much of each device is in use for leases that want whole ones: all of a part, and all of a device
-- that has parts in use.
create or replace function hwqueue.use_of_devices(p_node hwqueue.node, p_used int[]) returns int[]
language plpgsql immutable parallel safe
as $$ begin return (
  select array_agg(case when d.parent is not null or d.id in (
                          select x.parent from unnest(p_node.gpu_parents, p_used) x(parent, used)
                          where x.parent is not null and x.used > 0)
                        then 1000 else d.used end order by d.ordinality)
  from unnest(p_node.gpu_ids, p_node.gpu_parents, p_used) with ordinality d(id, parent, used, ordinality)
); end $$;

-- The order in which free parts of devices are allocated, lowest number first. Parts of devices that are
-- broken up already come first, and among those the devices with the fewest free parts, so that most
-- devices stay whole. 0: the part or its device is in use, or it is not a part.
create or replace function hwqueue.parts_of_devices(p_node hwqueue.node, p_used int[]) returns int[]
language plpgsql immutable parallel safe
as $$ begin return (
  select array_agg(case when d.parent is null or d.used > 0 or w.used > 0 then 0
                        else 1000 + case when d.parts_used > 0 then 0 else 2000 end + d.parts_free end
                   order by d.ordinality)
  from (select x.*, sum(x.used) over p as parts_used, count(*) filter (where x.used = 0) over p as parts_free
        from unnest(p_node.gpu_parents, p_used) with ordinality x(parent, used, ordinality)
        window p as (partition by x.parent)) d
  left join unnest(p_node.gpu_ids, p_used) w(id, used) on w.id = d.parent
); end $$;

-- How many thousandths of each core a lease gets, in the order of core_ids; null when it does not fit.
-- p_isolation is what applies on the node, p_cpu_milli what the class needs.
--   - whole_core: idle cores, of NUMA nodes that are in use already before untouched ones, so that few
--     NUMA nodes are left broken.
--   - strict_isolated: idle cores of the NUMA node with the fewest idle cores that suffice.
--   - Best effort: as few cores as possible, never a full one. The rest of the amount goes to the core
--     where it leaves the least.
create or replace function hwqueue.choose_cores(p_node hwqueue.node, p_used int[], p_cpu_milli bigint,
  p_isolation text) returns int[]
language plpgsql immutable
as $$
declare
  v_need bigint := case when p_isolation is null then greatest(p_cpu_milli, 1)
    else hwqueue.cpu_needed(p_cpu_milli, p_isolation) end;
  v_full int[];
  v_rest bigint;
  v_last int;
begin
  if p_isolation is not null then
    v_full := array(
      select c.position
      from (select u.position, u.used, u.numa, count(*) filter (where u.used = 0) over n as idle,
              count(*) over n as cores
            from unnest(p_used, p_node.core_numa) with ordinality u(used, numa, position)
            window n as (partition by u.numa)) c
      where c.used = 0 and (p_isolation = 'whole_core' or c.idle >= v_need / 1000)
      order by p_isolation = 'whole_core' and c.idle = c.cores, c.idle, c.numa, c.position
      limit v_need / 1000);
    v_rest := v_need - 1000 * cardinality(v_full);
  else
    select coalesce(array_agg(c.position::int) filter (where c.so_far <= v_need), '{}'),
           v_need - coalesce(max(c.so_far) filter (where c.so_far <= v_need), 0)
    into v_full, v_rest
    from (select f.position, sum(f.free) over (
            order by f.free desc, f.idle, f.numa, f.position rows unbounded preceding) as so_far
          from (select u.position, u.numa, 1000 - u.used as free,
                  count(*) filter (where u.used = 0) over (partition by u.numa) as idle
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
    select case when u.position = any (v_full) then 1000 - u.used
                when u.position = v_last then v_rest else 0 end
    from unnest(p_used) with ordinality u(used, position) order by u.position);
end
$$;

-- What a class needs on a node of the resources in p_bits (see shortage), as an object of amounts; with a
-- null p_node as it was asked for. With p_room: what the node has left of these, or, of an idle node, in all.
create or replace function hwqueue.amounts_of(p_class hwqueue.placement_class, p_bits int,
  p_node hwqueue.node, p_room hwqueue.headroom default null) returns jsonb
language plpgsql stable parallel safe
as $$ begin return (
  select coalesce(jsonb_object_agg(s.shown, case when s.bit = 32 then trim_scale(s.amount / 1000.0)
    else s.amount end), '{}')
  from (
    select case when p_room is null then d.amount else hwqueue.amount_left(p_room, d.name) end as amount,
           k.bit, coalesce(k.shown, substr(d.name, 8)) as shown
    from hwqueue.needed_amounts(p_class, p_node.default_cpu_isolation, p_node.gpu_share_mode) d
    left join (values ('cpu_milli', 1, 'cpu_milli'), ('memory_mib', 2, 'memory_mib'), ('slots', 4, 'slots'),
      ('gpu_parts', 8, 'gpu'), ('gpu_whole', 8, 'gpu'), ('gpu_most', 8, 'gpu_milli'),
      ('core_milli', 32, 'cores'), ('core_whole', 32, 'cores'), ('core_numa', 32, 'cores')
    ) k(name, bit, shown) on k.name = d.name
    where p_bits & coalesce(k.bit, 16) > 0) s
); end $$;
