-- One class judged on every node at once, for dry runs (match_nodes) and explanations.
--
-- The rules are made of the functions that claims decide with, so a reason can never contradict a claim. For
-- each rule, nodes that are alike in what the rule reads are one group, which is judged and described once: a
-- new rule needs a group key that has everything the rule and its message read.

-- Returns which nodes fail what: a row for each rule and group of nodes, such that failure_reason says
-- the same of all of node_ids. Rows are numbered by failure in order; a silent node fails the stage live
-- last. p_known: see recount_terms. p_nodes: only these; null: all.
create or replace function hwqueue.fleet_failures(p_class hwqueue.placement_class, p_known jsonb,
    p_now timestamptz, p_nodes uuid[] default null)
returns table (failure int, node_ids uuid[], stage text, code text, permanent boolean, message text,
    predicate jsonb, lacks int)
language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
  v_exprs jsonb := hwqueue.exprs_of(p_class.required, true) || hwqueue.domains_needed(p_class);
begin
  return query
    -- most nodes are live and not cordoned, most ask no isolation: one scan finds the others
    with odd as materialized (
      select n.node_id, n.cordoned_at is not null as is_cordoned,
             not hwqueue.is_live(n, s, p_now) as is_silent, d.has_manner,
             n.cpu_isolation, n.gpu_exclusivity, n.gpu_share_mode,
             case when n.gpu_ids && p_class.gpu_wanted then n.gpu_ids else '{}' end as gpu_ids,
             case when n.gpu_ids && p_class.gpu_wanted then n.gpu_parents else '{}' end as gpu_parents
      from hwqueue.node n
      join hwqueue.node_state s on s.node_id = n.node_id
      cross join lateral (
        select p_class.cpu_isolation is not null or p_class.gpu_exclusivity is not null
               or p_class.gpu_wanted <> '{}'
               or n.gpu_share_mode <> 'fractional' as has_manner) d
      where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
        and (n.cordoned_at is not null or d.has_manner or not hwqueue.is_live(n, s, p_now))
    ), asked as materialized (
      select e.ordinality, e.value as expr, s.keys, s.sees_rack
      from jsonb_array_elements(v_exprs) with ordinality e cross join lateral hwqueue.expr_inputs(e.value) s
    )
    select (row_number() over (order by x.turn, x.part))::int, x.node_ids, x.stage, x.code, x.permanent,
           x.message, x.predicate, x.lacks
    from (
      select 1 as turn, 1::bigint as part, array_agg(n.node_id) as node_ids, 'served' as stage,
             'no_handler' as code, true as permanent,
             null::text as message, u.predicate, null::int as lacks
      from hwqueue.node n
      left join hwqueue.queue q on q.queue_id = p_class.queue_id
      cross join lateral hwqueue.unserved_part(n.queues, n.tasks, q.name, p_class.task_name) u(predicate)
      where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
        and u.predicate is not null
      group by u.predicate
      union all
      -- requirements that profiles decide
      select 2, g.ordinality, g.node_ids, 'labels', u.code, true, null, a.expr, null
      from (
        select x.ordinality, hwqueue.labels_read(n.labels, x.keys) as labels,
               case when x.sees_rack then n.rack end as rack, array_agg(n.node_id) as node_ids
        from asked x cross join hwqueue.node n
        where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
        group by 1, 2, 3) g
      join asked a on a.ordinality = g.ordinality
      cross join lateral (
        select hwqueue.expr_reason(a.expr, g.labels, g.rack, null, '{}', null) as code offset 0) u
      where u.code is not null
      union all
      select 3, t.ordinality, g.node_ids, 'taints', hwqueue.taint_code(t.value), true, null, t.value, null
      from (
        select p.taints, array_agg(n.node_id) as node_ids
        from hwqueue.profile p
        join hwqueue.node n on n.profile_id = p.profile_id
        where p.taints <> '[]' and n.deregistered_at is null
          and (p_nodes is null or n.node_id = any (p_nodes))
        group by p.taints) g
      cross join lateral jsonb_array_elements(
        hwqueue.barring_taints(g.taints, p_class.tolerate, p_class.tenant)) with ordinality t
      union all
      -- isolation of a class that names a device is judged after its requirements
      select case when p_class.gpu_wanted = '{}' then 4 else 8 end, c.ordinality, g.node_ids, 'isolation',
             c.code, true, c.message, c.predicate, null
      from (
        select o.cpu_isolation, o.gpu_exclusivity, o.gpu_share_mode, o.gpu_ids, o.gpu_parents,
               array_agg(o.node_id) as node_ids
        from odd o
        where o.has_manner
        group by 1, 2, 3, 4, 5) g
      cross join lateral hwqueue.isolation_conflicts(
        p_class, g.cpu_isolation, g.gpu_exclusivity, g.gpu_share_mode, g.gpu_ids, g.gpu_parents)
        with ordinality c
      union all
      select f.turn, f.part, f.node_ids, f.stage, f.code, f.permanent, f.message, f.predicate, null
      from hwqueue.term_failures(p_class, p_known, p_now, p_nodes) f
      union all
      select 9, f.part, f.node_ids, f.stage, f.code, f.permanent, null, null, f.lacks
      from hwqueue.capacity_failures(p_class, p_nodes) f
      union all
      select 10, 1, array_agg(u.node_id), 'free', 'nodes_support_but_contended', false,
             null, jsonb_build_object('concurrency', u.concurrency), null
      from hwqueue.full_nodes() u where p_nodes is null or u.node_id = any (p_nodes) group by u.concurrency
      union all
      select 11, 1, array_agg(o.node_id), 'cordon', 'node_draining', false, 'the node is cordoned', null, null
      from odd o where o.is_cordoned having count(*) > 0
      union all
      select 12, 1, array_agg(o.node_id), 'live', 'node_not_live', false, null, null, null
      from odd o where o.is_silent having count(*) > 0
    ) x;
