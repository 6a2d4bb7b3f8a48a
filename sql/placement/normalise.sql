-- The placement grammar: checks a placement and brings it into its normal form.
-- Placements with equal meaning have equal normal forms, as far as the grammar (docs/reference/placement.md)
-- can tell. So equal leases share a placement class. Whatever changes a normal form changes digests, and
-- makes new classes beside the existing ones; its revision sets placement_class.asked to null.
-- Read normalise_placement first, then normalise_expr. Selectors, targets and spread are in normalise_others.

-- Returns two normal placements ANDed. Lists are joined. Both sides may name isolation, resources or
-- strength only if they agree.
-- Raises: QHC04.
create or replace function hwqueue.merge_placements(p_left jsonb, p_right jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_isolation jsonb := coalesce(p_left -> 'isolation', p_right -> 'isolation');
  v_resources jsonb := coalesce(p_left -> 'resources', p_right -> 'resources');
  v_other jsonb;
  v_kind text;
begin
  if p_left -> 'strength' <> p_right -> 'strength' then
    perform hwqueue.refuse_field('QHC04', p_field,
      format('asks for strength %s and %s', p_left -> 'strength', p_right -> 'strength'),
      'give the strength once');
  end if;
  if v_isolation is not null or p_left ? 'resources' and p_right ? 'resources' then
    foreach v_kind in array array['cpu', 'gpu'] loop
      if p_left #> array['isolation', v_kind] <> p_right #> array['isolation', v_kind] then
        perform hwqueue.refuse('QHC04', format('%s asks for %s isolation %s and %s', p_field, v_kind,
            p_left #>> array['isolation', v_kind], p_right #>> array['isolation', v_kind]),
          jsonb_build_object('field', p_field, 'class', p_right #>> array['isolation', v_kind]),
          'ask for one class, in one place');
      end if;
    end loop;
    v_isolation := coalesce(p_left -> 'isolation' || (p_right -> 'isolation'), v_isolation);
    v_resources := hwqueue.own_resources(p_left);
    v_other := hwqueue.own_resources(p_right);
    if v_resources <> '{}' and v_other <> '{}' and v_resources <> v_other then
      perform hwqueue.refuse_field('QHC04', p_field,
        format('asks for resources %s and %s', v_resources, v_other), 'give the resources once');
    end if;
    v_resources := hwqueue.isolated_resources(v_isolation,
      case when v_resources <> '{}' then v_resources else v_other end, p_field);
  end if;
  return hwqueue.build_placement(
    hwqueue.check_contradictions(hwqueue.merge_lists(p_left -> 'require', p_right -> 'require'), p_field),
    hwqueue.merge_lists(p_left -> 'prefer', p_right -> 'prefer'),
    hwqueue.merge_lists(p_left -> 'tolerate', p_right -> 'tolerate'),
    hwqueue.merge_lists(p_left -> 'spread', p_right -> 'spread'), v_resources, v_isolation,
    coalesce(p_left ->> 'strength', p_right ->> 'strength')::int);
end
$$;

-- Returns two lists of normal elements as one. Null when there is neither.
create or replace function hwqueue.merge_lists(p_left jsonb, p_right jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_left is not null or p_right is not null
    then hwqueue.normal_set(coalesce(p_left, '[]') || coalesce(p_right, '[]')) end
$$;

-- Returns the normal form of a placement, without the keys that ask for nothing.
-- Raises: QHC03 malformed, QHC04 contradictory.
create or replace function hwqueue.normalise_placement(p_placement jsonb, p_field text default 'placement')
returns jsonb
language plpgsql stable
as $$
declare
  v_placement jsonb;
  v_required jsonb;
  v_preferred jsonb;
  v_resources jsonb;
  v_isolation jsonb;
  v_strength int;
begin
  if p_placement is null or jsonb_typeof(p_placement) = 'null' or p_placement = '{}' then
    return '{}'::jsonb;
  end if;
  v_placement := hwqueue.check_object(hwqueue.check_numbers(p_placement, p_field, 'QHC03'),
    array['require', 'prefer', 'strength', 'tolerate', 'spread', 'resources', 'isolation'], p_field, 'QHC03');
  v_placement := hwqueue.check_depth(v_placement, p_field, 'QHC03');
  if length(v_placement::text) > 65536 then
    perform hwqueue.refuse_field('QHC03', p_field, format('is %s characters long', length(v_placement::text)),
      'the limit is 65536; use labels instead of long lists of nodes');
  end if;
  perform hwqueue.check_patterns(v_placement, p_field);  -- before any is compiled
  if jsonb_typeof(v_placement -> 'require') <> 'null' then
    v_required := hwqueue.normalise_exprs(v_placement -> 'require', p_field || '.require', 0, 0, false);
    v_required := hwqueue.check_contradictions(v_required, p_field || '.require');
  end if;
  v_preferred := hwqueue.normalise_preferences(v_placement -> 'prefer', p_field || '.prefer');
  v_strength := hwqueue.json_integer(v_placement -> 'strength', p_field || '.strength', 1, 100, 'QHC03');
  v_resources := hwqueue.normalise_resources(v_placement -> 'resources', p_field || '.resources');
  if not v_placement ?| array['tolerate', 'spread', 'isolation'] then  -- most placements
    return hwqueue.check_cost(
      hwqueue.build_placement(v_required, v_preferred, null, null, v_resources, null, v_strength), p_field);
  end if;
  -- an absent class means the node's default
  v_isolation := hwqueue.read_object(coalesce(nullif(v_placement -> 'isolation', 'null'), '{}'), 'isolation',
    p_field || '.isolation', 'QHC03');
  return hwqueue.check_cost(hwqueue.build_placement(v_required, v_preferred,
      hwqueue.normal_set((
        select coalesce(jsonb_agg(hwqueue.normalise_toleration(e.value,
          format('%s.tolerate[%s]', p_field, e.ordinality - 1))), '[]')
        from jsonb_array_elements(hwqueue.json_list(v_placement -> 'tolerate', p_field || '.tolerate', 100,
          'a list of at most 100 tolerations',
          'for example [{"key": "gpu", "op": "exists", "effect": "no_schedule"}]', 'QHC03'))
          with ordinality e)),
      hwqueue.normal_set((
        select coalesce(jsonb_agg(hwqueue.normalise_spread_rule(e.value,
          format('%s.spread[%s]', p_field, e.ordinality - 1))), '[]')
        from jsonb_array_elements(hwqueue.json_list(v_placement -> 'spread', p_field || '.spread', 100,
          'a list of at most 100 rules',
          'for example [{"domain": "rack", "max_skew": 1, "select": {"labels": {"app": "web"}}}]', 'QHC03'))
          with ordinality e)),
      hwqueue.isolated_resources(v_isolation, v_resources, p_field), v_isolation, v_strength), p_field);
end
$$;

-- Returns a placement of normal parts, without those that are null, ask for nothing, or are the default.
create or replace function hwqueue.build_placement(p_required jsonb, p_preferred jsonb, p_tolerations jsonb,
  p_spread jsonb, p_resources jsonb, p_isolation jsonb, p_strength int) returns jsonb
language plpgsql immutable
as $$ begin return (
  select coalesce(jsonb_object_agg(v.key, v.value), '{}')
  from (values ('require', p_required), ('prefer', p_preferred), ('tolerate', p_tolerations),
    ('spread', p_spread), ('resources', p_resources), ('isolation', p_isolation),
    ('strength', to_jsonb(p_strength))) v(key, value)
  where v.value not in ('[]', '{}', '100')
); end $$;

-- Returns preferences in normal form: [{"weight", "when"}], sorted, without those of weight 0.
-- Raises: QHC03.
create or replace function hwqueue.normalise_preferences(p_prefer jsonb, p_field text) returns jsonb
language plpgsql stable
as $$ begin return (
  select hwqueue.normal_set(coalesce(jsonb_agg(jsonb_build_object('weight', p.weight, 'when',
    -- an empty preference holds everywhere and counts; an empty list would be refused if spawned again
    case when p.exprs = '[]' then '[{"tags": {}}]' else p.exprs end)) filter (where p.weight <> 0), '[]'))
  from jsonb_array_elements(hwqueue.json_list(p_prefer, p_field, 100, 'a list of at most 100 preferences',
    'for example [{"weight": 50, "when": {"tags": {"zone": "a"}}}]', 'QHC03')) with ordinality e
  cross join lateral (select format('%s[%s]', p_field, e.ordinality - 1) as field) f
  cross join lateral (
    select hwqueue.check_object(e.value, array['weight', 'when'], f.field, 'QHC03') as item offset 0) i
  cross join lateral (
    select coalesce(hwqueue.json_integer(i.item -> 'weight', f.field || '.weight', -100, 100, 'QHC03'), 100)
             as weight,
           hwqueue.normalise_exprs(case jsonb_typeof(i.item -> 'when') when 'array' then i.item -> 'when'
             else jsonb_build_array(i.item -> 'when') end, f.field || '.when', 1, 0, true) as exprs
    offset 0) p
); end $$;

-- Returns one EXPR of the grammar as a list of ANDed normal expressions. Tags become one for each key, an any
-- with a single branch becomes that branch. p_preferred: it is part of a preference.
-- Raises: QHC03.
create or replace function hwqueue.normalise_expr(p_expr jsonb, p_field text, p_depth int,
  p_preferred boolean) returns jsonb
language plpgsql stable
as $$
declare
  v_kinds text[];
  v_targets jsonb;
  v_most int;
  v_branches jsonb;
  v_domain text;
begin
  if jsonb_typeof(p_expr) is distinct from 'object' then
    perform hwqueue.refuse_field('QHC03', p_field, 'must be an object',
      'an expression looks like {"label": "region", "op": "in", "values": ["us-east"]} '
      'or {"tags": {"gpu": true}}');
  -- most expressions
  elsif p_expr ? 'label' and p_expr - array['label', 'op', 'values', 'other_label'] = '{}' then
    return jsonb_build_array(hwqueue.normalise_label_expr(p_expr, p_field));
  end if;
  v_kinds := array(
    select k from jsonb_object_keys(p_expr) k
    where k in ('label', 'tags', 'any', 'node', 'rack', 'resource', 'trust', 'lease', 'service', 'leases')
    order by k);
  if cardinality(v_kinds) <> 1 then
    perform hwqueue.refuse_field('QHC03', p_field,
      format('must have exactly one of label, tags, any, node, rack, resource, trust, lease, service, '
      'leases; it has %s', coalesce(nullif(array_to_string(v_kinds, ' and '), ''), 'none')),
      'write one expression for each: the list ANDs them');
  end if;
  case v_kinds[1]
    when 'label' then
      return jsonb_build_array(hwqueue.normalise_label_expr(p_expr, p_field));
    when 'tags' then
      perform hwqueue.check_object(p_expr, array['tags'], p_field, 'QHC03');
      return hwqueue.normalise_tags(p_expr -> 'tags', p_field || '.tags');
    when 'node', 'rack', 'resource' then
      perform hwqueue.check_object(p_expr, array[v_kinds[1], 'away']
        || case v_kinds[1] when 'rack' then array['unknown'] else '{}' end, p_field, 'QHC03');
      v_targets := case jsonb_typeof(p_expr -> v_kinds[1]) when 'array' then p_expr -> v_kinds[1]
        else jsonb_build_array(p_expr -> v_kinds[1]) end;
      v_most := case v_kinds[1] when 'resource' then 1 else 1000 end;
      if jsonb_array_length(v_targets) not between 1 and v_most then
        perform hwqueue.refuse_field('QHC03', p_field || '.' || v_kinds[1],
          format('must name 1 to %s targets', v_most),
          'an empty list would match nothing: leave the expression out; one expression for each resource');
      end if;
      return jsonb_build_array(hwqueue.normalise_direction(p_expr, p_field)
        || jsonb_build_object(v_kinds[1], hwqueue.normal_set((
          select jsonb_agg(case
              when e.value = 'null' then to_jsonb(hwqueue.refuse_value(e.value, f.field, 'a target',
                'name one, or leave the expression out', 'QHC03'))
              when v_kinds[1] = 'rack'
                then to_jsonb(hwqueue.json_integer(e.value, f.field, 0, 4294967295, 'QHC03'))
              else to_jsonb(hwqueue.json_uuid(e.value, f.field, 'QHC03')) end)
          from jsonb_array_elements(v_targets) with ordinality e
          cross join lateral (
            select format('%s.%s[%s]', p_field, v_kinds[1], e.ordinality - 1) as field) f))));
    when 'any' then
      perform hwqueue.check_object(p_expr, array['any'], p_field, 'QHC03');
      if jsonb_typeof(p_expr -> 'any') <> 'array' or jsonb_array_length(p_expr -> 'any') not between 1 and 100
        or p_depth >= 4 then
        perform hwqueue.refuse_field('QHC03', p_field || '.any',
          'must be a list of 1 to 100 lists, nested at most 4 deep',
          'any is an OR of ANDs: {"any": [[A, B], [C]]}; an empty one would match nothing');
      end if;
      select jsonb_agg(hwqueue.normalise_exprs(
        b.value, format('%s.any[%s]', p_field, b.ordinality - 1), 1, p_depth + 1, p_preferred))
      into v_branches from jsonb_array_elements(p_expr -> 'any') with ordinality b;
      if v_branches @> '[[]]'
        and exists (select 1 from jsonb_array_elements(v_branches) b where b = '[]') then
        return '[]'::jsonb;  -- an empty branch always holds
      end if;
      v_branches := hwqueue.normal_set(v_branches);
      return case when jsonb_array_length(v_branches) = 1 then v_branches -> 0
        else jsonb_build_array(jsonb_build_object('any', v_branches)) end;
    when 'trust' then
      if p_preferred then  -- that would weaken it without notice
        perform hwqueue.refuse('QHC03', format('%s: trust cannot be preferred', p_field),
          jsonb_build_object('field', p_field || '.trust'), 'require it, or leave it out');
      end if;
      perform hwqueue.check_object(p_expr, array['trust'], p_field, 'QHC03');
      v_domain := hwqueue.json_text(p_expr -> 'trust', p_field || '.trust', 255, 'QHC03');
      if v_domain is null or octet_length(convert_to(v_domain, 'UTF8')) > 255 then
        perform hwqueue.refuse_field('QHC03', p_field || '.trust', 'must be text of 1 to 255 bytes',
          'name the trust domain that nodes are attested in');
      end if;  -- compared byte by byte, without folding or trimming
      return jsonb_build_array(jsonb_build_object('trust', v_domain));
    else
      return jsonb_build_array(hwqueue.normalise_lease_expr(p_expr, v_kinds[1], p_field));
  end case;
end
$$;

-- Returns a list of ANDed expressions in normal form, sorted and distinct. p_least is 1 where an empty
-- list is refused. One that says when it must hold has "during": "execution" and "grace" in seconds, if that
-- is more than 0. What must hold at the claim alone, as by default, has neither.
-- Raises: QHC03, for those also in preferences and inside any, where no claim is judged after it was granted.
create or replace function hwqueue.normalise_exprs(p_exprs jsonb, p_field text, p_least int, p_depth int,
  p_preferred boolean) returns jsonb
language plpgsql stable
as $$
declare
  v_exprs jsonb := '[]'::jsonb;
  v_expr jsonb;
  v_field text;
  v_key text;
  v_during text;
  v_grace interval;
  v_when jsonb;
begin
  if jsonb_typeof(p_exprs) is distinct from 'array'
    or jsonb_array_length(p_exprs) not between p_least and 100 then
    perform hwqueue.refuse_field('QHC03', p_field, format('must be a list of %s to 100 expressions', p_least),
      'for example [{"tags": {"gpu": true}}]');
  end if;
  for v_index in 0 .. jsonb_array_length(p_exprs) - 1 loop
    v_expr := p_exprs -> v_index;
    v_field := format('%s[%s]', p_field, v_index);
    if not v_expr ?| array['during', 'grace'] or jsonb_typeof(v_expr) <> 'object' then
      v_exprs := v_exprs || hwqueue.normalise_expr(v_expr, v_field, p_depth, p_preferred);
      continue;
    elsif p_depth > 0 or p_preferred then
      v_key := case when v_expr ? 'during' then 'during' else 'grace' end;
      perform hwqueue.refuse('QHC03',
        format('%s.%s: only an entry of require takes %s', v_field, v_key, v_key),
        jsonb_build_object('field', v_field || '.' || v_key),
        'write it beside any, for the whole of it; a preference counts at the claim alone');
    end if;
    v_during := hwqueue.json_choice(
      v_expr -> 'during', v_field || '.during', array['scheduling', 'execution'], 'QHC03');
    v_grace := hwqueue.json_interval(v_expr -> 'grace', v_field || '.grace', p_code => 'QHC03');
    if v_grace is not null and v_during is distinct from 'execution' then
      perform hwqueue.refuse_field('QHC03', v_field || '.grace', 'goes with "during": "execution" only',
        'it is how long a running lease may go on while the expression does not hold');
    end if;
    v_when := case when v_during = 'execution' then '{"during": "execution"}'::jsonb else '{}' end
      || case when v_grace > '0'
        then jsonb_build_object('grace', trim_scale(extract(epoch from v_grace))) else '{}' end;
    v_exprs := v_exprs || (
      select coalesce(jsonb_agg(e.value || v_when order by e.ordinality), '[]')
      from jsonb_array_elements(hwqueue.normalise_expr(
        v_expr - array['during', 'grace'], v_field, p_depth, p_preferred)) with ordinality e);
  end loop;
  return hwqueue.normal_set(v_exprs);
end
$$;

-- Returns tags as expressions, one for each key: a scalar becomes a plain label expression, nested JSON
-- stays.
-- Raises: QHC03.
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
    perform hwqueue.refuse_field('QHC03', p_field, 'must be an object of at most 16384 characters',
      'for example {"gpu": true, "region": "us-east"}');
  end if;
  select min(t.key) filter (where length(t.key) not between 1 and 253),
    jsonb_agg(case when jsonb_typeof(t.value) in ('string', 'number', 'boolean')
      then jsonb_build_object('label', t.key, 'op', 'in',
        'values', jsonb_build_array(hwqueue.normal_value(t.value)))
      else jsonb_build_object('tags', jsonb_build_object(t.key, hwqueue.normal_value(t.value))) end)
  into v_bad_key, v_tags from jsonb_each(v_tags) t;
  if v_bad_key is not null then
    perform hwqueue.refuse_field('QHC03', p_field, format('has a key of %s characters', length(v_bad_key)),
      'label keys have 1 to 253 characters');
  end if;
  return v_tags;
end
$$;

-- Returns one {"label", "op", "values" | "other_label"} expression in normal form.
-- Raises: QHC03.
create or replace function hwqueue.normalise_label_expr(p_expr jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_expr jsonb := hwqueue.check_object(
    p_expr, array['label', 'op', 'values', 'other_label'], p_field, 'QHC03');
  v_label text := hwqueue.json_text(v_expr -> 'label', p_field || '.label', 253, 'QHC03');
  v_op text := hwqueue.json_choice(v_expr -> 'op', p_field || '.op', array['in', 'not_in', 'exists',
    'does_not_exist', 'gt', 'gte', 'lt', 'lte', 'regexp', 'version', 'semver', 'contains_all',
    'contains_any'], 'QHC03');
  v_other text := hwqueue.json_text(v_expr -> 'other_label', p_field || '.other_label', 253, 'QHC03');
  v_values jsonb := v_expr -> 'values';
  v_only text := v_values #>> '{0}';
  v_type text := case when v_op in ('gt', 'gte', 'lt', 'lte') then 'number'
    when v_op in ('regexp', 'version', 'semver') then 'string' end;  -- of the one value
  v_bad_values boolean;
  v_problem text;
  v_part text;
  v_match text[];
begin
  if v_label is null or v_op is null then
    perform hwqueue.refuse_field('QHC03', p_field || case when v_label is null then '.label' else '.op' end,
      'is missing', 'an expression on a label has a label and an op');
  elsif v_op in ('exists', 'does_not_exist') and (v_values is not null or v_other is not null)
    or v_other is not null and (v_values is not null or v_op = 'regexp') then
    perform hwqueue.refuse_field('QHC03', p_field || case when v_op in ('exists', 'does_not_exist')
        then '.values' else '.other_label' end, format('does not go with op %s here', v_op),
      'exists and does_not_exist stand alone; the others have values, or, but for regexp, other_label');
  elsif v_op in ('exists', 'does_not_exist') or v_other is not null then
    return jsonb_build_object('label', v_label, 'op', v_op)
      || hwqueue.present('other_label', to_jsonb(v_other));
  end if;
  v_bad_values := jsonb_typeof(v_values) is distinct from 'array'
    or jsonb_array_length(v_values) not between 1 and 1000
    or jsonb_path_exists(v_values,
        'strict $[*] ? (!(@.type() == "string" || @.type() == "number" || @.type() == "boolean"))');
  if not v_bad_values and length(v_values::text) > 1100 then
    v_bad_values := exists (select 1 from jsonb_array_elements(v_values) e where length(e::text) > 1100);
  end if;
  if v_bad_values then
    perform hwqueue.refuse_field('QHC03', p_field || '.values',
      'must be an array of 1 to 1000 strings, numbers or booleans',
      'give at least one scalar of at most 1024 characters; null is not a value');
  elsif jsonb_array_length(v_values) > 1 and v_type is not null or jsonb_typeof(v_values -> 0) <> v_type then
    perform hwqueue.refuse_field('QHC03', p_field || '.values',
      format('must hold one JSON %s for op %s', v_type, v_op),
      'for example [4], [">= 1.2, < 2"] or ["^a100"]; text is never ordered');
  elsif v_op = 'regexp' then
    v_problem := (hwqueue.read_regexp(v_only)).danger;
    begin
      if v_problem is null then
        perform '' ~ v_only;
      end if;
    exception when invalid_regular_expression then
      v_problem := sqlerrm;
    end;
    if v_problem is not null then
      perform hwqueue.refuse_field('QHC03', p_field || '.values[0]',
        format('is not an accepted pattern: %s', v_problem),
        'use a POSIX pattern of at most 200 characters without back-references, (? constructs, nested '
        'bounds or bounds over 32');
    end if;
  elsif v_type = 'string' then
    -- an empty range would split into no bound and pass
    foreach v_part in array coalesce(nullif(string_to_array(left(v_only, 1025), ','), '{}'), array['']) loop
      v_match := regexp_match(v_part,
        '^[[:space:]]*(=|!=|>=|<=|>|<|~>|)[[:space:]]*([^[:space:]]+)[[:space:]]*$');
      if v_match is null or not hwqueue.version_in_range(v_match[2], v_match[2], v_op)
        or v_op = 'semver' and v_match[1] = '~>' then
        perform hwqueue.refuse_field('QHC03', p_field || '.values[0]',
          format('has a bound that is no %s bound: %s', v_op, to_json(left(v_part, 60))),
          'write bounds like ">= 1.2, < 2"; ops are = != > >= < <=, and ~> for op version only');
      end if;
    end loop;
  end if;
  return jsonb_build_object('label', v_label, 'op', v_op, 'values', hwqueue.normal_set(v_values));
end
$$;

-- Returns one {"lease"|"service"|"leases": ..., "domain", "away", "unknown", "tenants"} expression,
-- which asks where other leases run.
-- A service without a domain uses its failure domain, which may change. So the domain stays absent.
-- Raises: QHC03.
create or replace function hwqueue.normalise_lease_expr(p_expr jsonb, p_kind text, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_expr jsonb;
  v_domain text;
  v_tenants jsonb := p_expr -> 'tenants';
begin
  perform hwqueue.check_object(p_expr,
    array[p_kind, 'domain', 'away', 'unknown']
      || case when p_kind = 'leases' then array['tenants'] else '{}' end, p_field, 'QHC03');
  if p_kind = 'leases' then
    -- check_own_class cannot name the field any more
    if not hwqueue.are_own_tenants(v_tenants, hwqueue.my_tenants()) then
      perform hwqueue.refuse_foreign(format('%s.tenants names others', p_field), p_field || '.tenants',
        'leave out tenants: they are the lease''s own');
    elsif v_tenants not in ('null', '"*"') and (
        jsonb_typeof(v_tenants) <> 'array' or jsonb_array_length(v_tenants) not between 1 and 100
        or exists (select 1 from jsonb_array_elements(v_tenants) t
                   where jsonb_typeof(t.value) <> 'string' or length(t.value #>> '{}') > 100
                     or t.value = '"*"')) then
      perform hwqueue.refuse_field('QHC03', p_field || '.tenants', 'must be "*" or a list of 1 to 100 names',
        'for example ["acme", "globex"]; "" names the leases without a tenant, "*" instead of the list all '
        'tenants');
    end if;
    v_expr := jsonb_build_object(
        'leases', hwqueue.normalise_selector(p_expr -> 'leases', p_field || '.leases'))
      || case when coalesce(v_tenants, 'null') = 'null' then '{}'  -- the lease's own tenant
        when v_tenants = '"*"' then '{"tenants": "*"}'
        else jsonb_build_object('tenants', hwqueue.normal_set(v_tenants)) end;
  else
    v_expr := jsonb_build_object(p_kind, coalesce(
      hwqueue.json_uuid(p_expr -> p_kind, p_field || '.' || p_kind, 'QHC03')::text,
      hwqueue.refuse_value('null', p_field || '.' || p_kind, 'a uuid',
        'name a target or leave the expression out', 'QHC03')));
  end if;
  v_domain := coalesce(hwqueue.json_domain(p_expr -> 'domain', p_field || '.domain', 'QHC03'),
    case p_kind when 'lease' then 'node'
      when 'leases' then hwqueue.refuse_value('null', p_field || '.domain', '"node", "rack" or "label:KEY"',
        'say what counts as one place', 'QHC03') end);
  return v_expr || case when v_domain is null then '{}' else jsonb_build_object('domain', v_domain) end
    -- every node has a value in the domain node
    || hwqueue.normalise_direction(p_expr, p_field) - case when v_domain = 'node' then 'unknown' else '' end;
end
$$;
