-- Doing what settlements had to leave: arrivals, steps that are due, and runs past their deadline.
--
-- Invariant: an arrival stays until its work is done, in the transaction that deletes it. What another
-- session holds is skipped, and found by the next sweep.

-- Works off up to p_limit tallies, steps and runs that have arrivals (fresh_arrivals), and looks again at up
-- to p_limit runs whose change of state was stamped and is kept. p_from: no arrival is older but kept ones.
-- folded: those it has looked at; released: steps, and nested runs that began or ended; more: there may be
-- others.
-- Of kept ones those come first that no open transaction can add to any more; tenants take turns. The others
-- take turns by chance: a write that moved them back would leave dead tuples as long as the old transaction
-- that keeps them.
-- Locks: arrivals, tallies, steps and runs, skip locked. Wakes: waiting workers.
create or replace function hwqueue.sweep_arrivals(p_limit int, p_from timestamptz,
  out folded int, out released int, out more boolean)
language plpgsql volatile
as $$
declare
  v_oldest xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_ends record;
  v_middle bigint;
  v_kept uuid[] := '{}';
  v_fresh record;
  v_item record;
begin
  select min(a.arrival_id) as first, (select s.last_value from hwqueue.arrival_arrival_id_seq s) as last
  into v_ends
  from hwqueue.arrival a
  where a.after_xid is not null and a.arrival_id >= coalesce((
    select m.kept_from from hwqueue.reap_cursor m order by m.version desc limit 1), 0);
  if v_ends.first is not null then
    v_middle := v_ends.first + floor(random() * (v_ends.last - v_ends.first + 1))::bigint;
    v_kept := array(
      select k.run_id
      from (
        (select a.run_id, a.after_xid, 0 as turn, a.arrival_id, a.tenant from hwqueue.arrival a
         where a.after_xid is not null and a.arrival_id >= v_middle
         order by a.arrival_id limit 5 * p_limit)
        union all
        (select a.run_id, a.after_xid, 1, a.arrival_id, a.tenant from hwqueue.arrival a
         where a.after_xid is not null and a.arrival_id >= v_ends.first and a.arrival_id < v_middle
         order by a.arrival_id limit 5 * p_limit)) k
      group by k.run_id
      order by bool_and(hwqueue.valid_next_xid(k.after_xid) <= v_oldest) desc,
               row_number() over (partition by min(k.tenant) order by min(k.turn), min(k.arrival_id)),
               min(k.turn), min(k.arrival_id) limit p_limit);
  end if;
  -- before stamps, which take changes of state out of these
  select coalesce(array_agg(g.run_id order by g.n), '{}') as runs, array_agg(g.step_no order by g.n) as steps,
         array_agg(g.kind order by g.n) as kinds, array_agg(g.turn order by g.n) as turns
  into v_fresh
  from hwqueue.fresh_arrivals(p_limit, p_from) with ordinality g(run_id, step_no, kind, turn, n);
  folded := cardinality(v_fresh.runs);
  released := 0;
  more := folded = p_limit;
  if folded = 0 and v_kept = '{}' then
    return;
  end if;
  perform hwqueue.stamp_changes(p_limit, p_from);
  perform pg_current_xact_id();  -- before a run is read, and before the clock
  for v_item in
    select k.run_id, 0 as step_no, 'state' as kind, 0 as turn from unnest(v_kept) k(run_id)
    union all
    select * from unnest(v_fresh.runs, v_fresh.steps, v_fresh.kinds, v_fresh.turns)
      i(run_id, step_no, kind, turn)
  loop
    -- mostly items of maps, after the first turn of each tenant; what is left has its arrivals
    exit when released >= case when v_item.turn > 1 then 1000 else 5000 end or hwqueue.has_bound_enough();
    released := released + hwqueue.sweep_one(v_item.run_id, v_item.step_no, v_item.kind, hwqueue.clock());
    more := more or v_item.kind = 'nested' and released > 0;  -- it may have left arrivals at other runs
  end loop;
  more := more or released >= 1000 or hwqueue.has_bound_enough();
end
$$;

