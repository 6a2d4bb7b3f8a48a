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
    perform hwqueue.count_work(p_run, 0, (hwqueue.stop_run(v_run, p_stops)).closed, 0, hwqueue.clock());
  end if;
end
$$;

-- Ends or stops up to p_limit steps of a run that stops, and p_limit items of its maps: leases that wait are
-- cancelled, claims are asked to stop, and their nodes are woken; what is held or sleeps ends. closed: how
-- many open steps it has ended; is_done: there was nothing to do but for what is held or sleeps.
-- It takes ten maps, before others those where no session held an item; else by chance: an open transaction
-- may hold an item of each of some. In each it goes on where the last call ended (stopped_below). Items that
-- another session holds are passed, and the mark is negative from then on: behind the last item it begins
-- again at the first. Those that end are left as an arrival for the tally of their map.
-- Locks: steps, maps, entries and claims, skip locked. Idempotent.
create or replace function hwqueue.stop_run(p_run hwqueue.run, p_limit int, out closed int,
  out is_done boolean)
language plpgsql volatile
as $$
declare
  v_maps int[] := array(
    select m.step_no from hwqueue.map m
    join hwqueue.step s on s.run_id = m.run_id and s.step_no = m.step_no
    join hwqueue.tally t on t.run_id = m.run_id and t.step_no = m.step_no and t.part > 0
    where m.run_id = p_run.run_id and s.state = 'running' and m.stopped_below < t.need
    order by m.stopped_below < 0, random() limit 10);
  v_leases uuid[] := array(  -- of steps
    select s.lease_id from hwqueue.step s
    where s.run_id = p_run.run_id and s.state = 'running' and s.lease_id is not null
      -- fences (offset 0): lease by lease and by key, whatever the statistics say
      and not exists (select from hwqueue.claim c where c.lease_id = s.lease_id
        and c.stop_reason is not distinct from 'cancelled' offset 0)
      and not exists (  -- the lease of a step whose items still run
        select from hwqueue.outcome o where o.lease_id = s.lease_id offset 0)
    order by s.step_no limit p_limit);
  v_items record;
  v_ended uuid[];
  v_claims uuid[];
  v_count int;
begin
  closed := hwqueue.drop_idle(p_run, p_limit);
  is_done := v_maps = '{}' and v_leases = '{}';
  if is_done then
    return;
  end if;
  with held as materialized (
    select m.step_no, m.stopped_below from hwqueue.map m
    where m.run_id = p_run.run_id and m.step_no = any (v_maps) for no key update skip locked
  )
  select coalesce(array_agg(i.lease_id), '{}') as leases, array_agg(h.step_no) as steps,
         array_agg(i.item_no) as numbers
  into v_items
  from held h
  left join lateral (
    select l.lease_id, l.item_no from hwqueue.lease l
    where l.run_id = p_run.run_id and l.step_no = h.step_no and l.item_no >= abs(h.stopped_below)
    order by l.run_id, l.step_no, l.item_no limit p_limit / greatest(1, cardinality(v_maps))) i on true;
  v_leases := v_leases || array_remove(v_items.leases, null);
  v_ended := hwqueue.cancel_waiting(v_leases, '{"reason": "cancelled", "detail": "its run has stopped"}',
    'cancelled while it waited: its run has stopped', p_follows => true);
  v_claims := array(
    select c.lease_id from hwqueue.claim c
    where c.lease_id = any (v_leases) and c.stop_reason is distinct from 'cancelled'
    order by c.lease_id for update skip locked);
  if v_claims <> '{}' then
    perform hwqueue.cancel_claims(v_claims, 'its run has stopped', 'its run has stopped');
  end if;
  update hwqueue.map m
  set stopped_below = case when i.next is null then 0 when m.stopped_below < 0 or i.are_left then -i.next
    else i.next end
  from (
    select u.step_no, max(u.item_no) + 1 as next, bool_or(
             not exists (select from hwqueue.outcome o where o.lease_id = u.lease_id offset 0)
             and not exists (select from hwqueue.claim c where c.lease_id = u.lease_id
               and c.stop_reason = 'cancelled' offset 0)) as are_left
    from unnest(v_items.steps, v_items.numbers, v_items.leases) u(step_no, item_no, lease_id)
    group by u.step_no) i
  where m.run_id = p_run.run_id and m.step_no = i.step_no and (i.next is not null or m.stopped_below < 0);
  if v_ended <> '{}' then
    update hwqueue.step s set state = 'cancelled', reason = 'run_stopped', ended_at = hwqueue.clock()
    from hwqueue.lease l
    where l.lease_id = any (v_ended) and l.item_no is null
      and s.run_id = p_run.run_id and s.step_no = l.step_no and s.state = 'running';
    get diagnostics v_count = row_count;
    closed := closed + v_count;
    if v_count < cardinality(v_ended) then
      perform hwqueue.items_ended(v_ended, 'cancelled', false);
    end if;
  end if;
end
$$;

-- The steps of a run that wait for nobody's work: held ones, those that sleep, and nested runs that are to be
-- opened or retried.
create or replace function hwqueue.idle_steps(p_run hwqueue.run) returns setof hwqueue.step
language plpgsql volatile
as $$ begin return query
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
  order by s.step_no;
end $$;

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
