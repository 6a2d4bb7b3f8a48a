-- Kinds of steps: which keys each kind has, and how a sleep begins.
--
-- workflows/spec hands the keys of a step that are not common to all kinds to read_kind. workflows/release
-- begins a step that is due (begin_other). Example: {"name": "cool-down", "kind": "sleep", "for": "1 h"} has
-- the settings {"for": 3600}; when it is released it is due an hour later, and reap ends it.
--
-- Invariant: begin_other does not raise for what a run contains: a step that cannot begin fails, with the
-- reason in its row. A step of these kinds ends by step_over (workflows/ending), or at once.
--
-- Read kind_keys first, then read_kind.

-- Returns the keys that steps of a kind have beside the common ones. Those of a task are the columns of its
-- definition, the others its settings.
create or replace function hwqueue.kind_keys(p_kind text) returns text[]
language sql immutable parallel safe
as $$
  select case when p_kind in ('task', 'map', 'gang') then array['task', 'queue', 'params', 'options',
      'affinity', 'affinity_tags', 'placement', 'wire', 'near'] else '{}' end
    || case p_kind when 'task' then '{}'::text[]
      when 'map' then array['over', 'max_parallel', 'tolerate']
      when 'gang' then array['size', 'min_size', 'together', 'same', 'on_lost', 'hold']
      when 'wait' then array['signal', 'timeout', 'on_timeout']
      when 'sleep' then array['for', 'until']
      when 'workflow' then array['workflow', 'version', 'input'] end
$$;

-- Whether steps of a kind end with their run: nobody works on them.
create or replace function hwqueue.is_idle(p_kind text) returns boolean
language sql immutable parallel safe
as $$ select p_kind in ('sleep', 'wait') $$;

-- Returns what a step of a kind needs, in normal form and without what is absent or the default. steps: those
-- whose results its bindings name; binds: there is at least one binding. Whether the workflow of a nested run
-- exists is known when the step is released.
-- Raises: QHF02, QHC03, QHC04, QHW01, QHA01, naming the field, or the kind that has it.
create or replace function hwqueue.read_kind(p_step jsonb, p_kind text, p_name text, p_field text,
  out settings jsonb, out steps text[], out binds boolean)
language plpgsql stable
as $$
declare
  v_kinds text[] := array['task', 'map', 'gang', 'wait', 'sleep', 'workflow'];
  v_key text;
  v_bound jsonb := nullif(p_step -> case p_kind when 'sleep' then 'until' else 'input' end, 'null');
