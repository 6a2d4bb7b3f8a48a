-- Runs and steps as people see them. No state is decided here.

-- The state of a step as people see it: one that waits in a run that has ended will never be released.
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

-- How many steps of a run are in each state: {state: count}.
create or replace function hwqueue.count_steps(p_run hwqueue.run) returns jsonb
language plpgsql stable
as $$ begin return (
  select jsonb_object_agg(c.state, c.count)
  from (select hwqueue.shown_state(s.state, p_run) as state, count(*) as count
        from hwqueue.step s where s.run_id = p_run.run_id group by 1) c
); end $$;

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
