-- Nested runs: steps of kind `workflow`, each of which is a run of another workflow, and runs that a handler
-- has added to its step (api/children.add_steps). Whose child a run is stands in its row: the run above, the
-- step, and the attempt of that run in which it was begun or retried. A step waits for its run of the
-- present attempt; one to which runs were added, for all since the first of them.
--
-- A release submits nothing, so that a settlement stays short: it leaves an arrival of kind `nested`. The
-- sweep binds the step's input, and submits a run one level below. When that run ends, finish_run ends the
-- step in the same transaction; of added runs the step ends when its items and all these have
-- (workflows/ending.advance_map).
--
-- An arrival says no more than "compare the two": follow_nested looks from a step at the run below,
-- follow_parent (step 0) from a run at the one above. What to do is read from their states at that time, so
-- an arrival too many changes nothing.
--
-- Invariant: no session waits for one of the two runs while it holds the other. Rows are locked with skip
-- locked, and the arrival stays until they could be locked. What a submission would refuse fails the step,
-- never the sweep.

-- The run that a step of kind workflow is, or was in an earlier attempt. Its run_id is null: none yet.
create or replace function hwqueue.nested_run(p_run uuid, p_step int) returns hwqueue.run
language plpgsql stable
as $$ begin
  return (
    select n from hwqueue.run n
    where n.parent_run_id = p_run and n.parent_step_no = p_step order by n.parent_attempt desc limit 1);
end $$;

-- Does what is due at a step that is a nested run: ends it after its run; else opens that, or retries the one
-- of an earlier attempt. One that such an attempt has left open is cancelled, and another one opened. A step
-- whose run would be refused fails, with the refusal in its row. It is of the newest version, unless the step
-- names one. Returns how many steps it has ended or begun.
-- Locks: the step and its arrivals, skip locked; then new rows, or as retry_nested and end_parent_step.
-- Idempotent. Wakes: waiting workers.
create or replace function hwqueue.follow_nested(p_run uuid, p_step int) returns int
language plpgsql volatile
as $$
declare
  v_step hwqueue.step;
  v_run hwqueue.run;
  v_nested hwqueue.run;
  v_defined hwqueue.workflow_step;
  v_results jsonb;
  v_bound record;
  v_verdict hwqueue.step_verdict;
  v_dropped int;
begin
  select s.* into v_step from hwqueue.step s
  where s.run_id = p_run and s.step_no = p_step for no key update skip locked;
  if v_step.run_id is null and exists (
    select from hwqueue.step s where s.run_id = p_run and s.step_no = p_step) then
    return 0;  -- the arrival stays
  end if;
  perform hwqueue.take_arrivals(p_run, p_step, 'nested');
  -- statements after the lock: they see what those have written who left the arrivals
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  v_nested := hwqueue.nested_run(p_run, p_step);
  if v_nested.parent_attempt = v_run.attempt then
    return case when v_nested.finished_at is null then 0
      else hwqueue.end_parent_step(v_nested, hwqueue.clock())::int end;
  elsif v_step.state is distinct from 'running' then
    return 0;
  elsif v_run.state in ('failing', 'cancelling') and (not v_run.is_finishing or v_run.stops) then
    -- with all others that were not opened yet: 5,000 at most, so that it is among them
    v_dropped := hwqueue.drop_idle(v_run, 5000);
    perform hwqueue.count_work(p_run, 0, v_dropped, 0, hwqueue.clock());
    return v_dropped;
  end if;
  v_verdict.state := 'failed';
  select d.* into v_defined from hwqueue.workflow_step d
  where d.workflow_id = v_run.workflow_id and d.step_no = p_step;
  v_results := hwqueue.results_of(v_run, coalesce(v_defined.reads, '{}'));
  v_bound := hwqueue.bind_value(coalesce(v_defined.settings -> 'input', '{}'), v_run, v_results);
  perform hwqueue.note_bound(coalesce(pg_column_size(v_results), 134217728)
    + coalesce(pg_column_size(v_bound.value), 0));
  if v_run.depth >= 8 then
    v_verdict.reason := 'nested_too_deep';
    v_verdict.error := jsonb_build_object('workflow', v_defined.settings -> 'workflow', 'limit', 8);
  elsif v_nested.run_id is null and exists (  -- a workflow that names itself in ten steps has 10^8 at depth 8
    select from hwqueue.run r where r.root_run_id = v_run.root_run_id and r.parent_run_id is not null
    offset 9999) then
    v_verdict.reason := 'too_many_nested';
    v_verdict.error := '{"limit": 10000}';
  elsif v_results is not null and v_bound.missing is not null then
    v_verdict.reason := 'binding_missing';
    v_verdict.error := jsonb_build_object('binding', v_bound.missing);
  elsif v_results is null or v_bound.too_large then
    v_verdict.reason := 'input_too_large';
    v_verdict.error := '{"limit": 1048576}';
  else
    begin
      if v_nested.finished_at is null then
        perform hwqueue.begin_nested(hwqueue.updated_run(v_run, v_step.own -> 'update'),
          hwqueue.nested_workflow(v_defined.settings, v_run.tenant), v_bound.value, p_step);
      elsif not hwqueue.retry_nested(v_run, v_nested.run_id, v_bound.value) then
        perform hwqueue.leave_arrivals(p_run, array[p_step], 'nested', '{}', hwqueue.clock());
        return 0;
      end if;
      return 1;
    exception when sqlstate 'QH000' then  -- the class QH: what the API refuses
      v_verdict.reason := 'nested_refused';
      v_verdict.error := jsonb_build_object('workflow', v_defined.settings -> 'workflow', 'code', sqlstate,
        'message', sqlerrm);
    end;
  end if;
  return hwqueue.end_step(p_run, p_step, v_verdict, true, hwqueue.clock())::int;