end
$$;

-- The part of fleet_failures about other leases, and about nodes, resources and trust domains that a
-- class names.
create or replace function hwqueue.term_failures(p_class hwqueue.placement_class, p_known jsonb,
    p_now timestamptz, p_nodes uuid[])
returns table (turn int, part bigint, node_ids uuid[], stage text, code text, permanent boolean, message text,
    predicate jsonb)
language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
  v_exprs jsonb := hwqueue.exprs_of(p_class.required, false);
  -- an object, because every node looks up in it; a join could become a loop over all places
  v_kept_at jsonb := p_known -> 'kept_at';
  v_domains text[] := array(select jsonb_array_elements_text(p_known -> 'kept_out'));
begin
  if v_exprs = '[]' and p_class.spread = '[]' and v_domains = '{}' then
    return;
  end if;
  return query
    with facts as materialized (
      select n.node_id, coalesce(t.facts, '[]') as facts
      from hwqueue.node n
      left join hwqueue.fleet_facts(p_class, p_known, p_now) t on t.node_id = n.node_id
      where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
    ), asked as materialized (
      select e.ordinality, e.value as expr, s.keys, s.sees_rack, s.trusts, s.ids
      from jsonb_array_elements(v_exprs) with ordinality e cross join lateral hwqueue.expr_inputs(e.value) s
    ), alike as materialized (
      -- for one lease or selection the place of a node does not matter, as long as it has one; a node
      -- that the requirement names is its own group, and so is every node where trust is required,
      -- because its message is about that node
      select a.ordinality, case when a.expr ? 'term' then (t.facts -> (a.expr ->> 'term')::int) - 'value'
                                when a.expr ? 'any' then t.facts end as fact,
             t.facts -> (a.expr ->> 'term')::int ->> 'value' is null as is_nowhere,
             hwqueue.labels_read(n.labels, a.keys) as labels, case when a.sees_rack then n.rack end as rack,
             case when a.trusts <> '{}' or n.node_id = any (a.ids) or (n.resources || n.gpu_ids) && a.ids
                  then n.node_id end as own,
             array_agg(t.node_id) as node_ids
      from facts t
      join hwqueue.node n on n.node_id = t.node_id
      cross join asked a
      group by 1, 2, 3, 4, 5, 6
    )
    select 5, g.ordinality, g.node_ids, case when not x.is_fixed then 'away'
           when u.code = 'trust_not_attested' then 'trust' else 'labels' end, u.code, x.is_fixed, null::text,
           a.expr
    from alike g
    join asked a on a.ordinality = g.ordinality
    join facts t on t.node_id = g.node_ids[1]
    join hwqueue.node n on n.node_id = g.node_ids[1]
    cross join lateral (
      select n.resources || n.gpu_ids as resources, hwqueue.attested_at(n, p_now) as attested offset 0) k
    cross join lateral (
      select hwqueue.expr_reason(a.expr, n.labels, n.rack, n.node_id, k.resources, t.facts, k.attested)
        as code offset 0) u
    cross join lateral (  -- no row for a node that is in no place of its domain: domains_needed has that
      select hwqueue.expr_reason(a.expr, n.labels, n.rack, n.node_id, k.resources, null, k.attested)
               is not null as is_fixed
      where u.code is not null and not (a.expr ? 'domain' and hwqueue.unknown_fails(a.expr)
        and hwqueue.domain_value(a.expr ->> 'domain', n.node_id, n.rack, n.labels) is null) offset 0) x
    union all
    select 6, g.ordinality, g.node_ids, 'spread', u.code, false, null, g.spread
    from (
      select s.ordinality, s.value as spread, array_agg(f.node_id) as node_ids
      from jsonb_array_elements(p_class.spread) with ordinality s cross join facts f
      group by s.ordinality, s.value, f.facts -> (s.value ->> 'term')::int) g
    join facts t on t.node_id = g.node_ids[1]
    cross join lateral (  -- as above
      select case when jsonb_typeof(t.facts -> (g.spread ->> 'term')::int -> 'value') <> 'null' then
        hwqueue.spread_reason(g.spread, p_class, t.facts, p_known -> 'spread' -> (g.ordinality - 1)::int,
          p_now) end as code offset 0) u
    where u.code is not null
    union all
    select 7, 1, array_agg(n.node_id), 'away', 'anti_affinity_conflict', false,
           format('a running lease in the same %s keeps away from such leases',
             replace(k.domain, 'own:', '')), null
    from hwqueue.node n
    cross join lateral (
      select d as domain from unnest(v_domains) d
      where v_kept_at ? (d || '@' || hwqueue.domain_value(d, n.node_id, n.rack, n.labels))
      order by d limit 1) k
    where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
    group by k.domain;
