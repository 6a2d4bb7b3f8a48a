-- Runs that stop: steps that run are asked to stop, steps that were held are skipped, and those that sleep
-- end.
--
-- cancel_workflow_run calls stop_run once, and leaves an arrival of kind `state`; advance_workflows goes on
-- until nothing of the run can come any more. A session that settled a parent may have read the run before
-- it was cancelled, and may release a child after that. So the arrival stays until all transactions that
-- may have read the former state have ended, and each step that runs was asked: a claim that was asked ends
-- its lease, however it ends. Finally steps that run are stopped the same way, by a cancel or a deadline
-- that comes after their release (run.stops).

-- Cancels a run that has not ended.
-- Locks: the caller holds the run; as stop_run. Idempotent.
create or replace function hwqueue.cancel_run(p_run hwqueue.run, p_reason text) returns void
language plpgsql volatile
as $$
begin
  if p_run.state = 'cancelling' then
    return;
  end if;
  -- a sweep goes on, and ends more at once: here an operator waits
  perform hwqueue.set_run_state(p_run.run_id, 'cancelling', 'cancelled',
    jsonb_strip_nulls(jsonb_build_object('reason', p_reason, 'by', hwqueue.current_actor())), 100);
end
$$;

-- Changes the state of a run that has not ended: its nested runs follow, and advance_workflows releases what
-- was held. p_stops: it stops; up to this number of its steps end at once. Null: it goes on.
-- Locks: the caller holds the run; as stop_run.
create or replace function hwqueue.set_run_state(p_run uuid, p_state text, p_reason text default null,
  p_detail jsonb default null, p_stops int default null) returns void
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
begin
  update hwqueue.run r
  set state = p_state, reason = p_reason, detail = p_detail, stops = r.stops or p_stops is not null
  where r.run_id = p_run returning r.* into v_run;
  -- a handler that has read the former state may add a run, and be open still
  perform hwqueue.leave_arrivals(p_run, array[0], 'state', '{}', hwqueue.clock());
  if p_stops is not null then
    perform hwqueue.count_work(p_run, 0, hwqueue.stop_run(v_run, p_stops), 0, hwqueue.clock());
  end if;
end
$$;

