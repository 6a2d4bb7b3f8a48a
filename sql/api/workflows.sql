-- Public: defining workflows, and submitting runs of them.
--
-- Operators define, producers submit. An example: define_workflow writes version 3 of "training", with
-- the steps prepare, train and publish. submit_workflow writes a run of it in the caller's own transaction
-- and spawns the lease of prepare. The settlement of prepare spawns that of train.

-- Defines a workflow. A specification that means the same as the newest version changes nothing; another
-- one is the next version, for new runs: runs that exist keep theirs.
--
-- p_spec: {"name", "queue", "steps", "affinity_tags", "placement", "labels", "tenant", "priority",
-- "deadline", "on_failure": finish_running|fail_fast|continue, "retain": {"completed", "failed"}, "result",
-- "pin_version": true or a version of the code}. A step: {"name", "kind": task|map|gang|sleep|wait|workflow,
-- "after", "join": all|any, "run_if", "on_failure": fail|continue|ignore, "finally":
-- completed|failed|cancelled|ended}; a task has {"task", "queue", "params", "options", "affinity":
-- and|override|replace, "affinity_tags", "placement", "near": {"step", "what", "mode": prefer|require,
-- "away", "gone": wait|anywhere|fail, "weight", "match": item}}, a map these and {"over", "max_parallel",
-- "tolerate"}, a gang these and {"size", "min_size", "together", "same", "on_lost", "hold"}, a sleep {"for"
-- or "until"}, a nested run of another workflow {"workflow", "version", "input"}.
-- docs/explanation/workflows.md explains them.
--
-- Raises: QHF02, QHF07, QHC03, QHC04, QHW01, QHA01, QHA03. Idempotent.
create or replace function hwqueue.define_workflow(p_spec jsonb)
returns table (workflow text, version int, created boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_spec jsonb;
  v_newest hwqueue.workflow;
begin
  perform hwqueue.require_all_tenants();
  v_spec := hwqueue.read_workflow(p_spec);
  workflow := v_spec ->> 'name';
  loop
    select w.* into v_newest from hwqueue.workflow w
    where w.name = v_spec ->> 'name' and w.version is not null
    order by w.version desc limit 1;
    created := v_newest.digest is distinct from sha256(convert_to(v_spec::text, 'UTF8'));
    version := coalesce(v_newest.version, 0) + created::int;
    exit when not created;
    begin
      perform hwqueue.write_workflow(v_spec, version, hwqueue.clock()),
        hwqueue.note_event('workflow_defined', format('workflow %s has version %s', workflow, version),
        jsonb_build_object('workflow', workflow, 'version', version));
      exit;
    exception when unique_violation then
      null;  -- another session has just defined that version: compare with it
    end;
  end loop;
  return next;
end
$$;

-- Returns a definition: this version, or the newest. spec is in normal form, its steps in topological order.
-- Raises: QHF01, QHA01, QHA03.
create or replace function hwqueue.get_workflow(p_workflow text, p_version int default null)
returns table (workflow text, version int, spec jsonb, step_count int, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  return query
    select w.name, w.version, w.settings || jsonb_build_object('steps', w.steps),
      jsonb_array_length(w.steps), w.created_at
    from hwqueue.find_workflow(p_workflow, hwqueue.present('version', to_jsonb(p_version))) w;
end
$$;

-- Lists workflows by name, each with its newest version. Pass the last name of a page as p_after of the
-- next. p_limit: from 1 to 10,000.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_workflows(p_after text default null, p_limit int default 100)
returns table (workflow text, version int, step_count int, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after');
  return query
    select distinct on (w.name) w.name, w.version, jsonb_array_length(w.steps), w.created_at
    from hwqueue.workflow w
    where w.version is not null and (p_after is null or w.name > p_after)
    order by w.name, w.version desc limit p_limit;
end
$$;

-- Submits a run of a workflow, normally inside the caller's own transaction, and spawns the leases of its
-- first steps. created is false if its idempotency key had a run already, whose id and state are returned.
--
-- p_options: {"version", "affinity_tags", "placement", "wire", "affinity": and|override|replace, "tenant",
-- "priority", "labels", "headers", "deadline", "available_at" or "delay", "idempotency_key", "unique":
-- {"key", "on_conflict": keep|raise|replace}, "run_id", "app_version", "steps": {name: {"affinity_tags",
-- "placement", "wire", "options"}}}. What the submission, the workflow and a step ask about nodes must all
-- hold: a contradiction is refused here. affinity says what the submission does to the workflow's, as it does
-- for a step.
--
-- app_version: the version of the code that runs the steps: each asks for a node with that label. Required
-- where pin_version of the workflow is true; a nested run has that of its parent.
--
-- available_at, delay: no step begins before that time, nor does a nested run: leases of the first steps are
-- scheduled, and sleeps and timeouts of waits are counted from then on. A deadline and keys hold from now on.
--
-- unique: at most one run of the workflow and tenant has the key until it ends. A second submission keeps the
-- run that has it and returns it, raises QHT02, or replaces it: that run is cancelled, and its
-- steps may still stop while the new run begins.
--
-- Locks: its idempotency key or unique key; the run that it replaces. Raises: QHF01, QHF02, QHF06, QHF07,
-- QHQ01, QHT01, QHT02, QHC03, QHC04, QHW01, QHA01, QHA02 with replace, QHA03. Idempotent: with an idempotency
-- key. Wakes: waiting workers.
create or replace function hwqueue.submit_workflow(p_workflow text, p_input jsonb default '{}',
  p_options jsonb default '{}') returns table (run_id uuid, created boolean, state text, version int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  -- generic plans by index: a table that is small now may be large before the session ends
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  perform pg_current_xact_id(),  -- before a class is read and a position drawn
    hwqueue.require_right('spawn');
  return query
    select w.run_id, w.created, w.state, d.version
    from hwqueue.find_workflow(p_workflow, p_options) d
    cross join lateral hwqueue.write_run(d, p_input, coalesce(p_options, '{}'), hwqueue.clock()) w;
end
$$;

-- Submits runs of a workflow, [{"input", "options"}], all or nothing; options as submit_workflow takes them.
-- ordinal is the element's place in the list, from 1.
-- Locks: their keys, sorted. Raises: as submit_workflow, with the element's index (from 0) in the detail.
-- Idempotent: per idempotency key. Wakes: waiting workers.
create or replace function hwqueue.submit_workflows(p_workflow text, p_runs jsonb)
returns table (ordinal int, run_id uuid, created boolean, state text, version int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_item record;
  v_at int;
  v_ids uuid[];
  v_created boolean[];
  v_written record;
  v_detail text;
  v_hint text;
begin
  perform pg_current_xact_id(), hwqueue.require_right('spawn');  -- as in submit_workflow
  begin
    for v_item in
      select r.ordinality as n, r.value
      from jsonb_array_elements(hwqueue.json_list(p_runs, 'runs', 1000, 'a list of at most 1000 runs',
        'for example [{"input": {"n": 1}, "options": {"idempotency_key": "one"}}]')) with ordinality r
      order by coalesce(r.value #>> '{options,unique,key}', r.value #>> '{options,idempotency_key}')
        nulls first, r.ordinality
    loop
      v_at := v_item.n - 1;
      perform hwqueue.check_object(v_item.value, array['input', 'options'], format('runs[%s]', v_at));
      v_written := hwqueue.write_run(hwqueue.find_workflow(p_workflow, v_item.value -> 'options'),
        v_item.value -> 'input', coalesce(nullif(v_item.value -> 'options', 'null'), '{}'), hwqueue.clock());
      v_ids[v_item.n] := v_written.run_id;
      v_created[v_item.n] := v_written.created;
    end loop;
  exception when sqlstate 'QH000' then  -- the class QH
    get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
    perform hwqueue.refuse(sqlstate, sqlerrm, coalesce(nullif(v_detail, ''), '{}')::jsonb
      || hwqueue.present('index', to_jsonb(v_at)), v_hint);
  end;
  return query
    select u.n::int, u.run_id, u.created, r.state, w.version
    from unnest(v_ids, v_created) with ordinality u(run_id, created, n)
    cross join lateral (  -- fences (offset 0): by key
      select x.* from hwqueue.run x where x.run_id = u.run_id offset 0) r
    cross join lateral (
      select x.* from hwqueue.workflow x
      where x.workflow_id = r.workflow_id offset 0) w
    order by u.n;
end
$$;

-- Submits a run of a specification that has no version, as define_workflow takes it. The rest is as with
-- submit_workflow. Runs of equal specifications share one definition.
-- Locks: as submit_workflow. Raises: as define_workflow and submit_workflow. Idempotent: with an idempotency
-- key. Wakes: waiting workers.
create or replace function hwqueue.submit_spec(p_spec jsonb, p_input jsonb default '{}',
  p_options jsonb default '{}') returns table (run_id uuid, created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  perform hwqueue.require_right('spawn'), hwqueue.json_object(p_options, 'options');
  return query
    select w.run_id, w.created, w.state
    from hwqueue.find_adhoc(hwqueue.read_workflow(p_spec), hwqueue.clock()) d
    cross join lateral hwqueue.write_run(d, p_input, coalesce(p_options, '{}'), hwqueue.clock()) w;
end
$$;

-- Returns where each step of a workflow could run if it were submitted now: a dry run of submit_workflow and
-- submit_spec, which refuses what they refuse. Changes nothing.
--
-- p_spec: a specification, or the name of a defined workflow, a JSON string. p_options: as they take them.
-- placement: what the step's lease would ask. came_from: the same keys, with the levels that ask for each
-- part: workflow, submission, step, task, or version (that of the code). nodes_matching, nodes_free: nodes
-- that could ever run it, and now. headline: one sentence; code: a reason code, or "ready"; permanent: it
-- lasts until nodes or the step change; reasons: what alone keeps nodes from it, as sole_blockers in
-- explain_lease.
--
-- A step with `near` is judged without it, since its place is not known yet. kind: task, or workflow for
-- nested runs, which come last, with the workflow and the version that they would run now, and without what
-- only leases have. The code of one that would fail is nested_refused. Sleeps are left out. It costs about as
-- much as the submission: of steps whose content differs the first 100 are judged, the others are not_judged.
--
-- Raises: as submit_workflow and submit_spec.
create or replace function hwqueue.check_workflow(p_spec jsonb, p_options jsonb default '{}')
returns table (step_no int, step text, queue text, task_name text, placement jsonb, came_from jsonb,
  headline text, code text, permanent boolean, nodes_matching bigint, nodes_free bigint, reasons jsonb,
  kind text, workflow text, version int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_spec jsonb;
  v_workflow hwqueue.workflow;
  v_run hwqueue.run;
begin
  perform hwqueue.json_object(p_options, 'options');
  if jsonb_typeof(p_spec) = 'string' then
    v_workflow := hwqueue.find_workflow(p_spec #>> '{}', p_options);
  else  -- it is not written
    v_spec := hwqueue.read_workflow(p_spec);
    v_workflow.name := v_spec ->> 'name';
    v_workflow.settings := v_spec - 'steps';
    v_workflow.steps := v_spec -> 'steps';
  end if;
  v_run := hwqueue.read_run(v_workflow, '{}', coalesce(p_options, '{}'), v_now);
  return query
    with planned as materialized (
      select p.* from hwqueue.planned_steps(v_workflow, v_run,
        coalesce(nullif(p_options -> 'steps', 'null'), '{}'), 100) p)
    select p.step_no, p.step ->> 'name', hwqueue.queue_name((p.class).queue_id),
      (p.class).task_name, (p.class).placement, p.came_from,
      coalesce(v.headline, 'not judged: 100 steps of other contents come before it'),
      coalesce(v.code, 'not_judged'), coalesce(v.permanent, false), v.nodes_matching, v.nodes_free,
      coalesce(v.sole_blockers, '[]'), 'task', null::text, null::int
    from planned p
    left join hwqueue.class_verdicts(array(
        select distinct on ((i.class).digest) i.class from planned i where i.came_from is not null), v_now) v
      on v.digest = (p.class).digest
    order by p.step_no;
  return query
    select n.step_no, n.step ->> 'name', null::text, null::text, null::jsonb, null::jsonb,
      n.headline, case when n.is_refused then 'nested_refused' else 'ready' end, n.is_refused,
      null::bigint, null::bigint, '[]'::jsonb, 'workflow', n.step ->> 'workflow', n.version
    from hwqueue.planned_nested(v_workflow, v_run, null, v_now) n order by n.step_no;
end
$$;
