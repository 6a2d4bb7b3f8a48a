-- Bindings: parts of a step's params that stand for a value of the run, and conditions on such values.
--
-- They are checked when a workflow is defined, and replaced when a step is released. Example: {"path":
-- {"$result": "prepare", "path": ["uri"]}} becomes {"path": "s3://..."}.
--
-- Invariant: what is missing is an answer and no error, because a release is part of a stranger's
-- settlement.

-- Whether a value is a binding, or looks like one: an object with a key that begins with $.
create or replace function hwqueue.is_binding(p_value jsonb) returns boolean
language plpgsql immutable parallel safe
as $$ begin return
  case when jsonb_typeof(p_value) = 'object' then exists (
    select from jsonb_object_keys(p_value) k where left(k, 1) = '$') else false end;
end $$;

-- Returns the steps whose results a value names, and checks all of its bindings. p_of_item: it may name the
-- item of a map, or the rank in a gang. p_maps: the steps that have lists of results. binds: there is at
-- least one binding.
-- Raises: QHF02, naming the field.
create or replace function hwqueue.binding_steps(p_value jsonb, p_field text, p_of_item boolean default false,
  p_maps text[] default null, out steps text[], out binds boolean)
language plpgsql immutable
as $$
declare
  v_item record;
  v_found record;
  v_kind text;
begin
  steps := '{}';
  binds := hwqueue.is_binding(p_value);
  if p_of_item and p_value = '{"$index": true}' then
    return;
  elsif binds then
    v_kind := case when p_value ? '$literal' then '$literal' when p_value ? '$input' then '$input'
      when p_value ? '$result' then '$result' when p_value ? '$results' then '$results'
      when p_of_item and p_value ? '$item' then '$item' when p_value ? '$run' then '$run' end;
    if v_kind is null then
      perform hwqueue.refuse('QHF02', format('%s has no known binding: %s', p_field,
          left(p_value::text, 100)), jsonb_build_object('field', p_field),
        'bindings are $input, $result, $results, $run and $literal, in params of a map or gang also $item '
        'and {"$index": true}; '
        '{"$literal": {...}} escapes an object that is none');
    end if;
    perform hwqueue.check_object(p_value, array[v_kind] || case
        when v_kind in ('$result', '$results') then array['path', 'default']
        when v_kind in ('$input', '$item') then array['default'] else '{}' end, p_field, 'QHF02');
    if v_kind in ('$input', '$item') then
      perform hwqueue.binding_path(p_value -> v_kind, p_field || '.' || v_kind);
    elsif v_kind in ('$result', '$results') then
      perform hwqueue.binding_path(p_value -> 'path', p_field || '.path');
      steps := array[hwqueue.json_text(p_value -> v_kind, p_field || '.' || v_kind, 100, 'QHF02')];
      if v_kind = '$results' and steps[1] <> all (p_maps) then
        perform hwqueue.refuse('QHF02', format('%s lists the results of step %s, which is no map or gang',
            p_field, to_json(steps[1])), jsonb_build_object('field', p_field),
          '$result is what a task returned');
      end if;
    elsif v_kind = '$run' then
      perform hwqueue.json_choice(p_value -> '$run', p_field || '.$run',
        array['id', 'name', 'submitted_at'], 'QHF02');
    end if;
    return;
  end if;
  for v_item in
    select e.key, e.value, p_field || '.' || e.key as field
    from jsonb_each(case when jsonb_typeof(p_value) = 'object' then p_value else '{}' end) e
    where jsonb_typeof(e.value) in ('object', 'array')
    union all
    select null, e.value, format('%s[%s]', p_field, e.ordinality - 1)
    from jsonb_array_elements(case when jsonb_typeof(p_value) = 'array' then p_value else '[]' end)
      with ordinality e
    where jsonb_typeof(e.value) in ('object', 'array')
  loop
    v_found := hwqueue.binding_steps(v_item.value, v_item.field, p_of_item, p_maps);
    steps := steps || v_found.steps;
    binds := binds or v_found.binds;
  end loop;
end
$$;

-- Returns a path, a list of keys and indexes, as text. Null is the whole value.
-- Raises: QHF02.
create or replace function hwqueue.binding_path(p_path jsonb, p_field text) returns text[]
language plpgsql immutable
as $$
begin
  if p_path is null then
    return '{}';
  end if;
  if jsonb_typeof(p_path) <> 'array' or jsonb_array_length(p_path) > 32 or exists (
    select from jsonb_array_elements(p_path) e
    where jsonb_typeof(e.value) <> 'string' and e.value::text !~ '^(0|[1-9][0-9]{0,8})$') then
    perform hwqueue.refuse('QHF02', format('%s must be a list of at most 32 keys and indexes', p_field),
      jsonb_build_object('field', p_field), 'for example ["shards", 0, "uri"]; [] is the whole value');
  end if;
  return array(select e.value #>> '{}' from jsonb_array_elements(p_path) with ordinality e
               order by e.ordinality);
