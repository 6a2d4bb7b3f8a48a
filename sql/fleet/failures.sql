-- Why a node does not suit a class: every rule that fails, with its reason.
--
-- These functions judge one node; fleet/fleet_failures.sql applies the same rules to all nodes at once.
-- Both are made of the functions that claims decide with (expr_reason, barring_taints, spread_reason,
-- isolation_conflicts, shortage), so a reason can never contradict a claim. Reasons and explanations
-- read the rows of all_failures, of type failure:
--   stage: served (see unserved_part), labels, taints, trust, isolation, capacity (what the node has in
--     all), free (what is left of it), away (other leases), spread, cordon
--   predicate: what failed, as the class has it; lacks: of stages capacity and free, what is short, as
--     bits (see shortage)
--
-- SQL functions here are one select each, so that the planner inlines them.

-- Returns a reason in words.
create or replace function hwqueue.reason_message(p_code text, p_predicate jsonb, p_labels jsonb) returns text
language sql immutable
as $$
  select case p_code
    when 'label_missing' then case
      when p_predicate ->> 'domain' = 'rack' then 'the node has no rack, so it is in no place of that domain'
      when p_predicate ? 'domain' then format('the node has no label %s, so it is in no place of that domain',
        to_json(substr(p_predicate ->> 'domain', 7)))
      else format('the node has no label %s',
        coalesce(to_json(p_predicate ->> 'label')::text, (p_predicate -> 'tags')::text)) end
    when 'label_mismatch' then case
      when p_predicate ? 'tags' then format('the labels do not contain %s', p_predicate -> 'tags')
      else format('label %s is %s', to_json(p_predicate ->> 'label'), coalesce(
        hwqueue.type_words(p_predicate, p_labels -> (p_predicate ->> 'label')),
        format('%s, wanted %s %s', p_labels -> (p_predicate ->> 'label'), p_predicate ->> 'op', coalesce(
          (p_predicate -> 'values')::text, 'label ' || (p_predicate ->> 'other_label'), '')))) end
    when 'spread_exceeded' then format('one more would break the limit %s', p_predicate)
    when 'untolerated_taint' then format('the lease does not tolerate the taint %s',
        hwqueue.taint_text(p_predicate))
    when 'trust_not_attested' then format('the node is not attested for %s now', p_predicate -> 'trust')
    when 'no_handler' then case
      when p_predicate ? 'queue' then format('its worker does not poll queue %s', p_predicate -> 'queue')
      else format('its worker has no handler for task %s', p_predicate -> 'task') end
    when 'nodes_support_but_contended' then format('its worker runs %s at a time, and has no slot free',
      p_predicate ->> 'concurrency')
    when 'anti_affinity_conflict' then format('the lease keeps away from %s', p_predicate - 'away')
    else format('the node is not what is required: %s', p_predicate)
  end
$$;

-- Returns an expression as its author wrote it, without the indexes of its terms.
create or replace function hwqueue.without_terms(p_expr jsonb) returns jsonb
language sql immutable
as $$
  select case when p_expr ? 'any' then jsonb_build_object('any', (
      select jsonb_agg((select jsonb_agg(hwqueue.without_terms(e.value) order by e.ordinality)
             from jsonb_array_elements(b.value) with ordinality e)
                       order by b.ordinality)
      from jsonb_array_elements(p_expr -> 'any') with ordinality b))
    else p_expr - array['term', 'tally'] end
$$;

-- Returns a row of all_failures as {"stage", "code", "permanent", "message", "predicate"}; predicate is
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
    v_predicate := jsonb_build_object('resources', hwqueue.needs_of(p_class, p_failure.lacks, p_node));
    v_message := hwqueue.lacking(p_failure.lacks, p_class, hwqueue.node_headroom(p_node, p_load));
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
    v_predicate := hwqueue.without_terms(p_failure.predicate);
  end if;
  if p_failure.code = 'trust_not_attested' then
    v_message := hwqueue.suspended_words(p_node, p_failure.predicate ->> 'trust');
  end if;
  if v_message is null then
    v_message := hwqueue.reason_message(p_failure.code, v_predicate, p_node.labels);
  end if;
  return jsonb_build_object('stage', p_failure.stage, 'code', p_failure.code,
      'permanent', p_failure.permanent, 'message', v_message)
    || case when v_predicate is null then '{}' else jsonb_build_object('predicate', v_predicate) end;
end
$$;

