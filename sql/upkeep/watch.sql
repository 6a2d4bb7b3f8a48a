-- What upkeep reports as events: classes that no node matches, and silent nodes.
--
-- Each condition is reported once when it begins and once when it is over (class_fleet.reported_at,
-- node.silent_since).

-- Reports classes whose ready leases no live node may run, by what nodes are, serve and have in all, with the
-- most common permanent reason among 20 live nodes, or fewer for a class that is costly to judge; and reports
-- when that is over. A cordoned node counts as able: it does not refuse the lease for good.
-- Reads the cache that reap_fleets keeps. First the rows that this call has just computed, for half of the
-- time: where nodes change all the time, a row would be out of date whenever its turn came. Then p_limit
-- classes after p_after that are unmatched or reported, in turn over the calls. Runs for up to 50 ms of the
-- real clock, but takes one class at least. Returns the class to start after next time. Skips a class that
-- another session, for example prune, holds.
-- Locks: the caller holds the reap cursor; rows of class_fleet, skip locked.
create or replace function hwqueue.watch_classes(p_after bigint, p_limit int,
  p_snapshot hwqueue.fleet_snapshot, p_now timestamptz)
returns bigint
language plpgsql volatile
as $$
declare
  v_began_at timestamptz := clock_timestamp();
  v_fleet record;
  v_count int := 0;
  v_last bigint := 0;
  v_class hwqueue.placement_class;
  v_waits boolean;
  v_sample uuid[];
  v_nodes int;
  v_reasons jsonb;
  v_code text;
begin
  for v_fleet in
    (select f.class_id, f.reported_at, hwqueue.is_unmatched(f, p_snapshot) as unmatched, 0 as turn
     from hwqueue.class_fleet f
     where f.looked_at = p_now and hwqueue.is_unmatched(f, p_snapshot) = (f.reported_at is null))
    union all
    (select f.class_id, f.reported_at, hwqueue.is_unmatched(f, p_snapshot), 1
     from hwqueue.class_fleet f
     where f.class_id > p_after and (f.unmatched or f.reported_at is not null)
     order by f.class_id limit p_limit)
    order by 4, 1
  loop
    continue when v_fleet.turn = 0 and clock_timestamp() - v_began_at > interval '25 milliseconds';
    if v_fleet.turn = 1 then
      if v_count > 0 and clock_timestamp() - v_began_at > interval '50 milliseconds' then
        return v_last;
      end if;
      v_count := v_count + 1;
      v_last := v_fleet.class_id;
    end if;
    v_waits := exists (
      select 1 from hwqueue.ready r
      join hwqueue.queue q on q.queue_id = r.queue_id
      where r.class_id = v_fleet.class_id and q.dropped_at is null);
    continue when (case when v_fleet.reported_at is null then v_fleet.unmatched and v_waits
      else not (v_waits and coalesce(v_fleet.unmatched, true)) end) is not true;
    -- the row as it is now: another session may have reported it just before
    perform 1 from hwqueue.class_fleet f
    where f.class_id = v_fleet.class_id and f.reported_at is not distinct from v_fleet.reported_at
    for no key update skip locked;
    continue when not found;
    select c.* into v_class from hwqueue.placement_class c where c.class_id = v_fleet.class_id;
    update hwqueue.class_fleet f set reported_at = case when v_fleet.reported_at is null then p_now end
    where f.class_id = v_fleet.class_id;
    if v_fleet.reported_at is not null then
      perform hwqueue.note_event('class_unmatched_over', format('leases of task %s that ask for %s: %s',
          v_class.task_name, left(hwqueue.class_words(v_class), 200),
          case when v_waits then 'a live node matches' else 'none is waiting any more' end),
        p_queue => hwqueue.queue_name(v_class.queue_id), p_class => v_fleet.class_id);
      continue;
    end if;
    v_sample := array(
      select n.node_id
      from hwqueue.node n
      join hwqueue.node_state s on s.node_id = n.node_id
      where n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
      order by n.node_id limit greatest(1, least(20, 20 * hwqueue.judge_budget() / v_class.cost)));
    v_nodes := cardinality(v_sample);
    with counted as (
      select f.code, count(distinct m.node_id) as nodes
      from hwqueue.fleet_failures(v_class, '{}', p_now, v_sample) f
      cross join lateral unnest(f.node_ids) m(node_id)
      where f.permanent group by 1
    )
    select (select jsonb_object_agg(c.code, c.nodes) from counted c),
           (select c.code from counted c order by c.nodes desc, c.code limit 1)
    into v_reasons, v_code;
    perform hwqueue.note_event('class_unmatched', format('no live node matches leases of task %s that ask for'
        ' %s: %s', v_class.task_name, left(hwqueue.class_words(v_class), 200), case when v_nodes = 0
        then 'no node is live' else format('%s on %s of %s', v_code, v_reasons ->> v_code, v_nodes) end),
      jsonb_build_object('reason', case when v_nodes = 0 then 'node_not_live' else v_code end,
        'reasons', v_reasons), p_queue => hwqueue.queue_name(v_class.queue_id), p_class => v_fleet.class_id);
  end loop;
  return case when v_count = p_limit then v_last else 0 end;
end
$$;

-- True if no live node, cordoned ones included, may run a class; null if that is not known.
create or replace function hwqueue.is_unmatched(p_fit hwqueue.class_fleet, p_snapshot hwqueue.fleet_snapshot)
returns boolean
language sql immutable parallel safe
as $$
  select case when (p_fit).digest <> (p_snapshot).digest then null
    when bit_count((p_fit).nodes & (p_snapshot).live) = 0 then true
    when (p_fit).is_known then false end
$$;

-- Reports once when a node becomes silent (no sign of life within its timeout), and once when it is
-- back. Looks at p_limit nodes after p_after, in turn over the calls, and returns the node to start
-- after next time.
-- Locks: the caller holds the reap cursor; node rows, skip locked.
create or replace function hwqueue.watch_nodes(p_after uuid, p_limit int, p_now timestamptz) returns uuid
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last uuid := (
    select n.node_id from hwqueue.node n
    where n.node_id > p_after order by n.node_id offset p_limit - 1 limit 1);
  v_node record;
begin
  for v_node in
    select n.node_id, n.name, n.deregistered_at is null as is_registered, (s.state).seen_at, n.silent_since
    from hwqueue.node n
    -- a fence (offset 0): node by node and by key, whatever the statistics say
    cross join lateral (
      select x as state from hwqueue.node_state x where x.node_id = n.node_id offset 0) s
    where n.node_id > p_after and n.node_id <= coalesce(v_last, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      and (n.deregistered_at is null and not hwqueue.is_live(n, s.state, p_now)) <>
        (n.silent_since is not null)
    order by n.node_id for no key update of n skip locked
  loop
    update hwqueue.node n set silent_since = case when v_node.silent_since is null then p_now end
    where n.node_id = v_node.node_id;
    if v_node.silent_since is null then
      perform hwqueue.note_event('node_silent', format('node %s has given no sign of life since %s',
          v_node.name, v_node.seen_at),
        jsonb_build_object('seen_at', v_node.seen_at), p_node => v_node.node_id);
    elsif v_node.is_registered then
      perform hwqueue.note_event('node_back', format('node %s is back', v_node.name),
        jsonb_build_object('silent_since', v_node.silent_since), p_node => v_node.node_id);
    end if;
  end loop;
  return coalesce(v_last, '00000000-0000-0000-0000-000000000000');
end
$$;
