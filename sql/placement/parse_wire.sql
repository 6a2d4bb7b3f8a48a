-- The binary params blob, read; docs/reference/wire.md has its layout. One bad byte refuses all of it.
-- Entries stay in the order of the blob, each once; tags that others read are skipped and named:
-- {"affinity": [{"category", "strength", "direction", "target_type", "target"}], "cpu_isolation", "gpu_exclusivity", "unknown_tags"}.
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
  v_offsets int[] := '{}';  -- where each of the entries begins
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
      if not v_entries @> jsonb_build_array(v_entry) then  -- a preference must not count double
        v_entries := v_entries || v_entry;
        v_offsets := v_offsets || v_at;
      end if;
    elsif v_tag in ('0902', '0903') then
      v_class := hwqueue.parse_wire_class(p_blob, v_at + 4, v_length, case v_tag
        when '0902' then array['best_effort', 'whole_core', 'strict_isolated']
        else array['shared', 'session_exclusive', 'device_exclusive', 'partition_exclusive'] end, p_field);
      v_tag := case v_tag when '0902' then 'cpu_isolation' else 'gpu_exclusivity' end;
      if v_intent ->> v_tag is not null then  -- neither the first nor the last is the safe one
        perform hwqueue.refuse_wire('duplicate_tlv', v_at, p_field);
      end if;
      v_intent := v_intent || jsonb_build_object(v_tag, v_class);
    else
      v_unknown := v_unknown || to_jsonb('0x' || v_tag);
    end if;
    v_at := v_at + 4 + v_length;
  end loop;
  v_at := v_offsets[hwqueue.wire_contradiction(v_entries)];
  if v_at is not null then
    perform hwqueue.refuse_wire('contradictory', v_at, p_field);
  end if;
  return v_intent || jsonb_build_object('affinity', v_entries, 'unknown_tags', v_unknown);
end
$$;

-- The first entry (from 1) that no node can meet beside an earlier one: required toward and away from the same target, whatever the
-- categories; required toward two nodes or two racks. Two leases or two resources may be in one place. Null when there is none.
create or replace function hwqueue.wire_contradiction(p_entries jsonb) returns int
language sql immutable
as $$
  with required as (
    select e.ordinality, e.value ->> 'direction' as direction, e.value ->> 'target_type' as target_type, e.value ->> 'target' as target
    from jsonb_array_elements(p_entries) with ordinality e where e.value ->> 'strength' = 'required'
  )
  select min(b.ordinality)::int from required a join required b on a.ordinality < b.ordinality and a.target_type = b.target_type
  where case when a.target = b.target then a.direction <> b.direction
    else a.target_type in ('node_id', 'rack_id') and a.direction = 'toward' and b.direction = 'toward' end
$$;

-- Two bytes as a number, the high one first. Raises: nothing, if they are there.
create or replace function hwqueue.wire_number(p_blob bytea, p_at int) returns int
language sql immutable
as $$ select get_byte(p_blob, p_at) * 256 + get_byte(p_blob, p_at + 1) $$;

-- Refuses a blob. Raises: QHW01, always.
create or replace function hwqueue.refuse_wire(p_reason text, p_offset int, p_field text, p_class text default null) returns void
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse('QHW01', format('%s is not a valid params blob: %s at byte %s', p_field, replace(p_reason, '_', ' '), p_offset),
    jsonb_build_object('reason', p_reason, 'offset', p_offset, 'field', p_field, 'class', p_class),
    'all of it is refused; `hwqueue wire encode` writes valid ones');
end
$$;
