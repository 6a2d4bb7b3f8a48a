-- JSON with every number in its shortest form, so that 1, 1.0 and 1e0 are one value in a digest and in an anchor.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.normal_value(p_value jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_value)
    when 'number' then to_jsonb(trim_scale((p_value #>> '{}')::numeric))
    when 'array' then coalesce(
      (select jsonb_agg(hwqueue.normal_value(e.value) order by e.ordinality)
       from jsonb_array_elements(p_value) with ordinality e), '[]')
    when 'object' then coalesce(
      (select jsonb_object_agg(e.key, hwqueue.normal_value(e.value)) from jsonb_each(p_value) e), '{}')
    else p_value
  end
$$;

-- The distinct elements of an array in bytewise order: the order of a list of alternatives means nothing.
create or replace function hwqueue.normal_set(p_array jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(s.value order by s.value::text collate "C"), '[]')
  from (select distinct hwqueue.normal_value(e.value) as value from jsonb_array_elements(p_array) e) s
$$;
