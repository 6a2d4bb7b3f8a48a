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
    when 'anti_affinity_conflict' then format('the lease keeps away from %s', p_predicate - 'away')
    else format('the node is not what is required: %s', p_predicate)
  end
$$;

-- Why a node may not run leases of a class now: [{"code", "permanent", "message", "predicate"}], empty when it may.
-- Built from the functions that claims decide with (expr_reason, isolation_conflicts, shortage), so the two cannot disagree.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_reasons(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load)
returns jsonb
language sql stable
as $$
  with short as (
    select s.now, s.ever, s.now & ~s.ever & s.own as contended, hwqueue.node_headroom(p_node, p_load) as room
    from (select hwqueue.class_shortage(p_class, p_node, p_load) as now, hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) as ever,
                 case when hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) is not null then 1 + 32 else 0 end
                 + case when hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode) is not null then 8 else 0 end as own) s
  )
  select coalesce(jsonb_agg(r.reason), '[]')
  from (
    select jsonb_build_object('code', u.code, 'permanent', true, 'message', hwqueue.reason_message(u.code, e.value, p_node.labels),
                              'predicate', e.value) as reason
    from jsonb_array_elements(p_class.required) e
    cross join lateral (
      select hwqueue.expr_reason(e.value, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids) as code) u
    where u.code is not null
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
