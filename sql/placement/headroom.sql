-- What a node has left. GPUs and custom countables a node does not declare it does not have; cpu, memory and slots it
-- does not declare are not counted (null).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.node_headroom(p_node hwqueue.node, p_state hwqueue.node_state) returns hwqueue.headroom
language sql immutable parallel safe
as $$
  select row(
    p_node.cpu_milli - p_state.cpu_used,
    p_node.memory_mib - p_state.memory_used,
    case when p_node.custom = '{}' then '{}' else (
      select jsonb_object_agg(c.key, c.value::bigint - coalesce((p_state.custom_used ->> c.key)::bigint, 0))
      from jsonb_each(p_node.custom) c) end,
    p_node.slots - p_state.claim_count,
    p_node.gpu_ids, g.free, g.sorted, g.total, g.most, g.whole)::hwqueue.headroom
  from (select coalesce(array_agg(1000 - u.used order by u.ordinality), '{}') as free,
               coalesce(array_agg(1000 - u.used order by 1000 - u.used), '{}') as sorted,
               coalesce(sum(1000 - u.used), 0)::int as total,
               coalesce(max(1000 - u.used), 0) as most,
               (count(*) filter (where u.used = 0))::int as whole
        from unnest(p_state.gpu_used) with ordinality u(used, ordinality)) g
$$;

-- Which devices a class gets: positions in gpu_ids, from 1. A share goes where it leaves the least, whole devices
-- are the lowest free ones, wanted devices come first. Null when it does not fit.
create or replace function hwqueue.choose_devices(p_count int, p_milli int, p_wanted uuid[], p_room hwqueue.headroom) returns int[]
language sql immutable parallel safe
as $$
  select case when count(*) = p_count
              and not exists (  -- a wanted device of this node that did not make it
                select 1 from unnest(p_room.gpu_ids) with ordinality d(id, position)
                where d.id = any (p_wanted) and d.position <> all (coalesce(array_agg(c.position), '{}')))
         then coalesce(array_agg(c.position::int order by c.position), '{}') end
  from (
    select f.position
    from unnest(p_room.gpu_free, p_room.gpu_ids) with ordinality f(free, id, position)
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

-- What of a class's needs does not fit now: names of resources, '' when all of it fits.
-- One expression without subqueries, so that the planner inlines it: a claim asks it of every eligible class.
create or replace function hwqueue.lacking(p_class hwqueue.placement_class, p_room hwqueue.headroom) returns text
language sql stable parallel safe
as $$
  select concat_ws(', ',
    case when p_class.cpu_milli > p_room.cpu_milli then 'cpu_milli' end,
    case when p_class.memory_mib > p_room.memory_mib then 'memory_mib' end,
    case when p_room.slots < 1 then 'slots' end,
    case when p_class.gpu_count > 0
          and case when p_class.gpu_wanted <> '{}'
                   then hwqueue.choose_devices(p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted, p_room) is null
                   when p_class.gpu_milli > 0 then p_class.gpu_milli > p_room.gpu_most
                   else p_class.gpu_count > p_room.gpu_whole end
         then case when p_class.gpu_milli > 0 then 'gpu_milli' else 'gpu' end end,
    case when p_class.custom is not null then hwqueue.lacking_custom(p_class.custom, p_room.custom) end)
$$;
