-- Seconds from p_at to p_now, never less than 0; null: p_at is null.
create or replace function hwqueue.seconds_since(p_at timestamptz, p_now timestamptz) returns double precision
language sql immutable parallel safe
as $$ select greatest(extract(epoch from p_now - p_at), 0)::double precision $$;

-- Whether upkeep keeps up, and what is installed.
create or replace function hwqueue.upkeep_metrics(p_now timestamptz, p_shard int)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with mark as (
    select m.claims_from, greatest(m.reaped_at, i.applied_at) as reaped_at, greatest(m.counted_to, i.applied_at) as counted_to
    from hwqueue.schema_info i
    left join lateral (
      select x.* from hwqueue.reap_mark x where x.shard_id = p_shard order by x.version desc limit 1) m on true
  )
  select 'hwqueue_reap_lag_seconds', '{}'::jsonb, hwqueue.seconds_since(m.reaped_at, p_now) from mark m
  union all
  select 'hwqueue_statistics_lag_seconds', '{}', hwqueue.seconds_since(m.counted_to, p_now) from mark m
  union all
  select 'hwqueue_claims_overdue', '{}', count(*)
  from mark m
  cross join lateral (
    select 1 from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.check_at >= coalesce(m.claims_from, '-infinity') and c.check_at <= p_now and c.shard_id = p_shard
      and c.expires_at + q.reap_grace <= p_now
    limit 10000) c
  union all
  select 'hwqueue_schema_info', jsonb_build_object('revision', i.revision, 'version', i.package_version), 1 from hwqueue.schema_info i
$$;
