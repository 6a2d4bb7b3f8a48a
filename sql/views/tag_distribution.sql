-- How many nodes have each value of each label, how many of them are live and not cordoned, and how many leases run on them. Without p_label, the
-- values that more nodes share come first: a label that names single nodes would fill the list.
-- Locks: none. Raises: QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.tag_distribution(p_label text default null, p_limit int default 100, p_shard int default 0)
returns table (shard_id int, label text, value jsonb, nodes bigint, live bigint, claims bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_limit(p_limit);
  return query
    select p_shard, t.key, t.value, sum(k.nodes)::bigint, sum(k.live)::bigint, sum(k.claims)::bigint
    from (
      select (n.node).profile_id, count(*) as nodes, count(*) filter (where n.is_live and (n.node).cordoned_at is null) as live, coalesce(sum(c.claims), 0) as claims
      from hwqueue.numbered_nodes(v_now, p_shard) n
      left join (select r.node_id, count(*) as claims from hwqueue.claim r where r.shard_id = p_shard group by r.node_id) c on c.node_id = (n.node).node_id
      group by 1
    ) k
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = k.profile_id
    cross join lateral jsonb_each(p.labels) t
    where p_label is null or t.key = p_label
    group by t.key, t.value
    order by sum(k.nodes) desc, t.key, t.value limit p_limit;
end
$$;

-- All labels and values, of all shards.
create or replace view hwqueue.tag_distribution as
select t.* from hwqueue.shard s cross join lateral hwqueue.tag_distribution(p_limit => null, p_shard => s.shard_id) t;
