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
    select jsonb_path_query(p_value, 'strict $.** ? (@ > 1e1000 || @ < -1e1000 || (@ > -1e-1000 && @ < 1e-1000 && @ != 0))', '{}', true)
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
create or replace function hwqueue.check_numbers(p_value jsonb, p_field text, p_code text default 'QHA01') returns jsonb
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
