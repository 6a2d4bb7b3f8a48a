-- Checked readers of JSON arguments: each returns the typed value (null for absent or JSON null) or refuses.
-- They are single expressions, so that Postgres puts them in place of the call, and for the same reason what refuses is
-- declared immutable. It must be handed the value: immutable calls with nothing but constants are made beforehand.
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.

-- Refuses a value that is not what the field takes.
create or replace function hwqueue.refuse_value(p_value jsonb, p_field text, p_wanted text, p_hint text, p_code text) returns text
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse(p_code, format('%s must be %s, got %s', p_field, p_wanted, hwqueue.excerpt(p_value)),
    jsonb_build_object('field', p_field, 'length', case when jsonb_typeof(p_value) = 'string' then length(p_value #>> '{}') end), p_hint);
  return null;
end
$$;

-- Refuses what check_depth does not let pass.
create or replace function hwqueue.refuse_depth(p_value jsonb, p_field text, p_code text) returns jsonb
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse(p_code, format('%s is nested more than 32 deep', p_field), jsonb_build_object('field', p_field), 'flatten it');
  return p_value;
end
$$;

-- The value itself, unless it is nested so deep that functions which descend it would run out of stack.
create or replace function hwqueue.check_depth(p_value jsonb, p_field text, p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when jsonb_path_exists(p_value, 'strict $.**{33}', '{}', true) then hwqueue.refuse_depth(p_value, p_field, p_code) else p_value end
$$;

-- Refuses what check_object does not let pass.
create or replace function hwqueue.refuse_object(p_value jsonb, p_allowed text[], p_field text, p_code text) returns jsonb
language plpgsql immutable
as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_value) is distinct from 'object' then
    perform hwqueue.refuse(p_code, format('%s must be a JSON object, got %s', p_field, coalesce(jsonb_typeof(p_value), 'null')),
      jsonb_build_object('field', p_field), 'pass an object such as {}');
  end if;
  v_unknown := (select min(k collate "C") from jsonb_object_keys(p_value - p_allowed) k);
  perform hwqueue.refuse(p_code, format('%s has an unknown key %s', p_field, to_json(left(v_unknown, 100))),
    jsonb_build_object('field', p_field || '.' || left(v_unknown, 100)), 'allowed keys: ' || array_to_string(p_allowed, ', '));
  return null;
end
$$;

-- An object without keys that are not allowed; absent or null is refused, too.
create or replace function hwqueue.check_object(p_value jsonb, p_allowed text[], p_field text, p_code text default 'QHA01') returns jsonb
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
    when jsonb_typeof(p_value) = 'number' and p_value::numeric between p_min and p_max and p_value::numeric % 1 = 0 then p_value::bigint
    else hwqueue.refuse_value(p_value, p_field, 'an integer from ' || p_min::text || ' to ' || p_max::text,
      'give a whole JSON number in that range', p_code)::bigint end
$$;

-- A number in a range, to six places: what is smaller would not survive as a double.
create or replace function hwqueue.json_number(p_value jsonb, p_field text, p_min numeric, p_max numeric,
                                               p_code text default 'QHA01') returns numeric
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'number' and p_value::numeric between p_min and p_max then round(p_value::numeric, 6)
    else hwqueue.refuse_value(p_value, p_field, 'a number from ' || p_min::text || ' to ' || p_max::text,
      'give a JSON number in that range', p_code)::numeric end
$$;

-- Text that is not empty, of a bounded length.
create or replace function hwqueue.json_text(p_value jsonb, p_field text, p_max_length int, p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') between 1 and p_max_length then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, 'text of 1 to ' || p_max_length::text || ' characters',
      'give a shorter, non-empty JSON string', p_code) end
$$;

-- True or false.
create or replace function hwqueue.json_boolean(p_value jsonb, p_field text, p_code text default 'QHA01') returns boolean
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'boolean' then p_value::boolean
    else hwqueue.refuse_value(p_value, p_field, 'true or false', 'give a JSON boolean', p_code)::boolean end
$$;

-- A list of at most p_most elements, which p_wanted says in words; none for absent or null.
create or replace function hwqueue.json_list(p_value jsonb, p_field text, p_most int, p_wanted text, p_hint text,
                                             p_code text default 'QHA01') returns jsonb
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return '[]'::jsonb;
  elsif jsonb_typeof(p_value) <> 'array' or jsonb_array_length(p_value) > p_most then
    perform hwqueue.refuse(p_code, format('%s must be %s', p_field, p_wanted), jsonb_build_object('field', p_field), p_hint);
  end if;
  return p_value;
end
$$;

-- An object with whatever keys.
create or replace function hwqueue.json_object(p_value jsonb, p_field text, p_code text default 'QHA01') returns jsonb
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'object' then p_value
    else hwqueue.refuse_value(p_value, p_field, 'a JSON object', 'pass an object such as {}', p_code)::jsonb end
$$;
