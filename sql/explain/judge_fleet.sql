-- Every registered node judged for a class, by the rules of class_failures: what is the same for all nodes of a profile once for each, what moves
-- once for each node, all in one statement.

-- Every rule that every registered node fails; a silent one fails the stage live.
-- p_known: see known_of_others.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.fleet_failures(p_class hwqueue.placement_class, p_known jsonb, p_now timestamptz, p_shard int)
returns table (node_id uuid, stage text, code text, permanent boolean, predicate jsonb, lacks int)
language plpgsql stable
as $$
declare
  v_of_profile jsonb := hwqueue.exprs_of(p_class.required, true);
  v_of_node jsonb := hwqueue.exprs_of(p_class.required, false);
  -- looked up for every node: an object is searched, a join could become a loop over all places
  v_kept_at jsonb := p_known -> 'kept_at';
  v_domains text[] := array(select distinct k.value ->> 0 from jsonb_array_elements(p_known -> 'kept_out') k order by 1);
begin
  return query
    with fleet as materialized (
      select n, n.node_id, n.profile_id, hwqueue.is_live(n, s, p_now) as is_live
      from hwqueue.node n
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null
    ), of_profile as materialized (
      select p.profile_id, x.stage, x.code, x.permanent, x.predicate
      from hwqueue.profile p
      cross join lateral hwqueue.profile_failures(v_of_profile, p_class, p.labels, p.rack, p.taints, p.cpu_isolation, p.gpu_exclusivity,
                                                  p.gpu_share_mode) x
      where p.shard_id = p_shard and p.profile_id in (select f.profile_id from fleet f)
    ), facts as materialized (
      select * from hwqueue.fleet_facts(p_class, p_known, p_now, p_shard)
    )
    select f.node_id, x.stage, x.code, x.permanent, x.predicate, x.lacks
    from fleet f
    left join facts t on t.node_id = f.node_id
    left join lateral (
      select d as domain from unnest(v_domains) d
      where v_kept_at ? (d || '@' || hwqueue.domain_value(d, f.node_id, (f.n).rack, (f.n).labels)) order by d limit 1) k on true
    cross join lateral (select case when hwqueue.is_counted(f.n) then hwqueue.read_load(f.node_id, p_shard) end as load offset 0) u
    cross join lateral hwqueue.node_failures(v_of_node, p_class, f.n, u.load, coalesce(t.facts, '[]'), p_known -> 'spread', k.domain, p_now, p_shard) x
    union all
    select f.node_id, x.stage, x.code, x.permanent, x.predicate, null from fleet f join of_profile x on x.profile_id = f.profile_id
    union all
    select u.node_id, 'served', 'no_handler', true, u.predicate, null from hwqueue.unserving_nodes(p_class, p_shard) u
    union all
    select f.node_id, 'live', 'node_not_live', false, null, null from fleet f where not f.is_live;
end
$$;

