-- Runs and steps as people see them.
--
-- api/runs calls these. Example: a step that waits in a run that has failed will never be released: it is
-- shown as skipped, because its run failed.
--
-- Invariant: no state is decided here. What is shown follows from the rows of the run and the step, so
-- that no step is shown as waiting in a run that has ended. Only cancel_unclaimed, for skip_step, writes.
--
-- Read shown_state and shown_reason first, then step_headline.

-- The state of a step as people see it.
create or replace function hwqueue.shown_state(p_state text, p_run hwqueue.run) returns text
language sql immutable
as $$
  select case when p_state = 'held' then 'waiting'
    when p_state = 'waiting' and p_run.finished_at is not null then 'skipped' else p_state end
$$;

-- Why a step is in its state; null for one that just waits, runs or has completed.
create or replace function hwqueue.shown_reason(p_step hwqueue.step, p_run hwqueue.run) returns text
language sql immutable
as $$
  select case when p_step.state = 'held' then 'run_paused'
    when p_step.state = 'waiting' and p_run.finished_at is not null then
      case p_run.state when 'cancelled' then 'cancelled' when 'failed' then 'run_failed'
        else 'not_needed' end
    else p_step.reason end
$$;

-- What a step has returned: its own result, or that of its lease. A step that a retry has not run again, or
-- could not, has a lease that ended in an earlier attempt.
create or replace function hwqueue.step_result(p_step hwqueue.step, p_of_lease jsonb) returns jsonb
language sql immutable
as $$
  select coalesce(p_step.result, case when p_step.state in ('running', 'completed')
    and p_step.reason is distinct from 'operator' then p_of_lease end)
$$;

-- Why a step has failed, or was cancelled: its own error, or that of its lease.
create or replace function hwqueue.step_error(p_step hwqueue.step, p_of_lease jsonb) returns jsonb
language sql immutable
as $$
  select coalesce(p_step.error, case when p_step.state in ('running', 'failed', 'cancelled')
    then p_of_lease end)
$$;

-- The parents of each step that have not ended: {number of the step: [names]}, without the steps that have
-- none.
create or replace function hwqueue.open_parents(p_run hwqueue.run, p_shard int) returns jsonb
language sql volatile
as $$
  select coalesce(jsonb_object_agg(g.to_no, g.names), '{}')
  from (
    select e.to_no, jsonb_agg(f.name order by e.from_no) as names
    from hwqueue.workflow_edge e
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.step_no from hwqueue.step x
      where x.shard_id = p_shard and x.run_id = p_run.run_id and x.step_no = e.from_no
        and x.state in ('waiting', 'held', 'running') offset 0) p
    cross join lateral (
      select x.name from hwqueue.workflow_step x
      where x.shard_id = p_shard and x.workflow_id = p_run.workflow_id and x.step_no = e.from_no offset 0) f
    where e.shard_id = p_shard and e.workflow_id = p_run.workflow_id
    group by e.to_no) g
$$;

-- When the steps of a run have begun that are no tasks: when their parents let them, since nothing is written
-- for it. A step that was held, or has run again without its parents, began later than that. Steps that have
-- not begun are left out. A finally step begins when all others have ended.
create or replace function hwqueue.steps_begun(p_run hwqueue.run, p_shard int)
returns table (step_no int, begun_at timestamptz)
language sql volatile
as $$
  with others as (
    select d.step_no, d.is_any, d.runs_at_end, s.*
    from hwqueue.workflow_step d
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.state, x.reason, x.ended_at from hwqueue.step x
      where x.shard_id = p_shard and x.run_id = p_run.run_id and x.step_no = d.step_no offset 0) s
    where d.shard_id = p_shard and d.workflow_id = p_run.workflow_id and d.kind <> 'task')
  select o.step_no, case
    when o.runs_at_end is not null then (
      select max(x.ended_at) from hwqueue.step x
      join hwqueue.workflow_step y on y.shard_id = p_shard and y.workflow_id = p_run.workflow_id
        and y.step_no = x.step_no and y.runs_at_end is null
      where x.shard_id = p_shard and x.run_id = p_run.run_id)
    when p.parents = 0 then p_run.submitted_at
    when o.is_any then p.first_at
    -- else an operator has ended it before its turn
    when not p.are_open and p.last_at <= coalesce(o.ended_at, p.last_at) then p.last_at end
  from others o
  cross join lateral (
    select count(*) as parents, max(f.ended_at) as last_at, bool_or(f.ended_at is null) as are_open,
      min(f.ended_at) filter (where e.wants = 'ended' or e.wants = case f.state
        when 'cancelled' then 'failed' else f.state end) as first_at
    from hwqueue.workflow_edge e
    cross join lateral (
      select x.state, x.ended_at from hwqueue.step x
      where x.shard_id = p_shard and x.run_id = p_run.run_id and x.step_no = e.from_no offset 0) f
    where e.shard_id = p_shard and e.workflow_id = p_run.workflow_id and e.to_no = o.step_no) p
  where o.state in ('running', 'completed', 'failed', 'cancelled')
    or o.state = 'skipped' and o.reason = 'timeout'
$$;

-- What a step without a lease waits for, in words; null for one that does not.
create or replace function hwqueue.step_headline(p_step hwqueue.step, p_defined hwqueue.workflow_step)
returns text
language sql stable
as $$
  select case when p_step.state = 'running' and p_defined.kind = 'sleep' then
      'sleeps until ' || hwqueue.shown_time(p_step.due_at)
    when p_step.state = 'running' and p_defined.kind = 'wait' then
      concat('waits for signal ', p_defined.settings ->> 'signal',
        ' until ' || hwqueue.shown_time(p_step.due_at))
    when p_step.state = 'running' and p_defined.kind = 'workflow' then
      case when p_step.nested_run_id is null then 'is about to submit a run'
        when p_step.nested_mode is not null then 'is about to retry its run'
        else 'waits for a run' end || ' of workflow ' || (p_defined.settings ->> 'workflow') end
