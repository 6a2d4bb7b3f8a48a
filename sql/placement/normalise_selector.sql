-- A SELECTOR of leases by their labels, in normal form: {"exprs": [...]}, where equalities are `in` with one value and an empty list
-- is every lease; or {"same": "service"|"task"}, which the class makes concrete. Raises: QHC03.
create or replace function hwqueue.normalise_selector(p_selector jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_labels jsonb := p_selector -> 'labels';
  v_exprs jsonb := p_selector -> 'exprs';
  v_bad_key text;
  v_terms jsonb := '[]';
begin
  if jsonb_typeof(p_selector) is distinct from 'object' or p_selector = '{}' then
    perform hwqueue.refuse('QHC03', format('%s must say which leases', p_field), jsonb_build_object('field', p_field),
      'for example {"labels": {"app": "web"}}, {"same": "service"}, or {"labels": {}} for every lease');
  elsif p_selector ? 'same' then
    perform hwqueue.check_object(p_selector, array['same'], p_field, 'QHC03');
    if hwqueue.json_choice(p_selector -> 'same', p_field || '.same', array['service', 'task'], 'QHC03') is null then
      perform hwqueue.refuse('QHC03', format('%s.same must not be null', p_field), jsonb_build_object('field', p_field || '.same'),
        'give "service" or "task"');
    end if;
    return p_selector;
  end if;
  perform hwqueue.check_object(p_selector, array['labels', 'exprs', 'same'], p_field, 'QHC03');
  if v_labels is not null then
    if jsonb_typeof(v_labels) <> 'object' or (select count(*) from jsonb_object_keys(v_labels)) > 100 then
      perform hwqueue.refuse('QHC03', format('%s.labels must be an object of at most 100 labels', p_field),
        jsonb_build_object('field', p_field || '.labels'), 'for example {"app": "web"}');
    end if;
    select min(l.key) filter (where length(l.key) not between 1 and 253 or not hwqueue.is_label_text(l.value)),
           coalesce(jsonb_agg(jsonb_build_object('label', l.key, 'op', 'in', 'values', jsonb_build_array(l.value))), '[]')
    into v_bad_key, v_terms from jsonb_each(v_labels) l;
    if v_bad_key is not null then
      perform hwqueue.refuse('QHC03', format('%s.labels has a bad label %s', p_field, to_json(left(v_bad_key, 60))),
        jsonb_build_object('field', format('%s.labels.%s', p_field, left(v_bad_key, 100))),
        'labels of a lease map text of 1 to 253 characters to text of at most 1024');
    end if;
  end if;
  if v_exprs is not null then
    if jsonb_typeof(v_exprs) <> 'array' or jsonb_array_length(v_exprs) > 100 then
      perform hwqueue.refuse('QHC03', format('%s.exprs must be a list of at most 100 expressions', p_field),
        jsonb_build_object('field', p_field || '.exprs'), 'for example [{"label": "app", "op": "in", "values": ["web"]}]');
    end if;
    for v_index in 0 .. jsonb_array_length(v_exprs) - 1 loop
      v_terms := v_terms || hwqueue.normalise_selector_expr(v_exprs -> v_index, format('%s.exprs[%s]', p_field, v_index));
    end loop;
  end if;
  return jsonb_build_object('exprs', hwqueue.normal_set(v_terms));
end
$$;

-- What a label of a lease can be.
create or replace function hwqueue.is_label_text(p_value jsonb) returns boolean
language sql immutable parallel safe
as $$ select jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 1024 $$;

-- One {"label", "op", "values"} of a selector. Raises: QHC03.
create or replace function hwqueue.normalise_selector_expr(p_expr jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_expr jsonb := hwqueue.check_object(p_expr, array['label', 'op', 'values'], p_field, 'QHC03');
  v_label text := hwqueue.json_text(v_expr -> 'label', p_field || '.label', 253, 'QHC03');
  v_op text := hwqueue.json_choice(v_expr -> 'op', p_field || '.op', array['in', 'not_in', 'exists', 'does_not_exist'], 'QHC03');
  v_values jsonb := nullif(v_expr -> 'values', 'null');
begin
  if v_label is null or v_op is null then
    perform hwqueue.refuse('QHC03', format('%s needs a label and an op', p_field),
      jsonb_build_object('field', p_field || case when v_label is null then '.label' else '.op' end),
      'ops: in, not_in, exists, does_not_exist');
  elsif v_op in ('exists', 'does_not_exist') then
    if v_values is not null then
      perform hwqueue.refuse('QHC03', format('%s: op %s takes no values', p_field, v_op), jsonb_build_object('field', p_field || '.values'),
        'drop them');
    end if;
    return jsonb_build_object('label', v_label, 'op', v_op);
  elsif jsonb_typeof(v_values) is distinct from 'array' or jsonb_array_length(v_values) not between 1 and 100
        or exists (select 1 from jsonb_array_elements(v_values) v where not hwqueue.is_label_text(v.value)) then
    perform hwqueue.refuse('QHC03', format('%s.values must be a list of 1 to 100 strings', p_field),
      jsonb_build_object('field', p_field || '.values'), 'labels of a lease are text of at most 1024 characters');
  end if;
  return jsonb_build_object('label', v_label, 'op', v_op, 'values', hwqueue.normal_set(v_values));
end
$$;
