-- Preferences in normal form: [{"weight", "when": [EXPR, ...]}], sorted; the same one twice counts once, weight 0 not at all.
-- Raises: QHC03.
create or replace function hwqueue.normalise_preferences(p_prefer jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_item jsonb;
  v_field text;
  v_when jsonb;
  v_weight bigint;
  v_preferred jsonb := '[]'::jsonb;
begin
  if p_prefer is null or jsonb_typeof(p_prefer) = 'null' then
    return '[]'::jsonb;
  end if;
  for v_item, v_field in
    select e.value, format('%s[%s]', p_field, e.ordinality - 1)
    from jsonb_array_elements(hwqueue.json_list(p_prefer, p_field, 100, 'a list of at most 100 preferences',
      'for example [{"weight": 50, "when": {"tags": {"zone": "a"}}}]', 'QHC03')) with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['weight', 'when'], v_field, 'QHC03');
    v_weight := coalesce(hwqueue.json_integer(v_item -> 'weight', v_field || '.weight', -100, 100, 'QHC03'), 100);
    v_when := v_item -> 'when';
    if jsonb_typeof(v_when) is distinct from 'array' then
      v_when := jsonb_build_array(v_when);
    end if;
    v_when := hwqueue.normalise_exprs(v_when, v_field || '.when', 1, 0, true);
    if v_when = '[]' then  -- one that asks nothing holds everywhere, and counts; an empty list could not be spawned again
      v_when := '[{"tags": {}}]';
    end if;
    if v_weight <> 0 then
      v_preferred := v_preferred || jsonb_build_object('weight', v_weight, 'when', v_when);
    end if;
  end loop;
  return hwqueue.normal_set(v_preferred);
end
$$;