-- Returns why a node may not run a lease of a class now: [{"stage", "code", "permanent", "message",
-- "predicate"}], empty when it may. p_recount: see recount_terms; null: use the counters.
create or replace function hwqueue.class_reasons(
  p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load, p_recount jsonb,
  p_now timestamptz) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(hwqueue.failure_reason(f, p_class, p_node, p_load)), '[]')
  from (select hwqueue.term_facts(p_class, p_node, p_recount, p_now) as facts,
               case when p_recount is null then hwqueue.kept_out_of(p_class, null, p_node)
                    else hwqueue.cached_kept_out_of(p_recount, p_node) end as kept_out offset 0) k
  cross join lateral hwqueue.all_failures(p_class, p_node, p_load, k.facts, p_recount -> 'spread',
      k.kept_out, p_now) f
$$;

-- Says why the attestation of a node for a domain is suspended; null if it is not.
create or replace function hwqueue.suspended_words(p_node hwqueue.node, p_domain text) returns text
language sql stable
as $$
  select format('trust %s is not attested since %s: hwqueue node confirm', to_json(p_domain),
    p_node.attestations #>> array[p_domain, 'suspended_why'])
  where p_node.attestations -> p_domain ? 'suspended_at'
$$;

-- The order in which rules exclude nodes: the order of a funnel.
create or replace function hwqueue.funnel_stages() returns text[]
language sql immutable parallel safe
as $$ select array['live', 'cordon', 'served', 'labels', 'taints', 'trust', 'isolation', 'capacity', 'free',
    'away', 'spread'] $$;

-- Returns those of a class's requirements that a profile decides (p_of_profile), or the others: these
-- name nodes, resources or trust domains, or ask about other leases.
create or replace function hwqueue.exprs_of(p_required jsonb, p_of_profile boolean) returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(e.value order by e.ordinality), '[]')
  from jsonb_array_elements(p_required) with ordinality e
  where p_of_profile <> jsonb_path_exists(
    e.value, 'strict $.** ? (exists(@.node) || exists(@.resource) || exists(@.trust)
                                    || exists(@.leases) || exists(@.service) || exists(@.lease))', '{}', true)
$$;

-- Returns the failures of a node that is too small or too full, from what is short now and when it is idle
-- (bits of shortage). p_cpu, p_gpu: the isolation that the class gets there.
create or replace function hwqueue.room_failures(p_lacks_now int, p_lacks_ever int, p_cpu text, p_gpu text)
returns table (stage text, code text, permanent boolean, lacks int)
language sql immutable parallel safe
as $$
  select v.stage, v.code, v.permanent, v.lacks
  from (
    -- contended: resources that the class wants for itself, enough on an idle node, held by others now
    select p_lacks_now & ~p_lacks_ever & (case when p_cpu is not null then 1 + 32 else 0 end
                                          + case when p_gpu is not null then 8 else 0 end) as lacks) c
  cross join lateral (values
    ('free', 'nodes_support_but_contended', false, c.lacks),
    (case when p_lacks_ever <> 0 then 'capacity' else 'free' end, 'insufficient_capacity', p_lacks_ever <> 0,
     p_lacks_now - c.lacks)
  ) v(stage, code, permanent, lacks)
  where v.lacks <> 0
$$;

-- Returns how a node fails an expression that its profile does not decide; no row if it meets it, or is in
-- no place of its domain, which domains_needed has.
create or replace function hwqueue.expr_failures(p_expr jsonb, p_node hwqueue.node, p_facts jsonb,
    p_now timestamptz)
returns table (stage text, code text, permanent boolean)
language sql stable
as $$
  select case when not x.is_fixed then 'away' when u.code = 'trust_not_attested' then 'trust'
         else 'labels' end,
         u.code, x.is_fixed
  from (select p_node.resources || p_node.gpu_ids as resources,
               hwqueue.attested_at(p_node, p_now) as attested offset 0) k
  cross join lateral (
    select hwqueue.expr_reason(p_expr, p_node.labels, p_node.rack, p_node.node_id, k.resources, p_facts,
        k.attested) as code
    offset 0) u
  cross join lateral (
    select hwqueue.expr_reason(p_expr, p_node.labels, p_node.rack, p_node.node_id, k.resources, null,
        k.attested) is not null
             as is_fixed
    where u.code is not null
      and not (p_expr ? 'domain' and hwqueue.unknown_fails(p_expr) and hwqueue.domain_value(
        p_expr ->> 'domain', p_node.node_id, p_node.rack, p_node.labels) is null) offset 0) x
$$;

-- Returns the code by which a node with these facts breaks the p_index-th rule (from 0) of a class's spread;
-- null also if it is in no place of the domain, which domains_needed has.
create or replace function hwqueue.spread_failure(
  p_spread jsonb, p_index int, p_class hwqueue.placement_class, p_facts jsonb, p_counts jsonb,
  p_now timestamptz) returns text
