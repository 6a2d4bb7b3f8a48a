-- A reason in words.
create or replace function hwqueue.reason_message(p_code text, p_predicate jsonb, p_labels jsonb) returns text
language sql immutable
as $$
  select case p_code
    when 'label_missing' then format('the node has no label %s',
      coalesce(to_json(p_predicate ->> 'label')::text, (p_predicate -> 'tags')::text))
    when 'label_mismatch' then case
      when p_predicate ? 'tags' then format('the labels do not contain %s', p_predicate -> 'tags')
      else format('label %s is %s, wanted %s %s', to_json(p_predicate ->> 'label'), p_labels -> (p_predicate ->> 'label'),
                  p_predicate ->> 'op', coalesce((p_predicate -> 'values')::text, 'label ' || (p_predicate ->> 'other_label'), '')) end
    when 'spread_exceeded' then format('one more would break the limit %s', p_predicate)
    when 'untolerated_taint' then format('the lease does not tolerate the taint %s', hwqueue.taint_text(p_predicate))
    when 'trust_not_attested' then format('nobody attests the node for %s', p_predicate -> 'trust')
    when 'anti_affinity_conflict' then format('the lease keeps away from %s', p_predicate - 'away')
    else format('the node is not what is required: %s', p_predicate)
  end
$$;

-- An expression as it was written, without the indexes of its terms.
create or replace function hwqueue.without_terms(p_expr jsonb) returns jsonb
language sql immutable
as $$
  select case when p_expr ? 'any' then jsonb_build_object('any', (
      select jsonb_agg((select jsonb_agg(hwqueue.without_terms(e.value) order by e.ordinality) from jsonb_array_elements(b.value) with ordinality e)
                       order by b.ordinality)
      from jsonb_array_elements(p_expr -> 'any') with ordinality b))
    else p_expr - array['term', 'tally'] end
$$;

-- Why a node may not run a lease of a class now: [{"code", "permanent", "message", "predicate"}], empty when it may.
-- Built from the functions that claims decide with (expr_reason, barring_taints, spread_reason, isolation_conflicts, shortage), so the two cannot disagree.
-- p_recount: what recount_terms gave for the class; null: by what claims have counted.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_reasons(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load, p_recount jsonb,
                                                 p_now timestamptz, p_shard int) returns jsonb
language sql stable
as $$
  with known as materialized (
    select hwqueue.term_facts(p_class, p_node, p_recount, p_now, p_shard) as facts, p_node.resources || p_node.gpu_ids as resources,
           hwqueue.attested_at(p_node, p_now) as attested
  ), short as (
    select s.now, s.ever, s.now & ~s.ever & s.own as contended, hwqueue.node_headroom(p_node, p_load) as room
    from (select hwqueue.class_shortage(p_class, p_node, p_load) as now, hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) as ever,
                 case when hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) is not null then 1 + 32 else 0 end
                 + case when hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode) is not null then 8 else 0 end as own) s
  )
  select coalesce(jsonb_agg(r.reason), '[]')
  from (
    select jsonb_build_object('code', u.code, 'permanent', u.is_fixed, 'message', hwqueue.reason_message(u.code, hwqueue.without_terms(e.value), p_node.labels),
                              'predicate', hwqueue.without_terms(e.value)) as reason
    from known f
    cross join jsonb_array_elements(p_class.required) e
    cross join lateral (
      select hwqueue.expr_reason(e.value, p_node.labels, p_node.rack, p_node.node_id, f.resources, f.facts, f.attested) as code,
             hwqueue.expr_reason(e.value, p_node.labels, p_node.rack, p_node.node_id, f.resources, null, f.attested) is not null as is_fixed) u
    where u.code is not null
    union all
    select jsonb_build_object('code', 'untolerated_taint', 'permanent', true,
      'message', hwqueue.reason_message('untolerated_taint', t.value, '{}'), 'predicate', t.value)
    from jsonb_array_elements(hwqueue.barring_taints(hwqueue.node_taints(p_node), p_class.tolerate)) t
    union all
    select jsonb_build_object('code', u.code, 'permanent', false, 'message', hwqueue.reason_message(u.code, hwqueue.without_terms(s.value), '{}'),
                              'predicate', hwqueue.without_terms(s.value))
    from known f
    cross join jsonb_array_elements(p_class.spread) with ordinality s
    cross join lateral (
      select hwqueue.spread_reason(s.value, p_class, f.facts, coalesce(p_recount #> array['spread', (s.ordinality - 1)::text],
        case when s.value ? 'max_skew' then hwqueue.spread_counts(s.value, p_class, null, p_now, p_shard) end),
                                   p_now, p_shard) as code) u
    where u.code is not null
    union all
    select jsonb_build_object('code', 'anti_affinity_conflict', 'permanent', false,
      'message', format('a running lease in the same %s keeps away from such leases', k.domain))
    from (select hwqueue.kept_out_of(p_class, null, p_node, p_recount, p_shard) as domain) k
    where k.domain is not null
    union all
    select jsonb_build_object('code', c.code, 'permanent', true, 'message', c.message, 'predicate', c.predicate)
    from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.gpu_share_mode, p_node.gpu_ids,
                                     p_node.gpu_parents) c
    union all
    -- of what it would have to itself: the node has enough, others have it now
    select jsonb_build_object('code', 'nodes_support_but_contended', 'permanent', false, 'message',
             format('the node honours the class, but running leases have its %s', hwqueue.lacking(s.contended, p_class, s.room)))
    from short s where s.contended <> 0
    union all
    select jsonb_build_object('code', 'insufficient_capacity', 'permanent', s.ever <> 0,
      'message', format('not enough %s: %s', hwqueue.lacking(s.now - s.contended, p_class, s.room),
        case when s.ever <> 0 then 'the node never has as much' else 'in use by running leases' end))
    from short s where s.now <> s.contended
    union all
    select jsonb_build_object('code', 'node_draining', 'permanent', false, 'message', 'the node is cordoned')
    where p_node.cordoned_at is not null
  ) r
$$;
