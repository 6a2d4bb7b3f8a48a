-- Reading JSON arguments: each reader checks the type and names the field in its error.

-- A checked reader like the others of this module: one of a few words; null for absent or JSON null.
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.
create or replace function hwqueue.json_choice(p_value jsonb, p_field text, p_choices text[],
  p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' = any (p_choices) then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, 'one of ' || array_to_string(p_choices, ', '),
        'give one of these words as a JSON string',
      p_code) end
$$;

-- A list of uuids, sorted, each once.
create or replace function hwqueue.json_uuids(p_list jsonb, p_field text) returns uuid[]
language plpgsql immutable
as $$
begin
  if p_list is null or jsonb_typeof(p_list) = 'null' then
    return '{}'::uuid[];
  end if;
  if jsonb_typeof(p_list) <> 'array' or jsonb_array_length(p_list) > 1000 or p_list @> '[null]' then
    perform hwqueue.refuse('QHA01', format('%s must be an array of at most 1000 uuids', p_field),
        jsonb_build_object('field', p_field),
      'give a list of ids');
  end if;
  return array(select distinct hwqueue.json_uuid(e.value, format('%s[%s]', p_field, e.ordinality - 1))
               from jsonb_array_elements(p_list) with ordinality e order by 1);
end
$$;

-- Checked readers of JSON arguments that Postgres itself parses: spans, times, ids. Null for absent or
-- JSON null.
-- What is absent costs no call: the outer functions are expressions (base/json.sql).
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.

-- A span that is there.
create or replace function hwqueue.parse_interval(p_value jsonb, p_field text, p_min interval,
  p_code text) returns interval
language plpgsql immutable
as $$
declare
  v_span interval;
