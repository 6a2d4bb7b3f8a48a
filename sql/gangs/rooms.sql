-- Where a gang could run: the places of a domain, and how many members each node there has room for.
--
-- gangs/assemble calls gang_places, then tries the places in their order. A planner reads shared_rooms.
-- Example: three racks have room for 12, 5 and 8 members of a gang of 5. The rack with 5 comes first: what
-- fits tightest leaves the others whole. For an earmark it asks the same of nodes that run nothing
-- (p_is_idle). Then the rack that has most room now comes first, because there the gang waits for least.
--
-- Invariant: these are estimates, read without locks. They may be too high, never too low: assemble allocates
-- member by member with the functions that claims use, and turns to the next place when that fails.
-- explain/gangs asks the same functions why a gang waits, and what would let it start.
--
-- Read gang_places, gang_rooms, places_with_room, class_rooms, copies_that_fit, then shared_rooms.

-- Returns how many leases of a class a node has room for, at most p_most. Devices and cores are counted as
-- amounts, so fewer may fit. A node that is full is told by class_shortage's rules alone, without a query.
create or replace function hwqueue.copies_that_fit(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load, p_most int) returns int
language plpgsql stable
as $$
declare
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_cpu_milli bigint := hwqueue.cpu_needed(p_class.cpu_milli, v_cpu);
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, p_load);
begin
  if hwqueue.shortage(v_cpu_milli, p_class.memory_mib, v_room, p_class.custom, v_cpu)
    + hwqueue.gpu_shortage(p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted, v_room, v_gpu) > 0 then
    return 0;
  end if;
  return least(p_most, case when p_class.gpu_wanted <> '{}' then 1 end, (
    select min(case a.name
        when 'gpu_most' then (select sum(g / a.amount) from unnest(v_room.gpu_sorted) g)
        when 'core_numa' then hwqueue.amount_left(v_room, 'core_whole') / a.amount
        else hwqueue.amount_left(v_room, a.name) / a.amount end)
    from hwqueue.needed_amounts(v_cpu_milli, p_class.memory_mib, p_class.gpu_count, p_class.gpu_milli,
      p_class.custom, v_cpu, v_gpu) a
    where a.amount > 0))::int;
end
$$;

-- Returns the live nodes that may run leases of a class, with how many leases each worker runs at a time
-- (null: no limit). Nodes whose workers do not serve its queue or its task are left out. The class may be a
-- draft.
create or replace function hwqueue.class_nodes(p_class hwqueue.placement_class, p_now timestamptz,
  p_shard int)
returns table (node hwqueue.node, concurrency int)
language plpgsql stable
as $$
declare
  v_by_node boolean := p_class.is_pinned or p_class.trusts <> '{}';
  v_queue text := (
    select q.name from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_class.queue_id);
  v_profiles bigint[];
begin
  if not v_by_node then
    v_profiles := array(
      select p.profile_id from hwqueue.profile p
      where p.shard_id = p_shard and hwqueue.suits(p_class, p, null, '{}'));
  end if;
  return query
    select n, v.concurrency
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join hwqueue.served v on v.shard_id = p_shard and v.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and n.cordoned_at is null
      and hwqueue.is_live(n, s, p_now)
      and case when v_by_node then (
          select hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids,
            hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
          from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = n.profile_id)
        else n.profile_id = any (v_profiles) end
      and hwqueue.unserved_part(v.queues, v.tasks, v_queue, p_class.task_name) is null;
end
$$;

-- Returns those of class_nodes that have room for leases of a class now, and for how many, of p_most.
create or replace function hwqueue.class_rooms(p_class hwqueue.placement_class, p_most int, p_now timestamptz,
  p_shard int)
returns table (node_id uuid, rack bigint, labels jsonb, copies int)
language plpgsql stable
as $$
begin
  return query
    select f.node_id, f.rack, f.labels, f.copies
    from (
      select (k.node).node_id, (k.node).rack, (k.node).labels, least(
          hwqueue.copies_that_fit(p_class, k.node, hwqueue.read_load((k.node).node_id, p_shard), p_most),
          case when k.concurrency is not null then k.concurrency - (select count(*) from hwqueue.claim c
            where c.shard_id = p_shard and c.node_id = (k.node).node_id) end)::int as copies
      from hwqueue.class_nodes(p_class, p_now, p_shard) k
      offset 0) f  -- a fence: each node is asked once
    where f.copies > 0;
end
$$;

-- Returns the nodes that may run leases of a class, and how many each would have room for if nothing ran
-- there, of p_most. Nodes of one size are asked once.
create or replace function hwqueue.emptied_rooms(p_class hwqueue.placement_class, p_most int,
  p_now timestamptz, p_shard int)
