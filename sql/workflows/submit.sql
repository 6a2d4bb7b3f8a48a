-- Submitting runs: options, placements, classes, rows.
--
-- Example: a run of 1,000 steps that ask two placements looks for two classes, writes 1,000 rows of `step`,
-- and spawns the leases of its first steps.
--
-- Invariant: all or nothing, and what can be refused is refused now: a placement that contradicts itself, a
-- queue that does not exist. Submitting waits for nobody but another submission with the same key.

-- Returns a run as its definition and the options of its submission say, without writing it. To a caller that
-- is limited to a tenant and names none, the workflow of another tenant is missing.
-- Raises: QHF01, QHA03, QHF02, QHC03, QHC04, QHW01, QHA01, naming the field.
create or replace function hwqueue.read_run(p_workflow hwqueue.workflow, p_input jsonb, p_options jsonb,
  p_now timestamptz) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_run hwqueue.run;
  v_settings jsonb := p_workflow.settings;
  v_asked jsonb := v_settings - array['name', 'queue', 'labels', 'tenant', 'priority', 'deadline',
    'on_failure', 'retain', 'result', 'pin_version'];
  v_read jsonb := hwqueue.read_object(p_options, 'submit', 'options', p_now => p_now);
  v_mode text := coalesce(v_read ->> 'affinity', 'and');
  v_level jsonb;
  v_version text;
