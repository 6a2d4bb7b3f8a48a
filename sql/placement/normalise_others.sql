-- The part of the placement grammar that concerns other leases and named targets: selectors, targets,
-- spread.
-- normalise_placement and normalise_expr call these functions. Like all of the grammar they return
-- normal forms: sorted, distinct, and without defaults, so that writing a default out does not make
-- another class.
-- Read normalise_spread_rule and normalise_selector first.

-- Returns one rule: {"domain", "select"} and one of max_skew, max_per_domain or targets, with the
-- options of that kind without the defaults: by default a skew is required, over any number of domains, over
-- nodes that the placement fits, tainted or not. The domain fleet, which holds all nodes, goes with
-- max_per_domain alone: it limits how many leases run at once.
-- Raises: QHC03.
create or replace function hwqueue.normalise_spread_rule(p_rule jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kinds text[];
  v_domain text;
  v_rule jsonb;
  v_limit bigint;
  v_preferred boolean;
  v_min_domains bigint;
  v_nodes jsonb := coalesce(nullif(p_rule -> 'count_nodes', 'null'), '{}');
begin
  perform hwqueue.check_object(p_rule,
    array['domain', 'select', 'max_skew', 'min_domains', 'when', 'count_nodes', 'max_per_domain', 'targets',
      'weight'], p_field, 'QHC03');
  v_kinds := array(
    select k from jsonb_object_keys(p_rule) k
    where k in ('max_skew', 'max_per_domain', 'targets') order by k);
  if cardinality(v_kinds) <> 1 then
    perform hwqueue.refuse_field('QHC03', p_field,
      format('must have exactly one of max_skew, max_per_domain, targets; it has %s',
        coalesce(nullif(array_to_string(v_kinds, ' and '), ''), 'none')),
      'write one rule for each: the list ANDs them');
  end if;
  perform hwqueue.check_object(p_rule, array['domain', 'select', v_kinds[1]] || case v_kinds[1]
    when 'max_skew' then array['min_domains', 'when', 'count_nodes'] when 'targets' then array['weight']
      else '{}' end, p_field, 'QHC03');
  v_domain := case
    when v_kinds[1] = 'max_per_domain' and p_rule -> 'domain' = '"fleet"' then 'fleet'
    else hwqueue.require_domain(p_rule -> 'domain', p_field || '.domain') end;
  v_rule := jsonb_build_object('domain', v_domain,
    'select', hwqueue.normalise_selector(p_rule -> 'select', p_field || '.select'));
  if v_kinds[1] = 'targets' then
    v_limit := coalesce(hwqueue.json_integer(p_rule -> 'weight', p_field || '.weight', 1, 100, 'QHC03'), 100);
    return v_rule
      || jsonb_build_object('targets',
        hwqueue.normalise_targets(p_rule -> 'targets', v_domain, p_field || '.targets'))
      || case when v_limit = 100 then '{}' else jsonb_build_object('weight', v_limit) end;
  end if;
  v_limit := hwqueue.json_integer(
    p_rule -> v_kinds[1], format('%s.%s', p_field, v_kinds[1]), 1, 1000000, 'QHC03');
  if v_limit is null then
    perform hwqueue.refuse_field('QHC03', format('%s.%s', p_field, v_kinds[1]), 'must not be null',
      'give an integer of 1 or more');
  end if;
  v_rule := v_rule || jsonb_build_object(v_kinds[1], v_limit);
  if v_kinds[1] = 'max_per_domain' then
    return v_rule;
  end if;
  v_preferred := coalesce(hwqueue.json_choice(p_rule -> 'when', p_field || '.when',
    array['require', 'prefer'], 'QHC03') = 'prefer', false);
  v_min_domains := hwqueue.json_integer(
    p_rule -> 'min_domains', p_field || '.min_domains', 1, 1000000, 'QHC03');
  perform hwqueue.check_object(v_nodes, array['affinity', 'taints'], p_field || '.count_nodes', 'QHC03');
  v_nodes := jsonb_strip_nulls(jsonb_build_object(
    'affinity', nullif(hwqueue.json_choice(v_nodes -> 'affinity', p_field || '.count_nodes.affinity',
      array['honor', 'ignore'], 'QHC03'), 'honor'),
    'taints', nullif(hwqueue.json_choice(v_nodes -> 'taints', p_field || '.count_nodes.taints',
      array['ignore', 'honor'], 'QHC03'), 'ignore')));
  if v_preferred and v_min_domains is not null then
    perform hwqueue.refuse_field('QHC03', p_field || '.min_domains', 'does not go with when prefer',
      'drop one of them: only a required spread can demand domains');
  end if;
  return v_rule || case when v_preferred then '{"when": "prefer"}'::jsonb else '{}' end
    || case when v_min_domains > 1 then jsonb_build_object('min_domains', v_min_domains) else '{}' end
    || case when v_nodes <> '{}' then jsonb_build_object('count_nodes', v_nodes) else '{}' end;
end
$$;

-- Returns a SELECTOR of leases by their labels in normal form: {"exprs": [...]}, where an equality is
-- `in` with one value and an empty list selects every lease.
-- {"same": "service"|"task"} stays as it is. The class resolves it (term_item).
-- Raises: QHC03.
create or replace function hwqueue.normalise_selector(p_selector jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_labels jsonb := p_selector -> 'labels';
  v_exprs jsonb := p_selector -> 'exprs';
  v_terms jsonb := '[]';
  v_expr jsonb;
  v_field text;
  v_label text;
  v_op text;
  v_values jsonb;
begin
  if jsonb_typeof(p_selector) is distinct from 'object' or p_selector = '{}' then
    perform hwqueue.refuse_field('QHC03', p_field, 'must say which leases',
      'for example {"labels": {"app": "web"}}, {"same": "service"}, or {"labels": {}} for every lease');
  elsif p_selector ? 'same' then
    perform hwqueue.check_object(p_selector, array['same'], p_field, 'QHC03');
    if hwqueue.json_choice(
      p_selector -> 'same', p_field || '.same', array['service', 'task'], 'QHC03') is null then
      perform hwqueue.refuse_field('QHC03', p_field || '.same', 'must not be null',
        'give "service" or "task"');
    end if;
    return p_selector;
  end if;
  perform hwqueue.check_object(p_selector, array['labels', 'exprs', 'same'], p_field, 'QHC03');
  if v_labels is not null then
    select coalesce(jsonb_agg(jsonb_build_object('label', l.key, 'op', 'in',
      'values', jsonb_build_array(l.value))), '[]')
    into v_terms from jsonb_each(hwqueue.check_labels(  -- null is no object of labels here
      coalesce(nullif(v_labels, 'null'), '[]'), p_field || '.labels', 100, 'QHC03')) l;
  end if;
  if v_exprs is not null then
    if jsonb_typeof(v_exprs) <> 'array' or jsonb_array_length(v_exprs) > 100 then
      perform hwqueue.refuse_field('QHC03', p_field || '.exprs', 'must be a list of at most 100 expressions',
        'for example [{"label": "app", "op": "in", "values": ["web"]}]');
    end if;
    for v_expr, v_field in
      select e.value, format('%s.exprs[%s]', p_field, e.ordinality - 1)
      from jsonb_array_elements(v_exprs) with ordinality e
    loop
      perform hwqueue.check_object(v_expr, array['label', 'op', 'values'], v_field, 'QHC03');
      v_label := hwqueue.json_text(v_expr -> 'label', v_field || '.label', 253, 'QHC03');
      v_op := hwqueue.json_choice(v_expr -> 'op', v_field || '.op',
        array['in', 'not_in', 'exists', 'does_not_exist'], 'QHC03');
      v_values := nullif(v_expr -> 'values', 'null');
      if v_label is null or v_op is null then
        perform hwqueue.refuse('QHC03', format('%s needs a label and an op', v_field),
          jsonb_build_object('field', v_field || case when v_label is null then '.label' else '.op' end),
          'ops: in, not_in, exists, does_not_exist');
      elsif v_op in ('exists', 'does_not_exist') and v_values is not null then
        perform hwqueue.refuse('QHC03', format('%s: op %s takes no values', v_field, v_op),
          jsonb_build_object('field', v_field || '.values'), 'drop them');
      elsif v_op in ('in', 'not_in') and (jsonb_typeof(v_values) is distinct from 'array'
        or jsonb_array_length(v_values) not between 1 and 100
        or exists (select from jsonb_array_elements(v_values) v where not hwqueue.is_label_text(v))) then
        perform hwqueue.refuse_field('QHC03', v_field || '.values', 'must be a list of 1 to 100 strings',
          'labels of a lease are text of at most 1024 characters');
      end if;
      v_terms := v_terms || jsonb_strip_nulls(jsonb_build_object('label', v_label, 'op', v_op, 'values',
        hwqueue.normal_set(v_values)));
    end loop;
  end if;
  return jsonb_build_object('exprs', hwqueue.normal_set(v_terms));
end
$$;

-- Whether a value can be a label of a lease.
create or replace function hwqueue.is_label_text(p_value jsonb) returns boolean
language sql immutable parallel safe
as $$ select jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 1024 $$;

-- Returns one {"node"|"rack"|"resource": ..., "away", "unknown"} expression, which names nodes
-- themselves and not their labels.
-- Raises: QHC03.
create or replace function hwqueue.normalise_target_expr(p_expr jsonb, p_kind text, p_field text)
returns jsonb
language plpgsql immutable
as $$
declare
  v_list jsonb := p_expr -> p_kind;
  v_max_targets int := case when p_kind = 'resource' then 1 else 1000 end;
  v_target jsonb;
  v_field text;
  v_targets jsonb := '[]'::jsonb;
begin
  perform hwqueue.check_object(p_expr,
    array[p_kind, 'away'] || case when p_kind = 'rack' then array['unknown'] else '{}' end, p_field, 'QHC03');
  if jsonb_typeof(v_list) <> 'array' then
    v_list := jsonb_build_array(v_list);
  end if;
  if jsonb_array_length(v_list) not between 1 and v_max_targets then
    perform hwqueue.refuse_field('QHC03', p_field || '.' || p_kind,
      format('must name 1 to %s targets', v_max_targets),
      'an empty list would match nothing: leave the expression out; one expression for each resource');
  end if;
  for v_target, v_field in
    select e.value, format('%s.%s[%s]', p_field, p_kind, e.ordinality - 1)
    from jsonb_array_elements(v_list) with ordinality e
  loop
    if jsonb_typeof(v_target) = 'null' then
      perform hwqueue.refuse_field('QHC03', v_field, 'must not be null',
        'name a target or leave the expression out');
    elsif p_kind = 'rack' then
      v_targets := v_targets || to_jsonb(hwqueue.json_integer(v_target, v_field, 0, 4294967295, 'QHC03'));
    else
      v_targets := v_targets || to_jsonb(hwqueue.json_uuid(v_target, v_field, 'QHC03'));
    end if;
  end loop;
  return jsonb_build_object(p_kind, hwqueue.normal_set(v_targets))
    || hwqueue.normalise_direction(p_expr, p_field);
end
$$;

-- Reads a topology domain (json_domain) that must be given.
-- Raises: QHC03.
create or replace function hwqueue.require_domain(p_domain jsonb, p_field text) returns text
language plpgsql immutable
as $$
begin
  if p_domain is null or jsonb_typeof(p_domain) = 'null' then
    perform hwqueue.refuse_field('QHC03', p_field, 'must be given',
      'say what counts as one place: "node", "rack" or "label:KEY"');
  end if;
  return hwqueue.json_domain(p_domain, p_field, 'QHC03');
end
$$;

-- Returns the away and unknown of an expression without the defaults: away is false, and a node outside
-- all domains fails toward and passes away.
-- Raises: QHC03.
create or replace function hwqueue.normalise_direction(p_expr jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_away boolean := coalesce(hwqueue.json_boolean(p_expr -> 'away', p_field || '.away', 'QHC03'), false);
  v_unknown text := hwqueue.json_choice(
    p_expr -> 'unknown', p_field || '.unknown', array['pass', 'fail'], 'QHC03');
begin
  return case when v_away then '{"away": true}'::jsonb else '{}' end
    || case when v_unknown = case when v_away then 'fail' else 'pass' end
      then jsonb_build_object('unknown', v_unknown) else '{}' end;
end
$$;

-- Returns the targets of a spread in normal form: [{"value", "percent"}], the share of the leases that
-- each domain should have.
-- An empty list asks for equal shares. The rest of the 100 percent goes to all other domains, which "*"
-- can name, as in Nomad.
-- Raises: QHC03.
create or replace function hwqueue.normalise_targets(p_targets jsonb, p_domain text, p_field text)
returns jsonb
language plpgsql immutable
as $$
declare
  v_target jsonb;
  v_field text;
  v_percent bigint;
  v_value jsonb;
  v_targets jsonb := '[]';
  v_rest jsonb;
begin
  if jsonb_typeof(p_targets) is distinct from 'array' or jsonb_array_length(p_targets) > 100 then
    perform hwqueue.refuse_field('QHC03', p_field, 'must be a list of at most 100 targets',
      'for example [{"value": "a", "percent": 70}], or [] for equal shares');
  end if;
  for v_target, v_field in
    select e.value, format('%s[%s]', p_field, e.ordinality - 1)
    from jsonb_array_elements(p_targets) with ordinality e
  loop
    perform hwqueue.check_object(v_target, array['value', 'percent'], v_field, 'QHC03');
    v_percent := hwqueue.json_integer(v_target -> 'percent', v_field || '.percent', 0, 100, 'QHC03');
    if v_percent is null then
      perform hwqueue.refuse_field('QHC03', v_field || '.percent', 'must be given',
        'give an integer from 0 to 100');
    end if;
    v_value := v_target -> 'value';
    if v_value is null or jsonb_typeof(v_value) in ('null', 'array', 'object')
      or length(v_value::text) > 1100 then
      perform hwqueue.refuse_field('QHC03', v_field || '.value', 'must be a string, number or boolean',
        'name one domain: a node id, a rack number, or the value of the label');
    end if;
    v_targets := v_targets || jsonb_build_object('percent', v_percent, 'value', case
      when v_value = '"*"' then v_value
      when p_domain = 'node' then to_jsonb(hwqueue.json_uuid(v_value, v_field || '.value', 'QHC03'))
      when p_domain = 'rack' then
        to_jsonb(hwqueue.json_integer(v_value, v_field || '.value', 0, 4294967295, 'QHC03'))
      else hwqueue.normal_value(v_value) end);
  end loop;
  v_targets := hwqueue.normal_set(v_targets);
  if (select count(distinct t.value -> 'value') < count(*) or sum((t.value ->> 'percent')::int) > 100
      from jsonb_array_elements(v_targets) t) then
    perform hwqueue.refuse_field('QHC03', p_field,
      'must name each value once, with percents of at most 100 in sum',
      'what is left of the 100 goes to all other domains');
  end if;
  v_rest := (select jsonb_build_object('value', '*', 'percent', 100 - sum((t.value ->> 'percent')::int))
             from jsonb_array_elements(v_targets) t where t.value -> 'value' <> '"*"');
  -- the rest is implied beside other targets; alone it stays, because [] asks for equal shares
  return coalesce(
    (select jsonb_agg(t.value order by t.ordinality)
     from jsonb_array_elements(v_targets) with ordinality t where t.value <> v_rest), v_targets);
end
$$;
