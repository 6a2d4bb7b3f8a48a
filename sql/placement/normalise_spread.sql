-- Rules about how leases of a kind spread, in normal form: sorted, the same one twice counts once.
-- Raises: QHC03.
create or replace function hwqueue.normalise_spread(p_spread jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  return hwqueue.normal_set((
    select coalesce(jsonb_agg(hwqueue.normalise_spread_rule(e.value, format('%s[%s]', p_field, e.ordinality - 1))), '[]')
    from jsonb_array_elements(hwqueue.json_list(p_spread, p_field, 100, 'a list of at most 100 rules',
      'for example [{"domain": "rack", "max_skew": 1, "select": {"labels": {"app": "web"}}}]', 'QHC03'))
      with ordinality e));
end
$$;

-- One rule: {"domain", "select"} and one of max_skew, max_per_domain, targets with what goes with it.
-- Raises: QHC03.
create or replace function hwqueue.normalise_spread_rule(p_rule jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kinds text[];
  v_domain text;
  v_rule jsonb;
  v_limit bigint;
begin
  perform hwqueue.check_object(p_rule, array['domain', 'select', 'max_skew', 'min_domains', 'when', 'count_nodes', 'max_per_domain', 'targets',
    'weight'], p_field, 'QHC03');
  v_kinds := array(select k from jsonb_object_keys(p_rule) k where k in ('max_skew', 'max_per_domain', 'targets') order by k);
  if cardinality(v_kinds) <> 1 then
    perform hwqueue.refuse('QHC03', format('%s must have exactly one of max_skew, max_per_domain, targets; it has %s', p_field,
        coalesce(nullif(array_to_string(v_kinds, ' and '), ''), 'none')), jsonb_build_object('field', p_field),
      'write one rule for each: the list ANDs them');
  end if;
  perform hwqueue.check_object(p_rule, array['domain', 'select', v_kinds[1]] || case v_kinds[1]
    when 'max_skew' then array['min_domains', 'when', 'count_nodes'] when 'targets' then array['weight'] else '{}' end, p_field, 'QHC03');
  v_domain := hwqueue.require_domain(p_rule -> 'domain', p_field || '.domain');
  v_rule := jsonb_build_object('domain', v_domain, 'select', hwqueue.normalise_selector(p_rule -> 'select', p_field || '.select'));
  if v_kinds[1] = 'targets' then
    v_limit := coalesce(hwqueue.json_integer(p_rule -> 'weight', p_field || '.weight', 1, 100, 'QHC03'), 100);
    return v_rule || jsonb_build_object('targets', hwqueue.normalise_targets(p_rule -> 'targets', v_domain, p_field || '.targets'))
      || case when v_limit = 100 then '{}' else jsonb_build_object('weight', v_limit) end;
  end if;
  v_limit := hwqueue.json_integer(p_rule -> v_kinds[1], format('%s.%s', p_field, v_kinds[1]), 1, 1000000, 'QHC03');
  if v_limit is null then
    perform hwqueue.refuse('QHC03', format('%s.%s must not be null', p_field, v_kinds[1]),
      jsonb_build_object('field', format('%s.%s', p_field, v_kinds[1])), 'give an integer of 1 or more');
  end if;
  v_rule := v_rule || jsonb_build_object(v_kinds[1], v_limit);
  return case v_kinds[1] when 'max_skew' then v_rule || hwqueue.normalise_skew(p_rule, p_field) else v_rule end;
end
$$;

-- What goes with max_skew, the defaults dropped: required, over any number of domains, over nodes that the placement fits, tainted or not.
-- Raises: QHC03.
create or replace function hwqueue.normalise_skew(p_rule jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_preferred boolean := coalesce(hwqueue.json_choice(p_rule -> 'when', p_field || '.when', array['require', 'prefer'], 'QHC03') = 'prefer', false);
  v_least bigint := hwqueue.json_integer(p_rule -> 'min_domains', p_field || '.min_domains', 1, 1000000, 'QHC03');
  v_nodes jsonb := coalesce(nullif(p_rule -> 'count_nodes', 'null'), '{}');
begin
  perform hwqueue.check_object(v_nodes, array['affinity', 'taints'], p_field || '.count_nodes', 'QHC03');
  v_nodes := jsonb_strip_nulls(jsonb_build_object(
    'affinity', nullif(hwqueue.json_choice(v_nodes -> 'affinity', p_field || '.count_nodes.affinity', array['honor', 'ignore'], 'QHC03'), 'honor'),
    'taints', nullif(hwqueue.json_choice(v_nodes -> 'taints', p_field || '.count_nodes.taints', array['ignore', 'honor'], 'QHC03'), 'ignore')));
  if v_preferred and v_least is not null then
    perform hwqueue.refuse('QHC03', format('%s.min_domains does not go with when prefer', p_field),
      jsonb_build_object('field', p_field || '.min_domains'), 'drop one of them: only a required spread can demand domains');
  end if;
  return case when v_preferred then '{"when": "prefer"}'::jsonb else '{}' end
    || case when v_least > 1 then jsonb_build_object('min_domains', v_least) else '{}' end
    || case when v_nodes <> '{}' then jsonb_build_object('count_nodes', v_nodes) else '{}' end;
end
$$;
