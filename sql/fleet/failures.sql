-- Why a node does not suit a class, in words, and the first reason as a code.
--
-- Which rules fail is what fleet/fleet_failures.sql finds. Words are made of its rows, as type failure:
--   stage: served (see unserved_part), labels, taints, trust, isolation, capacity (what the node has in
--     all), free (what is left of it), away (other leases), spread, cordon
--   predicate: what failed, as the class has it; lacks: of stages capacity and free, what is short, as
--     bits (see shortage)

-- Returns an expression as its author wrote it, without the indexes of its terms.
create or replace function hwqueue.without_terms(p_expr jsonb) returns jsonb
language plpgsql immutable
as $$ begin return
  case when p_expr ? 'any' then jsonb_build_object('any', (
      select jsonb_agg((select jsonb_agg(hwqueue.without_terms(e.value) order by e.ordinality)
             from jsonb_array_elements(b.value) with ordinality e)
                       order by b.ordinality)
      from jsonb_array_elements(p_expr -> 'any') with ordinality b))
    else p_expr - array['term', 'tally'] end;
end $$;

-- Returns a row of fleet_failures as {"stage", "code", "permanent", "message", "predicate"}; predicate is
-- left out where the code says all.
create or replace function hwqueue.failure_reason(p_failure hwqueue.failure,
  p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load) returns jsonb
language plpgsql stable
as $$
declare
  v_predicate jsonb;
  v_message text := p_failure.message;
begin
  if p_failure.lacks is not null then
    v_predicate := jsonb_build_object('resources', hwqueue.amounts_of(p_class, p_failure.lacks, p_node));
    v_message := concat_ws(', ',
      case when p_failure.lacks & 1 > 0 then 'cpu_milli' end,
      case when p_failure.lacks & 2 > 0 then 'memory_mib' end,
      case when p_failure.lacks & 4 > 0 then 'slots' end,
      case when p_failure.lacks & 8 > 0 then 'gpu' end
        || case when p_class.gpu_milli > 0 then '_milli' else '' end,
      case when p_failure.lacks & 16 > 0 then hwqueue.lacking_custom(p_class.custom,
        (hwqueue.node_headroom(p_node, p_load)).custom) end,
      case when p_failure.lacks & 32 > 0 then 'cores' end);
    v_message := case
      when p_failure.code = 'nodes_support_but_contended'
        then format('the node honours the class, but running leases have its %s', v_message)
      else format('not enough %s: %s', v_message,
                  case when p_failure.permanent then 'the node never has as much'
                    when exists (
                      select from hwqueue.claim c where c.node_id = p_node.node_id and c.is_earmark)
                      then 'in use by running leases or kept for a gang'
                    else 'in use by running leases' end) end;
  elsif p_failure.predicate is not null then
    v_predicate := hwqueue.without_terms(p_failure.predicate)
      - case when hwqueue.my_tenants() is not null then 'tenants' else '' end;  -- no tenant hears of others
  end if;
  if p_failure.code = 'trust_not_attested' then
    v_message := hwqueue.suspended_words(p_node, p_failure.predicate ->> 'trust');
  end if;
  if v_message is null then
    v_message := case p_failure.code
      when 'label_missing' then case
        when v_predicate ? 'domain' then format('the node has no %s, so it is in no place of that domain',
          case v_predicate ->> 'domain' when 'rack' then 'rack'
            else 'label ' || to_json(substr(v_predicate ->> 'domain', 7)) end)
        else format('the node has no label %s',
          coalesce(to_json(v_predicate ->> 'label')::text, (v_predicate -> 'tags')::text)) end
      when 'label_mismatch' then case
        when v_predicate ? 'tags' then format('the labels do not contain %s', v_predicate -> 'tags')
        else format('label %s is %s', to_json(v_predicate ->> 'label'), coalesce(
          hwqueue.type_words(v_predicate, p_node.labels -> (v_predicate ->> 'label')),
          format('%s, wanted %s %s', p_node.labels -> (v_predicate ->> 'label'), v_predicate ->> 'op',
            coalesce((v_predicate -> 'values')::text, 'label ' || (v_predicate ->> 'other_label'), '')))) end
      when 'spread_exceeded' then format('one more would break the limit %s', v_predicate)
      when 'untolerated_taint' then format('the lease does not tolerate the taint %s',
          hwqueue.taint_text(v_predicate))
      when 'tenant_not_admitted' then 'the node is for other tenants' || case when v_predicate ? 'tenants'
          then ': ' || hwqueue.list_words(v_predicate -> 'tenants', 'and') else '' end
      when 'trust_not_attested' then format('the node is not attested for %s now', v_predicate -> 'trust')
      when 'no_handler' then case
        when v_predicate ? 'queue' then format('its worker does not poll queue %s', v_predicate -> 'queue')
        else format('its worker has no handler for task %s', v_predicate -> 'task') end
      when 'nodes_support_but_contended' then format('its worker runs %s at a time, and has no slot free',
        v_predicate ->> 'concurrency')
      when 'anti_affinity_conflict' then format('the lease keeps away from %s', v_predicate - 'away')
      else format('the node is not what is required: %s', v_predicate)
    end;
  end if;
  return jsonb_build_object('stage', p_failure.stage, 'code', p_failure.code,
      'permanent', p_failure.permanent, 'message', v_message)
    || case when v_predicate is null then '{}' else jsonb_build_object('predicate', v_predicate) end;
end
$$;

-- Returns the code of the first rule by which a node may not run a lease of a class now, as claims would find
-- it; null when it may. For many classes on one node: fleet_failures takes longer for one.
create or replace function hwqueue.first_failure(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load, p_now timestamptz) returns text
language plpgsql stable
as $$
declare
  v_attested text[] := hwqueue.attested_at(p_node, p_now);
  v_lacks int := hwqueue.class_shortage(p_class, p_node, p_load);
begin
  return coalesce(
    (select 'no_handler' from hwqueue.queue q
     where q.queue_id = p_class.queue_id
       and hwqueue.unserved_part(p_node.queues, p_node.tasks, q.name, p_class.task_name) is not null),
    (select u.code
     from jsonb_array_elements(p_class.required || hwqueue.domains_needed(p_class)) with ordinality e
     cross join lateral (
       select hwqueue.expr_reason(e.value, p_node.labels, p_node.rack, p_node.node_id,
           p_node.resources || p_node.gpu_ids, null, v_attested) as code offset 0) u
     where u.code is not null order by e.ordinality limit 1),
    (select hwqueue.taint_code(t) from jsonb_array_elements(hwqueue.barring_taints(
       hwqueue.node_taints(p_node), p_class.tolerate, p_class.tenant)) t limit 1),
    (select c.code from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity,
       p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c limit 1),
    hwqueue.terms_reason(p_class, null, p_node, hwqueue.term_facts(p_class, p_node, p_now), true, true,
      p_now),
    case when v_lacks <> 0 then (
      select f.code from hwqueue.room_failures(p_class, p_node, v_lacks) f limit 1) end,
    (select 'nodes_support_but_contended' from hwqueue.full_nodes() u where u.node_id = p_node.node_id),
    case when p_node.cordoned_at is not null then 'node_draining' end);
end
$$;

-- Says why the attestation of a node for a domain is suspended; null if it is not.
create or replace function hwqueue.suspended_words(p_node hwqueue.node, p_domain text) returns text
language plpgsql stable
as $$ begin return (
  select format('trust %s is not attested since %s: hwqueue node confirm', to_json(p_domain),
    p_node.attestations #>> array[p_domain, 'suspended_why'])
  where p_node.attestations -> p_domain ? 'suspended_at'
); end $$;
