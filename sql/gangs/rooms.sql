-- Where a gang could run: the places of a domain, and how many members each node there has room for.
--
-- gangs/assemble calls gang_places, then tries the places in their order. Example: three racks have room
-- for 12, 5 and 8 members of a gang of 5. The rack with 5 comes first: what fits tightest leaves the others
-- whole. For an earmark it asks the same of nodes that run nothing (p_is_idle). Then the rack that has most
-- room now comes first, because there the gang waits for least.
--
-- Invariant: these are estimates, read without locks. They may be too high, never too low: assemble allocates
-- member by member with the functions that claims use, and turns to the next place when that fails.
--
-- Read gang_places, class_rooms, then copies_that_fit.

-- Returns how many leases of a class a node has room for, at most p_most. Devices and cores are counted as
-- amounts, so fewer may fit.
create or replace function hwqueue.copies_that_fit(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load, p_most int) returns int
language sql stable
as $$
  select case when hwqueue.class_shortage(p_class, p_node, p_load) > 0 then 0 else least(p_most, (
    select min(case a.name
        when 'gpu_most' then (select sum(g / a.amount) from unnest((r.room).gpu_sorted) g)
        when 'core_numa' then hwqueue.amount_left(r.room, 'core_whole') / a.amount
        else hwqueue.amount_left(r.room, a.name) / a.amount end)
    from hwqueue.needed_amounts(hwqueue.cpu_needed(p_class.cpu_milli, i.cpu), p_class.memory_mib,
      p_class.gpu_count, p_class.gpu_milli, p_class.custom, i.cpu, i.gpu) a
    where a.amount > 0), case when p_class.gpu_wanted <> '{}' then 1 end)::int end
  from (select hwqueue.node_headroom(p_node, p_load) as room) r,
       (select hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) as cpu,
               hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode) as gpu) i
$$;

-- Returns the live nodes that may run leases of a class, and how many each has room for, of p_most: now, and
-- with p_is_idle if it ran nothing (copies). Else both are the same.
-- Nodes whose workers do not serve its queue or its task are left out; a worker has as many slots as it said.
create or replace function hwqueue.class_rooms(p_class hwqueue.placement_class, p_most int,
  p_is_idle boolean, p_now timestamptz, p_shard int)
returns table (node_id uuid, rack bigint, labels jsonb, copies int, copies_now int)
language plpgsql stable
as $$
declare
  v_by_node boolean := p_class.is_pinned or p_class.trusts <> '{}';
  v_profiles bigint[];
begin
  if not v_by_node then
    v_profiles := array(
      select p.profile_id from hwqueue.profile p
      where p.shard_id = p_shard and hwqueue.suits(p_class, p, null, '{}'));
  end if;
  return query
    select f.node_id, f.rack, f.labels, case when p_is_idle then f.copies_idle else f.copies_now end,
           f.copies_now
    from (
      select n.node_id, n.rack, n.labels, greatest(0, least(
          hwqueue.copies_that_fit(p_class, n, hwqueue.read_load(n.node_id, p_shard), p_most),
          v.concurrency - (select count(*) from hwqueue.claim c
            where c.shard_id = p_shard and c.node_id = n.node_id)))::int as copies_now,
          case when p_is_idle then least(
            hwqueue.copies_that_fit(p_class, n, hwqueue.idle_load(n), p_most), v.concurrency) end
            as copies_idle
      from hwqueue.node n
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
      left join hwqueue.served v on v.shard_id = p_shard and v.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null and n.cordoned_at is null
        and hwqueue.is_live(n, s, p_now)
        and case when v_by_node then hwqueue.node_suits(p_class.class_id, n, p_now)
          else n.profile_id = any (v_profiles) end
        and not exists (
          select from hwqueue.queue q
          where q.shard_id = p_shard and q.queue_id = p_class.queue_id
            and hwqueue.unserved_part(v.queues, v.tasks, q.name, p_class.task_name) is not null)) f
    where case when p_is_idle then f.copies_idle else f.copies_now end > 0;
end
$$;

-- Returns the places that have room for all these members, level by level of p_together, in a level the
-- tightest first: the place ('' without p_together and p_same), its nodes, those with most room first, and
-- the classes, those with least room to spare first: their members are placed before others take it.
-- p_place: only this place; null: any. p_class_ids: of the members, with repetition. Nodes with different
-- values of the labels in p_same are in different places; those that lack one are in none. p_is_idle: places
-- that had room if they ran nothing, those with most room now first.
create or replace function hwqueue.gang_places(p_class_ids bigint[], p_together text[], p_same text[],
  p_place text, p_is_idle boolean, p_now timestamptz, p_shard int)
returns table (place text, node_ids uuid[], class_ids bigint[])
language sql stable
as $$
  with need as materialized (
    select c as class, m.members
    from (select u.class_id, count(*)::int as members from unnest(p_class_ids) u(class_id) group by 1) m
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = m.class_id
  ), room as materialized (
    select (n.class).class_id as class_id, n.members, r.*
    from need n cross join lateral hwqueue.class_rooms(n.class, n.members, p_is_idle, p_now, p_shard) r
  ), placed as (
    select d.ordinality as level, r.class_id, r.members, r.node_id, r.copies, r.copies_now,
           concat_ws('; ', case when d.domain <> 'fleet' then d.domain || ' '
               || hwqueue.domain_value(d.domain, r.node_id, r.rack, r.labels) end,
             (select string_agg(k || '=' || (r.labels ->> k), ', ' order by k)
              from unnest(p_same) k)) as place
    from room r
    cross join unnest(case when p_together = '{}' then '{fleet}' else p_together end)
      with ordinality d(domain, ordinality)
    where hwqueue.domain_value(d.domain, r.node_id, r.rack, r.labels) is not null and r.labels ?& p_same
  ), enough as (
    select p.level, p.place, p.class_id, sum(p.copies) - p.members as spare from placed p
    group by p.level, p.place, p.class_id, p.members having sum(p.copies) >= p.members
  ), fits as (
    select e.level, e.place, array_agg(e.class_id order by e.spare, e.class_id) as class_ids from enough e
    group by e.level, e.place having count(*) = (select count(*) from need)
  )
  select t.place, t.node_ids, t.class_ids
  from (
    select f.level, f.place, f.class_ids,
           array_agg(n.node_id order by n.copies_now desc, n.copies desc, n.node_id) as node_ids,
           row_number() over (partition by f.level order by
             case when p_is_idle then -sum(n.copies_now) else sum(n.copies) end, f.place) as turn
    from fits f
    cross join lateral (
      select p.node_id, sum(p.copies) as copies, sum(p.copies_now) as copies_now from placed p
      where p.level = f.level and p.place = f.place group by p.node_id) n
    where p_place is null or f.place = p_place
    group by f.level, f.place, f.class_ids) t
  where t.turn <= 4 order by t.level, t.turn
$$;
