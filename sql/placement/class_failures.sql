-- What keeps leases of a class off a node: every rule, node by node; fleet_failures puts the same rules together
-- for all nodes at once. They are made of the functions that claims decide with (expr_reason, barring_taints,
-- spread_reason, isolation_conflicts, shortage); reasons and explanations read these rows, so none of them can
-- disagree.
--   stage: served (see unserved_part), labels, taints, trust, isolation, capacity (what the node has in all), free
--     (what is left of it), away (other leases), spread, cordon
--   predicate: what failed, as the class has it; lacks: of stages capacity and free, what is short, as bits (see
--     shortage)
-- SQL functions of one select each: the planner puts them in place of their calls.

-- The order in which nodes drop out: what a funnel shows.
create or replace function hwqueue.funnel_stages() returns text[]
language sql immutable parallel safe
as $$ select array['live', 'cordon', 'served', 'labels', 'taints', 'trust', 'isolation', 'capacity', 'free', 'away', 'spread'] $$;

-- Of a class's requirements those that a profile decides (p_of_profile), or those that it does not: they name nodes, resources or trust
-- domains, or ask about other leases.
create or replace function hwqueue.exprs_of(p_required jsonb, p_of_profile boolean) returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(e.value order by e.ordinality), '[]')
  from jsonb_array_elements(p_required) with ordinality e
  where jsonb_path_exists(e.value, 'strict $.** ? (exists(@.node) || exists(@.resource) || exists(@.trust)
                                    || exists(@.leases) || exists(@.service) || exists(@.lease))', '{}', true) <> p_of_profile
$$;

-- What a node fails for being too small or full, by what is short (bits of shortage) now and when it is idle.
-- p_cpu, p_gpu: what the class comes to there (cpu_isolation_on, gpu_exclusivity_on).
create or replace function hwqueue.room_failures(p_lacks_now int, p_lacks_ever int, p_cpu text, p_gpu text)
returns table (stage text, code text, permanent boolean, lacks int)
language sql immutable parallel safe
as $$
  select v.stage, v.code, v.permanent, v.lacks
  from (
    -- of what it would have to itself the node may have enough, and others have it now
    select p_lacks_now & ~p_lacks_ever & (case when p_cpu is not null then 1 + 32 else 0 end
                                          + case when p_gpu is not null then 8 else 0 end) as lacks) c
  cross join lateral (values
    ('free', 'nodes_support_but_contended', false, c.lacks),
    (case when p_lacks_ever <> 0 then 'capacity' else 'free' end, 'insufficient_capacity', p_lacks_ever <> 0,
     p_lacks_now - c.lacks)
  ) v(stage, code, permanent, lacks)
  where v.lacks <> 0
$$;

-- How a node fails an expression that its profile does not decide; no row: it does not.
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
    where u.code is not null offset 0) x
$$;

-- How a node of which these facts are true breaks a limit of a class's spread, the p_index-th (from 0); null:
-- it does not. p_counts: as in all_failures.
create or replace function hwqueue.spread_failure(p_spread jsonb, p_index int,
    p_class hwqueue.placement_class, p_facts jsonb, p_counts jsonb,
                                                  p_now timestamptz, p_shard int) returns text
language sql stable
as $$
  select hwqueue.spread_reason(p_spread, p_class, p_facts, coalesce(p_counts -> p_index,
    case when p_spread ? 'max_skew' then hwqueue.spread_counts(p_spread, p_class, null, p_now, p_shard) end),
    p_now, p_shard)
$$;

-- What is said where something in a domain keeps a class out.
create or replace function hwqueue.kept_out_words(p_domain text) returns text
language sql immutable parallel safe
as $$
  select format('a running lease in the same %s keeps away from such leases', replace(p_domain, 'own:', ''))
$$;

-- What a node fails now; p_facts: see term_facts; p_counts: spread_counts in the order of the class's spread, null:
-- to be counted; p_kept_out: the domain out of which something keeps the class. A class that names a device is
-- asked about isolation after what it is named for.
create or replace function hwqueue.all_failures(p_class hwqueue.placement_class, p_node hwqueue.node,
    p_load hwqueue.node_load, p_facts jsonb, p_counts jsonb, p_kept_out text, p_now timestamptz, p_shard int)
returns table (stage text, code text, permanent boolean, message text, predicate jsonb, lacks int)
language sql stable
as $$
  select 'served', 'no_handler', true, hwqueue.unserving_words(u.predicate), u.predicate, null::int
  from hwqueue.unserving_nodes(p_class, p_shard) u where u.node_id = p_node.node_id
  union all
  select 'labels', u.code, true, null, e.value, null
  from jsonb_array_elements(hwqueue.exprs_of(p_class.required, true)) e
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
  from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.gpu_share_mode,
    p_node.gpu_ids, p_node.gpu_parents) c
  where p_class.gpu_wanted = '{}'
  union all
  select u.stage, u.code, u.permanent, null, e.value, null
  from jsonb_array_elements(hwqueue.exprs_of(p_class.required, false)) e
  cross join lateral hwqueue.expr_failures(e.value, p_node, p_facts, p_now) u
  union all
  select 'spread', u.code, false, null, s.value, null
  from jsonb_array_elements(p_class.spread) with ordinality s
  cross join lateral (
    select hwqueue.spread_failure(s.value, (s.ordinality - 1)::int, p_class, p_facts, p_counts, p_now, p_shard) as code
    offset 0) u
  where u.code is not null
  union all
  select 'away', 'anti_affinity_conflict', false, hwqueue.kept_out_words(p_kept_out), null, null
  where p_kept_out is not null
  union all
  select 'isolation', c.code, true, c.message, c.predicate, null
  from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.gpu_share_mode,
    p_node.gpu_ids, p_node.gpu_parents) c
  where p_class.gpu_wanted <> '{}'
  union all
  select f.stage, f.code, f.permanent, null, null, f.lacks
  from (select hwqueue.class_shortage(p_class, p_node, p_load) as lacks offset 0) s
  cross join lateral (
    select case when s.lacks <> 0 then hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) else 0 end as lacks
    offset 0) e
  cross join lateral hwqueue.room_failures(
    s.lacks, e.lacks, hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation),
    hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode)) f
  union all
  select 'cordon', 'node_draining', false, 'the node is cordoned', null, null
  where p_node.cordoned_at is not null
$$;