-- Returns up to p_limit tallies, steps and runs that have arrivals, but for kept ones. Tenants take turns, in
-- an order that chance says; a tenant's oldest come first. Where there are more than the oldest arrivals,
-- those of each of up to 1,000 tenants are read by the index, and half of the others are from a place that
-- chance chooses: an open transaction may hold what the oldest wait for, and thousands of arrivals at one
-- tally must not hide the others. Chance says, too, which half comes first: the limit may be 1.
create or replace function hwqueue.fresh_arrivals(p_limit int, p_from timestamptz)
returns table (run_id uuid, step_no int, kind text, turn bigint)
language plpgsql volatile
as $$ begin return query
  with recursive oldest as materialized (
    select a.arrival_id, a.run_id, a.step_no, a.kind, a.at, a.tenant from hwqueue.arrival a
    where a.at >= p_from and a.after_xid is null
    order by a.at limit 10 * p_limit
  ), first as materialized (
    select o.tenant, o.run_id, o.step_no, o.kind,
           row_number() over (order by min(o.at), o.run_id, o.step_no) as n
    from oldest o group by o.tenant, o.run_id, o.step_no, o.kind
  ), rest as materialized (
    select (select count(*) from oldest) = 10 * p_limit or (select count(*) from first) > p_limit as is_there
  ), other as (
    select a.arrival_id, a.tenant, a.run_id, a.step_no, a.kind from hwqueue.arrival a
    where a.after_xid is null and a.arrival_id >= (
      select min(o.arrival_id) + floor(random() * (
        select s.last_value + 1 - min(o.arrival_id) from hwqueue.arrival_arrival_id_seq s))::bigint
      from oldest o)
    order by a.arrival_id limit case when (select r.is_there from rest r) then 10 * p_limit else 0 end
  ), tenant as (  -- from one to the next
    (select a.tenant as name from hwqueue.arrival a
     where a.at >= p_from and a.after_xid is null and (select r.is_there from rest r)
     order by a.tenant limit 1)
    union all
    select n.tenant from tenant t
    cross join lateral (
      select a.tenant from hwqueue.arrival a
      where a.tenant > t.name and a.at >= p_from and a.after_xid is null
      order by a.tenant limit 1) n
  ), known as materialized (
    select t.name, count(*) over () as tenants from (select * from tenant limit 1000) t
  ), own as (
    select a.tenant, a.run_id, a.step_no, a.kind, min(a.at) as at from known t
    cross join lateral (
      select * from hwqueue.arrival x
      where x.tenant = t.name and x.at >= p_from and x.after_xid is null
      order by x.at limit greatest(20, 4 * p_limit / t.tenants) * (t.tenants > 1)::int) a
    group by a.tenant, a.run_id, a.step_no, a.kind
  )
  select g.run_id, g.step_no, g.kind, g.turn
  from (
    select x.run_id, x.step_no, x.kind, row_number() over (
             partition by x.tenant order by min(x.n), min(x.turn), x.run_id, x.step_no) as turn
    from (
      select f.tenant, f.run_id, f.step_no, f.kind, f.n, 0.5 as turn from first f
      union all
      select o.tenant, o.run_id, o.step_no, o.kind, row_number() over (order by min(o.arrival_id)),
             (select random())
      from other o group by o.tenant, o.run_id, o.step_no, o.kind
      union all
      select w.tenant, w.run_id, w.step_no, w.kind,
             row_number() over (partition by w.tenant order by w.at), 0.5
      from own w) x
    group by x.tenant, x.run_id, x.step_no, x.kind) g
  order by g.turn, random() limit p_limit;
end $$;

