-- What each registered node has and what of it is in use. state: live, silent (no sign of life within its timeout), cordoned, draining; live says
-- the first of cordoned ones, too. Total null: not counted. gpu_milli_used: thousandths of devices; gpus_free, cores_free: those nobody uses, parts
-- of devices included as devices of their own. claims: leases that run there. profile_id: the same for nodes that may run the same.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.node_usage(p_state text default null, p_limit int default null, p_after text default null, p_shard int default 0)
returns table (shard_id int, node_id uuid, node_name text, rack bigint, state text, live boolean, seen_at timestamptz, claims bigint, slots int,
               cpu_milli bigint, cpu_used bigint, memory_mib bigint, memory_used bigint, gpus int, gpus_free int, gpu_milli_used bigint,
               cores int, cores_free int, custom jsonb, custom_used jsonb, profile_id bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_custom_plan
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.json_choice(to_jsonb(p_state), 'p_state', array['live', 'silent', 'cordoned', 'draining']), hwqueue.check_limit(p_limit);
  return query
    select n.shard_id, n.node_id, n.name, n.rack, w.state, w.is_live, s.seen_at, coalesce(c.claims, 0), n.slots,
           n.cpu_milli, coalesce(u.cpu_used, 0), n.memory_mib, coalesce(u.memory_used, 0),
           cardinality(n.gpu_ids), cardinality(array_positions(u.gpu_used, 0)), coalesce((select sum(g) from unnest(u.gpu_used) g), 0),
           cardinality(n.core_ids), cardinality(array_positions(u.core_used, 0)), n.custom, coalesce(u.custom_used, '{}'), n.profile_id
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
    left join hwqueue.newest_loads(p_shard) u on u.node_id = n.node_id
    left join (select k.node_id, count(*) as claims from hwqueue.claim k where k.shard_id = p_shard group by k.node_id) c on c.node_id = n.node_id
    cross join lateral (
      select l.is_live, case when n.drain_by is not null then 'draining' when n.cordoned_at is not null then 'cordoned'
                             when l.is_live then 'live' else 'silent' end as state
      from (select hwqueue.is_live(n, s, v_now) as is_live) l) w
    where n.shard_id = p_shard and n.deregistered_at is null and (p_state is null or w.state = p_state) and (p_after is null or n.name > p_after)
    order by n.name limit p_limit;
end
$$;

-- All nodes, of all shards.
create or replace view hwqueue.node_usage as
select u.* from hwqueue.shard s cross join lateral hwqueue.node_usage(p_shard => s.shard_id) u;
