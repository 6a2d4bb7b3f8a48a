-- Nested runs: steps of kind `workflow`, each of which is a run of another workflow.
--
-- A release submits nothing, so that a settlement stays short: it leaves an arrival of kind `nested`. The
-- sweep binds the step's input, submits a run one level below, and writes its id into the step. When that run
-- ends, finish_run ends the step in the same transaction.
--
-- An arrival says no more than "compare the two": follow_nested looks from a step at the run below,
-- follow_parent (step 0) from a run at the one above. What to do is read from their states at that time, so
-- an arrival too many changes nothing.
--
-- Invariant: no session waits for one of the two runs while it holds the other. Rows are locked with skip
-- locked, and the arrival stays until they could be locked. What a submission would refuse fails the step,
-- never the sweep.
--
-- A task may wait for runs, too, that its handler has added (api/children.add_steps). They end by the same
-- arrivals; the step ends when its items and all these have (workflows/ending.advance_map).

-- Does what is due at a step that is a nested run: opens the run or retries it, or ends the step after it.
-- Of a step to which runs were added it retries up to 100 of them, unless its run stops. Returns 1 if it has
-- done something of that, else 0.
-- Locks: the step and its arrivals, skip locked; then as open_nested, retry_nested and end_parent_step.
-- Idempotent. Wakes: waiting workers.
create or replace function hwqueue.follow_nested(p_run uuid, p_step int) returns int
language plpgsql volatile
as $$
declare
  v_step hwqueue.step;
  v_run hwqueue.run;
  v_nested hwqueue.run;
  v_added hwqueue.added;
  v_stops boolean;
  v_tenant text := coalesce(current_setting('hwqueue.tenant', true), '');
  v_opened int;
  v_ended int;
begin
  select s.* into v_step from hwqueue.step s
  where s.run_id = p_run and s.step_no = p_step for no key update skip locked;
  if v_step.run_id is null and exists (
    select from hwqueue.step s where s.run_id = p_run and s.step_no = p_step) then
    return 0;  -- the arrival stays
  end if;
  perform hwqueue.take_arrivals(p_run, p_step, 'nested');
  if v_step.state is distinct from 'running' then
    return 0;
  end if;
  -- statements after the lock: they see what those have written who left the arrivals
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  v_stops := v_run.state in ('failing', 'cancelling') and (not v_run.is_finishing or v_run.stops);
  if exists (
    select from hwqueue.map m
    where m.run_id = p_run and m.step_no = p_step and m.runs > 0) then
    for v_added in
      select a.* from hwqueue.added a
      where a.run_id = p_run and a.step_no = p_step and a.nested_run_id is not null
        and a.retry_mode is not null
      order by a.name limit case when v_stops then 1000 else 100 end
    loop
      v_step.nested_run_id := v_added.nested_run_id;
      v_step.nested_mode := v_added.retry_mode;
      -- another session holds something of it: an arrival is left
      continue when not v_stops and hwqueue.retry_nested(v_run, v_step, null) = 0;
      update hwqueue.added a set retry_mode = null
      where a.run_id = p_run and a.step_no = p_step and a.item_no = v_added.item_no;
    end loop;
    if exists (
      select from hwqueue.added a
      where a.run_id = p_run and a.step_no = p_step and a.nested_run_id is not null
        and a.retry_mode is not null) then
      perform hwqueue.leave_arrivals(p_run, array[p_step], 'nested', '{}', hwqueue.clock());
    end if;
    perform hwqueue.leave_arrivals(p_run, array[p_step], 'item', '{}', hwqueue.clock());
    return 1;
  end if;
  select r.* into v_nested from hwqueue.run r
  where r.run_id = v_step.nested_run_id;
  if v_nested.run_id is not null and v_step.nested_mode is null then
    return case when v_nested.finished_at is null then 0
      else hwqueue.end_parent_step(v_nested, hwqueue.clock())::int end;
  elsif v_stops then  -- with all others that were not opened yet: 5,000 at most, so that it is among them
    v_ended := hwqueue.drop_idle(v_run, 5000);
    perform hwqueue.count_work(p_run, 0, v_ended, 0, hwqueue.clock());
    return v_ended;
  end if;
  -- any worker sweeps, also one limited to a tenant; what is submitted here is its parent's, not the worker's
  perform set_config('hwqueue.tenant', '', true) where v_tenant <> '';
  v_opened := hwqueue.open_nested(v_run, v_step, v_nested);
  perform set_config('hwqueue.tenant', v_tenant, true) where v_tenant <> '';
  return v_opened;
end
$$;

-- Opens the nested run of a step, or retries the one that there is. A step whose run would be refused fails,
-- with the refusal in its row. It is of the newest version, unless the step names one. A run that a former
-- attempt of the step has left open is cancelled. Returns 1, or 0 when another session holds something of the
-- nested run.
-- Locks: the caller holds the step; new rows; as retry_nested. Wakes: waiting workers.
create or replace function hwqueue.open_nested(p_run hwqueue.run, p_step hwqueue.step, p_nested hwqueue.run)
returns int
language plpgsql volatile
as $$
declare
  v_defined hwqueue.workflow_step;
  v_results jsonb;
  v_bound record;
  v_verdict hwqueue.step_verdict;
  v_now timestamptz;
  v_workflow hwqueue.workflow;
  v_nested hwqueue.run;