end
$$;

-- Returns the results of steps by their names: {"step": result}. A step without one is not in it. Null: they
-- have more than 128 MiB; from 256 MiB on Postgres would raise.
create or replace function hwqueue.results_of(p_run hwqueue.run, p_steps int[]) returns jsonb
language plpgsql stable
as $$
declare
  v_found record;
  v_bytes bigint := 0;
  v_names text[] := '{}';
  v_values jsonb[] := '{}';  -- as in bind_value
begin
  for v_found in
    select d.name, r.result
    from unnest(p_steps) n(step_no)
    cross join lateral (
      select x.name from hwqueue.workflow_step x
      where x.workflow_id = p_run.workflow_id and x.step_no = n.step_no offset 0) d
    cross join lateral (
      select coalesce(s.result, (
        select o.result from hwqueue.outcome o
        where o.lease_id = s.lease_id and (o.state = 'completed') is true
          and s.reason is distinct from 'operator')) as result  -- that would be of an earlier attempt
      from hwqueue.step s
      where s.run_id = p_run.run_id and s.step_no = n.step_no and s.state = 'completed' offset 0) r
    where r.result is not null
  loop
    v_found.result := v_found.result #> '{}';  -- a value of its own: read and unpacked once
    v_bytes := v_bytes + pg_column_size(v_found.result);
    if v_bytes > 134217728 then
      return null;
    end if;
    v_names := v_names || v_found.name;
    v_values := v_values || v_found.result;
  end loop;
  return (
    select coalesce(jsonb_object_agg(u.name, u.value), '{}') from unnest(v_names, v_values) u(name, value));
end
$$;

-- How many items of a step have been spawned since its list was read, in any attempt. A lease with a later
-- number is of a former list, and so is its outcome.
create or replace function hwqueue.items_begun(p_run uuid, p_step int) returns int
language plpgsql stable strict
as $$ begin return (
  select least(m.items, greatest(m.kept_below, t.need))
  from hwqueue.map m
  join hwqueue.tally t on t.run_id = m.run_id and t.step_no = m.step_no and t.part > 0
  where m.run_id = p_run and m.step_no = p_step
); end $$;

-- Returns a value with its bindings replaced. missing: the binding that names nothing and has no default;
-- null: none. too_large: the value has more than p_most bytes; a limit on its text is the caller's.
-- p_results: {"step": its result}. A list of results is in the order of the items of its map; an item without
-- a result, or without that path, is the default, or null. p_escapes: it is the template of the items of a
-- map: what stands for the item stays, all else that may look like a binding is escaped. p_index: it is such
-- a template, and becomes the params of this item, p_item; all else was bound when the map began.
create or replace function hwqueue.bind_value(p_value jsonb, p_run hwqueue.run, p_results jsonb,
  p_escapes boolean default false, p_item jsonb default null, p_index int default null,
  p_most bigint default 67108864, out value jsonb, out missing jsonb, out too_large boolean)
language plpgsql stable
as $$
declare
  v_item record;
  v_found record;
  v_bound record;
  v_path text[];
  v_bytes bigint := 0;
  v_keys text[] := '{}';
  v_values jsonb[] := '{}';  -- put together at the end: a value that grows is copied for each element