language sql stable
as $$
  select case when jsonb_typeof(p_facts -> (p_spread ->> 'term')::int -> 'value') <> 'null' then
    hwqueue.spread_reason(p_spread, p_class, p_facts, coalesce(p_counts -> p_index,
        case when p_spread ? 'max_skew' then hwqueue.spread_counts(p_spread, p_class, null, p_now) end),
      p_now) end
$$;

-- The message for a class that a running lease keeps out of a domain.
create or replace function hwqueue.kept_out_words(p_domain text) returns text
language sql immutable parallel safe
as $$
  select format('a running lease in the same %s keeps away from such leases', replace(p_domain, 'own:', ''))
$$;

-- Returns every rule that a node fails now. p_facts: see term_facts; p_counts: spread_counts in the order of
-- the class's spread, null: count them here; p_kept_out: the domain out of which a running lease keeps the
-- class. Isolation of a class that names a device is judged after its requirements.
create or replace function hwqueue.all_failures(p_class hwqueue.placement_class, p_node hwqueue.node,
    p_load hwqueue.node_load, p_facts jsonb, p_counts jsonb, p_kept_out text, p_now timestamptz)
returns setof hwqueue.failure
language sql stable
as $$
  select 'served', 'no_handler', true, null::text, u.predicate, null::int
  from hwqueue.unserving_nodes(p_class) u where u.node_id = p_node.node_id
  union all
  select 'labels', u.code, true, null, e.value, null
  from jsonb_array_elements(hwqueue.exprs_of(p_class.required, true) || hwqueue.domains_needed(p_class)) e
  cross join lateral (
    select hwqueue.expr_reason(e.value, p_node.labels, p_node.rack, null, '{}', null) as code offset 0) u
  where u.code is not null
  union all
  select 'taints', 'untolerated_taint', true, null, t.value, null
  from (select hwqueue.node_taints(p_node) as taints offset 0) n
  cross join lateral jsonb_array_elements(
    case when n.taints = '[]' then '[]' else hwqueue.barring_taints(n.taints, p_class.tolerate) end) t
  union all
  select 'isolation', c.code, true, c.message, c.predicate, null
  from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity,
    p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c
  where p_class.gpu_wanted = '{}'
  union all
  select u.stage, u.code, u.permanent, null, e.value, null
  from jsonb_array_elements(hwqueue.exprs_of(p_class.required, false)) e
  cross join lateral hwqueue.expr_failures(e.value, p_node, p_facts, p_now) u
  union all
  select 'spread', u.code, false, null, s.value, null
  from jsonb_array_elements(p_class.spread) with ordinality s
  cross join lateral (
    select hwqueue.spread_failure(s.value, (s.ordinality - 1)::int, p_class, p_facts, p_counts, p_now) as code
    offset 0) u
  where u.code is not null
  union all
  select 'away', 'anti_affinity_conflict', false, hwqueue.kept_out_words(p_kept_out), null, null
  where p_kept_out is not null
  union all
  select 'isolation', c.code, true, c.message, c.predicate, null
  from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity,
    p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c
  where p_class.gpu_wanted <> '{}'
  union all
  select f.stage, f.code, f.permanent, null, null, f.lacks
  from (select hwqueue.class_shortage(p_class, p_node, p_load) as lacks offset 0) s
  cross join lateral (
    select case when s.lacks <> 0 then hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node))
           else 0 end as lacks
    offset 0) e
  cross join lateral hwqueue.room_failures(
    s.lacks, e.lacks, hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation),
    hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode)) f
  union all
  select 'free', 'nodes_support_but_contended', false, null,
         jsonb_build_object('concurrency', u.concurrency), null
  from hwqueue.full_nodes() u where u.node_id = p_node.node_id
  union all
  select 'cordon', 'node_draining', false, 'the node is cordoned', null, null
  where p_node.cordoned_at is not null
$$;

-- Returns the nodes whose workers cannot run leases of a class, with what they lack.
create or replace function hwqueue.unserving_nodes(p_class hwqueue.placement_class)
returns table (node_id uuid, predicate jsonb)
language sql stable
as $$
  select n.node_id, u.predicate
  from hwqueue.node n
  left join hwqueue.queue q on q.queue_id = p_class.queue_id
  cross join lateral (select hwqueue.unserved_part(n.queues, n.tasks, q.name,
      p_class.task_name) as predicate) u
  where u.predicate is not null
$$;

-- Returns the nodes whose workers run as many leases as they take at a time, with that number. A claim does
-- not ask: such a worker makes none.
create or replace function hwqueue.full_nodes() returns table (node_id uuid, concurrency int)
language sql stable
as $$
  select n.node_id, n.concurrency
  from hwqueue.node n
  where n.concurrency <= (
    select count(*) from (
      select 1 from hwqueue.claim c where c.node_id = n.node_id limit n.concurrency) c)
$$;
