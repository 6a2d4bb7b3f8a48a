-- One {"label", "op", "values" | "other_label"} expression, checked, its values in normal form.
-- Raises: QHC03.
create or replace function hwqueue.normalise_label_expr(p_expr jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_expr jsonb := hwqueue.check_object(p_expr, array['label', 'op', 'values', 'other_label'], p_field, 'QHC03');
  v_label text := hwqueue.json_text(v_expr -> 'label', p_field || '.label', 253, 'QHC03');
  v_op text := hwqueue.json_text(v_expr -> 'op', p_field || '.op', 32, 'QHC03');
  v_other text := hwqueue.json_text(v_expr -> 'other_label', p_field || '.other_label', 253, 'QHC03');
  v_values jsonb := v_expr -> 'values';
  v_first jsonb := v_values -> 0;
  v_bad_values boolean;
begin
  if v_op is null or v_op not in ('in', 'not_in', 'exists', 'does_not_exist', 'gt', 'gte', 'lt', 'lte', 'regexp', 'version',
                                  'semver', 'contains_all', 'contains_any') or v_label is null then
    perform hwqueue.refuse('QHC03', format('%s needs a label and a known op, got label %s, op %s', p_field,
        coalesce(to_json(v_label)::text, 'none'), coalesce(to_json(v_op)::text, 'none')),
      jsonb_build_object('field', p_field || case when v_label is null then '.label' else '.op' end),
      'ops: in, not_in, exists, does_not_exist, gt, gte, lt, lte, regexp, version, semver, contains_all, contains_any');
  end if;
  if v_op in ('exists', 'does_not_exist') then
    if v_values is not null or v_other is not null then
      perform hwqueue.refuse('QHC03', format('%s: op %s takes neither values nor other_label', p_field, v_op),
        jsonb_build_object('field', p_field || '.values'), 'drop them');
    end if;
    return jsonb_build_object('label', v_label, 'op', v_op);
  end if;
  if v_other is not null then
    if v_values is not null or v_op = 'regexp' then
      perform hwqueue.refuse('QHC03', format('%s: op %s does not go with other_label here', p_field, v_op),
        jsonb_build_object('field', p_field || '.other_label'),
        'give either values or other_label; regexp takes values only: a pattern must be checked before it runs');
    end if;
    return jsonb_build_object('label', v_label, 'op', v_op, 'other_label', v_other);
  end if;
  v_bad_values := jsonb_typeof(v_values) is distinct from 'array' or jsonb_array_length(v_values) not between 1 and 1000
    or jsonb_path_exists(v_values, 'strict $[*] ? (!(@.type() == "string" || @.type() == "number" || @.type() == "boolean"))');
  if not v_bad_values and length(v_values::text) > 1100 then
    v_bad_values := exists (select 1 from jsonb_array_elements(v_values) e where length(e::text) > 1100);
  end if;
  if v_bad_values then
    perform hwqueue.refuse('QHC03', format('%s.values must be an array of 1 to 1000 strings, numbers or booleans', p_field),
      jsonb_build_object('field', p_field || '.values'), 'give at least one scalar of at most 1024 characters; null is not a value');
  end if;
  if v_op in ('gt', 'gte', 'lt', 'lte') and (jsonb_array_length(v_values) <> 1 or jsonb_typeof(v_first) <> 'number') then
    perform hwqueue.refuse('QHC03', format('%s.values must hold one JSON number for op %s', p_field, v_op),
      jsonb_build_object('field', p_field || '.values'), 'text is never ordered: give a number such as [4]');
  elsif v_op in ('regexp', 'version', 'semver') then
    if jsonb_array_length(v_values) <> 1 or jsonb_typeof(v_first) <> 'string' then
      perform hwqueue.refuse('QHC03', format('%s.values must hold one string for op %s', p_field, v_op),
        jsonb_build_object('field', p_field || '.values'), 'give for example [">= 1.2, < 2"] or ["^a100"]');
    elsif v_op = 'regexp' then
      perform hwqueue.check_regexp(v_first #>> '{}', p_field || '.values[0]');
    else
      perform hwqueue.check_version_range(v_first #>> '{}', v_op, p_field || '.values[0]');
    end if;
  end if;
  return jsonb_build_object('label', v_label, 'op', v_op, 'values', hwqueue.normal_set(v_values));
end
$$;
