-- The specification of a workflow: what is accepted, its normal form, and the order of its steps.
--
-- Example: steps "b" after "a", and "a", become [{"name": "a"}, {"name": "b", "after": {"a": "completed"}}],
-- numbered 1 and 2.
--
-- Invariant: specifications of equal meaning have equal normal forms, so they share a definition. Steps are
-- numbered by level, the length of the longest path that leads to them, then by name: the parents of a step
-- have lower numbers, and equal graphs have equal ones.

-- Returns a workflow in normal form: {"name", "queue", "affinity_tags", "placement", "labels", "tenant",
-- "priority", "deadline", "on_failure", "retain", "result", "pin_version", "steps"}, without what is absent.
-- steps is a list in topological order.
-- Raises: QHF02, QHF07 too large, QHC03, QHC04, QHW01, QHA01, naming the field.
create or replace function hwqueue.read_workflow(p_spec jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_spec jsonb;
  v_steps jsonb[];
  v_order int[];
  v_twice text;
  v_maps text[];  -- their results are lists; of gangs, too
  v_edges bigint;
  v_unknown text;
begin
  perform hwqueue.check_object(p_spec, hwqueue.keys_of('workflow'), 'spec', 'QHF02');
  perform hwqueue.check_depth(p_spec, 'spec', 'QHF02'), hwqueue.check_numbers(p_spec, 'spec', 'QHF02');
  if hwqueue.text_bytes(p_spec, 1048576) > 1048576 then
    perform hwqueue.refuse('QHF07', 'spec is larger than 1 MiB', '{"field": "spec"}',
      'pass large data as input, or store it elsewhere and pass a reference');
  end if;
  perform hwqueue.check_name(p_spec ->> 'name', 'spec.name', 100);
  v_spec := hwqueue.read_keys(p_spec, 'workflow', 'spec', 'QHF02')
    || hwqueue.read_level(p_spec, 'spec', false)
    || hwqueue.present('pin_version', case when jsonb_typeof(p_spec -> 'pin_version') = 'boolean'
      then nullif(p_spec -> 'pin_version', 'false')
      else to_jsonb(hwqueue.json_text(p_spec -> 'pin_version', 'spec.pin_version', 100, 'QHF02')) end);
  if jsonb_typeof(p_spec -> 'steps') is distinct from 'array'
    or jsonb_array_length(p_spec -> 'steps') = 0 then
    perform hwqueue.refuse('QHF02', 'spec.steps must be a list of at least one step',
      '{"field": "spec.steps"}', 'for example [{"name": "prepare", "task": "prepare_data"}]');
  elsif jsonb_array_length(p_spec -> 'steps') > 5000 then
    perform hwqueue.refuse('QHF07', format('spec has %s steps', jsonb_array_length(p_spec -> 'steps')),
      '{"field": "spec.steps"}', 'the limit is 5000');
  end if;
  v_maps := array(
    select s.value ->> 'name' from jsonb_array_elements(p_spec -> 'steps') s
    where s.value ->> 'kind' in ('map', 'gang'));
  v_steps := array(
    select hwqueue.read_step(e.value, v_maps, format('spec.steps[%s]', e.ordinality - 1))
    from jsonb_array_elements(p_spec -> 'steps') with ordinality e order by e.ordinality);
  v_twice := (select s ->> 'name' from unnest(v_steps) s group by 1 having count(*) > 1 limit 1);
  if v_twice is not null then
    perform hwqueue.refuse('QHF02', format('two steps are named %s', to_json(v_twice)),
      jsonb_build_object('field', 'spec.steps', 'step', v_twice), 'give each step a name of its own');
  end if;
  v_edges := (select sum((select count(*) from jsonb_object_keys(s -> 'after')))
              from unnest(v_steps) s where s ? 'after');
  if v_edges > 20000 then
    perform hwqueue.refuse('QHF07', format('spec has %s edges', v_edges), '{"field": "spec.steps"}',
      'the limit is 20000; a step in between takes many edges together');
  end if;
  v_order := hwqueue.order_named_steps(v_steps);
  perform hwqueue.check_near_steps(v_steps, v_order);
  v_spec := v_spec || jsonb_build_object('steps', (
    select jsonb_agg(s.value order by o.new_no)
    from unnest(v_steps, v_order) o(value, new_no) cross join lateral (select o.value) s));
  if nullif(p_spec -> 'result', 'null') is not null then
    v_unknown := (
      select n
      from unnest((hwqueue.binding_steps(p_spec -> 'result', 'spec.result', p_maps => v_maps)).steps) n
      where n not in (select s ->> 'name' from unnest(v_steps) s) limit 1);
    if v_unknown is not null then
      perform hwqueue.refuse('QHF02', format('spec.result names step %s, which does not exist',
          to_json(v_unknown)), jsonb_build_object('field', 'spec.result', 'step', null),
        'steps are: ' || left((select string_agg(s ->> 'name', ', ') from unnest(v_steps) s), 200));
    end if;
    v_spec := v_spec || jsonb_build_object('result', p_spec -> 'result');
  end if;
  return v_spec;
end
$$;

-- Returns one step in normal form, without what is absent or the default: {"name", "kind", "after": {step:
-- completed|failed|ended}, "join", "run_if", "on_failure", "finally", "reads"} and what its kind needs
-- (workflows/kinds). One name alone as "after" is a list of it. A binding adds its edge by itself; reads are
-- the steps that bindings and conditions name, and [] where there are only other bindings. p_maps: as in
-- binding_steps.
-- Raises: QHF02, QHC03, QHC04, QHW01, QHA01, naming the field.
create or replace function hwqueue.read_step(p_step jsonb, p_maps text[], p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_name text;
  v_read jsonb;
  v_found record;
  v_item record;
  v_reads text[];
  v_given jsonb := case when jsonb_typeof(p_step -> 'after') = 'string'
    then jsonb_build_array(p_step -> 'after') else p_step -> 'after' end;
  v_step text;
  v_steps text[] := '{}';
  v_wants text[] := '{}';
  v_after jsonb;
begin
  if jsonb_typeof(p_step) is distinct from 'object' then
    perform hwqueue.refuse_object(p_step, '{}', p_field, 'QHF02');
  end if;
  v_name := hwqueue.json_text(p_step -> 'name', p_field || '.name', 100, 'QHF02');
  if v_name is null or v_name !~ '^[a-z0-9_-]{1,100}$' then
    perform hwqueue.refuse('QHF02', format('%s.name is no valid name: %s', p_field,
        coalesce(to_json(v_name)::text, 'null')), jsonb_build_object('field', p_field || '.name'),
      'use 1 to 100 characters of a-z, 0-9, _ and -');
  end if;
  v_read := hwqueue.read_keys(p_step, 'any step', p_field, 'QHF02');
  v_found := hwqueue.read_kind(p_step, coalesce(v_read ->> 'kind', 'task'), v_name, p_maps, p_field);
  v_reads := v_found.steps;
  for v_item in
    select c.value, format('%s.run_if[%s]', p_field, c.ordinality - 1) as field
    from jsonb_array_elements(hwqueue.json_list(p_step -> 'run_if', p_field || '.run_if', 20,
      'a list of at most 20 conditions',
      'for example [{"input": ["dry_run"], "op": "in", "values": [false]}]', 'QHF02')) with ordinality c
  loop
    perform hwqueue.check_object(v_item.value, array['step', 'path', 'input', 'op', 'values'], v_item.field,
      'QHF02');
    if v_item.value ? 'step' = v_item.value ? 'input' or v_item.value ?& array['input', 'path'] then
      perform hwqueue.refuse('QHF02', format('%s needs step (and path) or input', v_item.field),
        jsonb_build_object('field', v_item.field),
        'for example {"step": "train", "path": ["score"], "op": "gt", "values": [0.9]}');
    end if;
    perform hwqueue.binding_path(v_item.value -> 'path', v_item.field || '.path'),
      hwqueue.binding_path(v_item.value -> 'input', v_item.field || '.input'),
      hwqueue.normalise_label_expr(v_item.value - array['step', 'path', 'input'] || '{"label": "value"}',
        v_item.field);
    if v_item.value ? 'step' then
      v_reads := v_reads || hwqueue.json_text(v_item.value -> 'step', v_item.field || '.step', 100, 'QHF02');
    end if;
  end loop;
  for v_item in
    select a.value, format('%s.after[%s]', p_field, a.ordinality - 1) as field
    from jsonb_array_elements(hwqueue.json_list(v_given, p_field || '.after', 20000, 'a list of steps',
      'for example ["prepare", {"step": "train", "on": "ended"}]', 'QHF02')) with ordinality a
  loop
    if jsonb_typeof(v_item.value) = 'object' then
      perform hwqueue.check_object(v_item.value, array['step', 'on'], v_item.field, 'QHF02');
      v_step := hwqueue.json_text(v_item.value -> 'step', v_item.field || '.step', 100, 'QHF02');
    else
      v_step := hwqueue.json_text(v_item.value, v_item.field, 100, 'QHF02');
    end if;
    if v_step is null then
      perform hwqueue.refuse('QHF02', format('%s names no step', v_item.field),
        jsonb_build_object('field', v_item.field, 'step', v_name), 'name each step once');
    end if;
    v_steps := v_steps || v_step;
    v_wants := v_wants || coalesce(case when v_item.value ? 'on' then hwqueue.json_choice(
      v_item.value -> 'on', v_item.field || '.on', array['completed', 'failed', 'ended'], 'QHF02') end,
      'completed');
  end loop;
  select u.step, format('%s.after[%s]', p_field, (array_agg(u.n order by u.n))[2] - 1) as field into v_item
  from unnest(v_steps) with ordinality u(step, n) group by u.step having count(*) > 1 limit 1;
  if found then
    perform hwqueue.refuse('QHF02', format('%s names step %s again', v_item.field, to_json(v_item.step)),
      jsonb_build_object('field', v_item.field, 'step', v_name), 'name each step once');
  end if;
  v_after := jsonb_object(v_steps, v_wants);  -- at once: an object that grows is copied for each parent
  if not v_read ? 'finally' then
    v_after := coalesce((select jsonb_object_agg(r, 'completed') from unnest(v_reads) r), '{}') || v_after;
  elsif v_after <> '{}' then
    perform hwqueue.refuse('QHF02', format('%s has after and finally', p_field),
      jsonb_build_object('field', p_field || '.after', 'step', v_name),
      'a finally step runs when all others have ended');
  end if;
  return jsonb_build_object('name', v_name) || v_read || v_found.settings
    || hwqueue.present('run_if', nullif(nullif(p_step -> 'run_if', '[]'), 'null'))
    || hwqueue.present('after', nullif(v_after, '{}'))
    || case when v_found.binds or v_reads <> '{}' or jsonb_array_length(
        coalesce(nullif(p_step -> 'run_if', 'null'), '[]')) > 0
      then jsonb_build_object('reads', (select coalesce(jsonb_agg(distinct r), '[]') from unnest(v_reads) r))
      else '{}' end;
end
$$;

-- Returns the new number of each step, from 1, in topological order; ties by name, bytewise. Checks that
-- the steps that are named exist. By Kahn's algorithm: steps and edges are looked at once each.
-- Raises: QHF02; detail.cycle names the steps of a cycle.
create or replace function hwqueue.order_named_steps(p_steps jsonb[]) returns int[]
language plpgsql stable
as $$
declare
  v_names text[] := array(select s ->> 'name' from unnest(p_steps) with ordinality u(s, n) order by n);
  v_numbers jsonb := (select jsonb_object_agg(n, o) from unnest(v_names) with ordinality u(n, o));
  -- of a fixed length, unlike p_steps: Postgres reads an element without those before it
  v_finally boolean[] := array(select s ? 'finally' from unnest(p_steps) with ordinality u(s, n) order by n);
  v_count int := cardinality(p_steps);
  v_from int[] := '{}';
  v_to int[] := '{}';
  v_edge record;
  v_targets jsonb;  -- of each step those that come after it
  v_open int[];  -- how many parents of each step are not in order yet
  v_levels int[] := array_fill(0, array[v_count]);
  v_queue int[];
  v_at int := 1;
  v_step int;
  v_target int;
  v_parent int[];
  v_path int[] := '{}';
begin
  for v_edge in
    select u.n as step_no, e.key as parent, u.s ? 'finally' as is_finally,
           u.s ->> 'name' as name, v_finally[(v_numbers ->> e.key)::int] as after_finally
    from unnest(p_steps) with ordinality u(s, n)
    cross join lateral (
      select k.key from jsonb_each(coalesce(u.s -> 'after', '{}')) k
      union
      select r.value #>> '{}' from jsonb_array_elements(coalesce(u.s -> 'reads', '[]')) r) e
  loop
    if not v_numbers ? v_edge.parent or v_edge.after_finally then
      perform hwqueue.refuse('QHF02', case when v_edge.after_finally
          then format('step %s comes after %s, a finally step', to_json(v_edge.name),
            to_json(v_edge.parent))
          else format('step %s names step %s, which does not exist', to_json(v_edge.name),
            to_json(v_edge.parent)) end,
        jsonb_build_object('field', format('spec.steps[%s].after', v_edge.step_no - 1),
          'step', v_edge.name), 'finally steps have no children; steps are: '
          || left(array_to_string(v_names, ', '), 200));
    end if;
    continue when v_edge.is_finally;
    v_from := v_from || (v_numbers ->> v_edge.parent)::int;
    v_to := v_to || v_edge.step_no::int;
  end loop;
  v_targets := (
    select jsonb_object_agg(t.source, t.targets)
    from (select e.source, jsonb_agg(e.target) as targets
          from unnest(v_from, v_to) e(source, target) group by e.source) t);
  v_open := array(
    select count(e.target)::int from generate_series(1, v_count) n
    left join unnest(v_to) e(target) on e.target = n group by n order by n);
  v_queue := array(select n from generate_series(1, v_count) n where v_open[n] = 0);
  while v_at <= cardinality(v_queue) loop
    v_step := v_queue[v_at];
    v_at := v_at + 1;
    for v_target in select e.value::int from jsonb_array_elements(v_targets -> v_step::text) e loop
      v_levels[v_target] := greatest(v_levels[v_target], v_levels[v_step] + 1);
      v_open[v_target] := v_open[v_target] - 1;
      if v_open[v_target] = 0 then
        v_queue := v_queue || v_target;
      end if;
    end loop;
  end loop;
  if cardinality(v_queue) < v_count then
    v_parent := array(  -- what is open is in a cycle, or comes after one, and so has an open parent
      select max(e.source) from generate_series(1, v_count) n
      left join unnest(v_from, v_to) e(source, target) on e.target = n and v_open[e.source] > 0
      group by n order by n);
    v_step := (select n from generate_series(1, v_count) n where v_open[n] > 0 limit 1);
    while v_step <> all (v_path) loop  -- up the parents until a step is met again
      v_path := v_step || v_path;
      v_step := v_parent[v_step];
    end loop;
    v_path := v_path[1 : array_position(v_path, v_step)];
    perform hwqueue.refuse('QHF02', 'steps wait for each other: ' || (
        select string_agg(v_names[s], ' -> ' order by n)
        from unnest(v_path || v_path[1]) with ordinality u(s, n)),
      jsonb_build_object('field', 'spec.steps', 'step', v_names[v_path[1]],
        'cycle', (select jsonb_agg(v_names[s] order by n) from unnest(v_path) with ordinality u(s, n))),
      'take one of them out of after; a binding to a result comes after its step, too');
  end if;
  return array(
    select r.new_no::int
    from (select u.o, row_number() over (order by v_finally[u.o], u.l, u.n collate "C") as new_no
          from unnest(v_names, v_levels) with ordinality u(n, l, o)) r
    order by r.o);
end
$$;
