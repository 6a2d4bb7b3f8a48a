-- Dry runs of submissions, and where each part of a step's placement came from.
--
-- Example: a run asks {"gpu": true}, and its submission {"region": "us-east"}. A step then has the origins
-- {"require": [["workflow"], ["submission"]]}, one for each entry of `require`.
--
-- Invariant: a dry run refuses what a submission refuses, and writes nothing: the content of a class is made
-- by step_content in both.

-- Returns the steps of a run that is not written, each with the class that its lease would have. Of steps of
-- equal content (class_part) one is planned, and came_from is null beyond the first p_most that differ.
-- p_own: what the submission says about single steps.
-- Raises: QHF06, QHQ01, QHC03, QHC04, QHA01, QHA03.
create or replace function hwqueue.planned_steps(p_workflow hwqueue.workflow, p_run hwqueue.run, p_own jsonb,
  p_most int) returns table (step_no int, step jsonb, class hwqueue.placement_class, came_from jsonb)
language plpgsql volatile
as $$
declare
  v_steps jsonb[] := array(select jsonb_array_elements(p_workflow.steps));
  v_group record;
  v_found record;
begin
  perform hwqueue.check_own_steps(p_workflow, p_own);
  for v_group in
    select o.own, array_agg(s.ordinality::int order by s.ordinality) as numbers
    from jsonb_array_elements(p_workflow.steps) with ordinality s
    cross join lateral (select coalesce(p_own -> (s.value ->> 'name'), '{}') as own) o
    where s.value ? 'task'
    group by hwqueue.class_part(s.value), s.value -> 'near', o.own order by min(s.ordinality)
  loop
    step := v_steps[v_group.numbers[1]];
    v_found := hwqueue.step_class(p_workflow.settings, p_run, step, v_group.own, true);
    class := v_found.class;
    came_from := case when p_most > 0 then hwqueue.step_origins(p_workflow.settings, p_run, step,
      v_group.own, (v_found.target).defaults, class.placement) end;
    p_most := p_most - 1;
    return query select n, v_steps[n], class, came_from from unnest(v_group.numbers) n;
  end loop;
end
$$;

-- Returns what would become of each step that is a nested run, or of one (p_step): the version that it would
-- run now, whether that would be refused, and both in words. Each definition is planned once. Where the input
-- is bound, and runs further down, are not looked at.
create or replace function hwqueue.planned_nested(p_workflow hwqueue.workflow, p_run hwqueue.run, p_step int,
  p_now timestamptz)
returns table (step_no int, step jsonb, version int, is_refused boolean, headline text)
language plpgsql volatile
as $$
declare
  v_steps jsonb[] := array(select jsonb_array_elements(p_workflow.steps));
  v_workflow hwqueue.workflow;
  v_numbers int[];
begin
  for v_numbers in
    select array_agg(s.ordinality order by s.ordinality)
    from jsonb_array_elements(p_workflow.steps) with ordinality s
    where s.value ->> 'kind' = 'workflow' and (p_step is null or s.ordinality = p_step)
    group by s.value -> 'workflow', s.value -> 'version'
  loop
    step := v_steps[v_numbers[1]];
    version := null;
    begin
      v_workflow := hwqueue.nested_workflow(step, p_run.tenant);
      version := v_workflow.version;
      perform hwqueue.planned_steps(v_workflow,
        hwqueue.read_nested_run(p_run, v_workflow, '{}', null, p_now), '{}', 0);
      is_refused := false;
      headline := format('its run of workflow %s would be of version %s', step ->> 'workflow', version);
    exception when sqlstate 'QH000' then  -- the class QH, as in follow_nested
      is_refused := true;
      headline := format('its run of workflow %s would be refused: %s', step ->> 'workflow', sqlerrm);
    end;
    return query select n, v_steps[n], version, is_refused, headline from unnest(v_numbers) n;
  end loop;
end
$$;

