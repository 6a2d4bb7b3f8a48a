-- What a params blob means in the grammar of placements, and how a spawn names one.

-- The normal placement that a parsed blob makes. Leases are met on their node; away from a service leaves out the domain, which is
-- then the service's own. A GPU class asks for a device.
-- Locks: none. Raises: nothing, for what parse_wire gives. Idempotent: yes.
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
-- Locks: none. Raises: nothing. Idempotent: yes.
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
-- Locks: none. Raises: QHA01, naming the field. Idempotent: yes.
create or replace function hwqueue.wire_blob(p_value jsonb, p_field text) returns bytea
language plpgsql immutable
as $$
declare
  v_text text := case when jsonb_typeof(p_value) = 'string' then p_value #>> '{}' end;
begin
  if p_value is null or jsonb_typeof(p_value) = 'null' then
    return null;
  elsif v_text ~ '^\\x([0-9A-Fa-f]{2})*$' then
    return decode(substring(v_text from 3), 'hex');
  elsif translate(v_text, E'\r\n', '') ~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$' then
    return decode(v_text, 'base64');
  end if;
  perform hwqueue.refuse_value(p_value, p_field, 'a params blob as text', 'give hex with a leading \x, or base64 with its padding',
                               'QHA01');
  return null;
end
$$;

-- A placement ANDed with that of a blob. The device that a GPU class asks for by itself counts only where the placement asks for none.
-- Locks: none. Raises: QHW01; QHC04 when the two contradict each other. Idempotent: yes.
create or replace function hwqueue.merge_wire(p_placement jsonb, p_blob bytea, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_field text := p_field || '.wire';
  -- read like any placement: what normalise_placement would refuse, a blob must not bring in
  v_wire jsonb := hwqueue.normalise_placement(hwqueue.wire_placement(hwqueue.parse_wire(p_blob, v_field)), v_field);
  v_resources jsonb := coalesce(p_placement -> 'resources', '{}');
begin
  if not v_resources ?| array['gpu', 'gpu_milli'] then
    v_resources := v_resources || coalesce(v_wire -> 'resources', '{}');
  elsif v_resources ? 'gpu_milli' and v_wire #>> '{isolation,gpu}' <> 'shared' then
    perform hwqueue.refuse('QHC04', format('%s asks for a share of a device and for class %s', p_field, v_wire #> '{isolation,gpu}'),
      jsonb_build_object('field', p_field, 'class', v_wire #> '{isolation,gpu}'), 'gpu_milli goes with class shared, or with none');
  end if;
  return hwqueue.merge_placements(
    p_placement || jsonb_strip_nulls(jsonb_build_object('resources', nullif(v_resources, '{}'))), v_wire - 'resources', p_field);
end
$$;
