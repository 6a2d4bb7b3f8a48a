-- The fleet in sums. A node counts once: silent before draining before cordoned before live.
create or replace function hwqueue.node_metrics(p_now timestamptz, p_shard int)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with load as materialized (
    select distinct on (x.node_id) x.* from hwqueue.node_load x where x.shard_id = p_shard order by x.node_id, x.version desc
  ), fleet as materialized (
    select case when not hwqueue.is_live(n, s, p_now) then 'silent' when n.drain_by is not null then 'draining'
                when n.cordoned_at is not null then 'cordoned' else 'live' end as state,
           s.seen_at, n.cpu_milli, n.memory_mib, l.cpu_used, l.memory_used,
           -- whole devices: one that has parts in use is in use
           cardinality(n.gpu_ids) - cardinality(array_remove(n.gpu_parents, null)) as gpus,
           (select coalesce(sum(d.used), 0)
            from unnest(case when n.gpu_parents = '{}' then l.gpu_used else hwqueue.use_of_devices(n, l.gpu_used) end, n.gpu_parents) d(used, parent)
            where d.parent is null) as gpu_used
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
    left join load l on l.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null
  ), sums as (
    select k.state, count(f.state) as nodes, sum(f.cpu_milli) / 1000.0 as cpu_cores, sum(f.memory_mib) * 1048576 as memory_bytes,
           sum(f.gpus) as gpus, sum(f.cpu_used) / 1000.0 as cpu_used, sum(f.memory_used) * 1048576 as memory_used,
           sum(f.gpu_used) / 1000.0 as gpu_used
    from unnest(array['live', 'cordoned', 'draining', 'silent']) k(state)
    left join fleet f on f.state = k.state
    group by k.state
  )
  select v.name, jsonb_build_object('state', s.state), coalesce(v.value, 0)
  from sums s
  cross join lateral (values
    ('hwqueue_nodes', s.nodes::double precision),
    ('hwqueue_node_cpu_cores', s.cpu_cores),
    ('hwqueue_node_cpu_cores_used', s.cpu_used),
    ('hwqueue_node_memory_bytes', s.memory_bytes),
    ('hwqueue_node_memory_bytes_used', s.memory_used),
    ('hwqueue_node_gpus', s.gpus),
    ('hwqueue_node_gpus_used', s.gpu_used)
  ) v(name, value)
  union all
  select 'hwqueue_node_oldest_heartbeat_seconds', '{}', coalesce(hwqueue.seconds_since(min(f.seen_at), p_now), 0) from fleet f
$$;
