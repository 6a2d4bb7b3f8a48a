-- One {"node"|"rack"|"resource": ..., "away", "unknown"} expression: what a node is, rather than what it is labelled.
-- Raises: QHC03.
create or replace function hwqueue.normalise_target_expr(p_expr jsonb, p_kind text, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_list jsonb := p_expr -> p_kind;
  v_most int := case when p_kind = 'resource' then 1 else 1000 end;
  v_target jsonb;
  v_field text;
  v_targets jsonb := '[]'::jsonb;
begin
  perform hwqueue.check_object(p_expr, array[p_kind, 'away'] || case when p_kind = 'rack' then array['unknown'] else '{}' end,
    p_field, 'QHC03');
  if jsonb_typeof(v_list) <> 'array' then
    v_list := jsonb_build_array(v_list);
  end if;
  if jsonb_array_length(v_list) not between 1 and v_most then
    perform hwqueue.refuse('QHC03', format('%s.%s must name 1 to %s targets', p_field, p_kind, v_most),
      jsonb_build_object('field', p_field || '.' || p_kind), 'an empty list would match nothing: leave the expression out; one expression for each resource');
  end if;
  for v_target, v_field in
    select e.value, format('%s.%s[%s]', p_field, p_kind, e.ordinality - 1) from jsonb_array_elements(v_list) with ordinality e
  loop
    if jsonb_typeof(v_target) = 'null' then
      perform hwqueue.refuse('QHC03', format('%s must not be null', v_field), jsonb_build_object('field', v_field),
        'name a target or leave the expression out');
    elsif p_kind = 'rack' then
      v_targets := v_targets || to_jsonb(hwqueue.json_integer(v_target, v_field, 0, 4294967295, 'QHC03'));
    else
      v_targets := v_targets || to_jsonb(hwqueue.json_uuid(v_target, v_field, 'QHC03'));
    end if;
  end loop;
  return jsonb_build_object(p_kind, hwqueue.normal_set(v_targets)) || hwqueue.normalise_direction(p_expr, p_field);
end
$$;
