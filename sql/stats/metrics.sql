-- What monitoring wants to know, as Prometheus samples: name, labels, value. docs/reference/metrics.md says what each one means.
-- A histogram has a row for each bucket (label le) and one each for its sum and count. The number of rows grows with queues alone: nodes are
-- summed up, and of placement classes only the 50 with most leases waiting are named.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.metrics(p_shard int default 0)
returns table (name text, labels jsonb, value double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select m.name, m.labels, m.value
  from (select hwqueue.clock() as now) t
  cross join lateral (
    select * from hwqueue.queue_metrics(t.now, p_shard)
    union all select * from hwqueue.total_metrics(p_shard)
    union all select * from hwqueue.demand_metrics(t.now, p_shard)
    union all select * from hwqueue.node_metrics(t.now, p_shard)
    union all select * from hwqueue.upkeep_metrics(t.now, p_shard)
  ) m
$$;

-- What waits and runs in each queue now.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.queue_metrics(p_now timestamptz, p_shard int)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  select s.name, jsonb_build_object('queue', d.queue) || s.labels, s.value
  from hwqueue.queue_depth(p_shard => p_shard) d
  cross join lateral (values
    ('hwqueue_leases', '{"state": "pending"}'::jsonb, d.pending::double precision),
    ('hwqueue_leases', '{"state": "scheduled"}', d.scheduled),
    ('hwqueue_leases', '{"state": "claimed"}', d.running),
    ('hwqueue_oldest_pending_seconds', '{}', coalesce(hwqueue.seconds_since(d.oldest_at, p_now), 0)),
    ('hwqueue_queue_paused', '{}', case when d.paused_at is null then 0 else 1 end)
  ) s(name, labels, value)
$$;

-- What has ever ended in each queue, as far as roll_up has come.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.total_metrics(p_shard int)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with total as (
    select q.name as queue, m.*
    from hwqueue.queue q
    left join lateral (
      select x.* from hwqueue.minute_stat x where x.shard_id = q.shard_id and x.queue_id = q.queue_id order by x.minute desc limit 1) m on true
    where q.shard_id = p_shard and q.dropped_at is null
  )
  select s.name, jsonb_build_object('queue', t.queue) || s.labels, coalesce(s.value, 0)
  from total t
  cross join lateral (values
    ('hwqueue_leases_finished_total', '{"outcome": "completed"}'::jsonb, t.completed::double precision),
    ('hwqueue_leases_finished_total', '{"outcome": "failed"}', t.failed),
    ('hwqueue_leases_finished_total', '{"outcome": "cancelled"}', t.cancelled),
    ('hwqueue_claims_ended_total', '{"outcome": "completed"}', t.completed),
    ('hwqueue_claims_ended_total', '{"outcome": "failed"}', t.attempts_failed),
    ('hwqueue_claims_ended_total', '{"outcome": "expired"}', t.attempts_expired),
    ('hwqueue_claims_ended_total', '{"outcome": "superseded"}', t.attempts_superseded),
    ('hwqueue_claims_ended_total', '{"outcome": "released"}', t.attempts_released),
    ('hwqueue_claims_ended_total', '{"outcome": "cancelled"}', t.attempts_cancelled),
    ('hwqueue_retries_total', '{}', t.retried),
    ('hwqueue_wait_seconds_sum', '{}', t.wait_seconds),
    ('hwqueue_wait_seconds_count', '{}', t.completed),
    ('hwqueue_run_seconds_sum', '{}', t.run_seconds),
    ('hwqueue_run_seconds_count', '{}', t.completed)
  ) s(name, labels, value)
  union all
  select h.name, jsonb_build_object('queue', t.queue, 'le', coalesce((hwqueue.histogram_bounds())[b.bucket]::text, '+Inf')),
         coalesce(sum(h.counts[b.bucket]) over (partition by t.queue, h.name order by b.bucket), 0)::double precision
  from total t
  cross join lateral (values
    ('hwqueue_wait_seconds_bucket', t.wait_counts), ('hwqueue_run_seconds_bucket', t.run_counts)) h(name, counts)
  cross join generate_series(1, 15) b(bucket)
$$;

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
