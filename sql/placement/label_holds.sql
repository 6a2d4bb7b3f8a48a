-- Does a label's value (null when the node lacks the label) meet one operator? Design: a missing label meets
-- not_in and does_not_exist only; in and not_in compare type and value; text is never ordered.
create or replace function hwqueue.label_holds(p_op text, p_value jsonb, p_values jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
begin
  case p_op
    when 'exists' then
      return p_value is not null;
    when 'does_not_exist' then
      return p_value is null;
    when 'in' then
      return coalesce(jsonb_typeof(p_value) in ('string', 'number', 'boolean') and p_values @> jsonb_build_array(p_value), false);
    when 'not_in' then
      return not coalesce(jsonb_typeof(p_value) in ('string', 'number', 'boolean') and p_values @> jsonb_build_array(p_value), false);
    when 'gt' then
      return coalesce(hwqueue.label_number(p_value) > hwqueue.label_number(p_values -> 0), false);
    when 'gte' then
      return coalesce(hwqueue.label_number(p_value) >= hwqueue.label_number(p_values -> 0), false);
    when 'lt' then
      return coalesce(hwqueue.label_number(p_value) < hwqueue.label_number(p_values -> 0), false);
    when 'lte' then
      return coalesce(hwqueue.label_number(p_value) <= hwqueue.label_number(p_values -> 0), false);
    when 'regexp' then
      return coalesce(jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 256
                      and (p_value #>> '{}') ~ (p_values ->> 0), false);
    when 'version', 'semver' then
      return coalesce(jsonb_typeof(p_value) in ('string', 'number') and jsonb_typeof(p_values -> 0) = 'string'
                      and hwqueue.version_in_range(p_value #>> '{}', p_values ->> 0, p_op), false);
    when 'contains_all' then
      return coalesce(jsonb_typeof(p_value) = 'array' and p_value @> p_values, false);
    when 'contains_any' then
      return coalesce(jsonb_typeof(p_value) = 'array'
                      and exists (select 1 from jsonb_array_elements(p_values) v where p_value @> jsonb_build_array(v.value)), false);
    else
      return false;
  end case;
end
$$;

-- A label as a number: a JSON number, or text like "-12.5"; null for anything else.
create or replace function hwqueue.label_number(p_value jsonb) returns numeric
language sql immutable parallel safe
as $$
  select case
    when jsonb_typeof(p_value) = 'number' then (p_value #>> '{}')::numeric
    when jsonb_typeof(p_value) = 'string' and (p_value #>> '{}') ~ '^-?[0-9]{1,128}([.][0-9]{1,128})?$' then (p_value #>> '{}')::numeric
  end
$$;
