-- Checked readers of JSON arguments: each returns the typed value (null for absent or JSON null) or refuses.
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.

-- Refuses nesting so deep that functions which descend it would run out of stack.
create or replace function hwqueue.check_depth(p_value jsonb, p_field text, p_code text default 'QHA01') returns void
language plpgsql immutable
as $$
begin
  if jsonb_path_exists(p_value, 'strict $.**{33}', '{}', true) then
    perform hwqueue.refuse(p_code, format('%s is nested more than 32 deep', p_field), jsonb_build_object('field', p_field),
      'flatten it');
  end if;
end
$$;

-- Refuses a value that is not an object, and any key that is not allowed.
create or replace function hwqueue.check_object(p_value jsonb, p_allowed text[], p_field text,
                                                p_code text default 'QHA01') returns void
language plpgsql immutable
as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_value) is distinct from 'object' then
    perform hwqueue.refuse(p_code, format('%s must be a JSON object, got %s', p_field, coalesce(jsonb_typeof(p_value), 'null')),
      jsonb_build_object('field', p_field), 'pass an object such as {}');
  end if;
  select k into v_unknown from jsonb_object_keys(p_value) k where k <> all (p_allowed) order by k limit 1;
  if found then
    perform hwqueue.refuse(p_code, format('%s has an unknown key %s', p_field, to_json(left(v_unknown, 100))),
      jsonb_build_object('field', p_field || '.' || left(v_unknown, 100)),
      'allowed keys: ' || array_to_string(p_allowed, ', '));
  end if;
end
$$;

-- A whole number in a range.
create or replace function hwqueue.json_integer(p_value jsonb, p_field text, p_min bigint, p_max bigint,
                                                p_code text default 'QHA01') returns bigint
language plpgsql immutable
as $$
declare
  v_number numeric;
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  end if;
  if jsonb_typeof(p_value) = 'number' then
    v_number := (p_value #>> '{}')::numeric;
    if v_number = trunc(v_number) and v_number between p_min and p_max then
      return v_number::bigint;
    end if;
  end if;
  perform hwqueue.refuse(p_code, format('%s must be an integer from %s to %s, got %s', p_field, p_min, p_max, left(p_value::text, 60)),
    jsonb_build_object('field', p_field), 'give a whole JSON number in that range');
  return null;
end
$$;

-- A number in a range, to six places: what is smaller would not survive as a double.
create or replace function hwqueue.json_number(p_value jsonb, p_field text, p_min numeric, p_max numeric,
                                               p_code text default 'QHA01') returns numeric
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  end if;
  if jsonb_typeof(p_value) <> 'number' or not (p_value #>> '{}')::numeric between p_min and p_max then
    perform hwqueue.refuse(p_code, format('%s must be a number from %s to %s, got %s', p_field, p_min, p_max, left(p_value::text, 60)),
      jsonb_build_object('field', p_field), 'give a JSON number in that range');
  end if;
  return round((p_value #>> '{}')::numeric, 6);
end
$$;

-- Text that is not empty, of a bounded length.
create or replace function hwqueue.json_text(p_value jsonb, p_field text, p_max_length int,
                                             p_code text default 'QHA01') returns text
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  end if;
  if jsonb_typeof(p_value) <> 'string' or length(p_value #>> '{}') not between 1 and p_max_length then
    perform hwqueue.refuse(p_code, format('%s must be text of 1 to %s characters, got %s', p_field, p_max_length, left(p_value::text, 60)),
      jsonb_build_object('field', p_field, 'length', length(p_value #>> '{}')), 'give a shorter, non-empty JSON string');
  end if;
  return p_value #>> '{}';
end
$$;

-- True or false.
create or replace function hwqueue.json_boolean(p_value jsonb, p_field text, p_code text default 'QHA01') returns boolean
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  end if;
  if jsonb_typeof(p_value) <> 'boolean' then
    perform hwqueue.refuse(p_code, format('%s must be true or false, got %s', p_field, left(p_value::text, 60)),
      jsonb_build_object('field', p_field), 'give a JSON boolean');
  end if;
  return p_value::boolean;
end
$$;
