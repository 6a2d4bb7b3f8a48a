-- One {"node"|"rack"|"resource": ..., "away", "domain"} expression: what a node is, rather than what it is labelled.
-- Locks: none. Raises: QHC03; QHC05 for a target of the grammar that this version does not serve. Idempotent: yes.
create or replace function hwqueue.normalise_target_expr(p_expr jsonb, p_kind text, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_list jsonb := p_expr -> p_kind;
  v_target jsonb;
  v_field text;
  v_targets jsonb := '[]'::jsonb;
  v_most int := case p_kind when 'resource' then 1 else 1000 end;
  v_away boolean := coalesce(hwqueue.json_boolean(p_expr -> 'away', p_field || '.away', 'QHC03'), false);
  v_unknown text := hwqueue.json_text(p_expr -> 'unknown', p_field || '.unknown', 8, 'QHC03');
begin
  perform hwqueue.check_object(p_expr, array[p_kind, 'away'] || case when p_kind = 'rack' then array['unknown'] else '{}' end,
    p_field, 'QHC03');
  if coalesce(v_unknown not in ('pass', 'fail'), false) then
    perform hwqueue.refuse('QHC03', format('%s.unknown must be "pass" or "fail"', p_field),
      jsonb_build_object('field', p_field || '.unknown'), 'it says what a node without a rack does');
  end if;
  if jsonb_typeof(v_list) <> 'array' then
    v_list := jsonb_build_array(v_list);
  end if;
  if jsonb_array_length(v_list) not between 1 and v_most then  -- a list of one resource is the normal form
    perform hwqueue.refuse('QHC03', format('%s.%s must name 1 to %s targets', p_field, p_kind, v_most),
      jsonb_build_object('field', p_field || '.' || p_kind), 'an empty list would match nothing: leave the expression out');
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
  -- the value that changes nothing is dropped, so that saying it does not make another class
  return jsonb_build_object(p_kind, hwqueue.normal_set(v_targets))
    || case when v_away then '{"away": true}'::jsonb else '{}' end
    || case when v_unknown = case when v_away then 'fail' else 'pass' end
            then jsonb_build_object('unknown', v_unknown) else '{}' end;
end
$$;
