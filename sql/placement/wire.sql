-- The params blob: the binary form of a placement, as option wire of a spawn (docs/reference/wire.md).
-- parse_wire reads the bytes into JSON, wire_placement makes a normal placement of that. hwqueue/wire.py
-- applies the same rules in Python. One bad byte refuses the whole blob: one that was read in part could lose
-- a requirement.

-- Returns the normal placement of a parsed blob. A lease is met on its node. Away from a service leaves out
-- the domain, which is then the service's failure domain. A GPU class asks for a device.
create or replace function hwqueue.wire_placement(p_intent jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  v_gpu text := p_intent ->> 'gpu_exclusivity';
  v_isolation jsonb := jsonb_strip_nulls(
    jsonb_build_object('cpu', p_intent ->> 'cpu_isolation', 'gpu', v_gpu));
  v_required jsonb;
  v_preferred jsonb;
begin
  select jsonb_agg(x.expr) filter (where x.strength = 'required'),
    jsonb_agg(jsonb_build_object('weight', 100, 'when', jsonb_build_array(x.expr)))
      filter (where x.strength = 'preferred')
  into v_required, v_preferred
  from (
    select e ->> 'strength' as strength, case e ->> 'target_type'
        when 'node_id' then jsonb_build_object('node', jsonb_build_array((e ->> 'target')::uuid))
        when 'resource_id' then jsonb_build_object('resource', jsonb_build_array((e ->> 'target')::uuid))
        when 'rack_id' then jsonb_build_object('rack', jsonb_build_array(e -> 'target'))
        when 'lease_id' then jsonb_build_object('lease', (e ->> 'target')::uuid, 'domain', 'node')
        when 'service_id' then jsonb_build_object('service', (e ->> 'target')::uuid)
        when 'trust_domain' then jsonb_build_object('trust', e -> 'target') end
      || case e ->> 'direction' when 'away' then '{"away": true}'::jsonb else '{}' end as expr
    from jsonb_array_elements(p_intent -> 'affinity') e) x;
  return jsonb_strip_nulls(jsonb_build_object(
    'require', hwqueue.normal_set(v_required), 'prefer', hwqueue.normal_set(v_preferred),
    'resources', case when v_gpu is not null then '{"gpu": 1}'::jsonb end,
    'isolation', nullif(v_isolation, '{}')));
end
$$;

-- Reads the bytes of the option wire: hex with a leading \x, or base64, with or without line breaks.
-- Null for absent or JSON null.
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
  perform hwqueue.refuse_value(p_value, p_field, 'a params blob as text',
    E'give hex with a leading \\x, or base64 with its padding', 'QHA01');
  return null;
end
$$;

-- Reads a params blob into {"affinity": [{"category", "strength", "direction", "target_type",
-- "target"}], "cpu_isolation", "gpu_exclusivity", "unknown_tags"}.
-- Entries stay in the order of the blob, duplicates left out. Unknown tags are listed: another version may
-- know them.
-- Raises: QHW01, with the reason and the offset of the byte at fault.
create or replace function hwqueue.parse_wire(p_blob bytea, p_field text default 'wire') returns jsonb
language plpgsql immutable
as $$
declare
  v_bytes int := octet_length(p_blob);
  v_at int := 0;
  v_length int;
  v_tag text;
  v_class text;
  v_entry jsonb;
  v_entries jsonb := '[]';
  v_offsets int[] := '{}';  -- where each entry begins
  v_entry_count int := 0;
  v_intent jsonb := '{"cpu_isolation": null, "gpu_exclusivity": null}';
  v_unknown jsonb := '[]';
begin
  if v_bytes > 4096 then
    perform hwqueue.refuse_wire('too_long', 4096, p_field);
  end if;
  while v_at < v_bytes loop
    if v_bytes - v_at < 4 then
      perform hwqueue.refuse_wire('truncated_tlv_header', v_at, p_field);
    end if;
    v_tag := encode(substring(p_blob from v_at + 1 for 2), 'hex');
    v_length := hwqueue.wire_number(p_blob, v_at + 2);
    if v_length > v_bytes - v_at - 4 then
      perform hwqueue.refuse_wire('truncated_tlv_value', v_at + 2, p_field);
    end if;
    if v_tag = '0910' then
      v_entry_count := v_entry_count + 1;
      if v_entry_count > 64 then
        perform hwqueue.refuse_wire('too_many_entries', v_at, p_field);
      end if;
      v_entry := hwqueue.parse_wire_entry(p_blob, v_at + 4, v_length, p_field);
      if not v_entries @> jsonb_build_array(v_entry) then  -- a repeated preference must not count twice
        v_entries := v_entries || v_entry;
        v_offsets := v_offsets || v_at;
      end if;
    elsif v_tag in ('0902', '0903') then
      if v_length <> 1 then
        perform hwqueue.refuse_wire('bad_length', v_at + 2, p_field);
      end if;
      v_class := (case v_tag when '0902' then array['best_effort', 'whole_core', 'strict_isolated']
        else array['shared', 'session_exclusive', 'device_exclusive', 'partition_exclusive'] end)[
        get_byte(p_blob, v_at + 4) + 1];
      if v_class is null then
        perform hwqueue.refuse_wire(case get_byte(p_blob, v_at + 4) when 255 then 'sentinel_class'
          else 'unknown_class' end, v_at + 4, p_field,
          '0x' || encode(substring(p_blob from v_at + 5 for 1), 'hex'));
      end if;
      v_tag := case v_tag when '0902' then 'cpu_isolation' else 'gpu_exclusivity' end;
      if v_intent ->> v_tag is not null then  -- neither of two classes is the safe choice
        perform hwqueue.refuse_wire('duplicate_tlv', v_at, p_field);
      end if;
      v_intent := v_intent || jsonb_build_object(v_tag, v_class);
    else
      v_unknown := v_unknown || to_jsonb('0x' || v_tag);
    end if;
    v_at := v_at + 4 + v_length;
  end loop;
  -- the first entry that requires toward and away from the same target as an earlier one, whatever their
  -- categories, or toward two nodes or two racks; two leases or two resources may be in one place
  with required as (
    select e.ordinality, e.value ->> 'direction' as direction, e.value ->> 'target_type' as target_type,
           e.value ->> 'target' as target
    from jsonb_array_elements(v_entries) with ordinality e where e.value ->> 'strength' = 'required'
  )
  select v_offsets[min(b.ordinality)::int] into v_at
  from required a join required b on a.ordinality < b.ordinality and a.target_type = b.target_type
  where case when a.target = b.target then a.direction <> b.direction
    else a.target_type in ('node_id', 'rack_id') and a.direction = 'toward' and b.direction = 'toward' end;
  if v_at is not null then
    perform hwqueue.refuse_wire('contradictory', v_at, p_field);
  end if;
  return v_intent || jsonb_build_object('affinity', v_entries, 'unknown_tags', v_unknown);
end
$$;

-- Returns two bytes as a number, high byte first. The caller has checked that they exist.
create or replace function hwqueue.wire_number(p_blob bytea, p_at int) returns int
language sql immutable
as $$ select get_byte(p_blob, p_at) * 256 + get_byte(p_blob, p_at + 1) $$;

-- Refuses a blob.
-- Raises: QHW01, always.
create or replace function hwqueue.refuse_wire(p_reason text, p_offset int, p_field text,
  p_class text default null) returns void
language sql volatile
as $$
  select hwqueue.refuse('QHW01',
    format('%s is not a valid params blob: %s at byte %s', p_field, replace(p_reason, '_', ' '), p_offset),
    jsonb_build_object('reason', p_reason, 'offset', p_offset, 'field', p_field, 'class', p_class),
    'all of it is refused; `hwqueue wire encode` writes valid ones')
$$;

-- Reads one affinity entry, whose bytes exist: p_length of them at p_at. The order of the checks decides only
-- which reason is named.
-- Raises: QHW01.
create or replace function hwqueue.parse_wire_entry(p_blob bytea, p_at int, p_length int, p_field text)
returns jsonb
language plpgsql immutable
as $$
declare
  v_category text;
  v_strength text;
  v_direction text;
  v_type text;
  v_length int;
  v_target bytea;
  v_domain text;
begin
  if p_length < 5 then
    perform hwqueue.refuse_wire('truncated_entry', p_at, p_field);
  end if;
  -- a code outside its list yields null
  v_category := (array['resource', 'state', 'topology', 'trust', 'facility'])[get_byte(p_blob, p_at)];
  v_strength := (array['required', 'preferred', 'adaptive'])[get_byte(p_blob, p_at + 1) & 127];
  v_direction := case when get_byte(p_blob, p_at + 1) > 127 then 'away' else 'toward' end;
  v_type := (array['node_id', 'resource_id', 'lease_id', 'service_id', 'trust_domain', 'rack_id'])[
    get_byte(p_blob, p_at + 2)];
  v_length := hwqueue.wire_number(p_blob, p_at + 3);
  if v_category is null then
    perform hwqueue.refuse_wire('unknown_category', p_at, p_field);
  elsif v_category = 'facility' then
    perform hwqueue.refuse_wire('category_not_in_v1', p_at, p_field);
  elsif v_strength is null then
    perform hwqueue.refuse_wire('unknown_strength', p_at + 1, p_field);
  elsif v_strength = 'adaptive' then  -- reserved in the format, no claim honours it
    perform hwqueue.refuse_wire('reserved_strength', p_at + 1, p_field);
  elsif v_type is null then
    perform hwqueue.refuse_wire('unknown_target_type', p_at + 2, p_field);
  elsif v_category || ' ' || v_type not in ('resource node_id', 'resource resource_id', 'state node_id',
    'state lease_id', 'topology node_id', 'topology rack_id', 'topology service_id',
    'trust trust_domain') then
    perform hwqueue.refuse_wire('target_type_not_allowed', p_at + 2, p_field);
  elsif v_category = 'trust' and v_strength = 'preferred' then  -- a preferred trust rule would be no rule
    perform hwqueue.refuse_wire('strength_not_allowed', p_at + 1, p_field);
  elsif v_type = 'trust_domain' and v_direction = 'away'
    or v_type = 'service_id' and v_direction = 'toward' then
    perform hwqueue.refuse_wire('direction_not_allowed', p_at + 1, p_field);
  elsif v_length > p_length - 5 then
    perform hwqueue.refuse_wire('truncated_entry', p_at + 3, p_field);
  elsif v_length < p_length - 5 then
    perform hwqueue.refuse_wire('trailing_bytes_in_entry', p_at + 5 + v_length, p_field);
  elsif v_type <> 'trust_domain' and v_length <> (case v_type when 'rack_id' then 4 else 16 end) then
    perform hwqueue.refuse_wire('bad_target_length', p_at + 3, p_field);
  end if;
  v_target := substring(p_blob from p_at + 6 for v_length);
  if v_type = 'trust_domain' then  -- byte for byte: folding case or blanks would let other names match
    if v_target = '' then
      perform hwqueue.refuse_wire('empty_trust_domain', p_at + 5, p_field);
    -- Postgres text cannot hold a zero byte
    elsif v_length > 255 or position(decode('00', 'hex') in v_target) > 0 then
      perform hwqueue.refuse_wire('invalid_trust_domain', p_at + 5, p_field);
    end if;
    begin
      v_domain := convert_from(v_target, 'UTF8');
    exception when character_not_in_repertoire or untranslatable_character then
      perform hwqueue.refuse_wire('invalid_utf8', p_at + 5, p_field);
    end;
  end if;
  return jsonb_build_object(
    'category', v_category, 'strength', v_strength, 'direction', v_direction, 'target_type', v_type,
    'target', case v_type
      when 'trust_domain' then to_jsonb(v_domain)
      when 'rack_id' then to_jsonb(
        hwqueue.wire_number(v_target, 0) * 65536::bigint + hwqueue.wire_number(v_target, 2))
      else to_jsonb(encode(v_target, 'hex')) end);
end
$$;
