-- What a params blob means in the grammar of placements, and how a spawn names one.

-- The normal placement that a parsed blob makes. Leases are met on their node; away from a service leaves out the domain, which is
-- then the service's own. A GPU class asks for a device. Raises: nothing, for what parse_wire gives.
create or replace function hwqueue.wire_placement(p_intent jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  v_gpu text := p_intent ->> 'gpu_exclusivity';
  v_isolation jsonb := jsonb_strip_nulls(jsonb_build_object('cpu', p_intent ->> 'cpu_isolation', 'gpu', v_gpu));
  v_required jsonb;
  v_preferred jsonb;
begin
  select jsonb_agg(x.expr) filter (where x.strength = 'required'),
         jsonb_agg(jsonb_build_object('weight', 100, 'when', jsonb_build_array(x.expr))) filter (where x.strength = 'preferred')
  into v_required, v_preferred
  from (select hwqueue.wire_expr(e.value) as expr, e.value ->> 'strength' as strength
        from jsonb_array_elements(p_intent -> 'affinity') e) x;
  return jsonb_strip_nulls(jsonb_build_object(
    'require', hwqueue.normal_set(v_required),
    'prefer', hwqueue.normal_set(v_preferred),
    'resources', case when v_gpu is not null then '{"gpu": 1}'::jsonb end,
    'isolation', nullif(v_isolation, '{}')));
end
$$;

-- The expression that an entry stands for.
create or replace function hwqueue.wire_expr(p_entry jsonb) returns jsonb
language sql immutable
as $$
  select case p_entry ->> 'target_type'
      when 'node_id' then jsonb_build_object('node', jsonb_build_array((p_entry ->> 'target')::uuid))
      when 'resource_id' then jsonb_build_object('resource', jsonb_build_array((p_entry ->> 'target')::uuid))
      when 'rack_id' then jsonb_build_object('rack', jsonb_build_array(p_entry -> 'target'))
      when 'lease_id' then jsonb_build_object('lease', (p_entry ->> 'target')::uuid, 'domain', 'node')
      when 'service_id' then jsonb_build_object('service', (p_entry ->> 'target')::uuid)
      when 'trust_domain' then jsonb_build_object('trust', p_entry -> 'target') end
    || case p_entry ->> 'direction' when 'away' then '{"away": true}'::jsonb else '{}' end
$$;

-- The bytes of the option `wire`: hex with a leading \x, else base64, in lines or not. Null for absent or JSON null.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.wire_blob(p_value jsonb, p_field text) returns bytea
language plpgsql immutable
as $$
declare
  v_text text := case when jsonb_typeof(p_value) = 'string' then p_value #>> '{}' end;
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  elsif v_text ~ E'^\\\\x([0-9A-Fa-f]{2})*$' then
    return decode(substring(v_text from 3), 'hex');
  elsif translate(v_text, E'\r\n', '') ~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$' then
    return decode(v_text, 'base64');
  end if;
  perform hwqueue.refuse_value(p_value, p_field, 'a params blob as text', E'give hex with a leading \\x, or base64 with its padding',
                               'QHA01');
  return null;
end
$$;
