-- Where a gang could run: the places of a domain, and how many members each node there has room for.
--
-- Example: three racks have room for 12, 5 and 8 members of a gang of 5. The rack with 5 comes first: what
-- fits tightest leaves the others whole. For an earmark the same is asked of nodes that run nothing
-- (p_is_idle); then the rack with most room now comes first: there the gang waits for least.
--
-- Invariant: these are estimates, read without locks. They may be too high, never too low: assemble allocates
-- member by member with the functions that claims use, and turns to the next place when that fails.
--
-- Read gang_places, gang_rooms, alike_nodes, then node_places and places_with_room.

-- Returns nodes in groups that have the same headroom: as they are, with is_emptied as if nothing ran there.
-- p_which: now, emptied or both. Nodes that are too full now for each of the classes are left out of the
-- former. Where a class names devices, those of a group are the same, and not only as many.
create or replace function hwqueue.alike_nodes(p_node_ids uuid[], p_classes hwqueue.placement_class[],
  p_which text)
returns table (alike_no bigint, is_emptied boolean, node_ids uuid[], default_cpu text, share_mode text,
  has_cores boolean, room hwqueue.headroom)
language sql stable
as $$
  with smallest as materialized (  -- what even the smallest class needs; whole: devices that nobody uses
    select min(c.cpu_milli) as cpu_milli, min(c.memory_mib) as memory_mib, min(c.gpu_count) > 0 as has_gpus,
           min(case when c.gpu_milli = 0 and c.gpu_exclusivity is distinct from 'partition_exclusive'
             then c.gpu_count else 0 end) as whole, bool_or(c.gpu_wanted <> '{}') as by_device
    from unnest(p_classes) c
  ), sized as materialized (
    select n.node_id, n.cpu_milli, n.memory_mib, n.slots, n.custom, n.core_numa, n.default_cpu_isolation,
           n.gpu_share_mode, case when m.by_device then n.gpu_ids else array[]::uuid[] end as gpu_ids,
           cardinality(n.gpu_ids) as gpus, case when n.gpu_parents = '{}' then array[]::int[] else array(
             select case when g.parent is not null then
                 coalesce(array_position(n.gpu_ids, g.parent), -array_position(n.gpu_parents, g.parent)) end
             from unnest(n.gpu_parents) with ordinality g(parent, nth) order by g.nth) end as parts
    from hwqueue.node n cross join smallest m
    where n.node_id = any (p_node_ids)
  ), alike as materialized (
    select i.is_emptied, array_agg(s.node_id) as node_ids, (array_agg(u))[1] as load
    from sized s
    cross join smallest m
    cross join (values (false), (true)) i(is_emptied)
    left join hwqueue.newest_loads() u on u.node_id = s.node_id and not i.is_emptied
    where p_which <> case when i.is_emptied then 'now' else 'emptied' end
      and (m.cpu_milli > 0 and s.cpu_milli - u.cpu_used < m.cpu_milli) is not true
      and (m.memory_mib > 0 and s.memory_mib - u.memory_used < m.memory_mib) is not true
      and (s.slots <= u.claim_count) is not true
      and (m.has_gpus and 1000 <= all (u.gpu_used)) is not true
      and (m.whole > 0 and cardinality(array_positions(u.gpu_used, 0)) < m.whole) is not true
    group by i.is_emptied, s.cpu_milli - coalesce(u.cpu_used, 0), s.memory_mib - coalesce(u.memory_used, 0),
      s.slots - coalesce(u.claim_count, 0), u.gpu_used, u.core_used, u.custom_used, s.custom, s.core_numa,
      s.default_cpu_isolation, s.gpu_share_mode, s.gpu_ids, s.gpus, s.parts
  )
  select row_number() over (), a.is_emptied, a.node_ids, n.default_cpu_isolation, n.gpu_share_mode,
         n.core_ids <> '{}', hwqueue.node_headroom(n, case when a.is_emptied then hwqueue.idle_load(n)
           else coalesce(a.load, hwqueue.read_load(n.node_id)) end)
  from alike a
  join hwqueue.node n on n.node_id = a.node_ids[1]
$$;