end
$$;

-- Submits a run below a step of another one (read_nested_run), and returns its id.
-- Locks: new rows. Raises: as read_nested_run and begin_run. Wakes: waiting workers.
create or replace function hwqueue.begin_nested(p_run hwqueue.run, p_workflow hwqueue.workflow,
  p_input jsonb, p_step int) returns uuid
language plpgsql volatile
as $$
declare
  v_tenant text := coalesce(current_setting('hwqueue.tenant', true), '');
  v_now timestamptz := hwqueue.clock();
  v_nested hwqueue.run;
begin
  -- any worker sweeps, also one limited to a tenant; what is submitted here is its parent's, not the worker's
  perform set_config('hwqueue.tenant', '', true) where v_tenant <> '';
  v_nested := hwqueue.read_nested_run(p_run, p_workflow, p_input, p_step, v_now);
  perform hwqueue.begin_run(p_workflow, v_nested, '{}', v_now);
  perform set_config('hwqueue.tenant', v_tenant, true) where v_tenant <> '';
  return v_nested.run_id;
end
$$;

-- Returns a run as it is submitted below a step of another one: with its tenant, headers, deadline, priority
-- and version of the code, and with its placement, which the steps below must meet, too; paused if that is.
-- Raises: as read_run; QHC04 where the two placements contradict each other.
create or replace function hwqueue.read_nested_run(p_run hwqueue.run, p_workflow hwqueue.workflow,
  p_input jsonb, p_step int, p_now timestamptz) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_nested hwqueue.run := hwqueue.read_run(p_workflow, p_input,
    hwqueue.present('tenant', to_jsonb(nullif(p_run.tenant, '')))
      || hwqueue.present('priority', to_jsonb(p_run.priority))
      -- the version of the parent, unless its own definition names one
      || case when jsonb_typeof(p_workflow.settings -> 'pin_version') = 'string' then '{}'
        else hwqueue.present('app_version', p_run.policy -> 'app_version') end, p_now);
begin
  v_nested.parent_run_id := p_run.run_id;
  v_nested.parent_step_no := p_step;
  v_nested.parent_attempt := p_run.attempt;
  if p_run.state = 'paused' and not p_run.is_finishing then
    v_nested.state := 'paused';
    v_nested.reason := 'parent_paused';
  end if;
  v_nested.root_run_id := p_run.root_run_id;
  v_nested.depth := p_run.depth + 1;
  v_nested.headers := p_run.headers;
  v_nested.policy := v_nested.policy || hwqueue.present('available_at', p_run.policy -> 'available_at');
  v_nested.deadline := least(v_nested.deadline, p_run.deadline);
  v_nested.level := hwqueue.merge_levels(p_run.level, v_nested.level, 'and', 'workflow');
  return v_nested;
end
$$;

-- Returns the definition that a step of a run of this tenant would run now. To a tenant, which reads why its
-- step has failed, the workflow of another one is missing.
-- Raises: QHF01; QHA03 when it has a tenant, and the run has none.
create or replace function hwqueue.nested_workflow(p_settings jsonb, p_tenant text) returns hwqueue.workflow
language plpgsql stable
as $$
declare
  v_workflow hwqueue.workflow := hwqueue.find_workflow(p_settings ->> 'workflow', p_settings);