begin
  if p_workflow.version is null and p_options ? 'version' then
    perform hwqueue.refuse('QHA01', 'options.version is for named workflows', '{"field": "options.version"}',
      'leave it out, or call submit_workflow');
  end if;
  v_run := jsonb_populate_record(null::hwqueue.run, v_read);  -- what has its name
  v_run.run_id := coalesce(v_run.run_id, hwqueue.new_id());
  v_run.root_run_id := v_run.run_id;
  v_run.workflow_id := p_workflow.workflow_id;
  v_run.name := p_workflow.name;
  v_run.tenant := coalesce(v_run.tenant, v_settings ->> 'tenant', hwqueue.with_tenant(null) ->> 'tenant', '');
  -- before its keys and its placement: both would tell about the other tenant
  if v_run.tenant <> all (hwqueue.my_tenants()) then
    if p_workflow.version is not null and v_settings ? 'tenant'
       and nullif(p_options -> 'tenant', 'null') is null then
      perform hwqueue.refuse_workflow(p_workflow.name, (p_options ->> 'version')::int);
    end if;
    perform hwqueue.refuse_foreign(format('options.tenant is %s', to_json(v_run.tenant)), 'options.tenant',
      'name the tenant that the caller is for');
  end if;
  v_run.input := hwqueue.check_payload(coalesce(p_input, '{}'), 'input', 1048576);
  if coalesce(p_options #>> '{unique,while}', 'open') <> 'open' then
    perform hwqueue.refuse('QHA01', 'options.unique.while is not "open"',
      '{"field": "options.unique.while"}', 'the key of a run is held until the run ends: leave while out');
  end if;
  v_version := coalesce(v_read ->> 'app_version',
    case when jsonb_typeof(v_settings -> 'pin_version') = 'string' then v_settings ->> 'pin_version' end);
  if v_version is null and v_settings ? 'pin_version' then
    perform hwqueue.refuse('QHA01', format('runs of workflow %s are pinned to a version of the code, and '
        'options names none', to_json(p_workflow.name)),
      '{"field": "options.app_version"}',
      'for example {"app_version": "2.4.1"}: for workers that run with --app-version 2.4.1');
  end if;
  v_run.policy := hwqueue.present('on_failure', v_settings -> 'on_failure')
    || hwqueue.present('retain', v_settings -> 'retain')
    || hwqueue.present('result', v_settings -> 'result')
    || case when nullif(p_options -> 'unique', 'null') is null then '{}'
      else hwqueue.present('unique', to_jsonb(hwqueue.unique_key(p_options))) end
    || hwqueue.present('app_version', to_jsonb(v_version));
  if p_options ?| array['available_at', 'delay'] then
    v_run.policy := v_run.policy || hwqueue.present('available_at', to_jsonb(nullif(
      greatest(hwqueue.spawn_time(p_options, p_now), p_now), p_now)));
  end if;
  v_run.headers := coalesce(hwqueue.check_payload(v_run.headers, 'options.headers', 8192), '{}');
  v_run.labels := coalesce(v_settings -> 'labels', '{}') || coalesce(v_run.labels, '{}');
  v_run.priority := coalesce(v_run.priority, (v_settings ->> 'priority')::smallint);
  v_run.deadline := coalesce(v_run.deadline,
    p_now + make_interval(secs => (v_settings ->> 'deadline')::float8));
  begin
    v_level := hwqueue.read_level(p_options, 'options', v_mode <> 'and');
    v_run.level := hwqueue.merge_levels(v_asked, v_level, v_mode, 'options');
  exception when sqlstate 'QHC04' then
    perform hwqueue.refuse('QHC04', format('the submission contradicts workflow %s: %s',
        to_json(p_workflow.name), sqlerrm),
      jsonb_build_object('field', 'options', 'level', '["workflow", "submission"]'::jsonb,
        'left', v_asked, 'right', p_options - array(select k from jsonb_object_keys(p_options) k
          where k not in ('affinity_tags', 'placement', 'wire'))),
      'submit with affinity "override" or "replace", or drop one of them');
  end;
  if jsonb_path_exists(p_workflow.steps,
    'strict $[*] ? (@.kind == "workflow" || @.affinity == "replace")', '{}', true) then
    -- these have no class with it, so step_class does not look
    perform hwqueue.check_own_level(v_run.tenant,  -- of a specification also its own placement
      case when p_workflow.version is null then v_run.level else v_level end, 'options');
  end if;
  v_run.state := 'running';
  v_run.submitted_at := p_now;
  v_run.attempt := 1;
  v_run.stops := false;
  v_run.is_finishing := false;
  v_run.depth := 0;
  return v_run;
end
$$;

-- Refuses a level of a caller that is limited to a tenant, if it asks about what is another tenant's. The
-- sweep, which submits nested runs, is limited to none.
-- Raises: QHA03.
create or replace function hwqueue.check_own_level(p_tenant text, p_level jsonb, p_field text) returns void
language plpgsql stable
as $$
declare
  v_content hwqueue.class_content;
begin
  if hwqueue.my_tenants() is not null and p_level ? 'placement' then
    v_content.tenant := p_tenant;
    v_content.labels := '{}';
    v_content.placement := p_level -> 'placement';
    perform hwqueue.check_own_class(hwqueue.draft_class(v_content, '{}'), p_field, null);
  end if;
end
$$;

-- Writes a run with its steps, and releases the first ones. Returns the run that has its key, with its state:
-- this one, or an earlier one. Headers are no content: they say who submitted (a trace), not what.
-- Locks: its idempotency key or unique key, and its run_id if the caller chose one; new rows; the run that it
-- replaces. Raises: QHT01, QHT02, QHT03, QHQ01, QHF06, QHA01, QHA02, QHC03, QHC04, QHW01, QHA03, QHF07.
-- Idempotent: with an idempotency key. Wakes: waiting workers.
create or replace function hwqueue.write_run(p_workflow hwqueue.workflow, p_input jsonb, p_options jsonb,
  p_now timestamptz, out run_id uuid, out created boolean, out state text)
language plpgsql volatile
as $$
declare
  v_run hwqueue.run := hwqueue.read_run(p_workflow, p_input, p_options, p_now);
begin
  run_id := case
    when v_run.policy ? 'unique' then hwqueue.take_run_key(v_run, v_run.policy ->> 'unique', null,
      p_options #>> '{unique,on_conflict}')
    when p_options ->> 'idempotency_key' is null then v_run.run_id
    else hwqueue.take_run_key(v_run, p_options ->> 'idempotency_key', sha256(p_workflow.digest || convert_to(
      jsonb_build_array(v_run.input, p_options - array['idempotency_key', 'run_id', 'headers'])::text,
      'UTF8')), null) end;
  created := run_id = v_run.run_id;
  if created then
    perform hwqueue.begin_run(p_workflow, v_run, coalesce(nullif(p_options -> 'steps', 'null'), '{}'), p_now);
  end if;
  state := (select r.state from hwqueue.run r where r.run_id = write_run.run_id);
end
$$;

-- Refuses steps and nested runs that are too many for a tenant, else counts them until upkeep counts again.
-- Its open runs may have 200,000 steps, 20,000 be nested; '', runs without a tenant, ten times as many.
-- Locks: a row of tenant_work, skip locked. Raises: QHT03.
create or replace function hwqueue.admit_work(p_tenant text, p_steps int, p_nested int) returns void
language plpgsql volatile
as $$
declare
  v_work hwqueue.tenant_work;
  v_times int := case when p_tenant = '' then 10 else 1 end;
begin
  select w.* into v_work from hwqueue.tenant_work w where w.tenant = p_tenant;
  if found then
    if v_work.steps + p_steps > 200000 * v_times then
      perform hwqueue.refuse_more('steps in open runs', v_work.steps, 200000 * v_times, p_tenant,
        'submit more when some runs have ended, or cancel runs: hwqueue workflow cancel');
    elsif p_nested * v_work.nested >= 20000 * v_times then
      perform hwqueue.refuse_more('open nested runs', v_work.nested, 20000 * v_times, p_tenant,
        'start more when some have ended, or put their steps into one workflow');
    end if;
    update hwqueue.tenant_work w set steps = w.steps + p_steps, nested = w.nested + p_nested
    where w.tenant = (
      select x.tenant from hwqueue.tenant_work x where x.tenant = p_tenant for no key update skip locked);
  end if;
end
$$;

-- Writes a run as read_run returned it with its steps, those that spawn leases with their class and the id of
-- the lease, and releases the first ones. p_own: what the submission says about single steps, {name:
-- {"affinity_tags", "placement", "options"}}.
-- Locks: a row of tenant_work, skip locked; its run_id; new rows. Raises: QHA01, QHF06, QHQ01, QHC04, QHA03,
-- QHT03. Wakes: waiting workers.
create or replace function hwqueue.begin_run(p_workflow hwqueue.workflow, p_run hwqueue.run, p_own jsonb,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_ids uuid[] := hwqueue.new_ids(jsonb_array_length(p_workflow.steps));
  v_steps jsonb[] := array(select jsonb_array_elements(p_workflow.steps));
  v_classes bigint[] := '{}';  -- by the numbers of steps
  v_queues int[] := '{}';
  v_item record;
  v_class record;
begin
  perform hwqueue.admit_work(p_run.tenant, jsonb_array_length(p_workflow.steps),
    (p_run.parent_run_id is not null)::int);
  begin
    insert into hwqueue.run select p_run.*;
  exception when unique_violation then
    perform hwqueue.refuse('QHA01', format('run %s exists already', p_run.run_id),
      jsonb_build_object('field', 'options.run_id', 'run_id', p_run.run_id),
      'use a fresh id, or idempotency_key to submit once');
  end;
  perform hwqueue.check_own_steps(p_workflow, p_own);
  for v_item in
    select array_agg(d.step_no order by d.step_no) as steps, coalesce(p_own -> d.name, '{}') as own
    from hwqueue.workflow_step d
    where d.workflow_id = p_workflow.workflow_id and d.class_no is not null
    group by d.class_no, p_own -> d.name order by min(d.step_no)
  loop
    v_class := hwqueue.step_class(p_workflow.settings, p_run, v_steps[v_item.steps[1]], v_item.own,
      false);
    for v_no in 1 .. cardinality(v_item.steps) loop
      v_classes[v_item.steps[v_no]] := (v_class.class).class_id;
      v_queues[v_item.steps[v_no]] := ((v_class.target).queue).queue_id;
    end loop;
  end loop;
  perform hwqueue.admit_tenant(p_run.tenant, (select max(c) from unnest(v_classes) c), p_now)
  where p_run.parent_run_id is null;
  insert into hwqueue.step (run_id, step_no, state, lease_id, class_id, queue_id, own)
  select p_run.run_id, d.step_no, 'waiting', case when d.kind = 'task' then v_ids[d.step_no] end,
    v_classes[d.step_no], v_queues[d.step_no], case when p_own ? d.name then nullif(
      coalesce(nullif(p_own #> array[d.name, 'options'], 'null'), '{}') || hwqueue.present('level',
        nullif(hwqueue.read_level(p_own -> d.name, 'options', true), '{}')), '{}') end
  from hwqueue.workflow_step d
  where d.workflow_id = p_workflow.workflow_id;
  insert into hwqueue.run_class (class_id, run_id)
  select distinct s.class_id, p_run.run_id from hwqueue.step s
  where s.run_id = p_run.run_id and s.class_id is not null;
  insert into hwqueue.tally (run_id, step_no, need)
  select p_run.run_id, d.step_no, d.parent_count
  from hwqueue.workflow_step d
  where d.workflow_id = p_workflow.workflow_id and d.parent_count > 1
  union all
  select p_run.run_id, 0, 0;
  perform hwqueue.advance_run(p_run, hwqueue.new_progress(p_most => 5000, p_released => array(
    select d.step_no from hwqueue.workflow_step d
    where d.workflow_id = p_workflow.workflow_id and d.parent_count = 0
      and d.runs_at_end is null order by d.step_no)), 0, true, p_now);
end
$$;

-- Takes a key for a run, and returns the run that has it: this one, or an earlier one. p_content: of an
-- idempotency key, the content for which it stands as long as its run is kept; null: the key is unique, and
-- held until the run ends. Then p_on_conflict says which run goes on: keep (the default) the one that has it;
-- with replace that one is cancelled.
-- Locks: the key; the run that is replaced, as cancel_run. Raises: QHT01, QHT02; QHA02 with replace.
create or replace function hwqueue.take_run_key(p_run hwqueue.run, p_key text, p_content bytea,
  p_on_conflict text) returns uuid
language plpgsql volatile
as $$
declare
  v_found hwqueue.run_key;
  v_other hwqueue.run;
begin
  loop
    insert into hwqueue.run_key (tenant, name, idempotency_key, run_id, content, while_running)
    values (p_run.tenant, p_run.name, p_key, p_run.run_id, coalesce(p_content, ''),
      case when p_content is null then true end)
    on conflict do nothing;
    if found then
      return p_run.run_id;
    end if;
    select k.* into v_found from hwqueue.run_key k
    where k.tenant = p_run.tenant and k.name = p_run.name and k.idempotency_key = p_key;
    continue when not found;  -- its run has ended, or was pruned since: again
    if p_content is not null and v_found.content <> p_content then
      perform hwqueue.refuse('QHT01', format('idempotency key %s belongs to run %s, which has other content',
          to_json(p_key), v_found.run_id),
        jsonb_build_object('field', 'options.idempotency_key', 'idempotency_key', p_key,
          'run_id', v_found.run_id),
        'a key stands for one definition, input and options: use another key for other content');
    elsif p_content is null and (v_found.while_running is null or p_on_conflict = 'raise') then
      perform hwqueue.refuse('QHT02', format('unique key %s belongs to run %s', to_json(p_key),
          v_found.run_id),
        jsonb_build_object('field', 'options.unique.key', 'key', p_key, 'run_id', v_found.run_id),
        'wait until that run has ended, or submit with on_conflict "keep" or "replace"');
    elsif p_on_conflict is distinct from 'replace' then
      return v_found.run_id;
    end if;
    perform hwqueue.require_read_committed();
    select r.* into v_other from hwqueue.run r where r.run_id = v_found.run_id for no key update;
    update hwqueue.run_key k set run_id = p_run.run_id
    where k.tenant = p_run.tenant and k.name = p_run.name
      and k.idempotency_key = p_key and k.run_id = v_other.run_id;
    continue when not found;  -- it has ended, or another session has replaced it
    perform hwqueue.cancel_run(v_other, 'replaced by run ' || p_run.run_id);
    return p_run.run_id;
  end loop;
end
$$;

-- Checks what a submission says about single steps.
-- Raises: QHF06, QHF02, QHA01.
create or replace function hwqueue.check_own_steps(p_workflow hwqueue.workflow, p_own jsonb)
returns void
language plpgsql stable
as $$
declare
  v_kinds jsonb := case when p_own <> '{}' then (
    select jsonb_object_agg(e.value ->> 'name', coalesce(e.value ->> 'kind', 'task'))
    from jsonb_array_elements(p_workflow.steps) e) end;
  v_item record;
begin
  for v_item in
    select o.key, o.value from jsonb_each(hwqueue.json_object(p_own, 'options.steps')) o
  loop
    if not v_kinds ? v_item.key then
      perform hwqueue.refuse_step(v_item.key, p_workflow, 'options.steps');
    elsif v_kinds ->> v_item.key not in ('task', 'map', 'gang') then
      perform hwqueue.refuse('QHA01', format('options.steps.%s: a step of kind %s has no lease', v_item.key,
          v_kinds ->> v_item.key),
        jsonb_build_object('field', 'options.steps.' || v_item.key, 'step', v_item.key),
        'leave it out: only steps that spawn leases have options and a placement');
    end if;
    perform hwqueue.check_object(v_item.value, array['affinity_tags', 'placement', 'wire', 'options'],
        'options.steps.' || v_item.key),
      hwqueue.read_step_options(v_item.value -> 'options', v_kinds ->> v_item.key,
        format('options.steps.%s.options', v_item.key));
  end loop;
end
$$;

-- Refuses the name of a step that a workflow does not have.
-- Raises: QHF06, always.
create or replace function hwqueue.refuse_step(p_name text, p_workflow hwqueue.workflow, p_field text)
returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.refuse('QHF06', format('workflow %s has no step %s', to_json(p_workflow.name),
      coalesce(to_json(left(p_name, 100))::text, 'null')),
    jsonb_build_object('field', p_field, 'step', left(p_name, 100), 'workflow', p_workflow.name),
    'its steps are: ' || left((select string_agg(s.value ->> 'name', ', ' order by s.ordinality)
      from jsonb_array_elements(p_workflow.steps) with ordinality s), 200));
end $$;

-- Returns the queue of a step's lease, the defaults of its task, and its class: a new one is written, or with
-- p_is_dry a draft. Of a nested run, which has none, an update is checked as far as it can be by now.
-- Locks: a new class. Raises: as step_content.
create or replace function hwqueue.step_class(p_settings jsonb, p_run hwqueue.run, p_step jsonb,
  p_own jsonb, p_is_dry boolean, out target hwqueue.spawn_target, out class hwqueue.placement_class)
language plpgsql volatile
as $$
declare
  v_queue text := coalesce(p_step ->> 'queue', p_settings ->> 'queue', 'default');
  v_content hwqueue.class_content;
  v_field text := case when p_own ? 'update' then 'changes' else 'options' end;
begin
  if not p_step ? 'task' then
    if p_own ? 'update' then
      perform hwqueue.check_own_level(p_run.tenant, p_own #> '{update,level}', v_field),
        hwqueue.updated_placement(p_settings, p_run, p_step, p_run.level, p_own -> 'update');
    end if;
    return;
  elsif p_is_dry then
    target.queue := hwqueue.find_queue(v_queue);
    target.defaults := (select t.defaults from hwqueue.task t where t.name = p_step ->> 'task');
  else
    target := hwqueue.find_spawn_queue(v_queue, p_step ->> 'task');
  end if;
  v_content := hwqueue.step_content(p_settings, p_run, p_step, p_own, target);
  class.class_id := case when not p_is_dry then hwqueue.find_class(v_content) end;
  if p_is_dry or hwqueue.my_tenants() is not null then
    class.digest := hwqueue.class_digest(v_content);
    select c.* into class from hwqueue.placement_class c
    where c.digest = class.digest and c.retired_at is null order by c.class_id limit 1;
    if not found then
      class := hwqueue.draft_class(v_content, hwqueue.service_away_from(v_content.service_id));
    end if;
    perform hwqueue.check_own_class(class, v_field, null);
  end if;
end
$$;

-- Returns the content of the class that a step's lease has. The placements of the run and the step are
-- merged as the step's affinity says; defaults of its task are the step's own. The version that a run is
-- pinned to holds for each of its steps. p_own: what the submission says about the step, and its update.
-- Raises: QHC04 naming both sides, QHC03, QHQ01, QHA03.
create or replace function hwqueue.step_content(p_settings jsonb, p_run hwqueue.run, p_step jsonb,
  p_own jsonb, p_target hwqueue.spawn_target) returns hwqueue.class_content
language plpgsql stable
as $$
declare
  v_field text := 'steps.' || (p_step ->> 'name');
  v_mode text := coalesce(p_step ->> 'affinity', 'and');
  v_defined jsonb;
  v_step jsonb;
  v_asked jsonb;
  v_options jsonb := coalesce(p_target.defaults, '{}') || coalesce(p_step -> 'options', '{}')
    || hwqueue.without_nulls(coalesce(nullif(p_own -> 'options', 'null'), '{}'));
  v_placement jsonb;
begin
  begin
    v_defined := hwqueue.read_level(coalesce(p_target.defaults, '{}') || (p_step - 'wire'), v_field,
      v_mode <> 'and');
    v_step := hwqueue.merge_levels(v_defined,
      hwqueue.read_level(p_own, v_field, v_mode <> 'and'), 'and', v_field);
    v_asked := hwqueue.merge_levels(p_run.level, v_step, v_mode, v_field);
    v_placement := case when not p_own ? 'update' then hwqueue.level_placement(v_asked, v_field) end;
    if p_run.policy ? 'app_version' and not p_own ? 'update' then
      v_placement := hwqueue.check_cost(
        hwqueue.merge_placements(v_placement, hwqueue.version_placement(p_run), v_field), v_field);
    end if;
  exception when sqlstate 'QHC04' then
    perform hwqueue.refuse('QHC04', format('step %s asks %s, its run asks %s: %s',
        to_json(p_step ->> 'name'), coalesce(v_step, p_step), p_run.level, sqlerrm),
      jsonb_build_object('step', p_step ->> 'name', 'field', v_field,
        'level', case when v_step is null then '["step", "submission"]' else jsonb_build_array(
          case when hwqueue.contradicts(hwqueue.shared_level(p_settings, p_run.level), v_step,
            v_mode) then 'workflow' when p_run.parent_run_id is not null then 'parent' else 'submission' end,
          case when hwqueue.contradicts(p_run.level, v_defined, v_mode) then 'step'
            else 'submission' end) end,
        'left', p_run.level, 'right', coalesce(v_step, p_step)),
      'use affinity "override" or "replace" on the step, or drop one of them');
  end;
  if p_own ? 'update' then
    v_placement := hwqueue.updated_placement(p_settings, p_run, p_step, v_asked, p_own -> 'update');
  end if;
  return row((p_target.queue).queue_id, p_step ->> 'task', p_run.tenant,
    hwqueue.json_uuid(v_options -> 'service_id', v_field || '.options.service_id'),
    p_run.labels || hwqueue.check_labels(v_options -> 'labels', v_field || '.options.labels'),
    v_placement, hwqueue.json_interval(v_options -> 'patience', v_field || '.options.patience'),
    null, hwqueue.json_interval(v_options -> 'max_run', v_field || '.options.max_run', '1 second',
      '366 days'), false)::hwqueue.class_content;
end
$$;

-- Returns the placement of a step with an update. p_asked: what it asks without: the version of the code that
-- its run is pinned to is not in it.
-- Raises: QHC03, QHC04 naming both sides.
create or replace function hwqueue.updated_placement(p_settings jsonb, p_run hwqueue.run, p_step jsonb,
  p_asked jsonb, p_update jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_version jsonb := hwqueue.version_placement(p_run, p_update);
  v_mode text := coalesce(p_update ->> 'affinity', 'and');
  v_level jsonb;
  v_side text;
begin
  v_level := hwqueue.merge_levels(p_asked, coalesce(p_update -> 'level', '{}'), v_mode, 'changes');
  return hwqueue.check_cost(hwqueue.merge_placements(hwqueue.level_placement(v_level, 'changes'), v_version,
    'changes'), 'changes');
exception when sqlstate 'QHC04' then
  v_side := case
    when v_level is not null then case when p_update ? 'app_version' then 'step' else 'version' end
    when hwqueue.contradicts(hwqueue.shared_level(p_settings, p_run.level), p_update -> 'level',
      v_mode) then 'workflow'
    when not hwqueue.contradicts(p_run.level, p_update -> 'level', v_mode) then 'step'
    when p_run.parent_run_id is not null then 'parent' else 'submission' end;
  perform hwqueue.refuse('QHC04', format('step %s asks %s, the update asks %s: %s', p_step -> 'name',
      p_asked || v_version, p_update, sqlerrm),
    jsonb_build_object('step', p_step -> 'name', 'field', 'changes',
      'level', jsonb_build_array(v_side, 'update'), 'left', p_asked || v_version, 'right', p_update),
    case when v_side = 'version' then 'name another version of the code as app_version, or none: null'
      else 'use affinity "override" or "replace", or drop one of them' end);
end
$$;

-- Whether two levels cannot both hold, as merge_levels has it.
create or replace function hwqueue.contradicts(p_outer jsonb, p_inner jsonb, p_mode text) returns boolean
language plpgsql stable
as $$
begin
  perform hwqueue.level_placement(hwqueue.merge_levels(p_outer, p_inner, p_mode, 'level'), 'level');
  return false;
exception when sqlstate 'QHC04' then
  return true;
end
$$;

-- Returns what a definition asks of all nodes and its run still asks: a submission may have replaced it.
create or replace function hwqueue.shared_level(p_settings jsonb, p_level jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return
  hwqueue.present('affinity_tags', (
      select jsonb_object_agg(t.key, t.value) from jsonb_each(p_settings -> 'affinity_tags') t
      where p_level #> array['affinity_tags', t.key] = t.value))
    || case when p_level -> 'placement' @> (p_settings -> 'placement')
      then jsonb_build_object('placement', p_settings -> 'placement') else '{}' end;
end $$;

-- Counts the steps of open runs, ended ones among them, and nested runs of each tenant again, as admit_work
-- adds them. It reads no step. Tenants with less than a thousand have no row. Nobody waits for it: a count is
-- off by what begin_run admitted since, in several sessions at once.
-- Locks: rows of tenant_work, skip locked.
create or replace function hwqueue.count_tenant_work() returns void
language plpgsql volatile
as $$
declare
  v_free text[] := array(select w.tenant from hwqueue.tenant_work w for update skip locked);
begin
  with open as materialized (
    select d.tenant, sum(d.runs * l.steps) as steps, sum(d.nested) as nested
    from (
      select r.tenant, r.workflow_id, count(*) as runs, count(r.parent_run_id) as nested
      from hwqueue.run r where r.finished_at is null
      group by r.tenant, r.workflow_id) d
    cross join lateral (select max(x.step_no) as steps from hwqueue.workflow_step x
                        where x.workflow_id = d.workflow_id) l  -- numbered from 1
    group by d.tenant having sum(d.runs * l.steps) >= 1000  -- of nested runs there are no more
  ), gone as (
    delete from hwqueue.tenant_work w
    where w.tenant = any (v_free) and w.tenant not in (select o.tenant from open o)
  )
  insert into hwqueue.tenant_work as w (tenant, steps, nested)
  select o.tenant, o.steps, o.nested from open o
  where o.tenant = any (v_free) or o.tenant not in (select x.tenant from hwqueue.tenant_work x)
  on conflict (tenant) do update set steps = excluded.steps, nested = excluded.nested;
end
$$;
