-- What a node has left. GPUs and custom countables a node does not declare it does not have; cpu, memory and slots it
-- does not declare are not counted (null).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.node_headroom(p_node hwqueue.node, p_load hwqueue.node_load) returns hwqueue.headroom
language plpgsql immutable parallel safe
as $$
declare
  v_room hwqueue.headroom;
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
  if p_node.gpu_ids <> '{}' then
    select array_agg(1000 - u.used order by u.ordinality), array_agg(1000 - u.used order by 1000 - u.used),
           sum(1000 - u.used), max(1000 - u.used), count(*) filter (where u.used = 0)
    into v_room.gpu_free, v_room.gpu_sorted, v_room.gpu_total, v_room.gpu_most, v_room.gpu_whole
    from unnest(p_load.gpu_used) with ordinality u(used, ordinality);
  end if;
  return v_room;
end
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

-- What of a class's needs does not fit now, as bits: 1 cpu_milli, 2 memory_mib, 4 slots, 8 GPUs, 16 custom countables; 0 when all
-- of it fits.
-- One expression without subqueries, so that the planner inlines it: a claim asks it of many classes.
create or replace function hwqueue.shortage(p_cpu_milli bigint, p_memory_mib bigint, p_gpu_count int, p_gpu_milli int, p_gpu_wanted uuid[],
                                            p_custom jsonb, p_room hwqueue.headroom) returns int
language sql stable parallel safe
as $$
  select case when p_cpu_milli > p_room.cpu_milli then 1 else 0 end
    + case when p_memory_mib > p_room.memory_mib then 2 else 0 end
    + case when p_room.slots < 1 then 4 else 0 end
    + case when p_gpu_count = 0 then 0
           when p_gpu_wanted <> '{}' and hwqueue.choose_devices(p_gpu_count, p_gpu_milli, p_gpu_wanted, p_room) is null then 8
           when p_gpu_milli > 0 and p_gpu_milli > p_room.gpu_most then 8
           when p_gpu_milli = 0 and p_gpu_count > p_room.gpu_whole then 8
           else 0 end
    + case when p_custom is null or hwqueue.lacking_custom(p_custom, p_room.custom) is null then 0 else 16 end
$$;

-- The same in words: names of resources, '' when all of it fits.
create or replace function hwqueue.lacking(p_class hwqueue.placement_class, p_room hwqueue.headroom) returns text
language sql stable parallel safe
as $$
  select concat_ws(', ',
    case when s.bits & 1 > 0 then 'cpu_milli' end,
    case when s.bits & 2 > 0 then 'memory_mib' end,
    case when s.bits & 4 > 0 then 'slots' end,
    case when s.bits & 8 > 0 then case when p_class.gpu_milli > 0 then 'gpu_milli' else 'gpu' end end,
    case when s.bits & 16 > 0 then hwqueue.lacking_custom(p_class.custom, p_room.custom) end)
  from (select hwqueue.shortage(p_class.cpu_milli, p_class.memory_mib, p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted,
                                p_class.custom, p_room) as bits) s
$$;