begin
  if v_workflow.settings ->> 'tenant' <> p_tenant then
    if p_tenant <> '' then
      perform hwqueue.refuse_workflow(v_workflow.name, (p_settings ->> 'version')::int);
    end if;
    perform hwqueue.refuse('QHA03', format('workflow %s has tenant %s, and its parent, whose tenant a nested '
        'run has, has none', to_json(v_workflow.name), v_workflow.settings -> 'tenant'),
      jsonb_build_object('field', 'workflow', 'workflow', v_workflow.name),
      'define the workflow without a tenant, or submit the parent with this one');
  end if;
  return v_workflow;
end
$$;

-- Retries a run whose step runs again, under the same id: what failed in it, or all of it when it had
-- completed or the parent is retried with mode all. Then it has the input of now. False: another session
-- holds something of it.
-- Locks: the run with its tallies, steps and arrivals, nowait; as reset_run. Wakes: waiting workers.
create or replace function hwqueue.retry_nested(p_parent hwqueue.run, p_run uuid, p_input jsonb)
returns boolean
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_mode text;
  v_steps int[];
begin
  begin
    select r.* into v_run from hwqueue.run r where r.run_id = p_run for no key update nowait;
    perform 1 from hwqueue.tally t where t.run_id = p_run for no key update nowait;
    perform 1 from hwqueue.step s where s.run_id = p_run for no key update nowait;
    perform 1 from hwqueue.arrival a where a.run_id = p_run for update nowait;
  exception when lock_not_available then
    return false;
  end;
  v_mode := case when v_run.state = 'completed' then 'all' else p_parent.policy ->> 'retry_mode' end;
  v_steps := hwqueue.retried_steps(v_run, v_mode, '{}');
  perform hwqueue.reset_run(v_run, v_steps, case when v_mode = 'all' then v_steps else '{}' end, v_mode,
    case when v_mode = 'all' then hwqueue.check_payload(p_input, 'input', 1048576) end, hwqueue.clock());
  if p_parent.state = 'paused' then
    perform hwqueue.leave_arrivals(p_run, array[0], 'nested', '{}', hwqueue.clock());
  end if;
  return true;
end
$$;

-- Brings a nested run into the state that its parent asks for: cancels it when the parent stops or its step
-- does not wait for it, pauses it or lets it go on with the parent. What an operator has paused by itself
-- stays so. An added run that has not completed is retried with its step, unless its parent stops: then it
-- counts as it has ended. Returns 1 if it has retried it, else 0.
-- Locks: the run and its arrivals, skip locked; as cancel_run and retry_nested. Idempotent.
create or replace function hwqueue.follow_parent(p_run uuid) returns int
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_parent hwqueue.run;
  v_is_awaited boolean;
begin
  select r.* into v_run from hwqueue.run r where r.run_id = p_run for no key update skip locked;
  if v_run.run_id is null and exists (select from hwqueue.run r where r.run_id = p_run) then
    return 0;  -- the arrival stays
  end if;
  perform hwqueue.take_arrivals(p_run, 0, 'nested');
  select r.* into v_parent from hwqueue.run r  -- after the lock, as in follow_nested
  where r.run_id = v_run.parent_run_id;
  v_is_awaited := hwqueue.is_awaited(v_run);
  if v_run.finished_at is not null then
    if v_is_awaited and v_run.state <> 'completed' and v_run.parent_attempt < v_parent.attempt then
      if v_parent.state in ('failing', 'cancelling') and (not v_parent.is_finishing or v_parent.stops) then
        update hwqueue.run r set parent_attempt = v_parent.attempt where r.run_id = p_run;
        perform hwqueue.leave_arrivals(v_parent.run_id, array[v_run.parent_step_no], 'item', '{}',
          hwqueue.clock());
      elsif hwqueue.retry_nested(v_parent, p_run, null) then
        return 1;
      else
        perform hwqueue.leave_arrivals(p_run, array[0], 'nested', '{}', hwqueue.clock());
      end if;
    end if;
  elsif v_parent.stops or not v_is_awaited then
    if not v_run.stops and not v_run.is_finishing then
      perform hwqueue.cancel_run(v_run, format('run %s, which it is a step of, does not wait for it any more',
        v_run.parent_run_id));
    end if;
  elsif v_run.state = 'running' and v_parent.state = 'paused' and not v_parent.is_finishing then
    perform hwqueue.set_run_state(p_run, 'paused', 'parent_paused');
  elsif v_run.state = 'paused' and v_run.reason = 'parent_paused' and (
    v_parent.state <> 'paused' or v_parent.is_finishing) then
    perform hwqueue.set_run_state(p_run, 'running');
  end if;
  return 0;
end
$$;