$$;

-- A time in UTC, to the second.
create or replace function hwqueue.shown_time(p_time timestamptz) returns text
language sql immutable
as $$ select to_char(p_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;

-- How many steps of a run are in each state: {state: count}.
create or replace function hwqueue.count_steps(p_run hwqueue.run, p_shard int) returns jsonb
language sql stable
as $$
  select jsonb_object_agg(c.state, c.count)
  from (select hwqueue.shown_state(s.state, p_run) as state, count(*) as count
        from hwqueue.step s where s.shard_id = p_shard and s.run_id = p_run.run_id group by 1) c
$$;

-- The numbers of steps of a run by their names, a JSON list.
-- Raises: QHF06, QHA01.
create or replace function hwqueue.named_steps(p_run hwqueue.run, p_names jsonb, p_field text, p_shard int)
returns int[]
language plpgsql stable
as $$
declare
  v_names text[] := array(
    select hwqueue.json_text(n.value, p_field, 100)
    from jsonb_array_elements(hwqueue.json_list(p_names, p_field, 5000, 'a list of at most 5000 names',
      'for example ["train"]')) n);
  v_numbers jsonb := coalesce((  -- a map: thousands of names may be looked for one by one
    select jsonb_object_agg(d.name, d.step_no) from hwqueue.workflow_step d
    where d.shard_id = p_shard and d.workflow_id = p_run.workflow_id
      and (cardinality(v_names) > 10 or d.name = any (v_names))), '{}');
  v_unknown text;
begin
  select n into v_unknown from unnest(v_names) n where not v_numbers ? n limit 1;
  if found then
    perform hwqueue.refuse_step(v_unknown, w, p_field)
    from hwqueue.workflow w where w.shard_id = p_shard and w.workflow_id = p_run.workflow_id;
  end if;
  return array(select distinct (v_numbers ->> n)::int from unnest(v_names) n order by 1);
end
$$;

-- How many items a step has, how many of them have ended, and how many of these failed or were cancelled; no
-- row for a step without a row in map. The own lease of a task is none of them, but counted with them: p_own
-- is how that has ended, null while it is open.
create or replace function hwqueue.count_items(p_run uuid, p_step int, p_kind text, p_own text,
  p_shard int)
returns table (items int, items_done int, items_failed int)
language sql stable
as $$
  select m.items, (t.arrived + coalesce(a.arrived, 0))::int
           + case when p_kind = 'task' and p_own is null then 1 else 0 end,
         (t.failed + t.skipped + coalesce(a.failed, 0))::int
           - case when p_kind = 'task' and p_own <> 'completed' then 1 else 0 end
  -- fences (offset 0): by key, also before the tables are analyzed
  from (
    select x.items from hwqueue.map x
    where x.shard_id = p_shard and x.run_id = p_run and x.step_no = p_step offset 0) m
  cross join lateral (
    select x.arrived, x.failed, x.skipped from hwqueue.tally x
    where x.shard_id = p_shard and x.run_id = p_run and x.step_no = p_step and x.part > 0 offset 0) t
  cross join lateral (
    select sum(x.arrived) as arrived, sum(x.failed + x.skipped) as failed from hwqueue.arrival x
    where x.run_id = p_run and x.step_no = p_step and x.kind = 'item' and x.shard_id = p_shard) a
$$;

-- How far a map or a gang has come that is open, in words; null for a step that is none.
create or replace function hwqueue.map_headline(p_step hwqueue.step, p_kind text, p_items int, p_done int,
  p_failed int) returns text
language sql immutable
as $$
  select case when p_step.state = 'running' and p_items > 0 then
    concat(p_done, ' of ', p_items, case p_kind when 'gang' then ' members' else ' items' end, ' have ended',
      case when p_failed > 0 then concat(', ', p_failed, ' of them failed') end) end
$$;

-- Cancels the lease of a step, or those of the items of a map, that nobody has claimed.
-- Locks: the entries. Raises: QHL07 when one is claimed, or has just ended.
create or replace function hwqueue.cancel_unclaimed(p_step hwqueue.step, p_name text, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_open uuid[] := array(
    select l.lease_id from hwqueue.lease l
    where l.run_id = p_step.run_id and l.step_no = p_step.step_no and l.item_no is not null
      and l.shard_id = p_shard
      and not exists (select from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = l.lease_id)
    union all
    select l.lease_id from hwqueue.lease l
    where l.shard_id = p_shard and l.lease_id = p_step.lease_id and l.item_no is null);
  v_taken uuid[];
begin
  if v_open = '{}' then
    return;
  end if;
  v_taken := hwqueue.take_entries_of(v_open, p_shard);
  if cardinality(v_taken) < cardinality(v_open) then
    perform hwqueue.refuse('QHL07', format('step %s is claimed, or has just ended', to_json(p_name)),
      jsonb_build_object('step', p_name, 'lease_id', (
        select o from unnest(v_open) o where o <> all (v_taken) limit 1)),
      'cancel the lease, and skip the step when it has ended');
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  perform hwqueue.end_waiting(v_taken, 'cancelled',
      '{"reason": "cancelled", "detail": "its step was declared completed"}', hwqueue.clock(), p_shard),
    hwqueue.note_leases('lease_cancelled', v_taken, 'cancelled: its step was declared completed', p_shard);
end
$$;
