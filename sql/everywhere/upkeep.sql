-- Upkeep of everywhere tasks: what reap looks at.
--
-- reap looks at nodes that have just registered (expand_node, as their first claims do), at those whose lease
-- was fetched, put back or has ended (team_change), and at those that are due (everywhere_node.due_at), by
-- upkeep/teams; and in turn at all others (sweep_everywhere): nodes that were silent or cordoned while the
-- everywhere task was spawned, or suit it since a taint is off. Example: a fleet of 10,000 nodes gets an
-- everywhere task. Each call of reap takes as many nodes as it has time for, and says that there is more.
--
-- Invariant: nothing is lost when a part is cut short, because each look compares what should be with what
-- is. Nodes that others hold are left to a later call, so no part waits.

-- Looks at everywhere tasks on a node that has registered: those that suit it and have no lease
-- there, and those whose lease has changed. Stops after a twentieth of a second. Once
-- none is left, or the time for it is over, the node grants other work (expands_until). Returns the node's
-- row. One that is being stopped is left out; a stop waits for those that have looked, so it misses no lease.
-- Locks: the caller holds node_state; the everywhere tasks, for key share, skip locked; as look_at_node.
create or replace function hwqueue.expand_node(p_state hwqueue.node_state) returns hwqueue.node_state
language plpgsql volatile
as $$
declare
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget() / 20;
  v_now timestamptz := hwqueue.clock();
  v_state hwqueue.node_state := p_state;
  v_anchors text[];
  v_id uuid;
  v_has_changed boolean;
  v_everywhere hwqueue.everywhere;
  v_is_cut boolean := false;
begin
  if p_state.expands_until is null then
    return p_state;
  end if;
  select n.anchors || p.anchors into v_anchors from hwqueue.node n
  join hwqueue.profile p on p.profile_id = n.profile_id
  where n.node_id = p_state.node_id;
  for v_id, v_has_changed in
    select e.everywhere_id, r.has_changed from hwqueue.everywhere e
    left join lateral (  -- a fence (offset 0): by key, whatever the statistics say
      select x.node_id, x.due_at, exists (
               select from hwqueue.team_change c
               where c.team_id = x.lease_id) as has_changed
      from hwqueue.everywhere_node x
      where x.everywhere_id = e.everywhere_id and x.node_id = p_state.node_id offset 0) r on true
    where e.finished_at is null and p_state.expands_until > v_now
      -- without a common anchor the profile cannot run it: then a lease that it has is to end
      and (r.has_changed or case when (e.anchors && v_anchors) is not false then r.due_at is null
        else r.node_id is not null end)
    order by e.created_at, e.everywhere_id
  loop
    v_is_cut := clock_timestamp() >= v_until;
    exit when v_is_cut;
    select e.* into v_everywhere from hwqueue.everywhere e
    where e.everywhere_id = v_id for key share skip locked;
    if found and (v_has_changed or exists (
        select from hwqueue.differing_nodes(v_everywhere, array[p_state.node_id], v_now))) then
      perform hwqueue.look_at_node(v_everywhere, p_state.node_id, v_now);
    end if;
  end loop;
  update hwqueue.node_state s set expands_until = case when v_is_cut then s.expands_until end
  where s.node_id = p_state.node_id returning s.* into v_state;
  return v_state;
end
$$;