end
$$;

-- The part of fleet_failures about capacity. What is short now is judged node by node; what would be
-- short on an idle node, once for all nodes of the same capacity. The words about custom countables name
-- the node's own, so nodes that lack different ones are not alike.
create or replace function hwqueue.capacity_failures(p_class hwqueue.placement_class, p_nodes uuid[])
returns table (part bigint, node_ids uuid[], stage text, code text, permanent boolean, lacks int)
language plpgsql stable set plan_cache_mode = force_custom_plan
as $$ begin
  return query
    select f.ordinality, g.node_ids, f.stage, f.code, f.permanent, f.lacks
    from (
      select s.lacks_now, s.cpu, s.gpu, array_agg(s.node_id) as node_ids
      from (
        select r.*, hwqueue.shortage(r.cpu_needed, p_class.memory_mib, r.room, p_class.custom, r.cpu)
                 + hwqueue.gpu_shortage(p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted, r.room,
                   r.gpu) as lacks_now
        from (
          select m.*, hwqueue.cpu_needed(p_class.cpu_milli, m.cpu) as cpu_needed
          from (
            select n.node_id, n.cpu_milli, n.memory_mib, n.slots, n.custom, cardinality(n.gpu_ids) as gpus,
                   n.core_numa,
                   case when n.gpu_parents <> '{}' or n.gpu_ids && p_class.gpu_wanted then n.node_id
                        end as own,
                   hwqueue.cpu_isolation_on(p_class.cpu_isolation, n.default_cpu_isolation) as cpu,
                   hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, n.gpu_share_mode) as gpu,
                   hwqueue.node_headroom(n, coalesce(u, hwqueue.idle_load(n))) as room
            from hwqueue.node n
            left join hwqueue.newest_loads() u on u.node_id = n.node_id
            where n.deregistered_at is null and (p_nodes is null or n.node_id = any (p_nodes))
            offset 0) m
          offset 0) r
        offset 0) s
      where s.lacks_now <> 0
      group by s.lacks_now, s.cpu, s.gpu, s.cpu_milli, s.memory_mib, s.slots, s.custom, s.gpus, s.core_numa,
               s.own,
               case when s.lacks_now & 16 > 0 then hwqueue.lacking_custom(p_class.custom, (s.room).custom) end
      offset 0) g
    join hwqueue.node k on k.node_id = g.node_ids[1]
    cross join lateral hwqueue.room_failures(p_class, k, g.lacks_now) with ordinality f;