-- Stamps changes of runs' states with a transaction id that is later than they are: a session that may have
-- read the state before has a lower one. It had its id when it read the run, the change was committed after
-- that, and this id is assigned when the change is visible. In a transaction that has an id already it
-- stamps nothing, so reap calls it before it takes its own.
-- Locks: the arrivals, skip locked.
create or replace function hwqueue.stamp_changes(p_limit int, p_from timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_fresh bigint[] := case when pg_current_xact_id_if_assigned() is null then array(
    select a.arrival_id
    from (select x.* from hwqueue.arrival x
          where x.at >= p_from and x.after_xid is null
          order by x.at limit 10 * p_limit) a
    where a.kind = 'state') end;
  v_later xid8;
begin
  if v_fresh <> '{}' then
    v_later := pg_current_xact_id();
    update hwqueue.arrival a set after_xid = v_later where a.arrival_id in (
      select x.arrival_id from hwqueue.arrival x where x.arrival_id = any (v_fresh) for update skip locked);
  end if;
end
$$;

-- Works off the arrivals of one kind at one step of a run (step 0: the run itself), and returns how many
-- steps it has released.
-- Locks: as sweep_arrivals.
create or replace function hwqueue.sweep_one(p_run uuid, p_step int, p_kind text, p_now timestamptz)
returns int
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_gone record;
  v_arrivals bigint[];
begin
  if p_kind = 'state' then
    return hwqueue.apply_state(p_run, p_now);
  elsif p_kind = 'signal' then
    v_arrivals := array(
      select a.arrival_id from hwqueue.arrival a
      where a.run_id = p_run and a.step_no = p_step and a.kind = 'signal'
      for update skip locked);
    if v_arrivals <> '{}' and hwqueue.deliver_signal(p_run, p_step, true) is not null then
      delete from hwqueue.arrival a where a.arrival_id = any (v_arrivals);
    end if;
    return 0;
  elsif p_kind = 'item' then
    return hwqueue.advance_map(p_run, p_step, row(0, 0, 0, 0, 0), true, p_now);
  elsif p_kind = 'nested' then
    return case when p_step = 0 then hwqueue.follow_parent(p_run)
      else hwqueue.follow_nested(p_run, p_step) end;
  elsif p_kind = 'count' and p_step = 0 then
    perform hwqueue.count_work(p_run, 0, 0, 0, p_now);
    return 0;
  end if;
  if p_kind <> 'count' then
    v_gone := hwqueue.take_arrivals(p_run, p_step, p_kind);
    if v_gone.arrivals = 0 then
      return 0;
    end if;
  end if;
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  if p_kind = 'count' then
    return hwqueue.advance_run(v_run, hwqueue.count_parents(v_run, p_step, (
      select d.is_any from hwqueue.workflow_step d
      where d.workflow_id = v_run.workflow_id and d.step_no = p_step), row(0, 0, 0, 0, 0), true, p_now,
      hwqueue.new_progress()), 0, true, p_now);
  elsif v_run.run_id is null then
    return 0;
  elsif p_kind = 'fail' then
    perform hwqueue.begin_failing(v_run, p_step, v_gone.reason, p_now);
    return 0;
  end if;
  return hwqueue.advance_run(v_run, case p_kind
    when 'release' then hwqueue.new_progress(p_released => array[p_step])
    else hwqueue.new_progress(p_skipped => array[p_step], p_reasons => array[v_gone.reason]) end,
    v_gone.arrivals, true, p_now);
end
$$;

-- Hands a wait that is open its oldest signal. Returns whether it did; null: another session holds the step.
-- Locks: the step and the signal, skip locked; then as end_step. Wakes: waiting workers.
create or replace function hwqueue.deliver_signal(p_run uuid, p_step int, p_is_short boolean)
returns boolean
language plpgsql volatile
as $$
declare
  v_state text;
  v_taken record;
begin
  select s.state into v_state from hwqueue.step s
  where s.run_id = p_run and s.step_no = p_step for no key update skip locked;
  if not found then
    return null;
  elsif v_state <> 'running' then
    return false;
  end if;
  -- statements of their own, after the lock: they see what has been sent until then
  v_taken := hwqueue.take_run_signal(p_run, p_step);
  if v_taken.payload is null then
    return case when not v_taken.is_held then false end;
  end if;
  return hwqueue.end_step(p_run, p_step, row('completed', null, null, v_taken.payload, null), p_is_short,
    hwqueue.clock());
end
$$;

-- Carries a change of a run's state to its steps and nested runs: of a run that goes on it releases what was
-- held, of one that stops it ends what is open. Drops the arrival once no transaction can bring more: those
-- that may have read the former state have ended. Returns how many steps it has released.
-- Locks: the arrival, steps, entries and claims, skip locked.
create or replace function hwqueue.apply_state(p_run uuid, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_arrivals hwqueue.arrival[];
  v_held int[];
  v_closed int := 0;
  v_is_done boolean := true;
  v_released int := 0;
  v_stops boolean;
  v_map int;
  v_items int := 0;
  v_is_last boolean;
begin
  v_arrivals := array(
    select a from hwqueue.arrival a
    where a.run_id = p_run and a.step_no = 0 and a.kind = 'state'
    for update skip locked);
  if v_arrivals = '{}' then
    return 0;
  end if;
  -- after the lock: a change that leaves an arrival later is not among these
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  v_is_last := (
    select bool_and(coalesce(a.after_xid <= pg_snapshot_xmin(pg_current_snapshot())
      or a.after_xid > pg_snapshot_xmax(pg_current_snapshot())  -- of another server (valid_next_xid)
        and a.after_xid is distinct from pg_current_xact_id_if_assigned(), false))
    from unnest(v_arrivals) a);
  v_stops := v_run.state in ('failing', 'cancelling') and (not v_run.is_finishing or v_run.stops);
  -- statements after that snapshot: they see all that the transactions it calls ended have written
  if v_run.finished_at is not null or v_run.run_id is null then
    v_is_last := true;
  elsif v_run.state = 'running' then
    v_held := array(  -- an operator may hold one, and end it (skip_step)
      select s.step_no from hwqueue.step s
      where s.run_id = p_run and s.state = 'held'
      order by s.step_no limit 1000 for no key update skip locked);
    if v_held <> '{}' then
      v_released := hwqueue.advance_run(v_run, hwqueue.new_progress(p_released => v_held),
        cardinality(v_held), true, p_now);
    end if;
  elsif v_stops then
    if v_run.stops then
      select s.closed, s.is_done into v_closed, v_is_done from hwqueue.stop_run(v_run, 1000) s;
    else
      v_closed := hwqueue.drop_idle(v_run, 1000);
    end if;
    if v_closed > 0 then
      perform hwqueue.count_work(p_run, 0, v_closed, 0, p_now);
    end if;
  end if;
  -- maps that another session counts are left to it; those behind 1,000 items that were let in get arrivals
  for v_map in
    select m.step_no from hwqueue.map m
    join hwqueue.step s on s.run_id = p_run and s.step_no = m.step_no
    where m.run_id = p_run and s.state = 'running' and v_run.state <> 'paused' order by m.step_no
  loop
    if v_items < 1000 then
      v_items := v_items + hwqueue.advance_map(p_run, v_map, row(0, 0, 0, 0, 0), true, p_now);
    else
      perform hwqueue.leave_arrivals(p_run, array[v_map], 'item', '{}', p_now);
    end if;
  end loop;
  if v_run.state = 'running' then
    v_is_last := v_is_last and not exists (
      select from hwqueue.step s
      where s.run_id = p_run and s.state = 'held');
  elsif v_stops then
    v_is_last := v_is_last and v_closed = 0 and v_is_done
      and not exists (select from hwqueue.idle_steps(v_run));
  end if;
  if v_run.finished_at is null then
    -- nested runs compare themselves with it, until no transaction can open one any more that has read the
    -- former state
    insert into hwqueue.arrival (run_id, step_no, kind, at, tenant)
    select n.run_id, 0, 'nested', hwqueue.clock(), n.tenant
    from hwqueue.run n
    where n.parent_run_id = p_run and n.finished_at is null and case
        when v_run.stops then not n.stops and not n.is_finishing
        when v_run.is_finishing then n.state = 'paused' and n.reason = 'parent_paused'
        when v_run.state = 'paused' then n.state = 'running'
        else n.state = 'paused' and n.reason = 'parent_paused' end;
  end if;
  if v_is_last then
    delete from hwqueue.arrival a
    where a.arrival_id = any (array(select v.arrival_id from unnest(v_arrivals) v));
  end if;
  return v_released + v_items;
end
$$;

-- Ends up to p_limit steps that are due by themselves, and returns their number: a sleep has completed; a
-- wait takes a signal that has just come, or ends as its on_timeout says, which an event tells. Tenants take
-- turns, as in reap_workflows. p_from: none is due before.
-- Locks: the steps, skip locked; a signal, skip locked; then tallies, steps and the run, skip locked. Wakes:
-- waiting workers.
create or replace function hwqueue.end_due_steps(p_limit int, p_from timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_due hwqueue.step[];
  v_step hwqueue.step;
  v_found record;
  v_payload jsonb;
  v_state text;
  v_count int := 0;
begin
  perform 1 from hwqueue.step s where s.due_at >= p_from and s.due_at <= v_now limit 1;
  if not found then
    return 0;
  end if;
  perform pg_current_xact_id();  -- before the clock that its children are spawned by (reap_cursor)
  v_due := array(
    select s
    from (
      select w.run_id, w.step_no
      from (
        select x.run_id, x.step_no, x.due_at from hwqueue.step x
        where x.due_at >= p_from and x.due_at <= v_now
        order by x.due_at limit 10 * p_limit) w
      join hwqueue.run r on r.run_id = w.run_id
      order by row_number() over (partition by r.tenant order by w.due_at), w.due_at limit p_limit) w
    join hwqueue.step s on s.run_id = w.run_id and s.step_no = w.step_no
    where s.due_at <= v_now
    order by s.due_at for no key update of s skip locked);
  foreach v_step in array v_due loop
    exit when hwqueue.has_bound_enough();
    select d.name, d.kind, d.settings, r.name as workflow into v_found
    from hwqueue.run r
    join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = v_step.step_no
    where r.run_id = v_step.run_id;
    v_payload := case when v_found.kind = 'wait'
      then (hwqueue.take_run_signal(v_step.run_id, v_step.step_no)).payload end;
    v_state := 'completed';
    if v_found.kind = 'wait' and v_payload is null then
      v_state := case v_found.settings ->> 'on_timeout' when 'skip' then 'skipped'
        when 'continue' then 'completed' else 'failed' end;
      perform hwqueue.note_event('workflow_wait_timed_out', format('step %s of workflow %s has waited for '
          'signal %s in vain', v_found.name, v_found.workflow, v_found.settings ->> 'signal'),
        jsonb_build_object('run_id', v_step.run_id, 'workflow', v_found.workflow, 'step', v_found.name,
          'signal', v_found.settings ->> 'signal'));
    end if;
    perform hwqueue.end_step(v_step.run_id, v_step.step_no, row(v_state,
      case when v_found.kind = 'wait' and v_payload is null then 'timeout' end, null, v_payload, null), true,
      hwqueue.clock());
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- The part of reap for runs: up to p_limit that are past their deadline fail, steps that are due end,
-- arrivals are worked off. True: there may be more. Tenants take turns among the ten times as many runs that
-- are late the longest.
-- Locks: runs, skip locked; as stop_run, end_due_steps and sweep_arrivals. Wakes: waiting workers.
create or replace function hwqueue.reap_workflows(p_limit int, p_from hwqueue.reap_cursor,
  p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_most int := least(p_limit, 200);
  v_run hwqueue.run;
  v_late int := 0;
begin
  for v_run in
    select r.* from hwqueue.run r
    where r.deadline <= p_now and r.finished_at is null and r.run_id = any (array(
      select w.run_id from (
        select x.run_id, x.tenant, x.deadline from hwqueue.run x
        where x.deadline <= p_now and x.deadline is not null
          and x.finished_at is null
        order by x.deadline limit 10 * p_limit) w
      order by row_number() over (partition by w.tenant order by w.deadline), w.deadline limit p_limit))
    order by r.deadline for no key update skip locked
  loop
    v_late := v_late + 1;
    update hwqueue.run r set deadline = null
    where r.run_id = v_run.run_id and r.finished_at is null returning r.state into v_run.state;
    continue when not found;  -- its last step was a nested run that was late, too
    if v_run.state <> 'cancelling' then
      v_run.state := 'failing';
      v_run.reason := 'deadline_exceeded';
      v_run.detail := jsonb_build_object('deadline', v_run.deadline);
    end if;
    perform hwqueue.set_run_state(v_run.run_id, v_run.state, v_run.reason, v_run.detail, 1000);
  end loop;
  if v_late = p_limit then
    return true;
  end if;
  perform set_config('hwqueue.bound_bytes', '', true);  -- each call of upkeep binds as much
  return hwqueue.end_due_steps(v_most, p_from.steps_from) = v_most or hwqueue.has_bound_enough()
    or (hwqueue.sweep_arrivals(v_most, p_from.arrivals_from)).more;
end
$$;