-- The whole fleet and a class: {"registered", "live", "serving": of those, "matching": live, not cordoned, of the right kind and size, "free": could take it now,
-- "last_seen", "funnel": [{"stage", "nodes": left after it}], "sole": [{"stage", "code", "permanent", "predicate", "lacks", "nodes", "samples"}]: rules
-- without which alone so many nodes would match or, of those that match, be free; "first": the same of the rules that nodes fail first;
-- "near": [node_id, ...] the 20 that fail the least; with p_prefers "best": the matching node that suits the class best, "best_free": the
-- node_id of the best that is free}.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judge_fleet(p_class hwqueue.placement_class, p_known jsonb, p_prefers boolean, p_now timestamptz, p_shard int)
returns jsonb
language sql stable
as $$
  with failing as materialized (
    select x.*, array_position(hwqueue.funnel_stages(), x.stage) as rank
    from hwqueue.fleet_failures(p_class, p_known, p_now, p_shard) x
  ), verdict as materialized (
    select n.node_id, n.name, s.seen_at, coalesce(x.first_rank, 99) as first_rank, coalesce(x.failures, 0) as failures, coalesce(x.fixed, 0) as fixed,
           coalesce(x.of_kind, 0) as of_kind, coalesce(x.unserved, false) as unserved, a.node_id is null as unannounced
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join (
      select f.node_id, min(f.rank) as first_rank, count(*) as failures, count(*) filter (where f.permanent) as fixed,
             count(*) filter (where f.rank < 9) as of_kind, bool_or(f.stage = 'served') as unserved
      from failing f group by f.node_id) x on x.node_id = n.node_id
    left join hwqueue.served a on a.shard_id = p_shard and a.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null
  ), liked as materialized (
    select p.profile_id, hwqueue.fixed_affinity(p_class, p.labels, p.rack, null, '{}', p.taints) as affinity
    from hwqueue.profile p where p_prefers and not p_class.is_pinned and p.shard_id = p_shard
  ), best as materialized (
    select v.node_id, v.name, v.failures, case when p_class.is_pinned
             then hwqueue.fixed_affinity(p_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, hwqueue.node_taints(n)) else l.affinity end as affinity
    from verdict v
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = v.node_id
    left join liked l on l.profile_id = n.profile_id
    where p_prefers and v.first_rank >= 9
  ), grouped as (
    select min(f.rank) as rank, f.predicate, jsonb_strip_nulls(jsonb_build_object('stage', f.stage, 'code', mode() within group (order by f.code),
             'permanent', bool_and(f.permanent), 'predicate', f.predicate, 'lacks', f.lacks)) as rule,
           count(*) filter (where f.is_alone) as alone, (array_agg(f.name order by f.name) filter (where f.is_alone))[1:3] as alone_samples,
           count(*) filter (where f.is_first) as first, (array_agg(f.name order by f.name) filter (where f.is_first))[1:3] as first_samples
    from (
      select f.*, v.name, v.first_rank = f.rank as is_first, case when f.rank < 9 then v.of_kind = 1 else v.failures = 1 end as is_alone
      from failing f join verdict v on v.node_id = f.node_id) f
    where f.is_alone or f.is_first
    group by f.stage, f.predicate, f.lacks
  )
  select jsonb_build_object(
    'registered', count(*), 'live', count(*) filter (where v.first_rank > 1), 'serving', count(*) filter (where v.first_rank > 1 and not v.unserved), 'matching', count(*) filter (where v.first_rank >= 9),
    'free', count(*) filter (where v.failures = 0), 'last_seen', max(v.seen_at),
    'funnel', (
      select jsonb_agg(jsonb_build_object('stage', s.stage, 'nodes', c.nodes)
                       || case when s.stage = 'served' and c.unannounced > 0 then jsonb_build_object('unannounced', c.unannounced) else '{}' end order by s.rank)
      from unnest(hwqueue.funnel_stages()) with ordinality s(stage, rank)
      cross join lateral (select count(*) as nodes, count(*) filter (where d.unannounced) as unannounced from verdict d where d.first_rank > s.rank) c),
    'sole', (
      select coalesce(jsonb_agg(g.rule || jsonb_build_object('nodes', g.alone, 'samples', g.alone_samples) order by g.alone desc, g.rank, g.predicate), '[]')
      from (select * from grouped d where d.alone > 0 order by d.alone desc, d.rank, d.predicate limit 20) g),
    'first', (
      select coalesce(jsonb_agg(g.rule || jsonb_build_object('nodes', g.first, 'samples', g.first_samples)
                                order by g.rank desc, g.first desc, g.predicate), '[]')
      from (select * from grouped d where d.first > 0 order by d.rank desc, d.first desc, d.predicate limit 20) g),
    'near', (
      select coalesce(jsonb_agg(d.node_id order by d.fixed, d.failures, d.name), '[]')
      from (select * from verdict x order by x.fixed, x.failures, x.name limit 20) d),
    'best', (select b.name from best b order by b.affinity desc nulls last, b.name limit 1),
    'best_free', (select b.node_id from best b where b.failures = 0 order by b.affinity desc nulls last, b.name limit 1))
  from verdict v
$$;
