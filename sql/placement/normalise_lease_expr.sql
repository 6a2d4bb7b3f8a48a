-- One {"lease"|"service"|"leases": ..., "domain", "away", "unknown", "tenants"} expression: where other leases run.
-- Without a domain a service keeps to its own failure domain, which may change: the domain stays absent.
-- Raises: QHC03.
create or replace function hwqueue.normalise_lease_expr(p_expr jsonb, p_kind text, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_expr jsonb;
  v_domain text;
begin
  perform hwqueue.check_object(p_expr, array[p_kind, 'domain', 'away', 'unknown'] || case when p_kind = 'leases' then array['tenants'] else '{}' end,
    p_field, 'QHC03');
  if p_kind = 'leases' then
    v_expr := jsonb_build_object('leases', hwqueue.normalise_selector(p_expr -> 'leases', p_field || '.leases'))
      || hwqueue.normalise_tenants(p_expr -> 'tenants', p_field || '.tenants');
    v_domain := hwqueue.require_domain(p_expr -> 'domain', p_field || '.domain');
  else
    if jsonb_typeof(p_expr -> p_kind) = 'null' then
      perform hwqueue.refuse('QHC03', format('%s.%s must not be null', p_field, p_kind), jsonb_build_object('field', p_field || '.' || p_kind),
        'name a target or leave the expression out');
    end if;
    v_expr := jsonb_build_object(p_kind, hwqueue.json_uuid(p_expr -> p_kind, p_field || '.' || p_kind, 'QHC03'));
    v_domain := coalesce(hwqueue.json_domain(p_expr -> 'domain', p_field || '.domain', 'QHC03'), case p_kind when 'lease' then 'node' end);
  end if;
  return v_expr || case when v_domain is null then '{}' else jsonb_build_object('domain', v_domain) end
    -- every node is a node
    || hwqueue.normalise_direction(p_expr, p_field) - case when v_domain = 'node' then 'unknown' else '' end;
end
$$;

-- Whose leases a selector looks at, as {"tenants": ...}; {} for those of the lease's own tenant. Callers of one tenant are refused here already where
-- they name another: check_own_class no longer knows the path. Raises: QHC03, QHA03.
create or replace function hwqueue.normalise_tenants(p_tenants jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
begin
  if not hwqueue.are_own(p_tenants) then
    perform hwqueue.refuse_foreign(format('%s names others', p_field), p_field, 'leave out tenants: they are the lease''s own');
  end if;
  if p_tenants is null or jsonb_typeof(p_tenants) = 'null' then
    return '{}'::jsonb;
  elsif p_tenants = '"*"' then
    return jsonb_build_object('tenants', '*');
  elsif jsonb_typeof(p_tenants) <> 'array' or jsonb_array_length(p_tenants) not between 1 and 100
        or exists (select 1 from jsonb_array_elements(p_tenants) t
                   where jsonb_typeof(t.value) <> 'string' or length(t.value #>> '{}') > 100 or t.value = '"*"') then
    perform hwqueue.refuse('QHC03', format('%s must be "*" or a list of 1 to 100 names', p_field), jsonb_build_object('field', p_field),
      'for example ["acme", "globex"]; "" names the leases without a tenant, "*" instead of the list all tenants');
  end if;
  return jsonb_build_object('tenants', hwqueue.normal_set(p_tenants));
end
$$;

-- A {"trust": DOMAIN} expression. Domains are compared byte by byte: nothing is folded or trimmed. Only a requirement can name one;
-- a preference for trust would weaken it silently. Raises: QHC03.
create or replace function hwqueue.normalise_trust_expr(p_expr jsonb, p_preferred boolean, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_domain text;
begin
  if p_preferred then
    perform hwqueue.refuse('QHC03', format('%s: trust cannot be preferred', p_field), jsonb_build_object('field', p_field || '.trust'),
      'require it, or leave it out');
  end if;
  perform hwqueue.check_object(p_expr, array['trust'], p_field, 'QHC03');
  v_domain := hwqueue.json_text(p_expr -> 'trust', p_field || '.trust', 255, 'QHC03');
  if v_domain is null or octet_length(convert_to(v_domain, 'UTF8')) > 255 then
    perform hwqueue.refuse('QHC03', format('%s.trust must be text of 1 to 255 bytes', p_field), jsonb_build_object('field', p_field || '.trust'),
      'name the trust domain that nodes are attested in');
  end if;
  return jsonb_build_object('trust', v_domain);
end
$$;
