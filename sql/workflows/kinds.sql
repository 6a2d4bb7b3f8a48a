-- Kinds of steps: which keys each kind has, and how a step of it begins.
--
-- Example: {"name": "cool-down", "kind": "sleep", "for": "1 h"} has the settings {"for": 3600}; when it is
-- released it is due an hour later, and reap ends it.
--
-- Invariant: begin_other does not raise for what a run contains: a step that cannot begin fails, with the
-- reason in its row. A step of these kinds ends by end_step (workflows/ending), or at once. A session that
-- begins or ends a wait holds its row, and so does one that hands it a signal (workflows/advance). Each looks
-- in a statement after the lock; a sender that meets a step which is not open, or misses its row, leaves an
-- arrival of kind `signal`. So a signal and a wait that meet find each other, whichever commits first.

-- Returns what a step of a kind needs, in normal form and without what is absent or the default. steps: those
-- whose results its bindings name; binds: there is at least one binding. A list of a map that has none
-- becomes {"$literal": list}. Whether the workflow of a nested run exists is known when the step is released.
-- Raises: QHF02, QHC03, QHC04, QHW01, QHA01, naming the field, or the kind that has it.
create or replace function hwqueue.read_kind(p_step jsonb, p_kind text, p_name text, p_maps text[],
  p_field text, out settings jsonb, out steps text[], out binds boolean)
language plpgsql stable
as $$
declare
  v_placed boolean := p_kind in ('task', 'map', 'gang');
  v_known jsonb := hwqueue.known_keys('any step') || hwqueue.known_keys(p_kind || ' step')
    || case when v_placed then hwqueue.known_keys('task step') else '{}' end;
  v_key text := (select min(k collate "C") from jsonb_object_keys(p_step) k where not v_known ? k);
  v_binds jsonb := nullif(p_step -> case when v_placed then 'params' when p_kind = 'sleep' then 'until'
    else 'input' end, 'null');
  v_over jsonb := nullif(p_step -> 'over', 'null');
  v_tolerate jsonb := nullif(nullif(p_step -> 'tolerate', 'null'), '0');
  v_found record;
  v_gang hwqueue.gang;
