-- Pruning runs of workflows, and checking those that are there.
--
-- upkeep/parts.prune_part calls prune_runs, verify_invariants calls broken_runs. A run is kept
-- for its retention after its end, and with it the leases of its steps, whatever their queues say: a result
-- does not vanish while a step may still read it.
--
-- The definition of ad hoc runs goes with the last of them, in the three steps of upkeep/prune.

-- Deletes runs past their retention with all that belongs to them, the one that was due first before the
-- others, and returns the number of leases. Stops after the run with which p_limit leases are gone. Takes
-- only runs that ended before what roll_up has counted, or more than an hour ago.
-- Locks: runs, definitions of ad hoc runs, and outcomes, skip locked; then the lease rows.
create or replace function hwqueue.prune_runs(p_limit int, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_counted_before timestamptz := greatest(p_now - interval '1 hour', (
    select m.counted_to from hwqueue.reap_cursor m order by m.version desc limit 1));
  v_run hwqueue.run;
  v_gone int := 0;
begin
  for v_run in
    select r.* from hwqueue.run r
    where r.prune_at <= p_now and r.finished_at < v_counted_before
    order by r.prune_at limit p_limit for update skip locked
  loop
    -- the step that it is has not read its end yet
    continue when v_run.parent_run_id is not null and exists (
      select from hwqueue.arrival a
      where a.run_id = v_run.parent_run_id and a.step_no = v_run.parent_step_no and a.kind = 'nested');
    if exists (  -- the step that it was added to may read its state again: it goes after that
      select from hwqueue.map m
      where m.run_id = v_run.parent_run_id and m.step_no = v_run.parent_step_no
        and m.runs_since <= v_run.parent_attempt) then
      update hwqueue.run r set prune_at = p_now + interval '1 hour' where r.run_id = v_run.run_id;
      continue;
    end if;
    -- of two sessions that each delete a run of an ad hoc definition, one sees that it is the last of them
    perform 1 from hwqueue.workflow w
    where w.workflow_id = v_run.workflow_id and w.version is null for no key update skip locked;
    continue when not found and not exists (
      select from hwqueue.workflow w where w.workflow_id = v_run.workflow_id and w.version is not null);
    v_gone := v_gone + hwqueue.remove_leases(array(  -- items of maps, which may be many
      select o.lease_id
      from hwqueue.lease l
      join hwqueue.outcome o on o.lease_id = l.lease_id
      where l.run_id = v_run.run_id and l.item_no is not null
      limit p_limit - v_gone for update of o skip locked));
    exit when v_gone >= p_limit;
    v_gone := v_gone + hwqueue.remove_leases(array(
      select o.lease_id
      from hwqueue.step s
      join hwqueue.outcome o on o.lease_id = s.lease_id
      where s.run_id = v_run.run_id for update of o skip locked));
    -- another session holds the outcome of one: the next call goes on
    continue when exists (
      select from hwqueue.step s join hwqueue.lease l on l.lease_id = s.lease_id
      where s.run_id = v_run.run_id)
      or exists (
      select from hwqueue.lease l where l.run_id = v_run.run_id and l.item_no is not null);
    delete from hwqueue.map_list c where c.run_id = v_run.run_id;
    delete from hwqueue.added a where a.run_id = v_run.run_id;
    delete from hwqueue.map m where m.run_id = v_run.run_id;
    delete from hwqueue.step s where s.run_id = v_run.run_id;
    delete from hwqueue.tally t where t.run_id = v_run.run_id;
    delete from hwqueue.arrival a where a.run_id = v_run.run_id;
    delete from hwqueue.run_signal s where s.run_id = v_run.run_id;
    delete from hwqueue.run_class c where c.run_id = v_run.run_id;
    delete from hwqueue.run_key k where k.run_id = v_run.run_id;
    delete from hwqueue.run r where r.run_id = v_run.run_id;
    update hwqueue.workflow w set retired_at = p_now
    where w.workflow_id = v_run.workflow_id and w.version is null and w.retired_at is null
      and not exists (select from hwqueue.run r where r.workflow_id = w.workflow_id);
    exit when v_gone >= p_limit;
  end loop;
  return v_gone;
end
$$;

-- Returns runs that contradict themselves: run_work (open steps differ from what is counted), run_join (so
-- do the parents of a step that have ended), run_items (so do the items of a map), step_gang (a gang step and
-- its gang do not agree), run_stuck (a step is due and nobody will release it), run_over (a run has ended, a
-- step has not), step_lease (a step runs without an open lease, or a lease without its step), step_due (a
-- sleep that nothing will end, or a step that has ended is due), wait_signal (a step waits for a signal that
-- is there), step_nested and run_nested (a step and the run nested in it do not agree).
create or replace function hwqueue.broken_runs() returns table (rule text, run_id uuid, detail jsonb)
language sql stable
as $$
  with running as materialized (
    select s.*, d.kind, d.settings
    from hwqueue.step s
    cross join lateral (  -- fences (offset 0): by key, also before the tables are analyzed
      select x.workflow_id from hwqueue.run x where x.run_id = s.run_id offset 0) r
    cross join lateral (
      select x.kind, x.settings from hwqueue.workflow_step x
      where x.workflow_id = r.workflow_id and x.step_no = s.step_no offset 0) d
    where s.state = 'running'
  )
  select 'run_work', w.run_id, jsonb_build_object('counted', w.counted, 'found', w.found)
  from (
    select r.run_id, t.need - t.arrived + coalesce((
             select sum(a.need - a.arrived) from hwqueue.arrival a
             where a.run_id = r.run_id and a.step_no = 0 and a.kind = 'count'), 0) as counted,
           (select count(*) from hwqueue.step s where s.run_id = r.run_id and s.state in ('running', 'held'))
           + (select count(*) from hwqueue.arrival a
              where a.run_id = r.run_id
                and (a.kind in ('release', 'skip') or a.kind = 'count' and a.step_no > 0)) as found
    from hwqueue.run r
    left join hwqueue.tally t on t.run_id = r.run_id and t.step_no = 0 and t.part = 0
    where r.finished_at is null) w
  where w.counted is distinct from w.found
  union all
  select j.rule, j.run_id, j.detail from hwqueue.broken_joins() j
  union all
  select j.rule, j.run_id, j.detail from hwqueue.broken_maps() j
  union all
  -- the gang is of that step, its members are the items of the step by their ranks, and what they claim
  -- goes on with the run when it ends
  select 'step_gang', s.run_id, jsonb_build_object('step', s.step_no, 'gang_id', f.gang_id, 'size', m.items,
         'members', f.members, 'lost_claims', f.lost_claims)
  from running s
  join hwqueue.map m on m.run_id = s.run_id and m.step_no = s.step_no
  join hwqueue.tally t on t.run_id = s.run_id and t.step_no = s.step_no
    and t.part > 0
  left join lateral (
    select g.gang_id, g.size, count(l.lease_id) as members,
           count(c.lease_id) filter (where c.is_step is distinct from false) as lost_claims
    from hwqueue.gang g
    cross join unnest(g.members) with ordinality k(lease_id, ordinality)
    left join hwqueue.lease l on l.lease_id = k.lease_id and l.team_id = g.gang_id
      and l.run_id = s.run_id and l.step_no = s.step_no and l.item_no = k.ordinality - 1
    left join hwqueue.claim c on c.lease_id = k.lease_id
    where g.gang_id = hwqueue.gang_of_step(s.run_id, s.step_no)
      and g.run_id = s.run_id and g.step_no = s.step_no
    group by g.gang_id, g.size) f on true
  where s.kind = 'gang' and t.arrived < t.need
    and (m.items, m.items, 0) is distinct from (f.size, f.members::int, f.lost_claims::int)
  union all
  select 'run_over', r.run_id, jsonb_build_object('state', r.state, 'step', s.step_no, 'step_state', s.state)
  from hwqueue.run r join hwqueue.step s on s.run_id = r.run_id
  where r.finished_at is not null and s.state in ('running', 'held')
  union all
  select 'step_lease', s.run_id, jsonb_build_object('step', s.step_no, 'state', s.state,
         'lease_state', hwqueue.lease_state(s.lease_id))
  from hwqueue.step s
  where s.lease_id is not null and (s.state = 'running') <> coalesce(
    hwqueue.lease_state(s.lease_id) in ('scheduled', 'pending', 'claimed'), false)
    and not exists (  -- then its lease is one of its items
      select from hwqueue.map m
      where m.run_id = s.run_id and m.step_no = s.step_no)
  union all
  select 'step_due', s.run_id, jsonb_build_object('step', s.step_no, 'state', s.state, 'due_at', s.due_at)
  from hwqueue.step s
  where s.due_at is not null and s.state <> 'running'
  union all
  -- step_due: nothing will end a sleep; wait_signal
  select case s.kind when 'sleep' then 'step_due' else 'wait_signal' end, s.run_id,
         jsonb_build_object('step', s.step_no, 'signal', s.settings ->> 'signal')
  from running s
  where s.lease_id is null and case s.kind when 'sleep' then s.due_at is null
      when 'wait' then exists (
          select from hwqueue.run_signal g
          where g.run_id = s.run_id and g.name = s.settings ->> 'signal' and g.taken_by is null)
        and not exists (
          select from hwqueue.arrival a
          where a.run_id = s.run_id and a.step_no = s.step_no and a.kind = 'signal') end
  union all
  -- a step runs, and no open run or arrival will end it; a run goes on that no step waits for any more
  select 'step_nested', s.run_id, jsonb_build_object('step', s.step_no)
  from running s
  where s.kind = 'workflow' and not exists (
      select from hwqueue.run n
      join hwqueue.run r on r.run_id = n.parent_run_id and r.attempt = n.parent_attempt
      where n.parent_run_id = s.run_id and n.parent_step_no = s.step_no and n.finished_at is null)
    and not exists (
      select from hwqueue.arrival a where a.run_id = s.run_id and a.step_no = s.step_no and a.kind = 'nested')
  union all
  -- one of the two is to do something, and no arrival says so: an added run that its step retries, or one
  -- that no step waits for any more
  select 'run_nested', n.run_id, jsonb_build_object('state', n.state, 'parent_run_id', n.parent_run_id,
         'step', n.parent_step_no)
  from hwqueue.run n
  left join hwqueue.run r on r.run_id = n.parent_run_id
  where n.parent_run_id is not null
    and case when n.finished_at is null then not n.stops and not n.is_finishing and not hwqueue.is_awaited(n)
      else n.state <> 'completed' and n.parent_attempt < r.attempt and hwqueue.is_awaited(n) end
    and not exists (
      select from hwqueue.arrival a where a.run_id = n.run_id and a.step_no = 0 and a.kind = 'nested')
$$;

-- The rules run_join and run_stuck, for runs that release steps. Once a run fails nobody counts parents any
-- more: a retry counts them again. Steps and their parents are added up, not joined: a join of thousands may
-- run as a nested loop before the tables are analyzed.
create or replace function hwqueue.broken_joins() returns table (rule text, run_id uuid, detail jsonb)
language sql stable
as $$
  with counted as (
    select r.run_id, c.*, t.run_id is not null as has_tally, a.run_id is not null as has_arrivals,
           coalesce(t.is_decided, false) or r.attempt > 1 and c.is_decided as was_decided,
           t.arrived + coalesce(a.arrived, 0) as arrived_now, t.unmet + coalesce(a.unmet, 0) as unmet_now
    from hwqueue.run r
    cross join lateral (
      select u.step_no, max(u.parent_count) as parent_count, bool_or(u.is_any) as is_any,
             bool_or(u.is_final) as is_final, bool_or(u.is_decided) as is_decided, count(u.holds) as arrived,
             count(*) filter (where not u.holds) as unmet
      from (
        select d.step_no, d.parent_count, d.is_any, d.runs_at_end is not null as is_final,
               s.state <> 'waiting' as is_decided, null::boolean as holds
        from hwqueue.workflow_step d
        cross join lateral (
          select x.state from hwqueue.step x
          where x.run_id = r.run_id and x.step_no = d.step_no offset 0) s
        where d.workflow_id = r.workflow_id
        union all
        select c.to_no, null, null, null, null, hwqueue.edge_holds(c.wants, p.state)
        from hwqueue.workflow_step e
        cross join lateral (
          select case when x.state in ('failed', 'cancelled') and e.on_failure = 'ignore' then 'completed'
              else x.state end as state
          from hwqueue.step x
          where x.run_id = r.run_id and x.step_no = e.step_no
            and x.state not in ('waiting', 'held', 'running') offset 0) p
        cross join unnest(e.children, e.wants) c(to_no, wants)
        where e.workflow_id = r.workflow_id) u
      group by u.step_no) c
    left join hwqueue.tally t on t.run_id = r.run_id and t.step_no = c.step_no and t.part = 0
    left join lateral (
      select x.run_id, sum(x.arrived) as arrived, sum(x.unmet) as unmet from hwqueue.arrival x
      where x.run_id = r.run_id and x.step_no = c.step_no and x.kind in ('count', 'release', 'skip')
      group by x.run_id) a on true
    where r.state in ('running', 'paused') and not r.is_finishing
      and not exists (select from hwqueue.arrival x where x.run_id = r.run_id and x.kind = 'fail')
  )
  select 'run_join', c.run_id, jsonb_build_object('step', c.step_no, 'counted', c.arrived_now,
         'found', c.arrived, 'counted_unmet', c.unmet_now, 'found_unmet', c.unmet)
  from counted c
  where c.has_tally and c.step_no > 0 and not c.was_decided  -- else a retry counts them again, or leaves them
    and (c.arrived_now, c.unmet_now) is distinct from (c.arrived, c.unmet)
  union all
  select 'run_stuck', c.run_id, jsonb_build_object('step', c.step_no, 'parents', c.parent_count)
  from counted c
  where not c.is_decided and not c.is_final and not c.has_arrivals
    and (c.arrived = c.parent_count or c.is_any and c.arrived > c.unmet)
$$;

-- The rules run_items and run_stuck for maps that are open. Items that are open are those spawned less those
-- counted; those that failed are counted apart, and may have gone with their queue.
create or replace function hwqueue.broken_maps() returns table (rule text, run_id uuid, detail jsonb)
language sql stable
as $$
  with counted as (
    select r, m, d, t, t.need - t.arrived - coalesce(a.arrived, 0) as open_now,
           t.failed + t.skipped + coalesce(a.failed + a.skipped, 0) as failed_now,
           f.open, f.failed, f.last, t.need - f.there + case d.kind when 'task' then 1 else 0 end as gone,
           a.run_id is not null or exists (
             select from hwqueue.arrival x
             where x.run_id = r.run_id and x.kind in ('state', 'fail')) as has_arrivals,
           u.open as open_runs
    from hwqueue.map m
    join hwqueue.run r on r.run_id = m.run_id
    join hwqueue.step s on s.run_id = m.run_id and s.step_no = m.step_no
    join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = m.step_no
    left join hwqueue.tally t on t.run_id = m.run_id and t.step_no = m.step_no and t.part > 0
    left join lateral (
      select x.run_id, sum(x.arrived) as arrived, sum(x.failed) as failed, sum(x.skipped) as skipped
      from hwqueue.arrival x
      where x.run_id = m.run_id and x.step_no = m.step_no and x.kind = 'item' group by x.run_id) a on true
    cross join lateral (
      select count(*) filter (where i.state in ('scheduled', 'pending', 'claimed')) as open,
             count(*) filter (where i.state in ('failed', 'cancelled') and i.item_no < t.need) as failed,
             count(*) filter (where i.item_no < t.need) as there,
             max(i.item_no) filter (where i.state in ('scheduled', 'pending', 'claimed')) as last
      from (
        select l.item_no, hwqueue.lease_state(l.lease_id) as state from hwqueue.lease l
        where l.run_id = m.run_id and l.step_no = m.step_no and l.item_no is not null) i) f
    cross join lateral hwqueue.count_added_runs(m, r.attempt) u
    where s.state = 'running'
  )
  select 'run_items', (c.r).run_id, jsonb_build_object('step', (c.m).step_no, 'counted', c.open_now,
         'found', c.open, 'counted_failed', c.failed_now, 'found_failed', c.failed, 'last', c.last)
  from counted c
  where c.open_now is distinct from c.open or c.last >= (c.t).need
    or not c.failed_now between c.failed and c.failed + c.gone
  union all
  select 'run_stuck', (c.r).run_id, jsonb_build_object('step', (c.m).step_no, 'open', c.open)
  from counted c
  where not c.has_arrivals and (
    (c.r).state in ('running', 'failing') and (c.t).arrived = (c.t).need and c.open_runs = 0
    or (c.r).state = 'running' and (c.t).need - (c.t).arrived <= (c.t).low
      and hwqueue.map_room(c.m, c.d, c.t) > 0)
$$;
