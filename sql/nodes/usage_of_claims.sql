-- What a node's claims hold, counted from the claims.

-- What an assignment holds beside amounts and devices, and keeps when the node is registered anew. A claim that was granted before the
-- node counted cores is pinned to none and may run on any: it takes a thousandth of each, so that none is given away whole.
create or replace function hwqueue.held_alone(p_assignment jsonb, p_node hwqueue.node) returns jsonb
language sql immutable parallel safe
as $$
  select nullif(
    coalesce((select jsonb_object_agg(e.key, e.value) from jsonb_each(p_assignment) e
              where e.key in ('cpu_isolation', 'cores', 'core_milli', 'numa', 'cpus', 'unpinned', 'gpu_exclusivity')), '{}')
    || case when p_node.core_ids <> '{}' and (p_assignment ? 'cores') is distinct from true then '{"unpinned": true}'::jsonb else '{}' end, '{}')
$$;

-- How much of each core its claims have, in thousandths.
create or replace function hwqueue.core_use_of_claims(p_node hwqueue.node) returns int[]
language sql stable
as $$
  select array(
    select coalesce(sum(h.milli), 0)::int + (
             select count(*)::int from hwqueue.claim u
             where u.shard_id = p_node.shard_id and u.node_id = p_node.node_id and u.assignment ? 'unpinned')
    from unnest(p_node.core_ids) with ordinality c(id, position)
    left join (
      select o.core, o.milli from hwqueue.claim u cross join lateral hwqueue.cores_of(u.assignment) o
      where u.shard_id = p_node.shard_id and u.node_id = p_node.node_id and u.assignment ? 'cores') h on h.core = c.id
    group by c.position order by c.position)
$$;

-- What the claims of a node have set aside, counted from the claims: what node_load must say.
create or replace function hwqueue.node_usage_of_claims(p_node hwqueue.node)
returns table (claim_count int, cpu_used bigint, memory_used bigint, gpu_used int[], custom_used jsonb, core_used int[])
language sql stable
as $$
  select count(*)::int, coalesce(sum((c.assignment ->> 'cpu_milli')::bigint), 0)::bigint,
         coalesce(sum((c.assignment ->> 'memory_mib')::bigint), 0)::bigint,
         array(select coalesce(sum((u.assignment ->> 'gpu_milli')::int), 0)::int
               from unnest(p_node.gpu_ids) with ordinality g(id, position)
               left join hwqueue.claim u on u.shard_id = p_node.shard_id and u.node_id = p_node.node_id
                 and u.assignment -> 'gpus' @> jsonb_build_array(jsonb_build_object('resource_id', g.id))
               group by g.position order by g.position),
         coalesce((select jsonb_object_agg(a.key, a.amount)
                   from (select k.key, sum(k.value::bigint) as amount
                         from hwqueue.claim u, jsonb_each(u.assignment -> 'custom') k
                         where u.shard_id = p_node.shard_id and u.node_id = p_node.node_id and u.assignment ? 'custom'
                         group by k.key) a), '{}'),
         hwqueue.core_use_of_claims(p_node)
  from hwqueue.claim c
  where c.shard_id = p_node.shard_id and c.node_id = p_node.node_id and c.assignment is not null
$$;