begin
  if v_key is not null then
    perform hwqueue.refuse('QHF02', format('%s.%s is of kind %s, step %s is of kind %s', p_field, v_key,
        t.kind, to_json(p_name), p_kind),
      jsonb_build_object('field', p_field || '.' || v_key, 'step', p_name),
      format('keys of kind %s are: %s', p_kind, (
          select string_agg(k, ', ') from jsonb_object_keys(v_known) k)))
    from jsonb_array_elements_text(v_known #> '{kind,1}') t(kind)
    where hwqueue.known_keys(t.kind || ' step') ? v_key;
    perform hwqueue.check_object(p_step, array(select jsonb_object_keys(v_known)), p_field, 'QHF02');
  end if;
  settings := hwqueue.read_keys(p_step, p_kind || ' step', p_field, 'QHF02');
  select b.steps, b.binds into steps, binds from hwqueue.binding_steps(v_binds,
    p_field || case p_kind when 'sleep' then '.until' when 'workflow' then '.input' else '.params' end,
    p_kind in ('map', 'gang'), p_maps) b;
  if p_kind = 'sleep' then
    if settings ? 'for' = (v_binds is not null) then
      perform hwqueue.refuse('QHF02', format('%s needs either for or until', p_field),
        jsonb_build_object('field', p_field || '.for', 'step', p_name),
        'for example "for": "90 min", or "until": {"$input": ["starts_at"]}');
    end if;
    settings := settings || hwqueue.present('until', case when hwqueue.is_binding(v_binds) then v_binds
      else to_jsonb(to_jsonb(hwqueue.json_time(v_binds, p_field || '.until', 'QHF02') at time zone 'UTC')
        #>> '{}' || 'Z') end);
  elsif p_kind = 'wait' then
    perform hwqueue.check_name(p_step ->> 'signal', p_field || '.signal', 200);
    -- it is sent by its name in a URL, where clients drop a . and a .. between slashes
    if p_step ->> 'signal' ~ '/[.]{1,2}(/|$)' then
      perform hwqueue.refuse('QHA01', format('%s has a . or .. between slashes, which no URL can carry',
          p_field || '.signal'), jsonb_build_object('field', p_field || '.signal'),
        'write it another way, for example orders/7.paid');
    end if;
    if not settings ? 'timeout' and nullif(p_step -> 'on_timeout', 'null') is not null then
      perform hwqueue.refuse('QHF02', format('%s has on_timeout and no timeout', p_field),
        jsonb_build_object('field', p_field || '.timeout'), 'say when, for example "timeout": "2 d"');
    end if;
  elsif p_kind = 'workflow' then
    perform hwqueue.check_name(p_step ->> 'workflow', p_field || '.workflow', 100);
    settings := settings || jsonb_build_object('workflow', p_step ->> 'workflow')
      || hwqueue.present('input', nullif(v_binds, '{}'));
  else  -- what runs, with which params and options, and where
    perform hwqueue.check_name(p_step ->> 'task', p_field || '.task', 200);
    if p_kind <> 'task' then  -- params of a map that say nothing are the item
      settings := case p_kind when 'map' then '{"params": {"item": {"$item": []}}}'::jsonb else '{}' end
        || settings
        || hwqueue.read_keys(p_step, 'task step', p_field, 'QHF02');
    end if;
    settings := settings || jsonb_build_object('task', p_step ->> 'task')
      || hwqueue.read_level(p_step, p_field, settings ? 'affinity')
      || hwqueue.present('near', hwqueue.read_near(p_step -> 'near', p_field || '.near'))
      || hwqueue.present('options', hwqueue.read_step_options(p_step -> 'options', p_kind,
        p_field || '.options'));
  end if;
  if p_kind = 'map' then
    if (hwqueue.is_binding(v_over) or jsonb_typeof(v_over) = 'array') is not true then
      perform hwqueue.refuse('QHF02', format('%s.over must be a list, or a binding to one', p_field),
        jsonb_build_object('field', p_field || '.over', 'step', p_name),
        'for example {"$input": ["shards"]}, or {"$results": "score"} for the results of another map');
    end if;
    v_found := hwqueue.binding_steps(v_over, p_field || '.over', false, p_maps);
    steps := steps || v_found.steps;
    binds := binds or v_found.binds;
    if jsonb_typeof(v_tolerate) = 'string'
      and v_tolerate #>> '{}' ~ '^([0-9]{1,2}([.][0-9]{1,3})?|100) ?%$' then
      v_tolerate := to_jsonb(trim_scale(rtrim(v_tolerate #>> '{}', ' %')::numeric) || ' %');
    elsif jsonb_typeof(v_tolerate) = 'string' then
      perform hwqueue.refuse('QHF02', format('%s.tolerate is neither a number nor a percentage', p_field),
        jsonb_build_object('field', p_field || '.tolerate', 'step', p_name), 'for example 3, or "10 %"');
    else
      v_tolerate := to_jsonb(hwqueue.json_integer(v_tolerate, p_field || '.tolerate', 0, 100000, 'QHF02'));
    end if;
    settings := settings || hwqueue.present('tolerate', v_tolerate) || jsonb_build_object('over',
      case when v_found.binds then v_over else jsonb_build_object('$literal', v_over) end);
  elsif p_kind = 'gang' then  -- size, and what spawn_gang has as options
    v_gang := hwqueue.gang_asked(p_step, p_field);
    if not settings ? 'size' then
      perform hwqueue.refuse('QHF02', format('%s is a gang and says no size', p_field),
        jsonb_build_object('field', p_field || '.size', 'step', p_name),
        'say how many members it has, 2 to 1000: "size": 4');
    elsif v_gang.min_size > (settings ->> 'size')::int then
      perform hwqueue.refuse('QHF02', format('%s.min_size is more than its size, %s', p_field,
          settings -> 'size'), jsonb_build_object('field', p_field || '.min_size', 'step', p_name),
        'give at most the size, or leave min_size out: then all start together');
    end if;
    settings := hwqueue.read_keys(p_step, 'gang', p_field) || hwqueue.present('together',
      nullif(to_jsonb(v_gang.together), '[]')) || settings;
    if settings -> 'min_size' = settings -> 'size' then
      settings := settings - 'min_size';
    end if;
  end if;
end
$$;

-- Returns the spawn options of a step, checked. Where it runs is no option: affinity_tags and placement are.
-- Raises: QHF02, QHA01.
create or replace function hwqueue.read_step_options(p_options jsonb, p_kind text, p_field text) returns jsonb
language plpgsql stable
as $$
begin
  if p_options is null or p_options in ('null', '{}') then
    return null;
  end if;
  perform hwqueue.check_object(p_options, hwqueue.keys_of('step'), p_field, 'QHF02'),
    hwqueue.read_keys(p_options, 'step', p_field);
  if p_kind = 'gang' and coalesce(p_options -> 'patience', 'null') <> 'null' then
    perform hwqueue.refuse('QHF02', format('%s.patience is not for a gang', p_field),
      jsonb_build_object('field', p_field || '.patience'),
      'a gang starts where all its members have room: leave patience out, and ask with placement.require');
  end if;
  return nullif(hwqueue.without_nulls(p_options), '{}');
end
$$;

-- Begins a step that is no task, or has items, and adds it to progress: as open, until due_at or what its
-- kind waits for, or as ended. p_bad: why it does not begin. A sleep whose time is over has completed, and so
-- has a wait whose signal is there. A nested run is opened by advance_workflows (workflows/nested): a
-- settlement submits nothing.
-- Locks: the caller holds the step; a signal, skip locked; as begin_items.
create or replace function hwqueue.begin_other(p_run hwqueue.run, p_step int, p_results jsonb, p_bad jsonb,
  p hwqueue.run_progress, p_now timestamptz) returns hwqueue.run_progress
language plpgsql volatile
as $$
declare
  v_defined hwqueue.workflow_step;
  v_step hwqueue.step;
  v_starts_at timestamptz := hwqueue.start_time(p_run, p_now);
  v_bound record;
  v_verdict hwqueue.step_verdict;
begin
  select d.* into v_defined from hwqueue.workflow_step d
  where d.workflow_id = p_run.workflow_id and d.step_no = p_step;
  select s.* into v_step from hwqueue.step s where s.run_id = p_run.run_id and s.step_no = p_step;
  if p_bad is not null then
    v_verdict := hwqueue.bad_verdict(p_bad);
  elsif v_defined.kind = 'sleep' and v_defined.settings ? 'for' then
    v_verdict.due_at := v_starts_at + make_interval(secs => (v_defined.settings ->> 'for')::float8);
  elsif v_defined.kind = 'sleep' then
    v_bound := hwqueue.bind_value(v_defined.settings -> 'until', p_run, p_results);
    if v_bound.missing is not null then
      v_verdict := hwqueue.bad_verdict(
        jsonb_build_object('reason', 'binding_missing', 'binding', v_bound.missing));
    else
      begin
        v_verdict.due_at := hwqueue.parse_time(v_bound.value, 'until', 'QHF02');
      exception when sqlstate 'QHF02' then
        v_verdict := hwqueue.bad_verdict(
          jsonb_build_object('reason', 'no_time', 'until', left(v_bound.value::text, 200)));
      end;
    end if;
  elsif v_defined.kind in ('map', 'gang', 'task') then  -- a task that has added items before a retry
    v_verdict := hwqueue.begin_items(p_run, v_step, v_defined, p_results, p_now);
  elsif v_defined.kind = 'workflow' then
    perform hwqueue.leave_arrivals(p_run.run_id, array[p_step], 'nested', '{}', p_now);
    v_verdict.state := 'running';
  else
    v_bound := hwqueue.take_run_signal(p_run.run_id, p_step);
    v_verdict.result := v_bound.payload;
    v_verdict.state := case when v_bound.payload is null then 'running' else 'completed' end;
    if v_bound.payload is null then
      v_verdict.due_at := v_starts_at + make_interval(secs => (v_defined.settings ->> 'timeout')::float8);
      if v_bound.is_held then
        perform hwqueue.leave_arrivals(p_run.run_id, array[p_step], 'signal', '{}', v_starts_at);
      end if;
    end if;
  end if;
  if v_verdict.state is null then  -- a sleep
    v_verdict.state := case when v_verdict.due_at > v_starts_at then 'running' else 'completed' end;
    v_verdict.due_at := case when v_verdict.state = 'running' then v_verdict.due_at end;
  end if;
  update hwqueue.step s
  set state = v_verdict.state, reason = v_verdict.reason, error = v_verdict.error, result = v_verdict.result,
    due_at = v_verdict.due_at, ended_at = case when v_verdict.state <> 'running' then p_now end
  where s.run_id = p_run.run_id and s.step_no = p_step;
  if v_verdict.state = 'running' then
    p.opened := p.opened + 1;
  else
    p.ended := p.ended || p_step;
    p.states := p.states || v_verdict.state;
  end if;
  return p;
end
$$;

-- A step that cannot begin has failed, with the reason in p_bad: {"reason", ...}; one whose condition does
-- not hold is skipped.
create or replace function hwqueue.bad_verdict(p_bad jsonb) returns hwqueue.step_verdict
language sql immutable parallel safe
as $$
  select row(case p_bad ->> 'reason' when 'condition' then 'skipped' else 'failed' end, p_bad ->> 'reason',
    nullif(p_bad - 'reason', '{}'), null, null)::hwqueue.step_verdict
$$;

-- Begins a step with items: reads its list, or the size of a gang, and spawns the first ones of a map, or all
-- members. A list that is what another map returned (over_step) is not kept again.
-- More than 500 of these, or more than 8 MiB of params, are left to a sweep: this may be part of a stranger's
-- settlement. A retry whose list is the same finds the map, and goes on with the items that have not
-- completed. So does that of a task which has added items: its own lease is the first of them.
-- Locks: the caller holds the step; new rows; as fill_map. Wakes: waiting workers.
create or replace function hwqueue.begin_items(p_run hwqueue.run, p_step hwqueue.step,
  p_defined hwqueue.workflow_step, p_results jsonb, p_now timestamptz) returns hwqueue.step_verdict
language plpgsql volatile
as $$
declare
  v_bad jsonb;
  v_map hwqueue.map;
  v_tally hwqueue.tally;
  v_found record;
  v_params record;
  v_over jsonb := p_defined.settings -> 'over';
  v_list jsonb;
  v_first int := case p_defined.kind when 'task' then -1 else 0 end;
  v_most int;
  v_portion int := 500;
  v_bytes bigint;
begin
  if p_defined.near is not null and not p_defined.near ? 'match' then
    v_bad := (hwqueue.near_class(p_run, p_defined.step_no, p_defined.near, p_now)).bad;
    if v_bad is not null then
      return hwqueue.bad_verdict(v_bad);
    end if;
  end if;
  update hwqueue.map m set kept_below = hwqueue.items_begun(m.run_id, m.step_no), stopped_below = 0
  where m.run_id = p_run.run_id and m.step_no = p_defined.step_no returning m.* into v_map;
  if not found then
    v_params := hwqueue.bind_value(p_defined.params, p_run, coalesce(p_results, '{}'), true);
    if p_defined.kind = 'gang' then
      v_map.items := (p_defined.settings ->> 'size')::int;
    elsif v_over ? '$results' then
      select d.step_no, m.items into v_map.over_step, v_map.items
      from hwqueue.workflow_step d
      join hwqueue.step s on s.run_id = p_run.run_id and s.step_no = d.step_no
      join hwqueue.map m on m.run_id = p_run.run_id and m.step_no = d.step_no
      where d.workflow_id = p_run.workflow_id and d.name = v_over ->> '$results'
        and s.reason is distinct from 'operator';
    end if;
    if v_map.items is null then
      v_found := hwqueue.bind_value(v_over, p_run, coalesce(p_results, '{}'));
      v_list := v_found.value;
      v_bad := case when v_found.missing is not null
          then jsonb_build_object('reason', 'binding_missing', 'binding', v_found.missing)
        when v_found.too_large then '{"reason": "params_too_large"}'
        when jsonb_typeof(v_list) <> 'array'
          then jsonb_build_object('reason', 'over_is_not_a_list', 'type', jsonb_typeof(v_list))
        when jsonb_array_length(v_list) > 100000
          then jsonb_build_object('reason', 'too_many_items', 'items', jsonb_array_length(v_list),
            'limit', 100000) end;
    end if;
    perform hwqueue.note_bound(coalesce(pg_column_size(v_list), 0)
      + coalesce(pg_column_size(v_params.value), 0));
    if not exists (
      select from hwqueue.queue q where q.queue_id = p_step.queue_id and q.dropped_at is null) then
      v_bad := '{"reason": "queue_dropped"}';
    elsif v_bad is null and v_params.missing is not null then
      v_bad := jsonb_build_object('reason', 'binding_missing', 'binding', v_params.missing);
    elsif v_bad is null and v_params.too_large then
      v_bad := '{"reason": "params_too_large"}';
    end if;
    if v_bad is not null then
      return hwqueue.bad_verdict(v_bad);
    end if;
    insert into hwqueue.map as m (run_id, step_no, items, over_step, params)
    values (p_run.run_id, p_defined.step_no, coalesce(v_map.items, jsonb_array_length(v_list)),
      v_map.over_step, v_params.value)
    returning m.* into v_map;
    insert into hwqueue.map_list (run_id, step_no, first_item, items)
    select p_run.run_id, p_defined.step_no, (e.ordinality - 1) / 100 * 100,
           jsonb_agg(e.value order by e.ordinality)
    from jsonb_array_elements(v_list) with ordinality e
    group by (e.ordinality - 1) / 100;
  end if;
  delete from hwqueue.tally t where t.run_id = p_run.run_id and t.step_no = p_defined.step_no and t.part > 0;
  insert into hwqueue.tally as t (run_id, step_no, part, need, arrived)
  values (p_run.run_id, p_defined.step_no, 1, v_first, v_first)
  returning t.* into v_tally;
  if p_defined.kind = 'gang' then
    select q.max_params_bytes into v_most from hwqueue.queue q where q.queue_id = p_step.queue_id;
    -- params differ by the rank alone: one with most digits is asked
    v_found := hwqueue.bind_value(v_map.params #> '{}', null, null, false, to_jsonb(v_map.items - 1),
      v_map.items - 1, least(8 * v_most::bigint, 67108864));
    v_bytes := hwqueue.text_bytes(v_found.value, v_most);
    if v_found.missing is not null then
      return hwqueue.bad_verdict(jsonb_build_object('reason', 'binding_missing', 'binding', v_found.missing));
    elsif v_found.too_large or v_bytes > v_most or v_bytes * v_map.items > 67108864 then
      return hwqueue.bad_verdict(jsonb_build_object('reason', 'params_too_large', 'limit',
        case when v_found.too_large or v_bytes > v_most then v_most else 67108864 / v_map.items end));
    end if;
    v_portion := case when v_bytes * v_map.items > 8388608 then 0 else v_portion end;
  elsif v_map.items = v_tally.need then
    return hwqueue.map_verdict(p_run, v_map, p_defined, v_tally);
  elsif v_map.runs_since is not null then  -- added runs that have not completed are retried
    insert into hwqueue.arrival (run_id, step_no, kind, at, tenant)
    select n.run_id, 0, 'nested', p_now, n.tenant
    from hwqueue.run n
    where n.parent_run_id = p_run.run_id and n.parent_step_no = v_map.step_no
      and n.parent_attempt >= v_map.runs_since and n.state in ('failed', 'cancelled');
  end if;
  v_tally := hwqueue.fill_map(p_run, v_map, p_defined, v_tally, v_portion, p_now);
  if v_tally.arrived = v_tally.need
    or p_defined.kind <> 'gang' and hwqueue.map_room(v_map, p_defined, v_tally) > 0 then
    perform hwqueue.leave_arrivals(p_run.run_id, array[p_defined.step_no], 'item', '{}', p_now);
  end if;
  return row('running', null, null, null, null)::hwqueue.step_verdict;
end
$$;

-- Takes the oldest signal of the name that a step waits for, and returns its payload; null: there is none.
-- is_held: another session holds one, and may yet leave it.
-- Locks: the caller holds the step; the signal, skip locked. Not idempotent.
create or replace function hwqueue.take_run_signal(p_run uuid, p_step int,
  out payload jsonb, out is_held boolean)
language plpgsql volatile
as $$
declare
  v_name text := (
    select d.settings ->> 'signal'
    from hwqueue.run r
    join hwqueue.workflow_step d on d.workflow_id = r.workflow_id
    where r.run_id = p_run and d.step_no = p_step);
  v_signal hwqueue.run_signal;
begin
  select s.* into v_signal from hwqueue.run_signal s
  where s.run_id = p_run and s.name = v_name and s.taken_by is null
  order by s.signal_id limit 1 for update skip locked;
  is_held := not found and exists (
    select from hwqueue.run_signal s where s.run_id = p_run and s.name = v_name and s.taken_by is null);
  payload := v_signal.payload;
  update hwqueue.run_signal s set taken_by = p_step, payload = null
  where s.run_id = p_run and s.signal_id = v_signal.signal_id;
end
$$;
