-- The part of the placement grammar that concerns other leases and named targets: selectors, targets,
-- spread.
-- Normal forms are sorted, distinct, and without defaults.
-- Read normalise_spread_rule and normalise_selector first.

-- Returns one rule: {"domain", "select"} and one of max_skew, max_per_domain or targets, with the
-- options of that kind without the defaults: by default a skew is required, over any number of domains, over
-- nodes that the placement fits, tainted or not. The domain fleet, which holds all nodes, goes with
-- max_per_domain alone: it limits how many leases run at once.
-- Raises: QHC03.
create or replace function hwqueue.normalise_spread_rule(p_rule jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_kinds text[];
  v_rule jsonb;
  v_nodes jsonb := coalesce(nullif(p_rule -> 'count_nodes', 'null'), '{}');
  v_nodes_field text := p_field || '.count_nodes';
begin
  perform hwqueue.check_object(p_rule, hwqueue.keys_of('spread'), p_field, 'QHC03');
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
  v_rule := hwqueue.read_keys(p_rule, 'spread', p_field, 'QHC03') || jsonb_build_object(
    'domain', case when v_kinds[1] = 'max_per_domain' and p_rule -> 'domain' = '"fleet"' then 'fleet'
      else coalesce(hwqueue.json_domain(p_rule -> 'domain', p_field || '.domain', 'QHC03'),
        hwqueue.refuse_value('null', p_field || '.domain', '"node", "rack" or "label:KEY"',
          'say what counts as one place', 'QHC03')) end,
    'select', hwqueue.normalise_selector(p_rule -> 'select', p_field || '.select'));
  if v_kinds[1] = 'targets' then
    return v_rule || jsonb_build_object('targets', hwqueue.normalise_targets(
      p_rule -> 'targets', v_rule ->> 'domain', p_field || '.targets'));
  elsif not v_rule ? v_kinds[1] then
    perform hwqueue.refuse_field('QHC03', format('%s.%s', p_field, v_kinds[1]), 'must not be null',
      'give an integer of 1 or more');
  elsif v_rule ? 'when' and coalesce(p_rule -> 'min_domains', 'null') <> 'null' then
    perform hwqueue.refuse_field('QHC03', p_field || '.min_domains', 'does not go with when prefer',
      'drop one of them: only a required spread can demand domains');
  end if;
  perform hwqueue.check_object(v_nodes, hwqueue.keys_of('count_nodes'), v_nodes_field, 'QHC03');
  return v_rule || hwqueue.present('count_nodes', nullif(
    hwqueue.read_keys(v_nodes, 'count_nodes', v_nodes_field, 'QHC03'), '{}'));
end
$$;

-- Returns a SELECTOR of leases by their labels in normal form: {"exprs": [...]}, where an equality is
-- `in` with one value and an empty list selects every lease.
-- {"same": "service"|"task"} stays as it is: the class resolves it (term_item).
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

-- Returns the targets of a spread in normal form: [{"value", "percent"}], the share of the leases that each
-- domain should have; [] asks for equal shares. The rest of the 100 percent goes to all other domains, which
-- "*" can name, as in Nomad.
-- Raises: QHC03.
create or replace function hwqueue.normalise_targets(p_targets jsonb, p_domain text, p_field text)
returns jsonb
language plpgsql immutable
as $$
declare
  v_targets jsonb;
  v_rest jsonb;
begin
  if jsonb_typeof(p_targets) is distinct from 'array' or jsonb_array_length(p_targets) > 100 then
    perform hwqueue.refuse_field('QHC03', p_field, 'must be a list of at most 100 targets',
      'for example [{"value": "a", "percent": 70}], or [] for equal shares');
  end if;
  v_targets := (
    select hwqueue.normal_set(coalesce(jsonb_agg(jsonb_build_object('percent', coalesce(
        hwqueue.json_integer(g.percent, f.field || '.percent', 0, 100, 'QHC03'),
        hwqueue.refuse_value(g.percent, f.field || '.percent', 'an integer from 0 to 100',
          'say which share of the leases the domain should have', 'QHC03')::bigint),
      'value', case
        when jsonb_typeof(g.value) in ('null', 'array', 'object') or length(g.value::text) > 1100
          then to_jsonb(hwqueue.refuse_value(g.value, f.field || '.value', 'a string, number or boolean',
            'name one domain: a node id, a rack number, or the value of the label', 'QHC03'))
        when g.value = '"*"' then g.value
        when p_domain = 'node' then to_jsonb(hwqueue.json_uuid(g.value, f.field || '.value', 'QHC03'))
        when p_domain = 'rack'
          then to_jsonb(hwqueue.json_integer(g.value, f.field || '.value', 0, 4294967295, 'QHC03'))
        else hwqueue.normal_value(g.value) end)), '[]'))
    from jsonb_array_elements(p_targets) with ordinality e
    cross join lateral (select format('%s[%s]', p_field, e.ordinality - 1) as field) f
    cross join lateral (
      select hwqueue.check_object(e.value, array['value', 'percent'], f.field, 'QHC03') as target offset 0) t
    cross join lateral (
      select coalesce(t.target -> 'percent', 'null') as percent,
             coalesce(t.target -> 'value', 'null') as value offset 0) g);
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
