-- JSON with every number in its shortest form, so that 1, 1.0 and 1e0 are one value in a digest and in an anchor.
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
    return (select jsonb_agg(hwqueue.normal_value(e.value) order by e.ordinality) from jsonb_array_elements(p_value) with ordinality e);
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
  return (select jsonb_agg(s.value order by s.value::text collate "C") from (select distinct e.value from jsonb_array_elements(v_array) e) s);
end
$$;
