-- Checked readers of JSON arguments: each returns a typed value, or refuses it with an error that names
-- the field.
-- All modules read JSON options through these. A reader returns null for an absent value or JSON null,
-- and raises p_code (QHA01, or QHC03 inside placements) for a value of the wrong type.
-- Most readers are single SQL expressions, so that Postgres inlines them and an absent option costs no
-- call. For the same reason the functions that refuse are declared immutable. They must get the value as
-- an argument, because Postgres evaluates immutable calls with constant arguments at plan time, whatever
-- the branch.
-- Values are measured before they are written out as text (may_be_long): 1e131071 takes 16 bytes as
-- jsonb and 131,072 characters as text.

-- Reads one of a few words.
create or replace function hwqueue.json_choice(p_value jsonb, p_field text, p_choices text[],
  p_code text default 'QHA01', p_hint text default 'give one of these words') returns text
language sql stable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' = any (p_choices) then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, 'one of ' || array_to_string(p_choices, ', '),
      p_hint, p_code) end
$$;

-- Reads a list of uuids and returns them sorted and distinct. Absent or null is the empty list.
create or replace function hwqueue.json_uuids(p_list jsonb, p_field text) returns uuid[]
language plpgsql immutable
as $$ begin return
  array(
    select distinct coalesce(hwqueue.json_uuid(e.value, f.field),
      hwqueue.refuse_value(e.value, f.field, 'a uuid', 'give a list of ids', 'QHA01')::uuid)
    from jsonb_array_elements(hwqueue.json_list(p_list, p_field, 1000, 'an array of at most 1000 uuids',
      'give a list of ids')) with ordinality e
    cross join lateral (select format('%s[%s]', p_field, e.ordinality - 1) as field) f order by 1);
end $$;

-- Reads an interval that is present: seconds, or interval text without months. Returns seconds alone.
-- json_interval calls it only for present values, so an absent one costs no call.
create or replace function hwqueue.parse_interval(p_value jsonb, p_field text, p_min interval,
  p_most interval, p_code text) returns interval
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
     or extract(epoch from v_span) not between extract(epoch from p_min)
       and coalesce(extract(epoch from p_most), 315360000) then
    perform hwqueue.refuse_value(p_value, p_field,
      format('a span of %s to %s', p_min, coalesce(p_most::text, 'ten years')),
      case when v_span > p_most then 'give a shorter one: a heartbeat makes a claim or a node live on'
        else 'give seconds (90) or interval text without months ("1 minute 30 seconds")' end, p_code);
  end if;
  return hwqueue.in_seconds(v_span);
end
$$;

-- Reads seconds, or interval text without months (they have no fixed length), of at most p_most or ten years.
create or replace function hwqueue.json_interval(p_value jsonb, p_field text,
  p_min interval default interval '0', p_most interval default null, p_code text default 'QHA01')
returns interval
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_interval(p_value, p_field, p_min, p_most, p_code) end
$$;

-- Reads a time that is present, in the years 1 to 9999 in UTC.
-- Clients cannot read other years, and one such lease would make every list that holds it unreadable.
create or replace function hwqueue.parse_time(p_value jsonb, p_field text, p_code text) returns timestamptz
language plpgsql stable
as $$
declare
  v_time timestamptz;
