-- Tolerations in normal form: sorted, the same one twice counts once. Raises: QHC03.
create or replace function hwqueue.normalise_tolerations(p_tolerate jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  return hwqueue.normal_set((
    select coalesce(jsonb_agg(hwqueue.normalise_toleration(e.value, format('%s[%s]', p_field, e.ordinality - 1))), '[]')
    from jsonb_array_elements(hwqueue.json_list(p_tolerate, p_field, 100, 'a list of at most 100 tolerations',
      'for example [{"key": "gpu", "op": "exists", "effect": "no_schedule"}]', 'QHC03')) with ordinality e));
end
$$;

-- One {"key", "op", "value", "effect", "seconds"}. Absent: any key (with op exists), op equal, value "", any effect, for ever. Values are
-- text, as those of taints; what gt and lt compare is an integer written as text. Raises: QHC03.
create or replace function hwqueue.normalise_toleration(p_toleration jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_toleration jsonb := hwqueue.check_object(p_toleration, array['key', 'op', 'value', 'effect', 'seconds'], p_field, 'QHC03');
  v_key text := hwqueue.json_text(v_toleration -> 'key', p_field || '.key', 253, 'QHC03');
  v_op text := coalesce(hwqueue.json_choice(v_toleration -> 'op', p_field || '.op', array['equal', 'exists', 'gt', 'lt'], 'QHC03'), 'equal');
  v_value jsonb := nullif(v_toleration -> 'value', 'null');
  v_effect text := hwqueue.json_choice(v_toleration -> 'effect', p_field || '.effect',
    array['no_schedule', 'prefer_no_schedule', 'no_execute'], 'QHC03');
  v_seconds bigint := hwqueue.json_integer(v_toleration -> 'seconds', p_field || '.seconds', 0, 315360000, 'QHC03');
begin
  if v_key is null and v_op <> 'exists' then
    perform hwqueue.refuse('QHC03', format('%s: op %s needs a key', p_field, v_op), jsonb_build_object('field', p_field || '.key'),
      'name the key of the taint; only op "exists" without a key tolerates every one');
  elsif v_seconds is not null and v_effect is distinct from 'no_execute' then
    perform hwqueue.refuse('QHC03', format('%s.seconds goes with effect no_execute only', p_field),
      jsonb_build_object('field', p_field || '.seconds'), 'it is how long the lease may go on running beside such a taint');
  elsif v_op = 'exists' and v_value is not null then
    perform hwqueue.refuse('QHC03', format('%s: op exists takes no value', p_field), jsonb_build_object('field', p_field || '.value'), 'drop it');
  elsif v_op = 'equal' and v_value is not null and not hwqueue.is_label_text(v_value) then
    perform hwqueue.refuse('QHC03', format('%s.value must be text of at most 1024 characters', p_field),
      jsonb_build_object('field', p_field || '.value'), 'values of taints are text: write "1", not 1');
  elsif v_op in ('gt', 'lt') then
    if jsonb_typeof(v_value) = 'string' and v_value #>> '{}' ~ '^-?[0-9]{1,19}$' then
      v_value := to_jsonb((v_value #>> '{}')::numeric);
    end if;
    if jsonb_typeof(v_value) is distinct from 'number' then
      perform hwqueue.refuse('QHC03', format('%s.value must be an integer for op %s', p_field, v_op),
        jsonb_build_object('field', p_field || '.value'), 'give a whole number such as 5 or "-5"');
    end if;
    v_value := to_jsonb(hwqueue.json_integer(v_value, p_field || '.value', -9223372036854775808, 9223372036854775807, 'QHC03')::text);
  end if;
  return jsonb_strip_nulls(jsonb_build_object('key', v_key, 'op', v_op, 'value', nullif(v_value, '""'), 'effect', v_effect,
                                              'seconds', v_seconds));
end
$$;
