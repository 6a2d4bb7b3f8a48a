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
    when 'trust_not_attested' then format('the node is not attested for %s now', p_predicate -> 'trust')
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

-- A row of all_failures as {"stage", "code", "permanent", "message", "predicate"}; predicate is left out where the code says all.
create or replace function hwqueue.failure_reason(p_stage text, p_code text, p_permanent boolean, p_message text, p_predicate jsonb, p_lacks int,
                                                  p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load) returns jsonb
language plpgsql stable
as $$
declare
  v_predicate jsonb;
  v_message text := p_message;
begin
  if p_lacks is not null then
    v_predicate := jsonb_build_object('resources', hwqueue.needs_of(p_class, p_lacks, p_node));
    v_message := hwqueue.lacking(p_lacks, p_class, hwqueue.node_headroom(p_node, p_load));
    v_message := case
      when p_code = 'nodes_support_but_contended' then format('the node honours the class, but running leases have its %s', v_message)
      else format('not enough %s: %s', v_message,
                  case when p_permanent then 'the node never has as much' else 'in use by running leases' end) end;
  elsif p_predicate is not null then
    v_predicate := hwqueue.without_terms(p_predicate);
  end if;
  if p_code = 'trust_not_attested' then
    v_message := hwqueue.suspended_words(p_node.node_id, p_predicate ->> 'trust', p_node.shard_id);
  end if;
  if v_message is null then
    v_message := hwqueue.reason_message(p_code, v_predicate, p_node.labels);
  end if;
  return jsonb_build_object('stage', p_stage, 'code', p_code, 'permanent', p_permanent, 'message', v_message)
    || case when v_predicate is null then '{}' else jsonb_build_object('predicate', v_predicate) end;
end
$$;

-- Why a node may not run a lease of a class now: [{"stage", "code", "permanent", "message", "predicate"}], empty when it may.
-- p_recount: what recount_terms gave for the class; null: by what claims have counted.
create or replace function hwqueue.class_reasons(p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load, p_recount jsonb,
                                                 p_now timestamptz, p_shard int) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(hwqueue.failure_reason(f.stage, f.code, f.permanent, f.message, f.predicate, f.lacks, p_class, p_node, p_load)), '[]')
  from (select hwqueue.term_facts(p_class, p_node, p_recount, p_now, p_shard) as facts,
               case when p_recount is null then hwqueue.kept_out_of(p_class, null, p_node, p_shard)
                    else hwqueue.known_to_keep_out(p_recount, p_node) end as kept_out offset 0) k
  cross join lateral hwqueue.all_failures(p_class, p_node, p_load, k.facts, p_recount -> 'spread', k.kept_out, p_now, p_shard) f
$$;