begin
  if jsonb_typeof(p_value) = 'string'
     and p_value #>> '{}' ~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}'
                             '[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?'
                             '(z|[+-][0-9]{2}:?[0-9]{2})$' then
    begin
      v_time := (p_value #>> '{}')::timestamptz;
    exception when
      invalid_datetime_format or datetime_field_overflow or invalid_time_zone_displacement_value then
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

-- Reads an RFC 3339 time with an offset. Without an offset it would depend on the session's time zone.
create or replace function hwqueue.json_time(p_value jsonb, p_field text, p_code text default 'QHA01')
returns timestamptz
language sql stable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_time(p_value, p_field, p_code) end
$$;

-- Reads a time with an offset, or a number of seconds from now, below zero of seconds ago: who has a span
-- need not know what time it is here.
create or replace function hwqueue.json_moment(p_value jsonb, p_field text, p_now timestamptz)
returns timestamptz
language sql stable
as $$
  select case when jsonb_typeof(p_value) = 'number' then p_now + make_interval(secs =>
      hwqueue.json_number(p_value, p_field, -315360000, 315360000)::double precision)
    else hwqueue.json_time(p_value, p_field) end
$$;

-- Reads a uuid in its usual form.
create or replace function hwqueue.json_uuid(p_value jsonb, p_field text, p_code text default 'QHA01')
returns uuid
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string'
      and p_value #>> '{}' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
      then (p_value #>> '{}')::uuid
    else hwqueue.refuse_value(p_value, p_field, 'a uuid',
      'give an id such as "0197f3a2-7c1e-7000-8000-000000000000"', p_code)::uuid end
$$;

-- Reads a topology domain: node, rack or label:KEY, where KEY has 1 to 253 characters.
create or replace function hwqueue.json_domain(p_value jsonb, p_field text, p_code text default 'QHA01')
returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when p_value in ('"node"', '"rack"') then p_value #>> '{}'
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' like 'label:_%'
      and length(p_value #>> '{}') <= 259 then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, '"node", "rack" or "label:KEY"',
      'KEY is a node label of 1 to 253 characters, as in "label:zone"', p_code) end
$$;

-- Refuses a value that the field does not take. The readers call it. It returns text only to fit into
-- their expressions.
-- Raises: p_code.
create or replace function hwqueue.refuse_value(p_value jsonb, p_field text, p_wanted text, p_hint text,
  p_code text) returns text
language plpgsql immutable
as $$
declare
  v_got text := 'a long JSON ' || jsonb_typeof(p_value);
begin
  if jsonb_typeof(p_value) not in ('array', 'object') or not hwqueue.may_be_long(p_value) then
    v_got := left(p_value::text, 60);
  end if;
  perform hwqueue.refuse(p_code, format('%s must be %s, got %s', p_field, p_wanted, v_got),
    jsonb_build_object('field', p_field,
      'length', case when jsonb_typeof(p_value) = 'string' then length(p_value #>> '{}') end), p_hint);
  return null;
end
$$;

-- Returns the value, unless it is nested more than 32 deep: functions that descend it would run out of
-- stack.
-- Raises: p_code.
create or replace function hwqueue.check_depth(p_value jsonb, p_field text, p_code text default 'QHA01')
returns jsonb
language plpgsql immutable
as $$
begin
  if jsonb_path_exists(p_value, 'strict $.**{33}', '{}', true) then
    perform hwqueue.refuse_field(p_code, p_field, 'is nested more than 32 deep', 'flatten it');
  end if;
  return p_value;
end
$$;

-- Refuses a value that is no object, or that has a key which is not allowed.
-- Raises: p_code.
create or replace function hwqueue.refuse_object(p_value jsonb, p_allowed text[], p_field text, p_code text)
returns jsonb
language plpgsql immutable
as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_value) is distinct from 'object' then
    perform hwqueue.refuse_field(p_code, p_field,
      format('must be a JSON object, got %s', coalesce(jsonb_typeof(p_value), 'null')),
      'pass an object such as {}');
  end if;
  v_unknown := (select min(k collate "C") from jsonb_object_keys(p_value - p_allowed) k);
  perform hwqueue.refuse(p_code, format('%s has an unknown key %s', p_field, to_json(left(v_unknown, 100))),
    jsonb_build_object('field', p_field || '.' || left(v_unknown, 100)),
    'allowed keys: ' || array_to_string(p_allowed, ', '));
  return null;
end
$$;

-- Returns an object that has only allowed keys. Unlike the other readers it refuses absent and null.
-- Raises: p_code.
create or replace function hwqueue.check_object(p_value jsonb, p_allowed text[], p_field text,
  p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when jsonb_typeof(p_value) = 'object' and p_value - p_allowed = '{}' then p_value
    else hwqueue.refuse_object(p_value, p_allowed, p_field, p_code) end
$$;

-- Reads a whole number in a range.
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

-- Reads a number in a range, rounded to six places. Smaller fractions would not survive as a double.
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

-- Reads non-empty text of a bounded length.
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

-- Reads true or false.
create or replace function hwqueue.json_boolean(p_value jsonb, p_field text, p_code text default 'QHA01')
returns boolean
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'boolean' then p_value::boolean
    else hwqueue.refuse_value(p_value, p_field, 'true or false', 'give a JSON boolean', p_code)::boolean end
$$;

-- Reads a list of at most p_most elements. p_wanted describes the list in the error. Absent or null is
-- the empty list.
create or replace function hwqueue.json_list(p_value jsonb, p_field text, p_most int, p_wanted text,
  p_hint text, p_code text default 'QHA01') returns jsonb
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return '[]'::jsonb;
  elsif jsonb_typeof(p_value) <> 'array' or jsonb_array_length(p_value) > p_most then
    perform hwqueue.refuse_field(p_code, p_field, format('must be %s', p_wanted), p_hint);
  end if;
  return p_value;
end
$$;

-- Reads an object with any keys.
create or replace function hwqueue.json_object(p_value jsonb, p_field text, p_code text default 'QHA01')
returns jsonb
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'object' then p_value
    else hwqueue.refuse_value(p_value, p_field, 'a JSON object', 'pass an object such as {}',
      p_code)::jsonb end
$$;

-- Whether a value may be much longer as text than as jsonb. Callers ask this before they cast a caller's
-- value to text.
-- Up to 4,096 bytes the length as text is bounded. A compressed value comes from a table of the
-- caller's.
-- Call it in an `if`, not in a `case`: Postgres evaluates an immutable cast in a `case` branch at plan
-- time, whatever the condition.
create or replace function hwqueue.may_be_long(p_value jsonb) returns boolean
language sql stable
as $$ select pg_column_size(p_value) > 4096 or pg_column_compression(p_value) is not null $$;

-- Returns the length of a value as text in bytes. It stops early, with a value above p_limit, when the
-- long numbers alone exceed p_limit.
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

-- Returns the value, unless it is longer than 10,000,000 characters with its numbers written out.
-- Raises: p_code.
create or replace function hwqueue.check_numbers(p_value jsonb, p_field text, p_code text default 'QHA01')
returns jsonb
language plpgsql stable
as $$
begin
  if hwqueue.may_be_long(p_value) and hwqueue.text_bytes(p_value, 10000000) > 10000000 then
    perform hwqueue.refuse_field(p_code, p_field, 'is too long',
      'the limit is 10000000 characters, numbers written out: 1e131071 has 131072');
  end if;
  return p_value;
end
$$;

-- Reads the queue or task names that a registration announces or match_nodes names. Null means any.
-- A worker announces which queues it polls and which tasks it handles. Only explanations use this: a
-- claim names its queues and tasks itself. A node that announced nothing (another client) counts as
-- serving all of them.
-- Raises: QHA01.
create or replace function hwqueue.json_names(p_value jsonb, p_field text, p_max_length int) returns text[]
language plpgsql immutable
as $$
declare
  v_names text[] := array(
    select distinct hwqueue.json_text(n.value, p_field, p_max_length)
    from jsonb_array_elements(hwqueue.json_list(p_value, p_field, 10000, 'a list of at most 10000 names',
      'for example ["renders", "mail"]; leave it out for any')) n order by 1);
begin
  perform hwqueue.check_name(n, p_field, p_max_length) from unnest(v_names) n;
  return case when coalesce(p_value, 'null') <> 'null' then v_names end;
end
$$;

-- Returns JSON with every number in its shortest form, so that 1, 1.0 and 1e0 are one value in digests
-- and anchors.
-- Postgres writes JSON numbers without exponents, so only numbers with a point can have another form.
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

-- Returns the distinct elements of an array in bytewise order, for lists whose order means nothing.
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

-- Returns {key: value}, or {} for a value that is null.
create or replace function hwqueue.present(p_key text, p_value jsonb) returns jsonb
language sql stable parallel safe
as $$ select case when p_value is null then '{}' else jsonb_build_object(p_key, p_value) end $$;
