-- The planner's side: whether its writes still count, and what it reads of the queue.
--
-- Example: two processes `hwqueue planner` call lead_planner every second. The first one gets epoch 7 and
-- goes on, the second one gets null. The first stops without a word. Ten seconds later the second gets
-- epoch 8. A write of the first that was on its way names epoch 7, and fence_planner answers `deposed`.
--
-- api/planner calls all of it. The invariant: what a planner reads is a proposal's basis and nothing
-- more. It may be old or incomplete, because whatever it writes is checked again when it is used. Nothing
-- but what reserves locks what claims lock.

-- Lets a planner write that has the current epoch and no older round than was written. Returns null then,
-- with the round noted; else why not: `deposed`, `old_round`, or `busy` when another session holds the row.
-- Locks: the planner's row, skip locked. Raises: QHA01.
create or replace function hwqueue.fence_planner(p_round bigint, p_epoch bigint) returns text
language plpgsql volatile
as $$
declare
  v_planner hwqueue.planner;
begin
  perform hwqueue.check_range(p_round, 'p_round', 0, 9223372036854775807, 'count the rounds from 1'),
    hwqueue.check_range(p_epoch, 'p_epoch', 0, 9223372036854775807, 'pass what lead_planner returned');
  select p.* into v_planner from hwqueue.planner p for no key update skip locked;
  if not found then
    return case when exists (select from hwqueue.planner p) then 'busy' else 'deposed' end;
  elsif v_planner.epoch <> p_epoch then
    return 'deposed';
  elsif p_round < v_planner.round then
    return 'old_round';
  elsif p_round > v_planner.round then
    update hwqueue.planner p set round = p_round;
  end if;
  return null;
end
$$;

-- Returns the part nodes of planner_view: cpu_free and memory_free are of nodes that have room on a device;
-- thousandths are rounded down to tens, and devices with less are not in `free`. next: the last node that it
-- has looked at, if there are others.
create or replace function hwqueue.free_devices(p_after uuid, p_limit int, p_now timestamptz,
  out items jsonb[], out next text)
language plpgsql volatile
as $$
declare
  v_ids uuid[] := array(
    select n.node_id from hwqueue.node n
    where n.node_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
    order by n.node_id limit p_limit);
begin
  next := case when cardinality(v_ids) >= p_limit then v_ids[p_limit] end;
  items := array(
    with alive as materialized (
      select s.profile_id, g.gpus, n.cpu_milli, n.memory_mib,
             hwqueue.node_headroom(n, coalesce(l.load, hwqueue.idle_load(n))) as room
      from unnest(v_ids) i(node_id)
      join hwqueue.node n on n.node_id = i.node_id
      join hwqueue.node_state s on s.node_id = i.node_id
      left join lateral (
        select u as load from hwqueue.node_load u
        where u.node_id = i.node_id order by u.version desc limit 1) l on true
      cross join lateral (  -- parts of a device are no devices
        select case when n.gpu_parents = '{}' then cardinality(n.gpu_ids)
          else cardinality(array_positions(n.gpu_parents, null::uuid)) end as gpus offset 0) g
      where n.gpu_ids <> '{}' and n.deregistered_at is null and n.cordoned_at is null
        and hwqueue.is_live(n, s, p_now)
    ), level as (
      select a.profile_id, a.gpus, a.cpu_milli, a.memory_mib, f.free / 10 * 10 as left_over,
             count(*) as devices
      from alive a cross join lateral unnest((a.room).gpu_free) f(free)
      where f.free >= 10
      group by 1, 2, 3, 4, 5
    )
    select jsonb_build_object('profile_id', k.profile_id, 'gpus', k.gpus, 'cpu_milli', k.cpu_milli,
      'memory_mib', k.memory_mib, 'nodes', k.nodes, 'cpu_free', k.cpu_free, 'memory_free', k.memory_free,
      'free', coalesce((
        select jsonb_object_agg(v.left_over, v.devices) from level v
        where (v.profile_id, v.gpus) = (k.profile_id, k.gpus) and v.cpu_milli is not distinct from k.cpu_milli
          and v.memory_mib is not distinct from k.memory_mib), '{}'))
    from (
      select a.profile_id, a.gpus, a.cpu_milli, a.memory_mib, count(*) as nodes,
             sum((a.room).cpu_milli) filter (where (a.room).gpu_total > 0) as cpu_free,
             sum((a.room).memory_mib) filter (where (a.room).gpu_total > 0) as memory_free
      from alive a group by 1, 2, 3, 4) k
    order by k.profile_id, k.gpus, k.cpu_milli, k.memory_mib);
end
$$;

-- Returns the part matches of planner_view. Affinities have their strength; for how many leases a node has
-- room is counted as if it got no others. Classes that name nodes, resources or trust domains, and those with
-- preferences about other leases, are left out.
create or replace function hwqueue.class_matches(p_queue hwqueue.queue, p_limit int, p_most int,
  p_now timestamptz) returns jsonb[]
