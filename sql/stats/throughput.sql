-- What ended in each of the last p_minutes minutes, oldest first, of one queue or (null) of all together; minutes without are zeros.
-- The last one is not over. claims: claims that ended, whatever became of them. failed: leases that are dead. retried: claims that did
-- not complete and whose lease went back. wait, run: of completed leases, in seconds, half (95 of 100) of them at most.
-- Locks: none. Raises: QHQ01, QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.throughput(p_queue text default null, p_minutes int default 60, p_shard int default 0)
returns table (minute timestamptz, claims bigint, completed bigint, failed bigint, cancelled bigint, retried bigint, expired bigint,
               wait_p50 double precision, wait_p95 double precision, run_p50 double precision, run_p95 double precision, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue_id int;
  v_until timestamptz := date_trunc('minute', hwqueue.clock());
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  perform hwqueue.check_range(p_minutes, 'p_minutes', 1, 1440, 'minutes are kept for a day');
  return query
    with ended as (
      select m.minute, m.completed - coalesce(o.completed, 0) as completed, m.failed - coalesce(o.failed, 0) as failed,
             m.cancelled - coalesce(o.cancelled, 0) as cancelled, m.retried - coalesce(o.retried, 0) as retried,
             m.attempts_expired - coalesce(o.attempts_expired, 0) as expired,
             m.completed + m.attempts_failed + m.attempts_expired + m.attempts_superseded + m.attempts_released + m.attempts_cancelled
               - coalesce(o.completed + o.attempts_failed + o.attempts_expired + o.attempts_superseded + o.attempts_released
                          + o.attempts_cancelled, 0) as claims,
             hwqueue.add_histograms(m.wait_counts, o.wait_counts, -1) as wait_counts,
             hwqueue.add_histograms(m.run_counts, o.run_counts, -1) as run_counts
      from hwqueue.queue q
      join hwqueue.minute_stat m on m.shard_id = q.shard_id and m.queue_id = q.queue_id
      left join lateral (
        select x.* from hwqueue.minute_stat x
        where x.shard_id = m.shard_id and x.queue_id = m.queue_id and x.minute < m.minute order by x.minute desc limit 1) o on true
      where q.shard_id = p_shard and q.dropped_at is null and (v_queue_id is null or q.queue_id = v_queue_id)
        and m.minute > v_until - p_minutes * interval '1 minute'
    ), sums as (
      select e.minute, sum(e.claims) as claims, sum(e.completed) as completed, sum(e.failed) as failed, sum(e.cancelled) as cancelled,
             sum(e.retried) as retried, sum(e.expired) as expired
      from ended e group by e.minute
    ), times as (
      select b.minute, array_agg(b.waits order by b.bucket) as waits, array_agg(b.runs order by b.bucket) as runs
      from (
        select e.minute, h.bucket, sum(h.waits)::bigint as waits, sum(h.runs)::bigint as runs
        from ended e cross join lateral unnest(e.wait_counts, e.run_counts) with ordinality h(waits, runs, bucket)
        group by e.minute, h.bucket) b
      group by b.minute
    )
    select g.minute, coalesce(s.claims, 0)::bigint, coalesce(s.completed, 0)::bigint, coalesce(s.failed, 0)::bigint,
           coalesce(s.cancelled, 0)::bigint, coalesce(s.retried, 0)::bigint, coalesce(s.expired, 0)::bigint,
           hwqueue.histogram_quantile(t.waits, 0.5), hwqueue.histogram_quantile(t.waits, 0.95),
           hwqueue.histogram_quantile(t.runs, 0.5), hwqueue.histogram_quantile(t.runs, 0.95), p_shard
    from generate_series(v_until - (p_minutes - 1) * interval '1 minute', v_until, interval '1 minute') g(minute)
    left join sums s on s.minute = g.minute
    left join times t on t.minute = g.minute
    order by g.minute;
end
$$;