-- Ends or stops up to p_limit steps of a run that stops, and p_limit items of its maps: leases that wait are
-- cancelled, claims are asked to stop, what is held or sleeps ends. Returns how many open steps it has ended.
-- In each map it goes on where the last call ended (stopped_below). Items that another session holds are
-- passed, and the mark is negative from then on: behind the last item it begins again at the first. Those
-- that end are left as an arrival for the tally of their map.
-- Locks: steps, maps, entries and claims, skip locked. Idempotent.
create or replace function hwqueue.stop_run(p_run hwqueue.run, p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_leases uuid[];
  v_ended uuid[];
  v_count int;
  v_closed int := hwqueue.drop_idle(p_run, p_limit);
  v_maps int[] := hwqueue.maps_to_stop(p_run.run_id, 10);
  v_map int;
  v_from int;
  v_next int;
begin
  foreach v_map in array v_maps loop
    select m.stopped_below into v_from from hwqueue.map m
    where m.run_id = p_run.run_id and m.step_no = v_map for no key update skip locked;
    continue when not found;
    select array_agg(i.lease_id order by i.item_no), max(i.item_no) + 1 into v_leases, v_next
    from (
      select l.lease_id, l.item_no from hwqueue.lease l
      where l.run_id = p_run.run_id and l.step_no = v_map and l.item_no >= abs(v_from)
      order by l.run_id, l.step_no, l.item_no limit p_limit / cardinality(v_maps)) i;
    if v_leases is null then
      update hwqueue.map m set stopped_below = 0
      where m.run_id = p_run.run_id and m.step_no = v_map and m.stopped_below < 0;
      continue;
    end if;
    v_ended := hwqueue.stop_leases(v_leases);
    if v_ended <> '{}' then
      perform hwqueue.items_ended(v_ended, 'cancelled', false);
    end if;
    update hwqueue.map m
    set stopped_below = case when v_from < 0 or exists (
        select from unnest(v_leases) i(lease_id)
        where not exists (select from hwqueue.outcome o where o.lease_id = i.lease_id offset 0)
          and not exists (select from hwqueue.claim c where c.lease_id = i.lease_id
            and c.stop_reason = 'cancelled' offset 0)) then -v_next else v_next end
    where m.run_id = p_run.run_id and m.step_no = v_map;
  end loop;
  v_leases := hwqueue.leases_to_stop(p_run, p_limit);
  if v_leases = '{}' then
    return v_closed;
  end if;
  v_ended := hwqueue.stop_leases(v_leases);
  if v_ended <> '{}' then
    update hwqueue.step s set state = 'cancelled', reason = 'run_stopped', ended_at = hwqueue.clock()
    from hwqueue.lease l
    where l.lease_id = any (v_ended) and l.item_no is null
      and s.run_id = p_run.run_id and s.step_no = l.step_no and s.state = 'running';
    get diagnostics v_count = row_count;
    v_closed := v_closed + v_count;
    if v_count < cardinality(v_ended) then  -- another session holds the items of a step
      perform hwqueue.items_ended(v_ended, 'cancelled', false);
    end if;
  end if;
  return v_closed;
end
$$;

-- Returns the leases of up to p_limit steps that run and were not asked to stop.
create or replace function hwqueue.leases_to_stop(p_run hwqueue.run, p_limit int) returns uuid[]
language sql volatile
as $$
  select array(
    select s.lease_id from hwqueue.step s
    where s.run_id = p_run.run_id and s.state = 'running' and s.lease_id is not null
      -- fences (offset 0): lease by lease and by key, whatever the statistics say
      and not exists (select from hwqueue.claim c where c.lease_id = s.lease_id
        and c.stop_reason is not distinct from 'cancelled' offset 0)
      and not exists (  -- the lease of a step whose items still run
        select from hwqueue.outcome o where o.lease_id = s.lease_id offset 0)
    order by s.step_no limit p_limit)
$$;

-- Returns up to p_most maps of a run that have items which are spawned and were not asked to stop. Before
-- others those where no session held an item; else by chance: an open transaction may hold an item of each of
-- some.
create or replace function hwqueue.maps_to_stop(p_run uuid, p_most int) returns int[]
language sql volatile
as $$
  select array(
    select m.step_no from hwqueue.map m
    join hwqueue.step s on s.run_id = p_run and s.step_no = m.step_no
    join hwqueue.tally t on t.run_id = p_run and t.step_no = m.step_no and t.part > 0
    where m.run_id = p_run and s.state = 'running' and m.stopped_below < t.need
    order by m.stopped_below < 0, random() limit p_most)
$$;

-- The steps of a run that wait for nobody's work: held ones, those that sleep, and nested runs that are to be
-- opened or retried.
create or replace function hwqueue.idle_steps(p_run hwqueue.run) returns setof hwqueue.step
language sql volatile
as $$
  select s.*
  from hwqueue.step s
  where s.run_id = p_run.run_id
    and (s.state = 'held' or s.state = 'running' and s.lease_id is null and (
      select d.kind in ('sleep', 'wait')
        or d.kind = 'workflow' and not exists (
          select from hwqueue.run n
          where n.parent_run_id = s.run_id and n.parent_step_no = s.step_no
            and n.parent_attempt = p_run.attempt)
      from hwqueue.workflow_step d
      where d.workflow_id = p_run.workflow_id and d.step_no = s.step_no))
  order by s.step_no
$$;

-- Ends up to p_limit steps of a run that will not go on, and returns their number: held ones are skipped,
-- others are cancelled.
-- Locks: the steps, skip locked. Idempotent.
create or replace function hwqueue.drop_idle(p_run hwqueue.run, p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_steps int[] := array(select i.step_no from hwqueue.idle_steps(p_run) i limit p_limit);
begin
  if v_steps <> '{}' then
    v_steps := array(
      select s.step_no from hwqueue.step s where s.run_id = p_run.run_id and s.step_no = any (v_steps)
      for no key update skip locked);
    -- a statement of its own, after the lock: another session may have released one just before
    v_steps := array(select i.step_no from hwqueue.idle_steps(p_run) i where i.step_no = any (v_steps));
    update hwqueue.step s
    set ended_at = hwqueue.clock(), due_at = null,
      state = case when s.state = 'held' then 'skipped' else 'cancelled' end,
      reason = case when s.state = 'running' then 'run_stopped'
        when p_run.state = 'cancelling' then 'cancelled' else 'run_failed' end
    where s.run_id = p_run.run_id and s.step_no = any (v_steps);
  end if;
  return cardinality(v_steps);
end
$$;

-- Cancels those of these leases that wait, and returns them: what follows is left to the caller. Asks the
-- claims of the others to stop, and wakes their nodes.
-- Locks: entries and claims, skip locked. Idempotent.
create or replace function hwqueue.stop_leases(p_leases uuid[]) returns uuid[]
language plpgsql volatile
as $$
declare
  v_ended uuid[] := hwqueue.cancel_waiting(p_leases,
    '{"reason": "cancelled", "detail": "its run has stopped"}',
    'cancelled while it waited: its run has stopped', p_follows => true);
  v_claims uuid[] := array(
    select c.lease_id from hwqueue.claim c
    where c.lease_id = any (p_leases)
      and c.stop_reason is distinct from 'cancelled'
    order by c.lease_id for update skip locked);
begin
  if v_claims <> '{}' then
    perform hwqueue.cancel_claims(v_claims, 'its run has stopped', 'its run has stopped');
  end if;
  return v_ended;
end
$$;