language plpgsql volatile
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
declare
  v_from record := hwqueue.first_live_entry(p_queue.queue_id);
  v_line hwqueue.ready[];
  v_ids bigint[];
  v_classes hwqueue.placement_class[];
begin
  v_line := array(
    select r from hwqueue.ready r
    where r.queue_id = p_queue.queue_id
      and (r.tier, r.rank, r.position) >= (v_from.tier, v_from.rank, v_from.position)
    order by r.tier, r.rank, r.position limit p_most + 1);
  if cardinality(v_line) > p_most then
    return '{}';
  end if;
  v_ids := array(select distinct l.class_id from unnest(v_line) l order by 1);
  if cardinality(v_ids) not between 1 and p_limit or not exists (
      select from hwqueue.eligibility e
      where e.queue_id = p_queue.queue_id and e.class_id = any (v_ids) and e.profile_id is not null
      group by e.class_id having min(e.affinity) < max(e.affinity)) then
    return '{}';
  end if;
  v_classes := array(
    select c from hwqueue.placement_class c where c.class_id = any (v_ids) order by c.class_id);
  return array(
    with suited as materialized (
      select e.class_id, s.node_id, e.affinity
      from hwqueue.node_state s
      join hwqueue.node n on n.node_id = s.node_id
      join hwqueue.eligibility e on e.profile_id = s.profile_id
      where n.deregistered_at is null and n.cordoned_at is null
        and hwqueue.is_live(n, s, p_now) and e.queue_id = p_queue.queue_id and e.class_id = any (v_ids)
        and e.affinity is not null
    ), room as materialized (
      select (v_classes[r.class_no]).class_id as class_id, r.node_id, r.copies
      from unnest(hwqueue.gang_rooms(v_classes, array_fill(10000, array[cardinality(v_classes)]), 'now',
        p_now)) r
    ), range as materialized (
      select u.class_id, max(u.affinity) as best, min(u.affinity) as worst from suited u group by u.class_id
    ), wanted as materialized (
      select l.class_id, jsonb_agg(jsonb_build_array(l.lease_id, l.tier, l.rank,
               extract(epoch from p_now - l.eligible_at)::double precision)
               order by l.tier, l.rank, l.position) as leases
      from unnest(v_line) l
      group by l.class_id
    ), free as materialized (
      select u.class_id, jsonb_agg(jsonb_build_array(u.node_id, u.affinity, r.copies)
               order by u.node_id) as nodes
      from suited u join room r on r.class_id = u.class_id and r.node_id = u.node_id
      group by u.class_id
    )
    select jsonb_build_object('class_id', k.class_id, 'patience', extract(epoch from
             coalesce(c.patience, p_queue.patience)), 'best', k.best, 'worst', k.worst,
             'leases', w.leases, 'nodes', f.nodes)
    from range k
    join wanted w on w.class_id = k.class_id
    join free f on f.class_id = k.class_id
    join hwqueue.placement_class c on c.class_id = k.class_id
    order by k.class_id);
end
$$;

-- What a planner is told when a place could not be booked for this reason (reserve); null: it was.
create or replace function hwqueue.place_verdict(p_reason text) returns text
language sql immutable parallel safe
as $$
  select case when p_reason is null then 'reserved' when p_reason = 'insufficient_capacity' then 'no_room'
    when p_reason in ('taken', 'does_not_suit') then p_reason
    when p_reason in ('busy', 'unpublished', 'cache_miss', 'gang_incomplete') then 'busy' else 'blocked' end
$$;

-- Reads a list of 1 to p_most leases with their nodes.
-- Raises: QHA01.
create or replace function hwqueue.read_places(p_places jsonb, p_most int)
returns table (lease uuid, node uuid)
language plpgsql stable
as $$
begin
  if (jsonb_typeof(p_places) = 'array' and jsonb_array_length(p_places) between 1 and p_most) is not true then
    perform hwqueue.refuse('QHA01', format('p_places must be a list of 1 to %s places', p_most),
      jsonb_build_object('field', 'p_places'), 'pass [{"lease": ID, "node": ID}]');
  end if;
  return query
    select hwqueue.json_uuid(o -> 'lease', 'places.lease'), hwqueue.json_uuid(o -> 'node', 'places.node')
    from jsonb_array_elements(p_places) x
    cross join hwqueue.check_object(x, array['lease', 'node'], 'places') o;
end
$$;

-- What a planner counts of single leases: those that it would have on a node; of these the ones that a bound
-- of the round left out; what reserve_leases answered of the others; what became of those that were reserved.
create or replace function hwqueue.assignment_counts() returns text[]
language sql immutable parallel safe
as $$
  select array['proposed', 'too_many', 'reserved', 'no_room', 'does_not_suit', 'blocked', 'taken', 'busy',
    'deposed', 'old_round', 'fetched', 'expired', 'gone']
$$;
