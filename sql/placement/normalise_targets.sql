-- The targets of a spread in normal form: [{"value", "percent"}], what share of the leases each domain should have. An empty list asks
-- for equal shares; what the percents leave goes to all other domains, which can also be named "*", as in Nomad.
-- Raises: QHC03.
create or replace function hwqueue.normalise_targets(p_targets jsonb, p_domain text, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_target jsonb;
  v_field text;
  v_percent bigint;
  v_targets jsonb := '[]';
  v_rest jsonb;
begin
  if jsonb_typeof(p_targets) is distinct from 'array' or jsonb_array_length(p_targets) > 100 then
    perform hwqueue.refuse('QHC03', format('%s must be a list of at most 100 targets', p_field), jsonb_build_object('field', p_field),
      'for example [{"value": "a", "percent": 70}], or [] for equal shares');
  end if;
  for v_target, v_field in
    select e.value, format('%s[%s]', p_field, e.ordinality - 1) from jsonb_array_elements(p_targets) with ordinality e
  loop
    perform hwqueue.check_object(v_target, array['value', 'percent'], v_field, 'QHC03');
    v_percent := hwqueue.json_integer(v_target -> 'percent', v_field || '.percent', 0, 100, 'QHC03');
    if v_percent is null then
      perform hwqueue.refuse('QHC03', format('%s.percent must be given', v_field), jsonb_build_object('field', v_field || '.percent'),
        'give an integer from 0 to 100');
    end if;
    v_targets := v_targets || jsonb_build_object('value', hwqueue.target_value(v_target -> 'value', p_domain, v_field || '.value'),
                                                 'percent', v_percent);
  end loop;
  v_targets := hwqueue.normal_set(v_targets);
  if (select count(distinct t.value -> 'value') < count(*) or sum((t.value ->> 'percent')::int) > 100
      from jsonb_array_elements(v_targets) t) then
    perform hwqueue.refuse('QHC03', format('%s must name each value once, with percents of at most 100 in sum', p_field),
      jsonb_build_object('field', p_field), 'what is left of the 100 goes to all other domains');
  end if;
  v_rest := (select jsonb_build_object('value', '*', 'percent', 100 - sum((t.value ->> 'percent')::int))
             from jsonb_array_elements(v_targets) t where t.value -> 'value' <> '"*"');
  -- goes without saying beside others; alone it is not the empty list, which asks for equal shares
  return coalesce((select jsonb_agg(t.value order by t.ordinality) from jsonb_array_elements(v_targets) with ordinality t
                   where t.value <> v_rest), v_targets);
end
$$;

-- The name of one domain: a node id, a rack number, or a label's value; "*" is all that are not named.
-- Raises: QHC03.
create or replace function hwqueue.target_value(p_value jsonb, p_domain text, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  if p_value is null or jsonb_typeof(p_value) in ('null', 'array', 'object') or length(p_value::text) > 1100 then
    perform hwqueue.refuse('QHC03', format('%s must be a string, number or boolean', p_field), jsonb_build_object('field', p_field),
      'name one domain: a node id, a rack number, or the value of the label');
  end if;
  return case when p_value = '"*"' then p_value
    when p_domain = 'node' then to_jsonb(hwqueue.json_uuid(p_value, p_field, 'QHC03'))
    when p_domain = 'rack' then to_jsonb(hwqueue.json_integer(p_value, p_field, 0, 4294967295, 'QHC03'))
    else hwqueue.normal_value(p_value) end;
end
$$;
