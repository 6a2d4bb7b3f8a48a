-- When the p_n-th ended of what ended in [p_from, p_to): leases that finished, claims that did without completing. Null: fewer did.
create or replace function hwqueue.nth_ended(p_n int, p_from timestamptz, p_to timestamptz, p_shard int) returns timestamptz
language sql volatile
as $$
  select e.ended_at from (
    select f.finished_at as ended_at
    from hwqueue.queue q
    cross join unnest(array['completed', 'failed', 'cancelled']) s(state)
    cross join lateral (
      select x.finished_at from hwqueue.outcome x
      where x.shard_id = p_shard and x.queue_id = q.queue_id and x.state = s.state and x.finished_at >= p_from and x.finished_at < p_to
      order by x.finished_at limit p_n) f
    where q.shard_id = p_shard
    union all
    (select r.finished_at from hwqueue.requeued r
     where r.finished_at >= p_from and r.finished_at < p_to order by r.finished_at limit p_n)
    union all
    (select a.ended_at from hwqueue.attempt a where a.ended_at >= p_from and a.ended_at < p_to order by a.ended_at limit p_n)
  ) e
  order by e.ended_at offset p_n - 1 limit 1
$$;

-- Adds what ended in [p_from, p_to), a stretch within one minute, to the queues' totals. Gives how much that was.
-- Locks: rows of minute_stat; the caller holds the mark, so nobody else writes there. Idempotent: no.
create or replace function hwqueue.count_ended(p_from timestamptz, p_to timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_count int;
begin
  -- one statement, one snapshot: a lease that is being requeued is in outcome or in requeued, never in both
  with ended as (
    select f.queue_id, s.state as finished, null as outcome, false as retried,
           case when f.eligible_at is not null or l.lease_id is not null  -- of completed ones
                then greatest(extract(epoch from f.claimed_at - coalesce(f.eligible_at, greatest(l.available_at, l.created_at))), 0)::double precision
                end as waited,
           case when f.eligible_at is not null or l.lease_id is not null then extract(epoch from f.finished_at - f.claimed_at)::double precision end as ran
    from hwqueue.queue q
    cross join unnest(array['completed', 'failed', 'cancelled']) s(state)
    cross join lateral (
      select x.queue_id, x.lease_id, x.claimed_at, x.finished_at, x.eligible_at from hwqueue.outcome x
      where x.shard_id = p_shard and x.queue_id = q.queue_id and x.state = s.state and x.finished_at >= p_from and x.finished_at < p_to
      offset 0) f
    left join hwqueue.lease l on s.state = 'completed' and f.eligible_at is null and l.shard_id = p_shard and l.lease_id = f.lease_id
    where q.shard_id = p_shard
    union all
    select r.queue_id, r.state, null, false, null, null
    from hwqueue.requeued r where r.shard_id = p_shard and r.finished_at >= p_from and r.finished_at < p_to
    union all
    select w.queue_id, null, a.outcome,
           a.outcome in ('failed', 'expired', 'superseded')
             and not exists (select 1 from hwqueue.outcome f
                             where f.shard_id = p_shard and f.lease_id = a.lease_id and f.state = 'failed' and f.finished_at = a.ended_at)
             and not exists (select 1 from hwqueue.requeued r where r.finished_at = a.ended_at and r.lease_id = a.lease_id),
           null, null
    -- a fence (offset 0): by time alone, so that the key, which begins with the shard, is of no use
    from (select x.* from hwqueue.attempt x where x.ended_at >= p_from and x.ended_at < p_to offset 0) a
    cross join lateral (  -- a lease that went when it completed has left its outcome
      select coalesce((select l.queue_id from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = a.lease_id),
                      (select o.queue_id from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = a.lease_id)) as queue_id offset 0) w
    where a.shard_id = p_shard and w.queue_id is not null
  ), sums as (
    select e.queue_id, count(*) as ended,
           count(*) filter (where e.finished = 'completed') as completed, count(*) filter (where e.finished = 'failed') as failed,
           count(*) filter (where e.finished = 'cancelled') as cancelled, count(*) filter (where e.outcome = 'failed') as attempts_failed,
           count(*) filter (where e.outcome = 'expired') as attempts_expired,
           count(*) filter (where e.outcome = 'superseded') as attempts_superseded,
           count(*) filter (where e.outcome = 'released') as attempts_released,
           count(*) filter (where e.outcome = 'cancelled') as attempts_cancelled, count(*) filter (where e.retried) as retried,
           coalesce(sum(e.waited), 0) as wait_seconds, array_agg(e.waited) filter (where e.waited is not null) as waits,
           coalesce(sum(e.ran), 0) as run_seconds, array_agg(e.ran) filter (where e.ran is not null) as runs
    from ended e group by e.queue_id
  ), written as (
    insert into hwqueue.minute_stat (shard_id, queue_id, minute, completed, failed, cancelled, attempts_failed, attempts_expired,
      attempts_superseded, attempts_released, attempts_cancelled, retried, wait_seconds, wait_counts, run_seconds, run_counts)
    select p_shard, s.queue_id, date_trunc('minute', p_from), coalesce(o.completed, 0) + s.completed, coalesce(o.failed, 0) + s.failed,
           coalesce(o.cancelled, 0) + s.cancelled, coalesce(o.attempts_failed, 0) + s.attempts_failed,
           coalesce(o.attempts_expired, 0) + s.attempts_expired, coalesce(o.attempts_superseded, 0) + s.attempts_superseded,
           coalesce(o.attempts_released, 0) + s.attempts_released, coalesce(o.attempts_cancelled, 0) + s.attempts_cancelled,
           coalesce(o.retried, 0) + s.retried, coalesce(o.wait_seconds, 0) + s.wait_seconds,
           hwqueue.add_histograms(o.wait_counts, hwqueue.histogram_of(s.waits)), coalesce(o.run_seconds, 0) + s.run_seconds,
           hwqueue.add_histograms(o.run_counts, hwqueue.histogram_of(s.runs))
    from sums s
    left join lateral (
      select x.* from hwqueue.minute_stat x where x.shard_id = p_shard and x.queue_id = s.queue_id order by x.minute desc limit 1) o on true
    on conflict (shard_id, queue_id, minute) do update set
      completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled,
      attempts_failed = excluded.attempts_failed, attempts_expired = excluded.attempts_expired,
      attempts_superseded = excluded.attempts_superseded, attempts_released = excluded.attempts_released,
      attempts_cancelled = excluded.attempts_cancelled, retried = excluded.retried, wait_seconds = excluded.wait_seconds,
      wait_counts = excluded.wait_counts, run_seconds = excluded.run_seconds, run_counts = excluded.run_counts
  )
  select coalesce(sum(s.ended), 0) into v_count from sums s;
  return v_count;
end
$$;
