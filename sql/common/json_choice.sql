-- A checked reader like those of json_checks.sql: one of a few words; null for absent or JSON null.
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.
create or replace function hwqueue.json_choice(p_value jsonb, p_field text, p_choices text[], p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' = any (p_choices) then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, 'one of ' || array_to_string(p_choices, ', '), 'give one of these words as a JSON string',
      p_code) end
$$;
