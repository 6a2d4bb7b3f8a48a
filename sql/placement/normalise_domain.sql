-- What "same place" means (json_domain), where it must be given. Raises: QHC03.
create or replace function hwqueue.require_domain(p_domain jsonb, p_field text) returns text
language plpgsql immutable
as $$
begin
  if p_domain is null or jsonb_typeof(p_domain) = 'null' then
    perform hwqueue.refuse('QHC03', format('%s must be given', p_field), jsonb_build_object('field', p_field),
      'say what counts as one place: "node", "rack" or "label:KEY"');
  end if;
  return hwqueue.json_domain(p_domain, p_field, 'QHC03');
end
$$;

-- The away and unknown of an expression. What goes without saying is dropped, so that saying it does not make another class: away is
-- false, and a node outside all domains fails toward and passes away. Raises: QHC03.
create or replace function hwqueue.normalise_direction(p_expr jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_away boolean := coalesce(hwqueue.json_boolean(p_expr -> 'away', p_field || '.away', 'QHC03'), false);
  v_unknown text := hwqueue.json_choice(p_expr -> 'unknown', p_field || '.unknown', array['pass', 'fail'], 'QHC03');
begin
  return case when v_away then '{"away": true}'::jsonb else '{}' end
    || case when v_unknown = case when v_away then 'fail' else 'pass' end
            then jsonb_build_object('unknown', v_unknown) else '{}' end;
end
$$;