-- Returns the rooms for members of a gang: those of p_members[i] leases of class p_classes[i] have the
-- class_no i. p_which: now, the nodes that have room for some; emptied, those that would if nothing ran
-- there; both, the same with copies, which may be 0. A class, maybe a draft, is judged once for each profile,
-- if it names no nodes, devices or trust domains; nodes whose workers do not serve its queue or its task are
-- left out. How many fit is computed once for all nodes with the same headroom. Devices and cores are counted
-- as amounts, so fewer may fit.
create or replace function hwqueue.gang_rooms(p_classes hwqueue.placement_class[], p_members int[],
  p_which text, p_now timestamptz) returns hwqueue.gang_room[]
language plpgsql stable
  -- all nodes: by hash, whatever the statistics and the settings of the caller say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$ begin return (
  with ask as materialized (
    select c.class_no, c.class, (c.class).task_name as task, (c.class).is_pinned or (c.class).trusts <> '{}'
             as by_node, (
             select q.name from hwqueue.queue q
             where q.queue_id = (c.class).queue_id) as queue
    from (select i as class_no, p_classes[i] as class from generate_subscripts(p_classes, 1) i offset 0) c
  ), live as materialized (
    select n.node_id, n.profile_id, n.queues, n.tasks, n.concurrency
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
  ), suited as materialized (
    select a.class_no, a.queue, a.task, p.profile_id
    from ask a cross join hwqueue.profile p
    where not a.by_node and p.profile_id in (select l.profile_id from live l)
      and hwqueue.suits(a.class, p, null, '{}')
  ), pair as materialized (  -- which live nodes may run which class, and are served for it
    select s.class_no, l.node_id, l.concurrency
    from suited s join live l on l.profile_id = s.profile_id
    where hwqueue.unserved_part(l.queues, l.tasks, s.queue, s.task) is null
    union all
    select a.class_no, l.node_id, l.concurrency
    from ask a
    cross join live l
    join hwqueue.node n on n.node_id = l.node_id
    join hwqueue.profile p on p.profile_id = l.profile_id
    where a.by_node and hwqueue.unserved_part(l.queues, l.tasks, a.queue, a.task) is null
      and hwqueue.suits(a.class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now),
        n.gpu_ids, n.gpu_parents)
  ), alike as materialized (
    select a.* from hwqueue.alike_nodes(array(select distinct p.node_id from pair p), p_classes, p_which) a
  ), need as materialized (
    select k.class_no, m.default_cpu, m.share_mode, m.has_cores, d.name, d.amount
    from ask k
    cross join (select distinct a.default_cpu, a.share_mode, a.has_cores from alike a) m
    cross join lateral hwqueue.needed_amounts(k.class, m.default_cpu, m.share_mode) d
    where d.amount > 0 and (m.has_cores or d.name not like 'core%')
  ), fit as materialized (
    select d.class_no, a.alike_no, min(
             case when d.name = 'gpu_most' then (
                 select coalesce(sum(g / d.amount), 0)::bigint from unnest((a.room).gpu_sorted) g)
               when d.name <> 'core_numa' then hwqueue.amount_left(a.room, d.name) / d.amount
               when hwqueue.amount_left(a.room, d.name) < d.amount then 0
               else hwqueue.amount_left(a.room, 'core_whole') / d.amount end) as copies
    from need d
    join alike a
      on a.default_cpu = d.default_cpu and a.share_mode = d.share_mode and a.has_cores = d.has_cores
    group by d.class_no, a.alike_no
  ), copy as materialized (  -- of classes that name devices: whether these are free
    select f.class_no, f.alike_no, least(f.copies, p_members[f.class_no], case
             when (k.class).gpu_wanted = '{}' then f.copies
             when hwqueue.gpu_shortage((k.class).gpu_count, (k.class).gpu_milli, (k.class).gpu_wanted, a.room,
               hwqueue.gpu_exclusivity_on((k.class).gpu_exclusivity, a.share_mode)) = 0 then 1
             else 0 end)::int as copies
    from fit f join ask k on k.class_no = f.class_no join alike a on a.alike_no = f.alike_no
    where f.copies > 0
  ), on_node as materialized (
    select n.node_id, max(a.alike_no) filter (where not a.is_emptied) as now_no,
           max(a.alike_no) filter (where a.is_emptied) as emptied_no
    from alike a cross join lateral unnest(a.node_ids) n(node_id)
    group by n.node_id
  ), room as materialized (
    select p.class_no, p.node_id, p.concurrency, coalesce(c.copies, 0) as copies,
           case when e.copies > 0 then least(e.copies, p.concurrency) end as emptied
    from pair p
    left join on_node o on o.node_id = p.node_id
    left join copy c on c.class_no = p.class_no and c.alike_no = o.now_no
    left join copy e on e.class_no = p.class_no and e.alike_no = o.emptied_no
    where case when p_which = 'now' then c.copies else e.copies end > 0
  ), running as materialized (  -- counted where the worker says how many leases it runs at a time
    select c.node_id, count(*) as claims from hwqueue.claim c
    where c.node_id = any (array(
        select distinct r.node_id from room r where r.copies > 0 and r.concurrency is not null))
    group by c.node_id
  )
  select array(
    select row(m.class_no, p_members[m.class_no], m.node_id, m.copies, m.emptied)::hwqueue.gang_room
    from (
      select r.class_no, r.node_id, r.emptied,
             greatest(0, least(r.copies, r.concurrency - coalesce(u.claims, 0)))::int as copies
      from room r left join running u on u.node_id = r.node_id) m
    where p_which <> 'now' or m.copies > 0)
); end $$;

