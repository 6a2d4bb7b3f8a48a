-- Estimates which share of the nodes could take each class, by labels and total capacity; the 200 commonest kinds of
-- node speak for all, fewer where classes cost much to judge. Orders scarce work first and decides nothing.
-- Does nothing when another session is at it.
-- Locks: the shard's row, skip locked.
create or replace function hwqueue.refresh_reach(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz;
begin
  if p_class_ids = '{}' then
    return;
  end if;
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return;
  end if;
  v_now := hwqueue.clock();
  with kind as (
    select n.profile_id, n.cpu_milli, n.memory_mib, n.custom, n.slots, cardinality(n.gpu_ids) as gpus,
           n.core_numa, cardinality(array_remove(n.gpu_parents, null)) as parts,
           (array_agg(n.node_id))[1] as example, count(*) as nodes
    from hwqueue.node n
    where n.shard_id = p_shard and n.deregistered_at is null
    group by n.profile_id, n.cpu_milli, n.memory_mib, n.custom, n.slots, cardinality(n.gpu_ids), n.core_numa,
             cardinality(array_remove(n.gpu_parents, null))
    order by count(*) desc limit (
      select greatest(1, least(200, 20 * hwqueue.judge_budget() / greatest(1, sum(c.cost))))::bigint from hwqueue.placement_class c
      where c.shard_id = p_shard and c.class_id = any (p_class_ids))
  ), example as materialized (  -- read once for all classes
    select k.nodes, n as node, p as profile
    from kind k
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.example
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
  ), reach as (
    select c.class_id, f.share
    from hwqueue.placement_class c
    cross join lateral (  -- class by class: its few patterns stay compiled
      select coalesce(sum(e.nodes) filter (where hwqueue.suits(c, e.profile, (e.node).node_id, (e.node).resources || (e.node).gpu_ids,
                 (e.node).attested, (e.node).gpu_ids, (e.node).gpu_parents)
               and hwqueue.class_shortage(c, e.node, hwqueue.idle_load(e.node)) = 0), 0) / sum(e.nodes) as share
      from example e
      offset 0) f
    where c.shard_id = p_shard and c.class_id = any (p_class_ids) and f.share is not null
  )
  insert into hwqueue.class_fleet as r (shard_id, class_id, share, looked_at)
  select p_shard, f.class_id, f.share, v_now from reach f
  on conflict (shard_id, class_id) do update set share = excluded.share, looked_at = excluded.looked_at;
end
$$;

-- The load of a node that runs nothing: what its total capacity is.
create or replace function hwqueue.idle_load(p_node hwqueue.node) returns hwqueue.node_load
language sql immutable parallel safe
as $$
  -- in the order of the table's columns
  select row(p_node.shard_id, p_node.node_id, 0, 0, 0, 0, 0,
      array_fill(0, array[cardinality(p_node.gpu_ids)]), '{}',
             array_fill(0, array[cardinality(p_node.core_ids)]))::hwqueue.node_load
$$;
