-- How well every registered node suits a class, by the score that claims order leases by. Nodes that are
-- alike in what the class prefers, or in what runs around them, are asked once.
-- p_reach: the share of nodes that could take the class (class_fleet); p_known: what recount_terms gave.
create or replace function hwqueue.fleet_scores(p_class hwqueue.placement_class, p_queue hwqueue.queue,
    p_reach double precision, p_known jsonb, p_now timestamptz, p_shard int)
returns table (node_id uuid, score double precision)
language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
  v_sight record := hwqueue.expr_sight(p_class.preferred);
  v_prefers_others boolean := p_class.terms @> '[{"spec": {"use": "soft"}}]';
  v_prefers_spread boolean := p_class.spread @? 'strict $[*] ? (exists(@.when) || exists(@.targets))';
begin
  return query
    with facts as materialized (
      select t.node_id, t.facts from hwqueue.fleet_facts(p_class, p_known, p_now, p_shard) t
      where v_prefers_others or v_prefers_spread
    ), liked as materialized (
      select m.node_id, g.affinity
      from (
        select array_agg(n.node_id) as node_ids, x.facts, hwqueue.class_affinity(
                 p_class, hwqueue.labels_seen(n.labels, v_sight.keys), x.rack, x.own, x.resources, x.facts,
                   x.taints) as affinity
        from hwqueue.node n
        left join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
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
        where n.shard_id = p_shard and n.deregistered_at is null
          and (p_class.preferred <> '[]' or p.profile_id is not null)
        group by x.facts, x.taints, x.rack, x.own, x.resources, hwqueue.labels_seen(n.labels, v_sight.keys)) g
      cross join lateral unnest(g.node_ids) m(node_id)
    ), around as materialized (
      select m.node_id, s.spread
      from (select f.facts, array_agg(f.node_id) as node_ids from facts f
            where v_prefers_spread group by f.facts) g
      cross join lateral (
        select hwqueue.spread_score(p_class, g.facts, p_known -> 'terms', p_known -> 'spread', p_now,
            p_shard) as spread offset 0) s
      cross join lateral unnest(g.node_ids) m(node_id)
    )
    select r.node_id, hwqueue.lease_score(
             p_queue.weight_affinity, p_queue.weight_fit, p_queue.weight_spread, coalesce(l.affinity, 0),
             case when r.room is null then 0
                  else hwqueue.fit_score(r.cpu_milli, p_class.memory_mib, p_class.gpu_count,
                      p_class.gpu_milli, p_reach, r.room) end,
             coalesce(a.spread, 0))
    from (
      select n.node_id,
             hwqueue.cpu_needed(p_class.cpu_milli,
                 hwqueue.cpu_isolation_on(p_class.cpu_isolation, n.default_cpu_isolation)) as cpu_milli,
             -- without GPUs on either side the fit is 0
             case when p_class.gpu_count > 0 and n.gpu_ids <> '{}'
                  then hwqueue.node_headroom(n, coalesce(u, hwqueue.idle_load(n))) end as room
      from hwqueue.node n
      left join hwqueue.newest_loads(p_shard) u on p_class.gpu_count > 0 and u.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null
      offset 0) r
    left join liked l on l.node_id = r.node_id
    left join around a on a.node_id = r.node_id;
end
$$;
