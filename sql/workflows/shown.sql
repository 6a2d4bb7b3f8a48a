-- Runs and steps as people see them.
--
-- api/runs calls these. Example: a step that waits in a run that has failed will never be released: it is
-- shown as skipped, because its run failed.
--
-- Invariant: no state is decided here. What is shown follows from the rows of the run and the step, so
-- that no step is shown as waiting in a run that has ended.
--
-- Read shown_state first, then step_result and step_error.

-- The state of a step as people see it.
create or replace function hwqueue.shown_state(p_state text, p_run hwqueue.run) returns text
language sql immutable
as $$
  select case when p_state = 'held' then 'waiting'
    when p_state = 'waiting' and p_run.finished_at is not null then 'skipped' else p_state end
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

-- When the steps of a run have begun that are no tasks: when their parents let them, since nothing is written
-- for it. A step that was held, or has run again without its parents, began later than that. Steps that have
-- not begun are left out. A finally step begins when all others have ended.
create or replace function hwqueue.steps_begun(p_run hwqueue.run)
returns table (step_no int, begun_at timestamptz)
language sql volatile
as $$
  with others as (
    select d.step_no, d.is_any, d.runs_at_end, s.*
    from hwqueue.workflow_step d
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.state, x.reason, x.ended_at from hwqueue.step x
      where x.run_id = p_run.run_id and x.step_no = d.step_no offset 0) s
    where d.workflow_id = p_run.workflow_id and d.kind <> 'task')
  select o.step_no, case
    when o.runs_at_end is not null then (
      select max(x.ended_at) from hwqueue.step x
      join hwqueue.workflow_step y on y.workflow_id = p_run.workflow_id
        and y.step_no = x.step_no and y.runs_at_end is null where x.run_id = p_run.run_id)
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
      where x.run_id = p_run.run_id and x.step_no = e.from_no offset 0) f
    where e.workflow_id = p_run.workflow_id and e.to_no = o.step_no) p
  where o.state in ('running', 'completed', 'failed', 'cancelled')
    or o.state = 'skipped' and o.reason = 'timeout'
$$;

-- How many steps of a run are in each state: {state: count}.
create or replace function hwqueue.count_steps(p_run hwqueue.run) returns jsonb
language sql stable
as $$
  select jsonb_object_agg(c.state, c.count)
  from (select hwqueue.shown_state(s.state, p_run) as state, count(*) as count
        from hwqueue.step s where s.run_id = p_run.run_id group by 1) c
$$;

-- The numbers of steps of a run by their names, a JSON list.
-- Raises: QHF06, QHA01.
create or replace function hwqueue.named_steps(p_run hwqueue.run, p_names jsonb, p_field text) returns int[]
language plpgsql stable
as $$
declare
  v_names text[] := array(
    select hwqueue.json_text(n.value, p_field, 100)
    from jsonb_array_elements(hwqueue.json_list(p_names, p_field, 5000, 'a list of at most 5000 names',
      'for example ["train"]')) n);
  v_numbers jsonb := coalesce((  -- a map: thousands of names may be looked for one by one
    select jsonb_object_agg(d.name, d.step_no) from hwqueue.workflow_step d
    where d.workflow_id = p_run.workflow_id and (cardinality(v_names) > 10 or d.name = any (v_names))), '{}');
  v_unknown text;
begin
  select n into v_unknown from unnest(v_names) n where not v_numbers ? n limit 1;
  if found then
    perform hwqueue.refuse_step(v_unknown, w, p_field)
    from hwqueue.workflow w where w.workflow_id = p_run.workflow_id;
  end if;
  return array(select distinct (v_numbers ->> n)::int from unnest(v_names) n order by 1);
end
$$;
