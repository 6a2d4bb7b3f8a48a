-- One EXPR of the grammar as a list of ANDed normal expressions: tags come apart, a single branch of any dissolves.
-- p_preferred: it is part of a preference. Raises: QHC03.
create or replace function hwqueue.normalise_expr(p_expr jsonb, p_field text, p_depth int, p_preferred boolean) returns jsonb
language plpgsql stable
as $$
declare
  v_kinds text[];
  v_branches jsonb;
begin
  if jsonb_typeof(p_expr) is distinct from 'object' then
    perform hwqueue.refuse('QHC03', format('%s must be an object', p_field), jsonb_build_object('field', p_field),
      'an expression looks like {"label": "region", "op": "in", "values": ["us-east"]} or {"tags": {"gpu": true}}');
  elsif p_expr ? 'label' and p_expr - array['label', 'op', 'values', 'other_label'] = '{}' then  -- what most are
    return jsonb_build_array(hwqueue.normalise_label_expr(p_expr, p_field));
  end if;
  v_kinds := array(select k from jsonb_object_keys(p_expr) k
                   where k in ('label', 'tags', 'any', 'node', 'rack', 'resource', 'trust', 'lease', 'service', 'leases') order by k);
  if cardinality(v_kinds) <> 1 then
    perform hwqueue.refuse('QHC03', format('%s must have exactly one of label, tags, any, node, rack, resource, trust, lease, service, leases; it has %s',
        p_field, coalesce(nullif(array_to_string(v_kinds, ' and '), ''), 'none')),
      jsonb_build_object('field', p_field), 'write one expression for each: the list ANDs them');
  end if;
  case v_kinds[1]
    when 'label' then
      return jsonb_build_array(hwqueue.normalise_label_expr(p_expr, p_field));
    when 'tags' then
      perform hwqueue.check_object(p_expr, array['tags'], p_field, 'QHC03');
      return hwqueue.normalise_tags(p_expr -> 'tags', p_field || '.tags');
    when 'node', 'rack', 'resource' then
      return jsonb_build_array(hwqueue.normalise_target_expr(p_expr, v_kinds[1], p_field));
    when 'any' then
      perform hwqueue.check_object(p_expr, array['any'], p_field, 'QHC03');
      if jsonb_typeof(p_expr -> 'any') <> 'array' or jsonb_array_length(p_expr -> 'any') not between 1 and 100 or p_depth >= 4 then
        perform hwqueue.refuse('QHC03', format('%s.any must be a list of 1 to 100 lists, nested at most 4 deep', p_field),
          jsonb_build_object('field', p_field || '.any'), 'any is an OR of ANDs: {"any": [[A, B], [C]]}; an empty one would match nothing');
      end if;
      select jsonb_agg(hwqueue.normalise_exprs(b.value, format('%s.any[%s]', p_field, b.ordinality - 1), 1, p_depth + 1, p_preferred))
      into v_branches from jsonb_array_elements(p_expr -> 'any') with ordinality b;
      if v_branches @> '[[]]' and exists (select 1 from jsonb_array_elements(v_branches) b where b = '[]') then
        return '[]'::jsonb;  -- a branch that asks nothing holds always
      end if;
      v_branches := hwqueue.normal_set(v_branches);
      return case when jsonb_array_length(v_branches) = 1 then v_branches -> 0
                  else jsonb_build_array(jsonb_build_object('any', v_branches)) end;
    when 'trust' then
      return jsonb_build_array(hwqueue.normalise_trust_expr(p_expr, p_preferred, p_field));
    else
      return jsonb_build_array(hwqueue.normalise_lease_expr(p_expr, v_kinds[1], p_field));
  end case;
end
$$;

-- A list of ANDed expressions: normal, sorted, without duplicates. p_least is 1 where an empty list is refused.
create or replace function hwqueue.normalise_exprs(p_exprs jsonb, p_field text, p_least int, p_depth int, p_preferred boolean) returns jsonb
language plpgsql stable
as $$
declare
  v_exprs jsonb := '[]'::jsonb;
begin
  if jsonb_typeof(p_exprs) is distinct from 'array' or jsonb_array_length(p_exprs) not between p_least and 100 then
    perform hwqueue.refuse('QHC03', format('%s must be a list of %s to 100 expressions', p_field, p_least),
      jsonb_build_object('field', p_field), 'for example [{"tags": {"gpu": true}}]');
  end if;
  for v_index in 0 .. jsonb_array_length(p_exprs) - 1 loop
    v_exprs := v_exprs || hwqueue.normalise_expr(p_exprs -> v_index, format('%s[%s]', p_field, v_index), p_depth, p_preferred);
  end loop;
  return hwqueue.normal_set(v_exprs);
end
$$;

-- Tags: node labels must contain them. Scalars become plain label expressions; nested JSON stays, key by key.
create or replace function hwqueue.normalise_tags(p_tags jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_tags jsonb := hwqueue.check_depth(hwqueue.check_numbers(p_tags, p_field, 'QHC03'), p_field, 'QHC03');
  v_bad_key text;
begin
  if v_tags is null or jsonb_typeof(v_tags) = 'null' or v_tags = '{}' then
    return '[]'::jsonb;
  end if;
  if jsonb_typeof(v_tags) <> 'object' or length(v_tags::text) > 16384 then
    perform hwqueue.refuse('QHC03', format('%s must be an object of at most 16384 characters', p_field),
      jsonb_build_object('field', p_field), 'for example {"gpu": true, "region": "us-east"}');
  end if;
  select min(t.key) filter (where length(t.key) not between 1 and 253),
         jsonb_agg(case when jsonb_typeof(t.value) in ('string', 'number', 'boolean')
           then jsonb_build_object('label', t.key, 'op', 'in', 'values', jsonb_build_array(hwqueue.normal_value(t.value)))
           else jsonb_build_object('tags', jsonb_build_object(t.key, hwqueue.normal_value(t.value))) end)
  into v_bad_key, v_tags from jsonb_each(v_tags) t;
  if v_bad_key is not null then
    perform hwqueue.refuse('QHC03', format('%s has a key of %s characters', p_field, length(v_bad_key)),
      jsonb_build_object('field', p_field), 'label keys have 1 to 253 characters');
  end if;
  return v_tags;
end
$$;
