-- What waits in vain and what it would need: the 50 largest placement classes for each reason, the others together.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.demand_metrics(p_now timestamptz, p_shard int)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with unmet as materialized (
    select r.queue, r.class_id, r.task_name, r.words, w.reason, r.pending, r.oldest_at, r.pending * c.cpu_milli / 1000.0 as cpu_cores,
           r.pending * c.memory_mib * 1048576 as memory_bytes,
           r.pending * case when c.gpu_milli > 0 then c.gpu_milli / 1000.0 else c.gpu_count end as gpus,
           row_number() over (partition by w.reason order by r.pending desc, r.class_id) as place
    from hwqueue.pending_reasons(p_limit => null, p_shard => p_shard) r
    cross join lateral (select case when r.nodes_matching = 0 then 'no_match' when r.nodes_free = 0 then 'contended' end as reason) w
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = r.class_id
    where w.reason is not null
  ), shown as (
    select u.queue, u.class_id::text as class, u.reason, u.pending, u.oldest_at, u.cpu_cores, u.memory_bytes, u.gpus
    from unmet u where u.place <= 50
    union all
    select '', 'other', u.reason, sum(u.pending), min(u.oldest_at), sum(u.cpu_cores), sum(u.memory_bytes), sum(u.gpus)
    from unmet u where u.place > 50 group by u.reason
  )
  select s.name, jsonb_build_object('queue', d.queue, 'class', d.class, 'reason', d.reason), s.value
  from shown d
  cross join lateral (values
    ('hwqueue_unmet_leases', d.pending::double precision),
    ('hwqueue_unmet_oldest_seconds', hwqueue.seconds_since(d.oldest_at, p_now)),
    ('hwqueue_unmet_cpu_cores', d.cpu_cores),
    ('hwqueue_unmet_memory_bytes', d.memory_bytes),
    ('hwqueue_unmet_gpus', d.gpus)
  ) s(name, value)
  union all
  select 'hwqueue_unmet_class_info',
         jsonb_build_object('class', u.class_id::text, 'queue', u.queue, 'task', u.task_name, 'placement', left(u.words, 200)), 1
  from unmet u where u.place <= 50
  union all
  select 'highway_tasks_pending_no_affinity_match', jsonb_build_object('queue', q.name), coalesce(sum(u.pending), 0)
  from hwqueue.queue q
  left join unmet u on u.queue = q.name and u.reason = 'no_match'
  where q.shard_id = p_shard and q.dropped_at is null
  group by q.name
$$;
