-- How well a node suits a class's preferences: 100 x matched signed sum / sum of absolute weights, -100..100; 0 without any.
-- (Nomad's affinity score, in percent.) Every untolerated prefer_no_schedule taint counts like one more preference, not to be there,
-- that weighs as much as all of the class's own together: the more of them, the lower.
-- p_facts: see expr_reason.
create or replace function hwqueue.affinity_score(p_preferred jsonb, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[],
                                                  p_facts jsonb, p_tolerate jsonb, p_taints jsonb) returns double precision
language sql immutable parallel safe
as $$
  select case when s.taints = 0 then a.affinity else (a.affinity - 100 * s.taints) / (1 + s.taints) end
  from (
    select coalesce(
      100 * sum((p.value ->> 'weight')::double precision)
              filter (where hwqueue.exprs_hold(p.value -> 'when', p_labels, p_rack, p_node, p_resources, p_facts))
          / sum(abs((p.value ->> 'weight')::double precision)), 0) as affinity
    from jsonb_array_elements(p_preferred) p
  ) a
  cross join (
    select case when p_taints = '[]' then 0
                else jsonb_array_length(hwqueue.untolerated(p_taints, p_tolerate, array['prefer_no_schedule'])) end as taints
  ) s
$$;

-- How much a class's preferences count beside those of others, 0.01 to 1: an affinity score divides by the class's own weights, so two classes
-- that prefer one node score alike there however much it matters to each.
create or replace function hwqueue.class_strength(p_class hwqueue.placement_class) returns double precision
language sql immutable parallel safe
as $$ select coalesce((p_class.placement ->> 'strength')::double precision, 100) / 100 $$;

-- The affinity term of a class's score on a node: its affinity score times its strength.
create or replace function hwqueue.class_affinity(p_class hwqueue.placement_class, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[],
                                                  p_facts jsonb, p_taints jsonb) returns double precision
language sql immutable parallel safe
as $$
  select hwqueue.class_strength(p_class)
    * hwqueue.affinity_score(p_class.preferred, p_labels, p_rack, p_node, p_resources, p_facts, p_class.tolerate, p_taints)
$$;

-- The same as far as it can be remembered: null where it depends on other leases.
create or replace function hwqueue.fixed_affinity(p_class hwqueue.placement_class, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[], p_taints jsonb)
returns double precision
language sql immutable parallel safe
as $$
  select case when not p_class.terms @> '[{"spec": {"use": "soft"}}]'
              then hwqueue.class_affinity(p_class, p_labels, p_rack, p_node, p_resources, null, p_taints) end
$$;
