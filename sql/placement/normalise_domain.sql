-- What "same place" means: node, rack or label:KEY; null for absent or JSON null.
-- Locks: none. Raises: QHC03. Idempotent: yes.
create or replace function hwqueue.normalise_domain(p_domain jsonb, p_field text) returns text
language sql immutable
as $$
  select case when p_domain is null or jsonb_typeof(p_domain) = 'null' then null
    when p_domain in ('"node"', '"rack"') then p_domain #>> '{}'
    when jsonb_typeof(p_domain) = 'string' and p_domain #>> '{}' like 'label:%' and length(p_domain #>> '{}') between 7 and 259
      then p_domain #>> '{}'
    else hwqueue.refuse_value(p_domain, p_field, '"node", "rack" or "label:KEY"',
      'KEY is a node label of 1 to 253 characters, as in "label:zone"', 'QHC03') end
$$;

-- The same where it must be given.
-- Locks: none. Raises: QHC03. Idempotent: yes.
create or replace function hwqueue.require_domain(p_domain jsonb, p_field text) returns text
language plpgsql immutable
as $$
begin
  if p_domain is null or jsonb_typeof(p_domain) = 'null' then
    perform hwqueue.refuse('QHC03', format('%s must be given', p_field), jsonb_build_object('field', p_field),
      'say what counts as one place: "node", "rack" or "label:KEY"');
  end if;
  return hwqueue.normalise_domain(p_domain, p_field);
end
$$;

-- The away and unknown of an expression. What goes without saying is dropped, so that saying it does not make another class: away is
-- false, and a node outside all domains fails toward and passes away.
-- Locks: none. Raises: QHC03. Idempotent: yes.
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