end $$;

-- Returns those of a class's requirements that a profile decides (p_of_profile), or the others: these
-- name nodes, resources or trust domains, or ask about other leases.
create or replace function hwqueue.exprs_of(p_required jsonb, p_of_profile boolean) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return (
  select coalesce(jsonb_agg(e.value order by e.ordinality), '[]')
  from jsonb_array_elements(p_required) with ordinality e
  where p_of_profile <> jsonb_path_exists(
    e.value, 'strict $.** ? (exists(@.node) || exists(@.resource) || exists(@.trust)
                                    || exists(@.leases) || exists(@.service) || exists(@.lease))', '{}', true)
); end $$;

-- Returns the failures of a node that is too small or too full, from what is short now (bits of shortage).
create or replace function hwqueue.room_failures(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_lacks int)
returns table (stage text, code text, permanent boolean, lacks int)
language sql stable
as $$
  select v.stage, v.code, v.permanent, v.lacks
  from (select hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) as ever offset 0) e
  cross join lateral (
    -- contended: resources that the class wants for itself, enough on an idle node, held by others now
    select p_lacks & ~e.ever & (
        case when hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation) is not null
          then 1 + 32 else 0 end
        + case when hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode) is not null
          then 8 else 0 end) as lacks) c
  cross join lateral (values
    ('free', 'nodes_support_but_contended', false, c.lacks),
    (case when e.ever <> 0 then 'capacity' else 'free' end, 'insufficient_capacity', e.ever <> 0,
     p_lacks - c.lacks)
  ) v(stage, code, permanent, lacks)
  where v.lacks <> 0
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

-- Returns how well every registered node suits a class, by the score that claims order leases by. Nodes
-- that are alike in what the class prefers, or in what runs around them, are scored once. p_reach: the
-- share of nodes that could take the class (class_fleet).
create or replace function hwqueue.fleet_scores(p_class hwqueue.placement_class, p_queue hwqueue.queue,
    p_reach double precision, p_known jsonb, p_now timestamptz)
returns table (node_id uuid, score double precision)
language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
  v_sight record := hwqueue.expr_inputs(p_class.preferred);
  v_prefers_others boolean := p_class.terms @> '[{"spec": {"use": "soft"}}]';
  v_prefers_spread boolean := p_class.spread @? 'strict $[*] ? (exists(@.when) || exists(@.targets))';
  v_worth double precision[] := (
    select v.device_worth from hwqueue.valid_prices(p_now) v where v.queue = p_queue.name);