begin
  select k into v_key from jsonb_object_keys(p_step) k
  where k <> all (array['name', 'kind', 'after', 'join', 'run_if', 'on_failure', 'finally'])
    and k <> all (hwqueue.kind_keys(p_kind))
  order by k limit 1;
  if found then
    perform hwqueue.refuse('QHF02', format('%s.%s is of kind %s, step %s is of kind %s', p_field, v_key, (
          select k.kind from unnest(v_kinds) with ordinality k(kind, n)
          where v_key = any (hwqueue.kind_keys(k.kind)) order by k.n limit 1), to_json(p_name), p_kind),
      jsonb_build_object('field', p_field || '.' || v_key, 'step', p_name),
      format('keys of kind %s are: %s', p_kind, array_to_string(hwqueue.kind_keys(p_kind), ', ')));
  end if;
  if p_kind = 'sleep' then
    if (nullif(p_step -> 'for', 'null') is null) = (v_bound is null) then
      perform hwqueue.refuse('QHF02', format('%s needs either for or until', p_field),
        jsonb_build_object('field', p_field || '.for', 'step', p_name),
        'for example "for": "90 min", or "until": {"$input": ["starts_at"]}');
    end if;
    select b.steps, b.binds into steps, binds from hwqueue.binding_steps(v_bound, p_field || '.until') b;
    settings := hwqueue.present('for', to_jsonb(extract(epoch from hwqueue.json_short_interval(
        p_step -> 'for', p_field || '.for', '0', '3650 days'))))
      || hwqueue.present('until', case when hwqueue.is_binding(v_bound) then v_bound
        else to_jsonb(to_jsonb(hwqueue.json_time(v_bound, p_field || '.until', 'QHF02') at time zone 'UTC')
          #>> '{}' || 'Z') end);
  elsif p_kind = 'wait' then
    perform hwqueue.check_name(p_step ->> 'signal', p_field || '.signal', 200);
    -- it is sent by its name in a URL, where clients drop a . and a .. between slashes
    if p_step ->> 'signal' ~ '/[.]{1,2}(/|$)' then
      perform hwqueue.refuse('QHA01', format('%s has a . or .. between slashes, which no URL can carry',
          p_field || '.signal'), jsonb_build_object('field', p_field || '.signal'),
        'write it another way, for example orders/7.paid');
    end if;
    if nullif(p_step -> 'timeout', 'null') is null and nullif(p_step -> 'on_timeout', 'null') is not null then
      perform hwqueue.refuse('QHF02', format('%s has on_timeout and no timeout', p_field),
        jsonb_build_object('field', p_field || '.timeout'), 'say when, for example "timeout": "2 d"');
    end if;
    settings := jsonb_strip_nulls(jsonb_build_object(
      'signal', hwqueue.json_text(p_step -> 'signal', p_field || '.signal', 200, 'QHF02'),
      'timeout', extract(epoch from hwqueue.json_short_interval(p_step -> 'timeout', p_field || '.timeout',
        '0', '3650 days')),
      'on_timeout', nullif(hwqueue.json_choice(p_step -> 'on_timeout', p_field || '.on_timeout',
        array['fail', 'skip', 'continue'], 'QHF02'), 'fail')));
    steps := '{}';
    binds := false;
  elsif p_kind = 'map' then
    -- params that say nothing are the item
    select '{"params": {"item": {"$item": []}}}' || t.settings || m.settings, t.steps || m.steps,
           t.binds or m.binds
    into settings, steps, binds
    from hwqueue.read_task(p_step, p_field) t, hwqueue.read_map(p_step, p_name, p_field) m;
  elsif p_kind = 'gang' then
    select t.settings || hwqueue.read_gang_step(p_step, p_name, p_field), t.steps, t.binds
    into settings, steps, binds
    from hwqueue.read_task(p_step, p_field) t;
  elsif p_kind = 'workflow' then
    perform hwqueue.check_name(p_step ->> 'workflow', p_field || '.workflow', 100);
    select b.steps, b.binds into steps, binds from hwqueue.binding_steps(v_bound, p_field || '.input') b;
    settings := jsonb_build_object('workflow', p_step ->> 'workflow')
      || hwqueue.present('version', to_jsonb(hwqueue.json_integer(p_step -> 'version', p_field || '.version',
        1, 2147483647, 'QHF02')))
      || hwqueue.present('input', nullif(v_bound, '{}'));
  else
    select r.settings, r.steps, r.binds into settings, steps, binds
    from hwqueue.read_task(p_step, p_field) r;
  end if;
end
$$;

-- The keys of a task: what runs, with which params and options, and where.
-- Raises: QHF02, QHC03, QHC04, QHW01, QHA01, naming the field.
create or replace function hwqueue.read_task(p_step jsonb, p_field text, out settings jsonb,
  out steps text[], out binds boolean)
language plpgsql stable
as $$
declare
  v_affinity text := coalesce(hwqueue.json_choice(p_step -> 'affinity', p_field || '.affinity',
    array['and', 'override', 'replace'], 'QHF02'), 'and');
begin
  perform hwqueue.check_name(p_step ->> 'task', p_field || '.task', 200);
  select b.steps, b.binds into steps, binds
  from hwqueue.binding_steps(nullif(p_step -> 'params', 'null'), p_field || '.params',
    coalesce(p_step ->> 'kind' in ('map', 'gang'), false)) b;
  settings := jsonb_strip_nulls(jsonb_build_object('task', p_step ->> 'task',
      'queue', hwqueue.json_text(p_step -> 'queue', p_field || '.queue', 100, 'QHF02'),
      'affinity', nullif(v_affinity, 'and')))
    || hwqueue.read_level(p_step, p_field, v_affinity <> 'and')
    || hwqueue.present('params', nullif(hwqueue.json_object(p_step -> 'params', p_field || '.params',
      'QHF02'), '{}'))
    || hwqueue.present('near', hwqueue.read_near(p_step -> 'near', p_field || '.near'))
    || hwqueue.present('options', hwqueue.read_step_options(p_step -> 'options', p_field || '.options'));
end
$$;

-- Returns the spawn options of a step, checked. Where it runs is no option: affinity_tags and placement are.
-- Raises: QHF02, QHA01.
create or replace function hwqueue.read_step_options(p_options jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  if p_options is null or p_options in ('null', '{}') then
    return null;
  end if;
  perform hwqueue.check_object(p_options, array['priority', 'max_attempts', 'retry', 'claim_timeout',
      'patience', 'max_run', 'delay', 'labels', 'service_id'], p_field, 'QHF02'),
    hwqueue.json_integer(p_options -> 'priority', p_field || '.priority', -32768, 32767),
    hwqueue.json_integer(p_options -> 'max_attempts', p_field || '.max_attempts', 1, 1000),
    hwqueue.normalise_retry(p_options -> 'retry', p_field || '.retry'),
    hwqueue.json_short_interval(p_options -> 'claim_timeout', p_field || '.claim_timeout', '1 second',
      '30 days'),
    hwqueue.json_interval(p_options -> 'patience', p_field || '.patience'),
    hwqueue.read_max_run(p_options, p_field),
    hwqueue.json_short_interval(p_options -> 'delay', p_field || '.delay', '0', '3650 days'),
    hwqueue.json_uuid(p_options -> 'service_id', p_field || '.service_id'),
    hwqueue.check_labels(p_options -> 'labels', p_field || '.labels');
  return nullif(hwqueue.without_nulls(p_options), '{}');
end
$$;

-- Begins a sleep. One that is over already has completed; one whose time cannot be read fails.
create or replace function hwqueue.begin_sleep(p_run hwqueue.run, p_settings jsonb, p_results jsonb,
  p_now timestamptz) returns hwqueue.step_verdict
language plpgsql stable
as $$
declare
  v_verdict hwqueue.step_verdict;
  v_bound record;
begin
  v_verdict.state := 'failed';
  if p_settings ? 'for' then
    v_verdict.due_at := p_now + make_interval(secs => (p_settings ->> 'for')::float8);
  else
    v_bound := hwqueue.bind_value(p_settings -> 'until', p_run, p_results);
    if v_bound.missing is not null then
      v_verdict.reason := 'binding_missing';
      v_verdict.error := jsonb_build_object('binding', v_bound.missing);
      return v_verdict;
    end if;
    begin
      v_verdict.due_at := hwqueue.parse_time(v_bound.value, 'until', 'QHF02');
    exception when sqlstate 'QHF02' then
      v_verdict.reason := 'no_time';
      v_verdict.error := jsonb_build_object('until', left(v_bound.value::text, 200));
      return v_verdict;
    end;
  end if;
  v_verdict.state := case when v_verdict.due_at > p_now then 'running' else 'completed' end;
  v_verdict.due_at := case when v_verdict.state = 'running' then v_verdict.due_at end;
  return v_verdict;
end
$$;
