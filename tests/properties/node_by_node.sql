-- The nodes of which match_nodes says something else than the rules do when they are asked of each node by
-- itself; or match_groups than match_nodes.
with asked as materialized (
  select q.*, t.now, hwqueue.recount_terms(q.for_class, null, t.now) as recount
  from hwqueue.match_question(%(placement)s::jsonb, %(options)s::jsonb) q
  cross join (select hwqueue.clock() as now) t
), alone as (
  select n.node_id, (
           select coalesce(jsonb_agg(hwqueue.failure_reason(
             row(f.stage, f.code, f.permanent, f.message, f.predicate, f.lacks), a.for_class, n, l.load)
             order by f.failure), '[]')
           from hwqueue.fleet_failures(a.for_class, a.recount, a.now, array[n.node_id]) f
           where f.stage <> 'live') as reasons,
         hwqueue.lease_score(((a.for_queue).tuning).weight_affinity,
             ((a.for_queue).tuning).weight_fit, ((a.for_queue).tuning).weight_spread,
           hwqueue.class_affinity(a.for_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, l.facts,
               hwqueue.node_taints(n)),
           hwqueue.fit_score(
             hwqueue.cpu_needed((a.for_class).cpu_milli,
                                hwqueue.cpu_isolation_on((a.for_class).cpu_isolation,
                                    n.default_cpu_isolation)),
             (a.for_class).memory_mib, (a.for_class).gpu_count, (a.for_class).gpu_milli, a.reach,
               hwqueue.node_headroom(n, l.load), (
                 select v.device_worth from hwqueue.valid_prices(a.now) v where v.queue = (a.for_queue).name)),
           hwqueue.spread_score(a.for_class, l.facts, a.recount -> 'terms', a.recount -> 'spread', a.now)
         ) as score
  from asked a
  join hwqueue.node n on n.deregistered_at is null
  cross join lateral (
    select hwqueue.read_load(n.node_id) as load, coalesce((
             select t.facts from hwqueue.fleet_facts(a.for_class, a.recount, a.now) t
             where t.node_id = n.node_id), '[]') as facts offset 0) l
), together as (
  select m.*, (
           select coalesce(jsonb_agg(r.value order by r.ordinality), '[]')
           from jsonb_array_elements(m.reasons) with ordinality r
           where r.value ->> 'code' not in ('node_not_live', 'queue_paused')) as own_reasons
  from hwqueue.match_nodes(%(placement)s::jsonb, %(options)s::jsonb) m
)
select a.node_id, a.reasons, t.reasons, a.score, t.score, c.codes, c.permanent
from alone a
full join together t on t.node_id = a.node_id
full join (
  select g.*, n.name
  from hwqueue.match_groups(%(placement)s::jsonb, %(options)s::jsonb) g
  cross join jsonb_array_elements_text(g.node_names) n(name)
) c on c.name = t.node_name
where a.reasons is distinct from t.own_reasons
  or a.score is distinct from t.score
  or c.eligible is distinct from t.eligible
  or c.nodes is distinct from jsonb_array_length(c.node_names)
  or c.codes is distinct from array(
    select r.value ->> 'code' from jsonb_array_elements(t.reasons) with ordinality r order by r.ordinality)
  or c.permanent is distinct from t.reasons @> '[{"permanent": true}]'