-- Returns the levels that ask for each part of a step's placement: workflow, submission, step, task, version
-- (of the code, to which the run is pinned), update, or near which step and where that ran.
-- p_own: as step_content takes it.
-- The result has the keys of the placement: a list of levels for each entry of a list, or for each key of
-- resources and isolation. What several levels ask names each of them.
create or replace function hwqueue.step_origins(p_settings jsonb, p_run hwqueue.run, p_step jsonb,
  p_own jsonb, p_defaults jsonb, p_placement jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_mode text := coalesce(p_step ->> 'affinity', 'and');
  v_step jsonb := hwqueue.read_level(p_step - 'wire', 'step', true);
  v_own jsonb := hwqueue.read_level(p_own, 'step', true);
  v_task jsonb := hwqueue.read_level(
    coalesce(p_defaults, '{}') - array(select jsonb_object_keys(p_step)), 'task', true);
  v_workflow jsonb := hwqueue.level_placement(p_settings, 'workflow');
  v_run jsonb := hwqueue.kept_level(hwqueue.kept_level(hwqueue.kept_level(
    p_run.level, v_task, v_mode), v_step, v_mode), v_own, v_mode);
  v_update jsonb := p_own -> 'update';
  v_last jsonb := coalesce(v_update -> 'level', '{}');
  v_version jsonb := hwqueue.version_placement(p_run, v_update);
  v_levels jsonb := jsonb_build_array(v_workflow) || (
    select jsonb_agg(hwqueue.level_placement(hwqueue.kept_level(l.value, v_last,
      coalesce(v_update ->> 'affinity', 'and')), 'step') order by l.ordinality)
    from jsonb_array_elements(jsonb_build_array(v_run, v_own, v_step, v_task)) with ordinality l)
    || case when v_update ? 'app_version' then jsonb_build_array('{}'::jsonb,
        hwqueue.level_placement(v_last, 'update'), v_version)
      else jsonb_build_array(v_version, hwqueue.level_placement(v_last, 'update')) end;
begin
  return (
    select coalesce(jsonb_object_agg(p.key, case jsonb_typeof(p.value)
      when 'array' then (
        select jsonb_agg(hwqueue.part_origins(v_levels, array[p.key], e.value, case when p_step ? 'near'
            and p.key in ('require', 'prefer') then hwqueue.near_origin(p_step -> 'near',
            e.value) end) order by e.ordinality)
        from jsonb_array_elements(p.value) with ordinality e)
      when 'object' then (
        select jsonb_object_agg(e.key, hwqueue.part_origins(v_levels, array[p.key, e.key], e.value, null))
        from jsonb_each(p.value) e)
      else hwqueue.part_origins(v_levels, array[p.key], p.value, null) end), '{}')
    from jsonb_each(p_placement) p);
end
$$;

-- Returns the names of the levels that have a part at a path: the value itself, or in a list there.
-- p_levels: placements of the workflow, the run, the submission's own for the step, the step, the task, the
-- version of the code, the update, and the version that this names. What the run asks came from the workflow
-- if that asks it, too. p_rest: of a part that none of them has; null: it came from the task.
create or replace function hwqueue.part_origins(p_levels jsonb, p_path text[], p_part jsonb, p_rest text)
returns jsonb
language plpgsql immutable
as $$ begin return (
  with level as (
    select l.ordinality as n
    from jsonb_array_elements(p_levels) with ordinality l
    cross join lateral (select l.value #> p_path as found) f
    where f.found = p_part or jsonb_typeof(f.found) = 'array' and exists (
      select from jsonb_array_elements(f.found) e where e.value = p_part)
  ), named as (
    select distinct case when l.n = 2 and 1 in (select n from level) then 1 when l.n = 3 then 2
      when l.n = 8 then 7 else l.n end as n
    from level l where l.n <> 1
  )
  select coalesce(jsonb_agg((array['workflow', 'submission', null, 'step', 'task', 'version', 'update'])[n.n]
    order by n.n), jsonb_build_array(coalesce(p_rest, 'task')))
  from named n
); end $$;

-- Returns the origins of the placements of a run's steps, by "number of step".
-- Steps with one class, one placement of their own and one update have the same ones, so each is computed
-- once.
create or replace function hwqueue.listed_origins(p_run hwqueue.run) returns jsonb
language plpgsql stable
as $$
declare
  v_workflow hwqueue.workflow := (select w from hwqueue.workflow w where w.workflow_id = p_run.workflow_id);
  v_steps jsonb[] := array(select jsonb_array_elements(v_workflow.steps));
begin
  return (
    select coalesce(jsonb_object_agg(n.step_no, o.came_from), '{}')
    from (
      select array_agg(s.step_no) as steps, min(s.step_no) as first_no, s.class_id, s.own -> 'level' as level,
             s.own -> 'update' as update
      from hwqueue.workflow_step d
      -- fences (offset 0): by key, also before the tables are analyzed
      cross join lateral (
        select x.* from hwqueue.step x
        where x.run_id = p_run.run_id and x.step_no = d.step_no offset 0) s
      where d.workflow_id = p_run.workflow_id
      group by d.class_no, s.class_id, s.own -> 'level', s.own -> 'update', d.near) g
    cross join lateral (
      select x.task_name, x.placement from hwqueue.placement_class x
      where x.class_id = g.class_id offset 0) c
    left join hwqueue.task t on t.name = c.task_name
    cross join lateral (
      select hwqueue.step_origins(v_workflow.settings, p_run, v_steps[g.first_no],
        coalesce(g.level, '{}') || hwqueue.present('update', g.update), t.defaults, c.placement) as came_from
      offset 0) o
    cross join lateral unnest(g.steps) n(step_no));
end
$$;