-- Returns the places of nodes: each level of p_together has its own, the level fleet one. place: '' without
-- p_together and p_same. value: see domain_value. alike: the labels in p_same. Nodes with different values of
-- these are in different places; those that lack one are in none.
create or replace function hwqueue.node_places(p_together text[], p_same text[])
returns table (place_no bigint, level bigint, domain text, value text, alike text, place text,
  node_ids uuid[])
language sql stable
as $$
  select row_number() over (), d.ordinality, d.domain, v.value, n.alike,
         concat_ws('; ', case when d.domain <> 'fleet' then d.domain || ' ' || v.value
           when p_together <> '{}' then d.domain end, n.alike),
         array_agg(n.node_id)
  from (
    select x.node_id, x.rack, x.labels, case when p_same <> '{}' then (
             select string_agg(k || '=' || (x.labels ->> k), ', ' order by k)
             from unnest(p_same) k) end as alike
    from hwqueue.node x where x.deregistered_at is null and x.labels ?& p_same) n
  cross join unnest(case when p_together = '{}' then '{fleet}' else p_together end)
    with ordinality d(domain, ordinality)
  cross join lateral (
    select hwqueue.domain_value(d.domain, n.node_id, n.rack, n.labels) as value) v
  where v.value is not null
  group by d.ordinality, d.domain, v.value, n.alike
$$;

-- Returns the places (node_places) with rooms for some of the members. fits: all members of p_kinds classes
-- have room, with p_is_idle if nothing ran there. class_nos: those with least room to spare first. room: for
-- how many leases, each class counted as if it were alone; room_now: for how many now. members, emptied: how
-- many members have room, now and if nothing ran there; kinds: of how many classes some have it now.
create or replace function hwqueue.places_with_room(p_rooms hwqueue.gang_room[], p_kinds int,
  p_is_idle boolean, p_together text[], p_same text[])
returns table (level bigint, domain text, value text, alike text, place text, node_ids uuid[], fits boolean,
  class_nos int[], room bigint, room_now bigint, members int, emptied int, kinds bigint)
language sql stable
as $$
  with at as materialized (
    select t.* from hwqueue.node_places(p_together, p_same) t
  ), summed as (
    select k.place_no, count(*) filter (where k.room >= k.members) = p_kinds as fits,
           array_agg(k.class_no order by k.room - k.members, k.class_no) as class_nos,
           sum(k.room)::bigint as room, sum(k.room_now)::bigint as room_now,
           sum(least(k.members, k.room_now))::int as members,
           sum(least(k.members, k.emptied))::int as emptied, count(*) filter (where k.room_now > 0) as kinds
    from (
      select t.place_no, r.class_no, r.members, sum(r.copies) as room_now, sum(r.emptied) as emptied,
             sum(case when p_is_idle then r.emptied else r.copies end) as room
      from (select a.place_no, unnest(a.node_ids) as node_id from at a) t
      join unnest(p_rooms) r on r.node_id = t.node_id
      group by t.place_no, r.class_no, r.members) k
    group by k.place_no
  )
  select t.level, t.domain, t.value, t.alike, t.place, t.node_ids, s.fits, s.class_nos, s.room, s.room_now,
         s.members, s.emptied, s.kinds
  from at t join summed s on s.place_no = t.place_no
