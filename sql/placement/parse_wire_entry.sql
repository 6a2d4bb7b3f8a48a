-- The values of TLVs of a params blob that is read by parse_wire, which has checked that the bytes are there.
-- p_at is where the value begins, p_length what its TLV says.

-- One affinity entry. The order of the checks decides nothing but the reason. Raises: QHW01.
create or replace function hwqueue.parse_wire_entry(p_blob bytea, p_at int, p_length int, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_category text;
  v_strength text;
  v_direction text;
  v_type text;
  v_length int;
  v_target bytea;
begin
  if p_length < 5 then
    perform hwqueue.refuse_wire('truncated_entry', p_at, p_field);
  end if;
  -- a code that is not in a list gives null
  v_category := (array['resource', 'state', 'topology', 'trust', 'facility'])[get_byte(p_blob, p_at)];
  v_strength := (array['required', 'preferred', 'adaptive'])[get_byte(p_blob, p_at + 1) & 127];
  v_direction := case when get_byte(p_blob, p_at + 1) > 127 then 'away' else 'toward' end;
  v_type := (array['node_id', 'resource_id', 'lease_id', 'service_id', 'trust_domain', 'rack_id'])[get_byte(p_blob, p_at + 2)];
  v_length := hwqueue.wire_number(p_blob, p_at + 3);
  if v_category is null then
    perform hwqueue.refuse_wire('unknown_category', p_at, p_field);
  elsif v_category = 'facility' then
    perform hwqueue.refuse_wire('category_not_in_v1', p_at, p_field);
  elsif v_strength is null then
    perform hwqueue.refuse_wire('unknown_strength', p_at + 1, p_field);
  elsif v_strength = 'adaptive' then  -- named, but no claim could honour it
    perform hwqueue.refuse_wire('reserved_strength', p_at + 1, p_field);
  elsif v_type is null then
    perform hwqueue.refuse_wire('unknown_target_type', p_at + 2, p_field);
  elsif v_category || ' ' || v_type not in ('resource node_id', 'resource resource_id', 'state node_id', 'state lease_id',
      'topology node_id', 'topology rack_id', 'topology service_id', 'trust trust_domain') then
    perform hwqueue.refuse_wire('target_type_not_allowed', p_at + 2, p_field);
  elsif v_category = 'trust' and v_strength = 'preferred' then  -- a soft trust rule is a weaker one
    perform hwqueue.refuse_wire('strength_not_allowed', p_at + 1, p_field);
  elsif v_type = 'trust_domain' and v_direction = 'away' or v_type = 'service_id' and v_direction = 'toward' then
    perform hwqueue.refuse_wire('direction_not_allowed', p_at + 1, p_field);
  elsif v_length > p_length - 5 then
    perform hwqueue.refuse_wire('truncated_entry', p_at + 3, p_field);
  elsif v_length < p_length - 5 then
    perform hwqueue.refuse_wire('trailing_bytes_in_entry', p_at + 5 + v_length, p_field);
  elsif v_type <> 'trust_domain' and v_length <> (case v_type when 'rack_id' then 4 else 16 end) then
    perform hwqueue.refuse_wire('bad_target_length', p_at + 3, p_field);
  end if;
  v_target := substring(p_blob from p_at + 6 for v_length);
  return jsonb_build_object('category', v_category, 'strength', v_strength, 'direction', v_direction, 'target_type', v_type,
    'target', case v_type
      when 'trust_domain' then to_jsonb(hwqueue.parse_wire_domain(v_target, p_at + 5, p_field))
      when 'rack_id' then to_jsonb(hwqueue.wire_number(v_target, 0) * 65536::bigint + hwqueue.wire_number(v_target, 2))
      else to_jsonb(encode(v_target, 'hex')) end);
end
$$;

-- The name of a trust domain, byte for byte: folding case or blanks would let other names in. Raises: QHW01.
create or replace function hwqueue.parse_wire_domain(p_bytes bytea, p_at int, p_field text) returns text
language plpgsql immutable
as $$
begin
  if p_bytes = '' then
    perform hwqueue.refuse_wire('empty_trust_domain', p_at, p_field);
  elsif octet_length(p_bytes) > 255 or position(decode('00', 'hex') in p_bytes) > 0 then  -- no text of Postgres holds a zero byte
    perform hwqueue.refuse_wire('invalid_trust_domain', p_at, p_field);
  end if;
  begin
    return convert_from(p_bytes, 'UTF8');
  exception when character_not_in_repertoire or untranslatable_character then
    perform hwqueue.refuse_wire('invalid_utf8', p_at, p_field);
  end;
  return null;
end
$$;

-- One class, of a list that begins with code 0. Raises: QHW01, naming the class.
create or replace function hwqueue.parse_wire_class(p_blob bytea, p_at int, p_length int, p_classes text[], p_field text) returns text
language plpgsql immutable
as $$
declare
  v_code int;
begin
  if p_length <> 1 then
    perform hwqueue.refuse_wire('bad_length', p_at - 2, p_field);
  end if;
  v_code := get_byte(p_blob, p_at);
  if p_classes[v_code + 1] is null then
    perform hwqueue.refuse_wire(case v_code when 255 then 'sentinel_class' else 'unknown_class' end, p_at, p_field,
      '0x' || encode(substring(p_blob from p_at + 1 for 1), 'hex'));
  end if;
  return p_classes[v_code + 1];
end
$$;
