-- One taint {"key", "value"?, "effect"} in normal form; an empty value is none.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.parse_taint(p_taint jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_taint jsonb := hwqueue.check_object(p_taint, array['key', 'value', 'effect'], p_field);
  v_effect text := hwqueue.json_text(v_taint -> 'effect', p_field || '.effect', 60);
begin
  v_taint := jsonb_strip_nulls(jsonb_build_object(
    'key', hwqueue.json_text(v_taint -> 'key', p_field || '.key', 253),
    'value', hwqueue.json_text(nullif(v_taint -> 'value', '""'), p_field || '.value', 253),
    'effect', v_effect));
  if not v_taint ? 'key' then
    perform hwqueue.refuse('QHA01', format('%s.key is missing', p_field), jsonb_build_object('field', p_field || '.key'),
      'a taint looks like {"key": "dedicated", "value": "film", "effect": "no_schedule"}');
  end if;
  perform hwqueue.check_taint_effect(v_effect, p_field || '.effect');
  return v_taint;
end
$$;

-- Refuses what is no effect of a taint. Raises: QHA01.
create or replace function hwqueue.check_taint_effect(p_effect text, p_field text) returns void
language plpgsql immutable
as $$
begin
  if (p_effect in ('no_schedule', 'prefer_no_schedule', 'no_execute')) is not true then
    perform hwqueue.refuse('QHA01', format('%s must be no_schedule, prefer_no_schedule or no_execute, got %s', p_field,
        coalesce(to_json(left(p_effect, 60))::text, 'nothing')),
      jsonb_build_object('field', p_field), 'no_execute also asks what runs there to stop');
  end if;
end
$$;

-- A list of taints in normal form: at most 100, one for each key and effect. Raises: QHA01, naming the field.
create or replace function hwqueue.parse_taints(p_taints jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_taints jsonb;
begin
  v_taints := hwqueue.normal_set((
    select coalesce(jsonb_agg(hwqueue.parse_taint(e.value, format('%s[%s]', p_field, e.ordinality - 1))), '[]')
    from jsonb_array_elements(hwqueue.json_list(p_taints, p_field, 100, 'a list of at most 100 taints',
      'for example [{"key": "dedicated", "value": "film", "effect": "no_schedule"}]')) with ordinality e));
  if (select count(distinct t - 'value') from jsonb_array_elements(v_taints) t) < jsonb_array_length(v_taints) then
    perform hwqueue.refuse('QHA01', format('%s has two taints of the same key and effect', p_field), jsonb_build_object('field', p_field),
      'keep one of them, or name them differently');
  end if;
  return v_taints;
end
$$;

-- Taints with the time since when they are there: that of p_before for those that were there already.
create or replace function hwqueue.date_taints(p_taints jsonb, p_before jsonb, p_now timestamptz) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(coalesce(
    (select b from jsonb_array_elements(p_before) b where b - 'since' = t.value),
    t.value || jsonb_build_object('since', p_now)) order by t.ordinality), '[]')
  from jsonb_array_elements(p_taints) with ordinality t
$$;

-- Taints without their times, each once.
create or replace function hwqueue.undated_taints(p_taints jsonb) returns jsonb
language sql immutable parallel safe
as $$ select hwqueue.normal_set((select jsonb_agg(t - 'since') from jsonb_array_elements(p_taints) t)) $$;

-- All taints of a node, its own and those of operators: what its profile has. Without a subquery, so that the planner inlines it.
create or replace function hwqueue.node_taints(p_node hwqueue.node) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_node.taints = '[]' and p_node.operator_taints = '[]' then '[]'
              else hwqueue.undated_taints(p_node.taints || p_node.operator_taints) end
$$;