begin
  value := p_value;
  too_large := false;
  if p_index is not null then
    if jsonb_typeof(p_value) = 'object' and p_value ?| array['$item', '$index', '$literal'] then
      value := case when p_value ? '$literal' then p_value -> '$literal'
        when p_value ? '$index' then to_jsonb(p_index)
        else coalesce(p_item #> hwqueue.binding_path(p_value -> '$item', ''), p_value -> 'default') end;
      missing := case when value is null then p_value end;
      return;
    end if;
  elsif hwqueue.is_binding(p_value) then
    if p_escapes and p_value ?| array['$item', '$index', '$literal'] then
      return;
    elsif p_value ? '$results' then
      select m.step_no, m.items, hwqueue.items_begun(m.run_id, m.step_no) as begun, s.result, s.reason
      into v_found
      from hwqueue.workflow_step d
      join hwqueue.step s on s.run_id = p_run.run_id and s.step_no = d.step_no
      left join hwqueue.map m on m.run_id = p_run.run_id and m.step_no = d.step_no
      where d.workflow_id = p_run.workflow_id and d.name = p_value ->> '$results';
      value := case when v_found.reason = 'operator' and jsonb_typeof(v_found.result) = 'array'
        then v_found.result end;
      v_path := hwqueue.binding_path(p_value -> 'path', '');
      if v_found.items is not null and v_found.reason is distinct from 'operator' then
        for v_item in
          select coalesce((
            select o.result #> v_path
            from hwqueue.lease l
            cross join lateral (  -- a fence (offset 0): item by item and by key, whatever the statistics say
              select x.result from hwqueue.outcome x
              where x.lease_id = l.lease_id and (x.state = 'completed') is true offset 0) o
            where l.run_id = p_run.run_id and l.step_no = v_found.step_no and l.item_no = n
              and n < v_found.begun),
              p_value -> 'default', 'null') as result
          from generate_series(0, v_found.items - 1) n
        loop
          v_bytes := v_bytes + pg_column_size(v_item.result);
          too_large := v_bytes > 67108864;
          exit when too_large;
          v_values := v_values || v_item.result;
        end loop;
        value := to_jsonb(v_values);
      end if;
      value := case when not too_large then coalesce(value, p_value -> 'default') end;
    else
      value := case
        when p_value ? '$literal' then p_value -> '$literal'
        when p_value ? '$input' then
          coalesce(p_run.input #> hwqueue.binding_path(p_value -> '$input', ''), p_value -> 'default')
        when p_value ? '$result' then
          coalesce(p_results #> (array[p_value ->> '$result'] || hwqueue.binding_path(p_value -> 'path', '')),
            p_value -> 'default')
        when p_value ->> '$run' = 'id' then to_jsonb(p_run.run_id)
        when p_value ->> '$run' = 'name' then to_jsonb(p_run.name)
        else to_jsonb(p_run.submitted_at) end;
    end if;
    missing := case when value is null and not too_large then p_value end;
    if p_escapes and jsonb_typeof(value) in ('object', 'array') then
      value := jsonb_build_object('$literal', value);
    end if;
    return;
  end if;
  for v_item in
    select e.key, e.value
    from jsonb_each(case when jsonb_typeof(p_value) = 'object' then p_value else '{}' end) e
    where jsonb_typeof(e.value) in ('object', 'array')
    union all
    select null, e.value
    from jsonb_array_elements(case when jsonb_typeof(p_value) = 'array' then p_value else '[]' end) e
  loop
    if jsonb_typeof(v_item.value) in ('object', 'array') then
      v_bound := hwqueue.bind_value(v_item.value, p_run, p_results, p_escapes, p_item, p_index, p_most);
      missing := coalesce(missing, v_bound.missing);
      v_item.value := v_bound.value;
      v_bytes := v_bytes + coalesce(pg_column_size(v_bound.value), 0);
      too_large := v_bound.too_large or v_bytes > p_most;
      exit when too_large;
    end if;
    v_keys := v_keys || v_item.key;
    v_values := v_values || v_item.value;
  end loop;
  value := case when too_large then null
    when jsonb_typeof(p_value) = 'array' then to_jsonb(v_values)
    when v_keys <> '{}' then p_value || (
      select jsonb_object_agg(u.key, u.value) from unnest(v_keys, v_values) u(key, value))
    else p_value end;
end
$$;

-- Whether this transaction has bound more than 64 MiB: what else is to be bound is left to the next sweep.
create or replace function hwqueue.has_bound_enough() returns boolean
language plpgsql stable
as $$ begin return (
  -- compared as text, which is longer or later: any login may set it
  select length(b.bytes) > 8 or length(b.bytes) = 8 and b.bytes collate "C" > '67108864'
  from (select coalesce(current_setting('hwqueue.bound_bytes', true), '') as bytes) b
); end $$;

-- Adds to what this transaction has bound. Values of less than 64 KiB are not counted, for the cost of that.
create or replace function hwqueue.note_bound(p_bytes bigint) returns void
language plpgsql volatile
as $$
declare
  v_before text := current_setting('hwqueue.bound_bytes', true);
begin
  if p_bytes >= 65536 then
    perform set_config('hwqueue.bound_bytes',
      (p_bytes + case when v_before ~ '^[0-9]{1,15}$' then v_before::bigint else 0 end)::text, true);
  end if;
end
$$;
