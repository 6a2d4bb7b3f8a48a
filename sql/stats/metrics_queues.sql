-- What waits and runs in each queue now.
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
    ('hwqueue_wait_seconds_count', '{}', (select sum(c.count) from unnest(t.wait_counts) c(count))),
    ('hwqueue_run_seconds_sum', '{}', t.run_seconds),
    ('hwqueue_run_seconds_count', '{}', (select sum(c.count) from unnest(t.run_counts) c(count)))
  ) s(name, labels, value)
  union all
  select h.name, jsonb_build_object('queue', t.queue, 'le', coalesce((hwqueue.histogram_bounds())[b.bucket]::text, '+Inf')),
         coalesce(sum(h.counts[b.bucket]) over (partition by t.queue, h.name order by b.bucket), 0)::double precision
  from total t
  cross join lateral (values
    ('hwqueue_wait_seconds_bucket', t.wait_counts), ('hwqueue_run_seconds_bucket', t.run_counts)) h(name, counts)
  cross join generate_series(1, 15) b(bucket)
$$;
