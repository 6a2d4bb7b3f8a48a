-- Definitions of workflows: writing one, and finding one. A definition never changes, so a run keeps the
-- steps that it was submitted with, whatever is defined later.

-- Returns the definition of a name: the version that options name, or the newest.
-- Raises: QHF01, QHA01.
create or replace function hwqueue.find_workflow(p_name text, p_options jsonb) returns hwqueue.workflow
language plpgsql stable
as $$
declare
  v_options jsonb := hwqueue.json_object(p_options, 'options');
  v_version int := hwqueue.json_integer(v_options -> 'version', 'options.version', 1, 2147483647);
  v_workflow hwqueue.workflow;
begin
  select w.* into v_workflow from hwqueue.workflow w
  where w.name = p_name and w.version is not null and (v_version is null or w.version = v_version)
  order by w.version desc limit 1;
  if not found then
    perform hwqueue.refuse_workflow(p_name, v_version);
  end if;
  return v_workflow;
end
$$;

-- Refuses a name that no workflow has.
-- Raises: QHF01, always.
create or replace function hwqueue.refuse_workflow(p_name text, p_version int) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.refuse('QHF01', format('workflow %s%s does not exist',
      coalesce(to_json(left(p_name, 100))::text, 'null'), ' version ' || p_version),
    jsonb_build_object('workflow', left(p_name, 100), 'version', p_version),
    'define it first: select hwqueue.define_workflow(p_spec => ''{"name": "...", "steps": [...]}'')');
end $$;

-- The same of a specification in normal form.
create or replace function hwqueue.find_adhoc(p_spec jsonb, p_now timestamptz) returns hwqueue.workflow
language plpgsql volatile
as $$
declare
  v_workflow hwqueue.workflow;
begin
  -- before the lookup: prune waits for transactions that may have found the definition
  perform pg_current_xact_id();
  select w.* into v_workflow from hwqueue.workflow w
  where w.digest = sha256(convert_to(p_spec::text, 'UTF8')) and w.version is null and w.retired_at is null
  order by w.workflow_id limit 1;
  if not found then
    v_workflow := hwqueue.write_workflow(p_spec, null, p_now);
  elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    -- an older snapshot may show a definition that is deleted by now: lock it, or fail with 40001
    perform 1 from hwqueue.workflow w where w.workflow_id = v_workflow.workflow_id for key share;
  end if;
  return v_workflow;
end
$$;

-- Writes a definition in normal form with its steps, and returns it.
-- Raises: 23505 when the name has that version already. Not idempotent.
create or replace function hwqueue.write_workflow(p_spec jsonb, p_version int, p_now timestamptz)
returns hwqueue.workflow
language plpgsql volatile
as $$
declare
  v_workflow hwqueue.workflow;
  v_numbers jsonb := (  -- a map: a join of thousands of names may run as a nested loop
    select jsonb_object_agg(s.value ->> 'name', s.ordinality)
    from jsonb_array_elements(p_spec -> 'steps') with ordinality s);
begin
  insert into hwqueue.workflow as w (name, version, digest, settings, steps, created_at)
  values (p_spec ->> 'name', p_version, sha256(convert_to(p_spec::text, 'UTF8')),
    p_spec - 'steps', p_spec -> 'steps', p_now)
  returning w.* into v_workflow;
  with edge as materialized (
    select (v_numbers ->> a.key)::int as from_no, t.step_no::int as to_no, a.value as wants,
           count(*) over (partition by t.step_no) as parents
    from jsonb_array_elements(p_spec -> 'steps') with ordinality t(spec, step_no)
    cross join lateral jsonb_each_text(coalesce(t.spec -> 'after', '{}')) a
  )
  insert into hwqueue.workflow_step (workflow_id, step_no, name, kind, task_name, class_no, parent_count,
    is_any, on_failure, runs_at_end, params, reads, run_if, options, parents, children, wants, near, settings)
  select v_workflow.workflow_id, s.ordinality, s.value ->> 'name', k.kind, s.value ->> 'task',
    case when s.value ? 'task' then dense_rank() over (
      partition by s.value ? 'task' order by hwqueue.class_part(s.value)) end,
    coalesce(cardinality(p.parents), 0), coalesce(s.value ->> 'join' = 'any', false),
    case when s.value ->> 'on_failure' = 'ignore' then 'ignore'
      when s.value ->> 'on_failure' = 'continue' or p_spec ->> 'on_failure' = 'continue' then 'go_on'
      when s.value ->> 'on_failure' is null and c.is_picked_up then 'go_on'
      else 'fail_run' end,
    s.value ->> 'finally', coalesce(s.value -> 'params', '{}'),
    case when s.value ? 'reads' then array(
      select (v_numbers ->> r.name)::int from jsonb_array_elements_text(s.value -> 'reads') r(name)
      order by 1) end,
    s.value -> 'run_if', s.value -> 'options',
    coalesce(p.parents, '{}'), coalesce(c.children, '{}'), case when not c.is_straight then c.wants end,
    s.value -> 'near' || jsonb_build_object('steps', (
      select jsonb_agg(v_numbers -> n.name order by v_numbers -> n.name)
      from jsonb_array_elements_text(s.value #> '{near,steps}') n(name))),
    case when k.kind <> 'task' then (
      select jsonb_object_agg(e.key, e.value) from jsonb_each(s.value) e
      where hwqueue.known_keys(k.kind || ' step') ? e.key) end
  from jsonb_array_elements(p_spec -> 'steps') with ordinality s
  cross join lateral (select coalesce(s.value ->> 'kind', 'task') as kind) k
  left join (
    select e.to_no, array_agg(e.from_no order by e.from_no) as parents from edge e
    group by e.to_no) p on p.to_no = s.ordinality
  left join (
    select e.from_no, bool_or(e.wants <> 'completed') as is_picked_up,
           bool_and(e.wants = 'completed' and e.parents = 1) as is_straight,
           array_agg(e.to_no order by e.to_no) as children, array_agg(e.wants order by e.to_no) as wants
    from edge e group by e.from_no) c on c.from_no = s.ordinality;
  return v_workflow;
end
$$;

-- What the class of a step's lease follows from, in its specification: steps that are equal in it share one.
create or replace function hwqueue.class_part(p_step jsonb) returns jsonb
language sql stable parallel safe
as $$
  select jsonb_build_array(p_step -> 'task', p_step -> 'queue', p_step -> 'affinity',
    p_step -> 'affinity_tags', p_step -> 'placement',
    (p_step -> 'options') - array['priority', 'max_attempts', 'retry', 'claim_timeout', 'delay'])
$$;