begin
  begin
    if jsonb_typeof(p_value) = 'number' and p_value::numeric between 0 and 315360000 then
      v_span := make_interval(secs => round(p_value::numeric, 6)::double precision);
    elsif jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 100 then
      v_span := (p_value #>> '{}')::interval;
    end if;
  exception when invalid_datetime_format or datetime_field_overflow or interval_field_overflow then
    v_span := null;
  end;
  if v_span is null or extract(year from v_span) <> 0 or extract(month from v_span) <> 0
     or extract(epoch from v_span) not between extract(epoch from p_min) and 315360000 then
    perform hwqueue.refuse_value(p_value, p_field, format('a span of %s or more, at most ten years', p_min),
      'give seconds (90) or interval text without months ("1 minute 30 seconds")', p_code);
  end if;
  return v_span;
end
$$;

-- Seconds, or interval text without months (a month has no fixed length); at most ten years.
create or replace function hwqueue.json_interval(p_value jsonb, p_field text,
  p_min interval default interval '0',
                                                 p_code text default 'QHA01') returns interval
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_interval(p_value, p_field, p_min, p_code) end
$$;

-- A span that is there, with an end: what is over only after such a span must be so within a time that people
-- plan for.
create or replace function hwqueue.parse_short_interval(p_value jsonb, p_field text, p_min interval,
  p_most interval)
returns interval
language plpgsql immutable
as $$
declare
  v_span interval := hwqueue.parse_interval(p_value, p_field, p_min, 'QHA01');
begin
  if v_span > p_most then
    perform hwqueue.refuse_value(p_value, p_field, format('a span of %s to %s', p_min, p_most),
      'give a shorter one: a heartbeat makes a claim or a node live on', 'QHA01');
  end if;
  return v_span;
end
$$;

-- Seconds, or interval text without months; at most p_most.
create or replace function hwqueue.json_short_interval(p_value jsonb, p_field text, p_min interval,
  p_most interval)
returns interval
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_short_interval(p_value, p_field, p_min, p_most) end
$$;

-- A time that is there, in the years 1 to 9999 in UTC: clients read no other, and one lease would keep
-- them from reading any.
create or replace function hwqueue.parse_time(p_value jsonb, p_field text, p_code text) returns timestamptz
language plpgsql stable
as $$
declare
  v_time timestamptz;
begin
  if jsonb_typeof(p_value) = 'string'
     and p_value #>> '{}' ~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(z|[+-][0-9]{2}:?[0-9]{2})$' then
    begin
      v_time := (p_value #>> '{}')::timestamptz;
    exception when invalid_datetime_format or datetime_field_overflow or invalid_time_zone_displacement_value
      then
      v_time := null;
    end;
  end if;
  if v_time is null or v_time not between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
    perform hwqueue.refuse_value(p_value, p_field, 'a time with an offset',
      'use RFC 3339 and years 1 to 9999 in UTC, for example "2030-01-31T12:00:00Z"', p_code);
  end if;
  return v_time;
end
$$;

-- RFC 3339 with an offset: a time without one would mean something else in every session.
create or replace function hwqueue.json_time(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns timestamptz
language sql stable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_time(p_value, p_field, p_code) end
$$;

-- A uuid in its usual form.
create or replace function hwqueue.json_uuid(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns uuid
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string'
         and p_value #>> '{}' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
           then (p_value #>> '{}')::uuid
    else hwqueue.refuse_value(p_value, p_field, 'a uuid',
        'give an id such as "0197f3a2-7c1e-7000-8000-000000000000"',
      p_code)::uuid end
$$;

-- A domain, what "the same place" means: node, rack or label:KEY with a label key of 1 to 253 characters.
create or replace function hwqueue.json_domain(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when p_value in ('"node"', '"rack"') then p_value #>> '{}'
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' like 'label:_%'
      and length(p_value #>> '{}') <= 259 then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, '"node", "rack" or "label:KEY"',
      'KEY is a node label of 1 to 253 characters, as in "label:zone"', p_code) end
$$;

-- Checked readers of JSON arguments: each returns the typed value (null for absent or JSON null) or refuses.
-- They are single expressions, so that Postgres puts them in place of the call, and for the same reason
-- what refuses is declared immutable. It must be handed the value: immutable calls with nothing but
-- constants are made beforehand.
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.

-- Refuses a value that is not what the field takes.
create or replace function hwqueue.refuse_value(p_value jsonb, p_field text, p_wanted text, p_hint text,
  p_code text) returns text
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse(p_code, format('%s must be %s, got %s', p_field, p_wanted, hwqueue.excerpt(p_value)),
    jsonb_build_object('field', p_field, 'length', case when jsonb_typeof(p_value) = 'string'
        then length(p_value #>> '{}') end), p_hint);
  return null;
end
$$;

-- Refuses what check_depth does not let pass.
create or replace function hwqueue.refuse_depth(p_value jsonb, p_field text, p_code text) returns jsonb
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse(p_code, format('%s is nested more than 32 deep', p_field),
      jsonb_build_object('field', p_field), 'flatten it');
  return p_value;
end
$$;

-- The value itself, unless it is nested so deep that functions which descend it would run out of stack.
create or replace function hwqueue.check_depth(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when jsonb_path_exists(p_value, 'strict $.**{33}', '{}', true)
         then hwqueue.refuse_depth(p_value, p_field, p_code) else p_value end
$$;

-- Refuses what check_object does not let pass.
create or replace function hwqueue.refuse_object(p_value jsonb, p_allowed text[], p_field text,
  p_code text) returns jsonb
language plpgsql immutable
as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_value) is distinct from 'object' then
    perform hwqueue.refuse(p_code, format('%s must be a JSON object, got %s', p_field,
        coalesce(jsonb_typeof(p_value), 'null')),
      jsonb_build_object('field', p_field), 'pass an object such as {}');
  end if;
  v_unknown := (select min(k collate "C") from jsonb_object_keys(p_value - p_allowed) k);
  perform hwqueue.refuse(p_code, format('%s has an unknown key %s', p_field, to_json(left(v_unknown, 100))),
    jsonb_build_object('field', p_field || '.' || left(v_unknown, 100)),
      'allowed keys: ' || array_to_string(p_allowed, ', '));
  return null;
end
$$;

-- An object without keys that are not allowed; absent or null is refused, too.
create or replace function hwqueue.check_object(p_value jsonb, p_allowed text[], p_field text,
  p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when jsonb_typeof(p_value) = 'object' and p_value - p_allowed = '{}' then p_value
    else hwqueue.refuse_object(p_value, p_allowed, p_field, p_code) end
$$;

-- A whole number in a range.
create or replace function hwqueue.json_integer(p_value jsonb, p_field text, p_min bigint, p_max bigint,
                                                p_code text default 'QHA01') returns bigint
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'number' and p_value::numeric between p_min and p_max
      and p_value::numeric % 1 = 0 then p_value::bigint
    else hwqueue.refuse_value(p_value, p_field, 'an integer from ' || p_min::text || ' to ' || p_max::text,
      'give a whole JSON number in that range', p_code)::bigint end
$$;

-- A number in a range, to six places: what is smaller would not survive as a double.
create or replace function hwqueue.json_number(p_value jsonb, p_field text, p_min numeric, p_max numeric,
                                               p_code text default 'QHA01') returns numeric
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'number' and p_value::numeric between p_min and p_max
      then round(p_value::numeric, 6)
    else hwqueue.refuse_value(p_value, p_field, 'a number from ' || p_min::text || ' to ' || p_max::text,
      'give a JSON number in that range', p_code)::numeric end
$$;

-- Text that is not empty, of a bounded length.
create or replace function hwqueue.json_text(p_value jsonb, p_field text, p_max_length int,
  p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') between 1 and p_max_length
      then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, 'text of 1 to ' || p_max_length::text || ' characters',
      'give a shorter, non-empty JSON string', p_code) end
$$;

-- True or false.
create or replace function hwqueue.json_boolean(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns boolean
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'boolean' then p_value::boolean
    else hwqueue.refuse_value(p_value, p_field, 'true or false', 'give a JSON boolean', p_code)::boolean end
$$;

-- A list of at most p_most elements, which p_wanted says in words; none for absent or null.
create or replace function hwqueue.json_list(p_value jsonb, p_field text, p_most int, p_wanted text,
  p_hint text,
                                             p_code text default 'QHA01') returns jsonb
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return '[]'::jsonb;
  elsif jsonb_typeof(p_value) <> 'array' or jsonb_array_length(p_value) > p_most then
    perform hwqueue.refuse(p_code, format('%s must be %s', p_field, p_wanted),
        jsonb_build_object('field', p_field), p_hint);
  end if;
  return p_value;
end
$$;

-- An object with whatever keys.
create or replace function hwqueue.json_object(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'object' then p_value
    else hwqueue.refuse_value(p_value, p_field, 'a JSON object', 'pass an object such as {}', p_code)::jsonb
      end
$$;

-- How long JSON is as text, asked before it is written out.
-- Raises: QHA01 or the code given, from check_numbers alone.

-- Whether a value may be much longer as text than as it is kept: 1e131071 takes 16 bytes and 131072
-- characters. Asked before a cast of what somebody handed in; up to 4096 bytes the text has its bounds.
-- Compressed is what comes from a table of the caller's. Ask it in an `if`, not in a `case`: an immutable
-- cast in a branch is made when the expression is planned, whatever the condition.
create or replace function hwqueue.may_be_long(p_value jsonb) returns boolean
language sql stable
as $$ select pg_column_size(p_value) > 4096 or pg_column_compression(p_value) is not null $$;

-- How many bytes a value has as text, or more than p_limit as soon as its long numbers alone have so many.
create or replace function hwqueue.text_bytes(p_value jsonb, p_limit int) returns int
language plpgsql stable
as $$
declare
  v_number jsonb;
  v_bytes int := 0;
begin
  for v_number in
    select jsonb_path_query(p_value,
           'strict $.** ? (@ > 1e1000 || @ < -1e1000 || (@ > -1e-1000 && @ < 1e-1000 && @ != 0))', '{}', true)
  loop
    v_bytes := v_bytes + octet_length(v_number::text);
    if v_bytes > p_limit then
      return v_bytes;
    end if;
  end loop;
  return octet_length(p_value::text);
end
$$;

-- The value itself, unless its numbers are so long that it must not be written out.
create or replace function hwqueue.check_numbers(p_value jsonb, p_field text,
  p_code text default 'QHA01') returns jsonb
language plpgsql stable
as $$
begin
  if hwqueue.may_be_long(p_value) and hwqueue.text_bytes(p_value, 10000000) > 10000000 then
    perform hwqueue.refuse(p_code, format('%s is too long', p_field), jsonb_build_object('field', p_field),
      'the limit is 10000000 characters, numbers written out: 1e131071 has 131072');
  end if;
  return p_value;
end
$$;

-- The first characters of a value.
create or replace function hwqueue.excerpt(p_value jsonb) returns text
language plpgsql stable
as $$
begin
  if hwqueue.may_be_long(p_value) and jsonb_typeof(p_value) in ('array', 'object') then
    return 'a long JSON ' || jsonb_typeof(p_value);
  end if;
  return left(p_value::text, 60);
end
$$;

-- Which queues a node's worker polls and which tasks it has handlers for, as it announced when it registered.
-- Only explanations read this: a claim names its queues and tasks itself. A node that announced nothing
-- (another client, an older release) is taken as serving anything.

-- The names in a list of a registration or of a match; null: any. Raises: QHA01.
create or replace function hwqueue.json_names(p_value jsonb, p_field text, p_max_length int) returns text[]
language plpgsql immutable
as $$
declare
  v_names text[];
begin
  if p_value is null or p_value = 'null' then
    return null;
  end if;
  if (case when jsonb_typeof(p_value) <> 'array' then true
           else jsonb_array_length(p_value) > 10000 or p_value @? 'strict $[*] ? (@.type() != "string")' end)
             then
    perform hwqueue.refuse('QHA01', format('%s must be a list of at most 10000 names', p_field),
      jsonb_build_object('field', p_field), 'for example ["renders", "mail"]; leave it out for any');
  end if;
  v_names := array(select distinct n from jsonb_array_elements_text(p_value) n order by n);
  perform hwqueue.check_name(n, p_field, p_max_length) from unnest(v_names) n;
  return v_names;
end
$$;

-- JSON with every number in its shortest form, so that 1, 1.0 and 1e0 are one value in a digest and in
-- an anchor.
-- Postgres writes JSON numbers without exponents: only one with a point can be in another form.
create or replace function hwqueue.normal_value(p_value jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$
begin
  if position('.' in p_value::text) = 0 or jsonb_typeof(p_value) = 'string' then
    return p_value;
  elsif jsonb_typeof(p_value) = 'number' then
    return to_jsonb(trim_scale(p_value::numeric));
  elsif jsonb_typeof(p_value) = 'array' then
    return (select jsonb_agg(hwqueue.normal_value(e.value) order by e.ordinality)
        from jsonb_array_elements(p_value) with ordinality e);
  end if;
  return (select jsonb_object_agg(e.key, hwqueue.normal_value(e.value)) from jsonb_each(p_value) e);
end
$$;

-- The distinct elements of an array in bytewise order: the order of a list of alternatives means nothing.
create or replace function hwqueue.normal_set(p_array jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$
declare
  v_array jsonb := hwqueue.normal_value(p_array);
begin
  if jsonb_array_length(v_array) < 2 then
    return v_array;
  end if;
  return (select jsonb_agg(s.value order by s.value::text collate "C")
      from (select distinct e.value from jsonb_array_elements(v_array) e) s);
end
$$;