$$;

-- Returns these rooms with how many would fit without some claims, in place of if nothing ran. It looks at
-- nodes for a quarter of the time that upkeep has, and takes the others for as full as they are now.
create or replace function hwqueue.freed_rooms(p_rooms hwqueue.gang_room[],
  p_classes hwqueue.placement_class[], p_without uuid[]) returns hwqueue.gang_room[]
language plpgsql volatile
as $$
declare
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget() / 4;
  v_nodes uuid[] := array(
    select distinct c.node_id from hwqueue.claim c where c.lease_id = any (p_without));
begin
  return array(
    select row(r.class_no, r.members, r.node_id, r.copies, greatest(r.copies, case
      when r.node_id = any (v_nodes) and r.emptied > r.copies and clock_timestamp() < v_until
        then r.members - (hwqueue.left_on_node(r.node_id, array[r.class_no], p_classes,
          array_fill(r.members, array[cardinality(p_classes)]), p_without))[r.class_no] end)
      )::hwqueue.gang_room
    from unnest(p_rooms) r);
end
$$;

-- Returns the places that have room for all these members, level by level of p_together, in a level the
-- tightest first, 4 of each: the place ('' without p_together and p_same), its nodes, those with most room
-- first, and the classes, those with least room to spare first: their members are placed before others take
-- it. p_place: only this place; null: any. p_first: comes first in its level, if it has room. p_class_ids:
-- of the members, with repetition. p_is_idle: places that had room if they ran nothing, those with most room
-- now first; where the last level is the fleet, only that: members that may be anywhere wait for least there.
-- p_without: not null: if they ran nothing of this (freed_rooms).
create or replace function hwqueue.gang_places(p_class_ids bigint[], p_together text[], p_same text[],
  p_place text, p_first text, p_is_idle boolean, p_now timestamptz, p_without uuid[] default null)
returns table (place text, node_ids uuid[], class_ids bigint[])
language plpgsql stable
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
declare
  v_classes hwqueue.placement_class[];
  v_members int[];
  v_rooms hwqueue.gang_room[];
  v_levels text[] := case when p_is_idle and 'fleet' = any (p_together) then '{fleet}' else p_together end;
begin
  select array_agg(c order by c.class_id), array_agg(m.members order by c.class_id) into v_classes, v_members
  from (select u.class_id, count(*)::int as members from unnest(p_class_ids) u(class_id) group by 1) m
  join hwqueue.placement_class c on c.class_id = m.class_id;
  v_rooms := hwqueue.gang_rooms(v_classes, v_members, case when p_is_idle then 'both' else 'now' end, p_now);
  if p_without is not null then
    v_rooms := hwqueue.freed_rooms(v_rooms, v_classes, p_without);
  end if;
  return query
    with fits as materialized (
      select f.*
      from (
        select p.*, row_number() over (partition by p.level
                 order by p.place is distinct from p_first,
                          case when p_is_idle then -p.room_now else p.room end, p.place) as turn
        from hwqueue.places_with_room(v_rooms, cardinality(v_classes), p_is_idle, v_levels, p_same) p
        where p.fits and (p_place is null or p.place = p_place)) f
      where f.turn <= 4
    ), on_node as materialized (
      select t.level, t.turn, t.node_id, sum(r.copies) as copies, sum(r.emptied) as emptied
      from (select f.level, f.turn, unnest(f.node_ids) as node_id from fits f) t
      join unnest(v_rooms) r on r.node_id = t.node_id
      group by t.level, t.turn, t.node_id
    )
    select f.place, n.node_ids, array(
      select (v_classes[k.class_no]).class_id
      from unnest(f.class_nos) with ordinality k(class_no, turn) order by k.turn)
    from fits f
    join (
      select o.level, o.turn,
             array_agg(o.node_id order by o.copies desc, o.emptied desc, o.node_id) as node_ids
      from on_node o group by o.level, o.turn) n on n.level = f.level and n.turn = f.turn
    order by f.level, f.turn;
end
$$;