returns table (node_id uuid, rack bigint, labels jsonb, copies int)
language plpgsql stable
as $$
begin
  return query
    with mine as materialized (
      select k.node, k.concurrency, row((k.node).cpu_milli, (k.node).memory_mib, (k.node).custom,
               (k.node).slots, cardinality((k.node).gpu_ids), (k.node).gpu_parents, (k.node).core_numa,
               (k.node).default_cpu_isolation, (k.node).gpu_share_mode,
               case when p_class.gpu_wanted <> '{}' then (k.node).gpu_ids end)::text as size
      from hwqueue.class_nodes(p_class, p_now, p_shard) k
    ), fits as materialized (
      select s.size, hwqueue.copies_that_fit(p_class, s.node, hwqueue.idle_load(s.node), p_most) as copies
      from (select distinct on (m.size) m.size, m.node from mine m order by m.size offset 0) s
    )
    select (m.node).node_id, (m.node).rack, (m.node).labels, least(f.copies, m.concurrency)
    from mine m join fits f on f.size = m.size
    where f.copies > 0;
end
$$;

-- Returns the rooms for members of a gang: those of p_members[i] leases of class p_classes[i] have the
-- class_no i.
create or replace function hwqueue.gang_rooms(p_classes hwqueue.placement_class[], p_members int[],
  p_now timestamptz, p_shard int) returns hwqueue.gang_room[]
language sql stable
as $$
  select array(
    select row(i.class_no, p_members[i.class_no], r.node_id, r.rack, r.labels, r.copies,
             null)::hwqueue.gang_room
    from generate_subscripts(p_classes, 1) i(class_no)
    cross join lateral hwqueue.class_rooms(p_classes[i.class_no], p_members[i.class_no], p_now, p_shard) r)
$$;

-- Returns gang_rooms with emptied, how many members would fit if nothing ran on the node. Nodes without room
-- now are among them.
create or replace function hwqueue.emptied_gang_rooms(p_classes hwqueue.placement_class[], p_members int[],
  p_now timestamptz, p_shard int) returns hwqueue.gang_room[]
language sql stable
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
  with emptied as materialized (
    select i.class_no, r.node_id, r.rack, r.labels, r.copies
    from generate_subscripts(p_classes, 1) i(class_no)
    cross join lateral hwqueue.emptied_rooms(p_classes[i.class_no], p_members[i.class_no], p_now,
      p_shard) r
  ), free as materialized (
    select f.class_no, f.node_id, f.copies
    from unnest(hwqueue.gang_rooms(p_classes, p_members, p_now, p_shard)) f
  )
  select array(
    select row(e.class_no, p_members[e.class_no], e.node_id, e.rack, e.labels, coalesce(f.copies, 0),
             e.copies)::hwqueue.gang_room
    from emptied e left join free f on f.class_no = e.class_no and f.node_id = e.node_id)
$$;

-- Returns where rooms are: each of them once for each level of p_together, in the place that it is in there.
-- place: '' without p_together and p_same. value: see domain_value. alike: the labels in p_same. Nodes with
-- different values of these are in different places; those that lack one are in none.
create or replace function hwqueue.placed_rooms(p_rooms hwqueue.gang_room[], p_together text[],
  p_same text[])
returns table (level bigint, domain text, value text, alike text, place text, class_no int, members int,
  node_id uuid, copies int, emptied int)
language sql stable
as $$
  select d.ordinality, d.domain, v.value, a.alike,
         concat_ws('; ', case when d.domain <> 'fleet' then d.domain || ' ' || v.value end, a.alike),
         r.class_no, r.members, r.node_id, r.copies, r.emptied
  from unnest(p_rooms) r
  cross join unnest(case when p_together = '{}' then '{fleet}' else p_together end)
    with ordinality d(domain, ordinality)
  cross join lateral (
    select hwqueue.domain_value(d.domain, r.node_id, r.rack, r.labels) as value) v
  cross join lateral (
    select string_agg(k || '=' || (r.labels ->> k), ', ' order by k) as alike from unnest(p_same) k) a
  where v.value is not null and r.labels ?& p_same
$$;

-- Returns the places where these rooms are enough for all members of p_kinds classes, with p_is_idle if
-- nothing ran there. class_nos: those with least room to spare first. room: how many members have room, each
-- class counted as if it were alone; room_now: how many have it now.
create or replace function hwqueue.places_with_room(p_rooms hwqueue.gang_room[], p_kinds int,
  p_is_idle boolean, p_together text[], p_same text[])
returns table (level bigint, place text, class_nos int[], room bigint, room_now bigint)
language sql stable
as $$
  select e.level, e.place, array_agg(e.class_no order by e.room - e.members, e.class_no),
         sum(e.room)::bigint, sum(e.room_now)::bigint
  from (
    select p.level, p.place, p.class_no, p.members, sum(p.copies) as room_now,
           sum(case when p_is_idle then p.emptied else p.copies end) as room
    from hwqueue.placed_rooms(p_rooms, p_together, p_same) p
    group by p.level, p.place, p.class_no, p.members) e
  where e.room >= e.members
  group by e.level, e.place having count(*) = p_kinds