-- Looks at further nodes of everywhere tasks, until p_until, but at one node first: of those tasks that were
-- not looked at for longest, up to 200 nodes, by their ids and round again, that differ from what they should
-- be. A look that is cut short, or fails, is undone alone and postponed, by the lease that is there, else by
-- the node. After a round that finds no open lease, one that was stopped is finished. One whose queue was
-- dropped is stopped. Returns whether it had to leave nodes that differ.
-- Locks: everywhere tasks, and node_state, skip locked; as look_at_node.
create or replace function hwqueue.sweep_everywhere(p_until timestamptz, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  c_none constant uuid := '00000000-0000-0000-0000-000000000000';
  v_id uuid;
  v_everywhere hwqueue.everywhere;
  v_nodes uuid[];
  v_node_id uuid;
  v_item uuid;
  v_last uuid;
  v_finished boolean;
  v_cut boolean := false;
begin
  for v_id in
    select e.everywhere_id from hwqueue.everywhere e
    where e.finished_at is null order by e.swept_at <= p_now, e.swept_at limit 20
  loop
    select e.* into v_everywhere from hwqueue.everywhere e
    where e.everywhere_id = v_id for no key update skip locked;
    continue when not found;
    v_nodes := array(
      (select n.node_id from hwqueue.node n
       where n.node_id > v_everywhere.swept_node order by n.node_id limit 200)
      union
      (select r.node_id from hwqueue.everywhere_node r
       where r.everywhere_id = v_id and r.node_id > v_everywhere.swept_node order by r.node_id limit 200)
      order by 1 limit 200);
    v_last := coalesce(v_nodes[200], c_none);
    if v_everywhere.stopped_at is null and exists (
        select from hwqueue.queue q
        where q.queue_id = v_everywhere.queue_id and q.dropped_at is not null) then
      v_everywhere := hwqueue.mark_stopped(v_everywhere, true, p_now);
    end if;
    for v_node_id, v_item in
      select d.node_id, coalesce(r.lease_id, d.node_id)
      from hwqueue.differing_nodes(v_everywhere, v_nodes, p_now) d
      left join hwqueue.everywhere_node r on r.everywhere_id = v_id and r.node_id = d.node_id
      order by d.node_id
    loop
      begin
        if not hwqueue.is_put_off('everywhere', v_item, p_now) and (hwqueue.lock_free_node(v_node_id)
          or not exists (select from hwqueue.node_state s where s.node_id = v_node_id)) then
          perform hwqueue.look_at_node(v_everywhere, v_node_id, p_now);
        end if;
      exception when query_canceled or others then
        perform hwqueue.postpone('everywhere', v_item, sqlstate, sqlerrm, p_now);
      end;
      if clock_timestamp() >= p_until and v_node_id <> v_nodes[cardinality(v_nodes)] then
        v_last := v_node_id;
        v_cut := true;
        exit;
      end if;
    end loop;
    v_finished := v_everywhere.stopped_at is not null and v_last = c_none and not exists (
      select from hwqueue.everywhere_node r where r.everywhere_id = v_id and r.ended_as is null);
    if v_finished then
      perform hwqueue.note_everywhere('everywhere_stopped', v_everywhere, 'has stopped');
    end if;
    update hwqueue.everywhere e
    set swept_at = p_now, swept_node = v_last, finished_at = case when v_finished then p_now end
    where e.everywhere_id = v_id;
    exit when clock_timestamp() >= p_until;
  end loop;
  return v_cut;
end
$$;

-- Returns those of some nodes for which look_at_node would do something, as far as is seen without locks.
create or replace function hwqueue.differing_nodes(p_everywhere hwqueue.everywhere, p_nodes uuid[],
  p_now timestamptz) returns table (node_id uuid)
language sql stable
as $$
  select w.node_id
  from unnest(p_nodes) w(node_id)
  cross join lateral (select hwqueue.everywhere_fit(p_everywhere, w.node_id, p_now) as fit) f
  left join hwqueue.everywhere_node r on r.everywhere_id = p_everywhere.everywhere_id
    and r.node_id = w.node_id
  left join hwqueue.claim c on c.lease_id = r.lease_id
  where case
    when r.lease_id is null then f.fit = 'now'
    when c.is_reserved then f.fit <> 'now' or r.due_at is null
    when c.lease_id is not null then r.ended_as is not null or f.fit = 'never'
      and c.stop_requested_at is null and case when p_everywhere.stopped_at is null
        then p_everywhere.on_unmatched = 'stop' else p_everywhere.stops_running end
    when r.ended_as is null then f.fit = 'never' or f.fit = 'now' and r.due_at is null
    when p_everywhere.stopped_at is not null then false
    when p_everywhere.mode = 'always' then f.fit = 'never' or f.fit = 'now' and r.due_at is null
    else not exists (select from hwqueue.node n where n.node_id = w.node_id) end
$$;

-- Looks at the lease of an everywhere task, on its node. One that belongs to no node, because it was requeued
-- after another one had followed it, is cancelled. False: another session holds the node, or that lease.
-- Locks: node_state, skip locked; as look_at_node; or the entry, skip locked.
create or replace function hwqueue.look_at_everywhere(p_lease uuid, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_row hwqueue.everywhere_node;
begin
  select r.* into v_row from hwqueue.everywhere_node r where r.lease_id = p_lease;
  if not found then
    perform hwqueue.cancel_waiting(array[p_lease], '{"reason": "everywhere_replaced"}',
      'cancelled: it is to run on no node any more', '{"reason": "everywhere_replaced"}');
    delete from hwqueue.team_change c  -- unless it waits: another session holds its entry
    where c.team_id = p_lease and (hwqueue.lease_state(p_lease) in ('scheduled', 'pending')) is not true;
    return found;
  elsif not hwqueue.lock_free_node(v_row.node_id)
    and exists (select from hwqueue.node_state s where s.node_id = v_row.node_id) then
    return false;
  end if;
  perform hwqueue.look_at_node(e, v_row.node_id, p_now)
  from hwqueue.everywhere e where e.everywhere_id = v_row.everywhere_id;
  return true;
end
$$;

-- Marks an everywhere task as stopped, so that the next sweep begins with its first node. Returns the row.
-- Locks: the caller holds it.
create or replace function hwqueue.mark_stopped(p_everywhere hwqueue.everywhere, p_stops_running boolean,
  p_now timestamptz) returns hwqueue.everywhere
language plpgsql volatile
as $$
declare
  v_row hwqueue.everywhere;
begin
  update hwqueue.everywhere e
  set stopped_at = coalesce(e.stopped_at, p_now), stops_running = e.stops_running or p_stops_running,
      swept_at = '-infinity', swept_node = '00000000-0000-0000-0000-000000000000'
  where e.everywhere_id = p_everywhere.everywhere_id returning e.* into v_row;
  if p_everywhere.stopped_at is null then
    perform hwqueue.note_everywhere('everywhere_stopping', v_row, 'is to stop');
  end if;
  return v_row;
end
$$;