begin
  return query
    with facts as materialized (
      select t.node_id, t.facts from hwqueue.fleet_facts(p_class, p_known, p_now) t
      where v_prefers_others or v_prefers_spread
    ), liked as materialized (
      select m.node_id, g.affinity
      from (
        select array_agg(n.node_id) as node_ids, x.facts, hwqueue.class_affinity(
                 p_class, hwqueue.labels_read(n.labels, v_sight.keys), x.rack, x.own, x.resources, x.facts,
                   x.taints) as affinity
        from hwqueue.node n
        left join hwqueue.profile p on p.profile_id = n.profile_id
          and p.taints @> '[{"effect": "prefer_no_schedule"}]'
        left join facts t on v_prefers_others and t.node_id = n.node_id
        cross join lateral (
          select coalesce(t.facts, '[]') as facts, coalesce(p.taints, '[]') as taints,
                 case when v_sight.sees_rack then n.rack end as rack,
                 v_sight.trusts <> '{}' or n.node_id = any (v_sight.ids) or (n.resources || n.gpu_ids)
                   && v_sight.ids as is_named) i
        cross join lateral (
          select i.*, case when i.is_named then n.node_id end as own,
                 case when i.is_named then n.resources || n.gpu_ids else '{}' end as resources) x
        where n.deregistered_at is null and (p_class.preferred <> '[]' or p.profile_id is not null)
        group by x.facts, x.taints, x.rack, x.own, x.resources, hwqueue.labels_read(n.labels, v_sight.keys)) g
      cross join lateral unnest(g.node_ids) m(node_id)
    ), around as materialized (
      select m.node_id, s.spread
      from (select f.facts, array_agg(f.node_id) as node_ids from facts f
            where v_prefers_spread group by f.facts) g
      cross join lateral (
        select hwqueue.spread_score(p_class, g.facts, p_known -> 'terms', p_known -> 'spread',
          p_now) as spread offset 0) s
      cross join lateral unnest(g.node_ids) m(node_id)
    )
    select r.node_id, hwqueue.lease_score(
             (p_queue.tuning).weight_affinity, (p_queue.tuning).weight_fit, (p_queue.tuning).weight_spread,
             coalesce(l.affinity, 0),
             case when r.room is null then 0
                  else hwqueue.fit_score(r.cpu_milli, p_class.memory_mib, p_class.gpu_count,
                      p_class.gpu_milli, p_reach, r.room, v_worth) end,
             coalesce(a.spread, 0))
    from (
      select n.node_id,
             hwqueue.cpu_needed(p_class.cpu_milli,
                 hwqueue.cpu_isolation_on(p_class.cpu_isolation, n.default_cpu_isolation)) as cpu_milli,
             -- without GPUs on either side the fit is 0
             case when p_class.gpu_count > 0 and n.gpu_ids <> '{}'
                  then hwqueue.node_headroom(n, coalesce(u, hwqueue.idle_load(n))) end as room
      from hwqueue.node n
      left join hwqueue.newest_loads() u on p_class.gpu_count > 0 and u.node_id = n.node_id
      where n.deregistered_at is null
      offset 0) r
    left join liked l on l.node_id = r.node_id
    left join around a on a.node_id = r.node_id;
end
$$;

-- Returns the facts of term_facts for every registered node at once; no rows for a class without terms.
create or replace function hwqueue.fleet_facts(p_class hwqueue.placement_class, p_known jsonb,
  p_now timestamptz)
returns table (node_id uuid, facts jsonb)
language sql stable
as $$
  with asked as materialized (
    select (s.ordinality - 1)::int as index, hwqueue.term_domain(s.value -> 'spec') as domain, i.lease_id,
           s.value #>> '{spec,use}' as use,
           (s.value -> 'self')::boolean and s.value #>> '{spec,use}' <> 'soft' and i.lease_id is null
             as is_self
    from jsonb_array_elements(p_class.terms) with ordinality s
    cross join lateral (select (s.value #>> '{spec,all,0,lease}')::uuid as lease_id) i
  ), held as materialized (  -- the places where leases run that a term selects
    select a.index, v.place, (f.fact ->> 'held')::bigint as held, (f.fact ->> 'here')::bigint as here
    from asked a
    join hwqueue.node n on n.node_id = coalesce(
      (select c.node_id from hwqueue.claim c where c.lease_id = a.lease_id),
      (select o.node_id from hwqueue.outcome o
       where o.lease_id = a.lease_id and (o.state = 'completed') is true))
    cross join lateral (select hwqueue.domain_value(a.domain, n.node_id, n.rack, n.labels) as place) v
    cross join lateral (select hwqueue.lease_fact(a.lease_id, a.domain, n, p_now) as fact offset 0) f
    where a.lease_id is not null and v.place is not null
    union all
    select a.index, r.key, (r.value ->> 'held')::bigint,
           (r.value ->> case a.use when 'cap' then 'bound' else 'here' end)::bigint
    from asked a
    cross join lateral jsonb_each(p_known #> array['terms', a.index::text]) r
    where a.lease_id is null
  ), told as materialized (
    select a.index, a.domain, a.is_self, a.use = 'toward' and coalesce((
             select sum(h.here) from held h where h.index = a.index), 0) > 0 as anywhere
    from asked a
  )
  select n.node_id, jsonb_agg(jsonb_build_object('value', v.place, 'held', coalesce(h.held, 0), 'here',
         coalesce(h.here, 0), 'elsewhere', a.is_self and coalesce(h.here, 0) <= 0 and a.anywhere,
         'self', a.is_self) order by a.index)
  from hwqueue.node n
  cross join told a
  cross join lateral (select hwqueue.domain_value(a.domain, n.node_id, n.rack, n.labels) as place) v
  left join held h on h.index = a.index and h.place = v.place
  where n.deregistered_at is null
  group by n.node_id
$$;