$$;

-- Returns the places that have room for all these members, level by level of p_together, in a level the
-- tightest first, 4 of each: the place ('' without p_together and p_same), its nodes, those with most room
-- first, and the classes, those with least room to spare first: their members are placed before others take
-- it. p_place: only this place; null: any. p_first: comes first in its level, if it has room. p_class_ids:
-- of the members, with repetition. p_is_idle: places that had room if they ran nothing, those with most room
-- now first.
create or replace function hwqueue.gang_places(p_class_ids bigint[], p_together text[], p_same text[],
  p_place text, p_first text, p_is_idle boolean, p_now timestamptz, p_shard int)
returns table (place text, node_ids uuid[], class_ids bigint[])
language plpgsql stable
as $$
declare
  v_classes hwqueue.placement_class[];
  v_members int[];
  v_rooms hwqueue.gang_room[];
begin
  select array_agg(c order by c.class_id), array_agg(m.members order by c.class_id) into v_classes, v_members
  from (select u.class_id, count(*)::int as members from unnest(p_class_ids) u(class_id) group by 1) m
  join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = m.class_id;
  v_rooms := case when p_is_idle then hwqueue.emptied_gang_rooms(v_classes, v_members, p_now, p_shard)
    else hwqueue.gang_rooms(v_classes, v_members, p_now, p_shard) end;
  return query
    with fits as materialized (
      select f.*
      from (
        select p.*, row_number() over (partition by p.level
                 order by p.place is distinct from p_first,
                          case when p_is_idle then -p.room_now else p.room end, p.place) as turn
        from hwqueue.places_with_room(v_rooms, cardinality(v_classes), p_is_idle, p_together, p_same) p
        where p_place is null or p.place = p_place) f
      where f.turn <= 4
    ), on_node as materialized (
      select p.level, p.place, p.node_id, sum(p.copies) as copies, sum(p.emptied) as emptied
      from hwqueue.placed_rooms(v_rooms, p_together, p_same) p
      where (p.level, p.place) in (select f.level, f.place from fits f)
      group by p.level, p.place, p.node_id
    )
    select f.place, n.node_ids, array(
      select (v_classes[k.class_no]).class_id
      from unnest(f.class_nos) with ordinality k(class_no, turn) order by k.turn)
    from fits f
    cross join lateral (
      select array_agg(o.node_id order by o.copies desc, o.emptied desc, o.node_id) as node_ids from on_node o
      where o.level = f.level and o.place = f.place) n
    order by f.level, f.turn;
end
$$;

-- Returns the rooms of nodes for the members of these gangs that wait, of any number of gangs like them:
-- place: of the first domain that they are together in. rooms: by class how many leases of it a node has room
-- for, each class counted as if it were alone. nodes: how many nodes of the place have the same rooms. Of
-- gangs that are together, or alike, in another way than the first of them, and of classes beyond 20, it says
-- nothing.
create or replace function hwqueue.shared_rooms(p_gangs uuid[], p_now timestamptz, p_shard int)
returns table (place text, nodes bigint, rooms jsonb)
language plpgsql stable
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
declare
  v_first hwqueue.gang;
  v_ids bigint[];
  v_classes hwqueue.placement_class[];
begin
  select g.* into v_first from hwqueue.gang g where g.shard_id = p_shard and g.gang_id = p_gangs[1];
  v_ids := array(
    select distinct s.class_id from hwqueue.gang g
    join hwqueue.gang_member m on m.shard_id = g.shard_id and m.gang_id = g.gang_id
    join hwqueue.scheduled s on s.shard_id = m.shard_id and s.queue_id = g.queue_id
      and s.available_at = hwqueue.never_due() and s.lease_id = m.lease_id
    where g.shard_id = p_shard and g.gang_id = any (p_gangs) and g.state = 'waiting'
      and g.together[1] is not distinct from v_first.together[1]
      and g.same @> v_first.same and g.same <@ v_first.same
    order by 1 limit 20);
  v_classes := array(
    select c from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = any (v_ids)
    order by c.class_id);
  return query
    select n.place, count(*), n.rooms
    from (
      select p.place, p.node_id,
             jsonb_object_agg((v_classes[p.class_no]).class_id, p.copies order by p.class_no) as rooms
      from hwqueue.placed_rooms(
        hwqueue.gang_rooms(v_classes, array_fill(10000, array[cardinality(v_classes)]), p_now, p_shard),
        v_first.together[1:1], v_first.same) p
      group by p.place, p.node_id) n
    group by n.place, n.rooms order by n.place, n.rooms;
end
$$;
