-- Every registered node judged for a class, counted.

-- The whole fleet and a class: {"registered", "live", "serving": of those, "matching": live, not cordoned, of the right kind and size, "free": could take it now,
-- "last_seen", "funnel": [{"stage", "nodes": left after it}], "sole": [{"stage", "code", "permanent", "predicate", "lacks", "nodes", "samples"}]: rules
-- without which alone so many nodes would match or, of those that match, be free; "first": the same of the rules that nodes fail first;
-- "near": [node_id, ...] the 20 that fail the least; with p_prefers "best": the matching node that suits the class best, "best_free": the
-- node_id of the best that is free}.
create or replace function hwqueue.judge_fleet(p_class hwqueue.placement_class, p_known jsonb, p_prefers boolean, p_now timestamptz, p_shard int)
returns jsonb
language sql stable
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
as $$
  with rule as materialized (
    select x.*, array_position(hwqueue.funnel_stages(), x.stage) as rank,
           -- what is counted as one
           min(x.failure) over (partition by x.stage, x.predicate, x.lacks) as rule_id
    from hwqueue.fleet_failures(p_class, p_known, p_now, p_shard) x
  ), failing as materialized (
    select m.node_id, r.failure, r.rule_id, r.rank, r.permanent
    from rule r cross join lateral unnest(r.node_ids) m(node_id)
  ), verdict as materialized (
    select n.node_id, n.name, row_number() over (order by n.name) as by_name, s.seen_at,
           coalesce(x.first_rank, 99) as first_rank, coalesce(x.failures, 0) as failures,
           coalesce(x.fixed, 0) as fixed,
           coalesce(x.of_kind, 0) as of_kind, coalesce(x.unserved, false) as unserved, a.node_id is null as unannounced
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join (
      select f.node_id, min(f.rank) as first_rank, count(*) as failures, count(*) filter (where f.permanent) as fixed,
             count(*) filter (where f.rank < 9) as of_kind, bool_or(f.rank = 3) as unserved
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
  ), counted as materialized (
    select f.rule_id, mode() within group (order by r.code) as code, bool_and(f.permanent) as permanent,
           count(*) filter (where f.is_alone) as alone,
           (array_agg(f.name order by f.by_name) filter (where f.is_alone))[1:3] as alone_samples,
           count(*) filter (where f.is_first) as first,
           (array_agg(f.name order by f.by_name) filter (where f.is_first))[1:3] as first_samples
    from (
      select f.*, v.name, v.by_name, v.first_rank = f.rank as is_first,
             case when f.rank < 9 then v.of_kind = 1 else v.failures = 1 end as is_alone
      from failing f join verdict v on v.node_id = f.node_id) f
    join rule r on r.failure = f.failure
    where f.is_alone or f.is_first
    group by f.rule_id
  ), grouped as materialized (
    select r.rank, r.predicate, c.alone, c.alone_samples, c.first, c.first_samples,
           jsonb_strip_nulls(jsonb_build_object(
             'stage', r.stage, 'code', c.code, 'permanent', c.permanent, 'predicate', r.predicate,
             'lacks', r.lacks)) as rule
    from counted c join rule r on r.failure = c.rule_id
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