begin
  v_verdict.state := 'failed';
  select d.* into v_defined from hwqueue.workflow_step d
  where d.workflow_id = p_run.workflow_id and d.step_no = p_step.step_no;
  v_results := hwqueue.results_of(p_run, coalesce(v_defined.reads, '{}'));
  v_bound := hwqueue.bind_value(coalesce(v_defined.settings -> 'input', '{}'), p_run, v_results);
  perform hwqueue.note_bound(coalesce(pg_column_size(v_results), 134217728)
    + coalesce(pg_column_size(v_bound.value), 0));
  if p_run.depth >= 8 then
    v_verdict.reason := 'nested_too_deep';
    v_verdict.error := jsonb_build_object('workflow', v_defined.settings -> 'workflow', 'limit', 8);
  elsif p_nested.run_id is null and exists (  -- a workflow that names itself in ten steps has 10^8 at depth 8
    select from hwqueue.run r where r.root_run_id = p_run.root_run_id and r.parent_run_id is not null
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
      if p_nested.finished_at is not null then
        return hwqueue.retry_nested(p_run, p_step, v_bound.value);
      end if;
      v_now := hwqueue.clock();
      v_workflow := hwqueue.nested_workflow(v_defined.settings, p_run.tenant);
      v_nested := hwqueue.read_nested_run(hwqueue.updated_run(p_run, p_step.own -> 'update'), v_workflow,
        v_bound.value, p_step.step_no, v_now);
      if p_step.nested_run_id is not null then
        perform hwqueue.leave_arrivals(p_step.nested_run_id, array[0], 'nested', '{}', v_now);
      end if;
      update hwqueue.step s set nested_run_id = v_nested.run_id, nested_mode = null
      where s.run_id = p_run.run_id and s.step_no = p_step.step_no;
      perform hwqueue.begin_run(v_workflow, v_nested, '{}', v_now);
      return 1;
    exception when sqlstate 'QH000' then  -- the class QH: what the API refuses
      v_verdict.reason := 'nested_refused';
      v_verdict.error := jsonb_build_object('workflow', v_defined.settings -> 'workflow', 'code', sqlstate,
        'message', sqlerrm);
    end;
  end if;
  update hwqueue.step s set nested_mode = null where s.run_id = p_run.run_id and s.step_no = p_step.step_no;
  return hwqueue.end_step(p_run.run_id, p_step.step_no, v_verdict, true, hwqueue.clock())::int;
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

-- Retries the nested run of a step that runs again, under the same id: what failed in it, or all of it when
-- it had completed or the parent is retried with mode all. Then it has the input of now. Returns 1, or 0
-- when another session holds something of it: an arrival is left.
-- Locks: the caller holds the step; the run with its tallies, steps and arrivals, nowait; as reset_run.
-- Wakes: waiting workers.
create or replace function hwqueue.retry_nested(p_run hwqueue.run, p_step hwqueue.step, p_input jsonb)
returns int
language plpgsql volatile
as $$
declare
  v_nested hwqueue.run;
  v_mode text;
  v_steps int[];
begin
  begin
    select r.* into v_nested from hwqueue.run r
    where r.run_id = p_step.nested_run_id for no key update nowait;
    perform 1 from hwqueue.tally t where t.run_id = v_nested.run_id for no key update nowait;
    perform 1 from hwqueue.step s where s.run_id = v_nested.run_id for no key update nowait;
    perform 1 from hwqueue.arrival a where a.run_id = v_nested.run_id for update nowait;
  exception when lock_not_available then
    perform hwqueue.leave_arrivals(p_run.run_id, array[p_step.step_no], 'nested', '{}', hwqueue.clock());
    return 0;
  end;
  v_mode := case when v_nested.state = 'completed' then 'all' else p_step.nested_mode end;
  update hwqueue.step s set nested_mode = null where s.run_id = p_run.run_id and s.step_no = p_step.step_no;
  v_steps := hwqueue.retried_steps(v_nested, v_mode, '{}');
  perform hwqueue.reset_run(v_nested, v_steps, case when v_mode = 'all' then v_steps else '{}' end, v_mode,
    case when v_mode = 'all' then hwqueue.check_payload(p_input, 'input', 1048576) end, hwqueue.clock());
  if p_run.state = 'paused' then
    perform hwqueue.leave_arrivals(v_nested.run_id, array[0], 'nested', '{}', hwqueue.clock());
  end if;
  return 1;
end
$$;

-- Brings a nested run into the state that its parent asks for: cancels it when the parent stops or its step
-- has ended otherwise, pauses it or lets it go on with the parent. What an operator has paused by itself
-- stays so. Returns 0: it releases no step.
-- Locks: the run and its arrivals, skip locked; as cancel_run. Idempotent.
create or replace function hwqueue.follow_parent(p_run uuid) returns int
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_parent hwqueue.run;
  v_stops boolean;
begin
  select r.* into v_run from hwqueue.run r where r.run_id = p_run for no key update skip locked;
  if v_run.run_id is null and exists (select from hwqueue.run r where r.run_id = p_run) then
    return 0;  -- the arrival stays
  end if;
  perform hwqueue.take_arrivals(p_run, 0, 'nested');
  if v_run.finished_at is not null or v_run.run_id is null then
    return 0;
  end if;
  select r.* into v_parent from hwqueue.run r  -- after the lock, as in follow_nested
  where r.run_id = v_run.parent_run_id;
  v_stops := v_parent.stops or not exists (
    select from hwqueue.awaited_runs(v_run.parent_run_id) w where w.nested_run_id = p_run);
  if v_stops then
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

-- The nested runs that steps of a run wait for: those that these are, and those that were added to them.
create or replace function hwqueue.awaited_runs(p_run uuid) returns table (nested_run_id uuid)
language sql volatile
as $$
  select s.nested_run_id from hwqueue.step s
  where s.run_id = p_run and s.state = 'running' and s.nested_run_id is not null
  union all
  select a.nested_run_id
  from hwqueue.added a
  cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
    select x.state from hwqueue.step x
    where x.run_id = p_run and x.step_no = a.step_no offset 0) s
  where a.run_id = p_run and a.nested_run_id is not null and s.state = 'running'
$$;
