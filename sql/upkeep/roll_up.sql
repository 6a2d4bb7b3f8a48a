-- Statistics: counting what ended, minute by minute, and histograms of times.
--
-- Claims and settlements write nothing for the statistics. roll_up reads what they leave behind, outcomes,
-- attempts and runs of workflows, by the time they ended.
--
-- The invariant: nothing is counted twice and nothing is missed, though a row may be committed long after the
-- time it carries. A session that ends something takes its transaction id before it reads the clock. So a row
-- from before p_now that is not visible yet belongs to a transaction with a lower id than this one's, which
-- was assigned after p_now. Once all of those have ended, everything before p_now may be counted.
--
-- A clock that is set back breaks that: ends are written below what is counted. roll_up sees it, by the
-- clock itself or by such an end, and goes back to there. What is counted already by then is what had ended
-- before the mark and was visible to the last call. The cursor's clock_steps keep both, for this
-- module and for webhooks.
-- Example: counted to 10:00:30, the clock is set back to 10:00:00. The count goes on from there, and leaves
-- out what was visible before, until it has passed 10:00:30.

-- Counts what ended since the last call, about p_limit of it and at most 60 minutes that have anything.
-- Returns the cursor moved on, and whether there is more.
-- Counts up to p_now if no older transaction is open; else up to the moment that an earlier call noted,
-- if its transactions have ended. Where the clock was set back since the last call, it goes on from p_now, or
-- from an end that the last call did not see: of the five minutes before p_now or, when that is not behind,
-- in what it counted.
-- Locks: the caller holds p_cursor and had no transaction id before p_now; rows of minute_stat,
-- run_total and undone_end.
create or replace function hwqueue.roll_up(p_limit int, p_cursor hwqueue.reap_cursor, p_now timestamptz,
  out reap_cursor hwqueue.reap_cursor, out more boolean)
language plpgsql volatile
as $$
declare
  v_own xid8 := pg_current_xact_id();
  v_oldest xid8 := pg_snapshot_xmin(pg_current_snapshot());  -- after the id
  v_system bigint := (select s.system_identifier from hwqueue.installation s);
  v_step hwqueue.clock_step;
  v_steps hwqueue.clock_step[] := '{}';
  v_safe timestamptz := '-infinity';
  v_left int := p_limit;
  v_stretches int := 60;  -- each takes milliseconds, however few rows it has
  v_first timestamptz;
  v_until timestamptz;
begin
  reap_cursor := p_cursor;
  if p_cursor.counted_on = v_system then  -- on another server transaction ids mean something else
    v_step.counted_to := p_cursor.counted_to;
    v_step.counted_as := p_cursor.counted_as;
    v_step.goes_on_at := least(p_now, hwqueue.time_of_nth_end(1,
      case when p_now < p_cursor.counted_to then p_now - interval '5 minutes' else p_cursor.counted_from end,
      least(p_now, p_cursor.counted_to), array[v_step],  -- at most as much as one call counts
      age(pg_snapshot_xmin(p_cursor.counted_as)::xid)));
    if v_step.goes_on_at < p_cursor.counted_to then  -- the clock was set back
      v_step.step_no := p_cursor.version + 1;
      reap_cursor.clock_steps := p_cursor.clock_steps || v_step;
      reap_cursor.counted_to := v_step.goes_on_at;
      reap_cursor.counted_from := v_step.goes_on_at;
    end if;
  end if;
  reap_cursor.counted_on := v_system;
  if cardinality(reap_cursor.clock_steps) > 0 then
    reap_cursor.clock_steps := array(
      select s from unnest(reap_cursor.clock_steps) s
      where s.counted_to >= p_now - interval '1 day'
        or exists (select from hwqueue.webhook w where w.clock_step < s.step_no));
    v_steps := array(
      select s from unnest(reap_cursor.clock_steps) s where s.counted_to > reap_cursor.counted_to);
  end if;
  more := false;
  if v_oldest < p_cursor.count_next_after_xid then
    v_oldest := hwqueue.oldest_open_settlement();  -- slower, and rarely needed
  end if;
  if v_oldest >= v_own then
    v_safe := p_now;
  elsif v_oldest >= p_cursor.count_next_after_xid then
    v_safe := least(p_cursor.count_next_to, p_now);
  end if;
  -- used up, or of another server
  if v_oldest >= p_cursor.count_next_after_xid or v_own < p_cursor.count_next_after_xid then
    reap_cursor.count_next_to := p_now;
    reap_cursor.count_next_after_xid := v_own;
  end if;
  reap_cursor.counted_as := pg_current_snapshot();  -- after all that may have ended before v_safe
  if reap_cursor.counted_to < v_safe then
    reap_cursor.counted_from := reap_cursor.counted_to;
  end if;
  while reap_cursor.counted_to < v_safe loop
    v_first := hwqueue.time_of_nth_end(1, reap_cursor.counted_to, v_safe, v_steps);
    if v_first is null then
      reap_cursor.counted_to := v_safe;
      exit;
    end if;
    more := v_left <= 0 or v_stretches <= 0;
    exit when more;
    v_stretches := v_stretches - 1;
    v_until := least(v_safe, date_trunc('minute', v_first) + interval '1 minute');
    -- all that ended at the same instant as the last one are counted, too; null: there are fewer
    v_until := least(v_until, hwqueue.time_of_nth_end(v_left, v_first, v_until,
      v_steps) + interval '1 microsecond');
    v_left := v_left - hwqueue.roll_up_minute(v_first, v_until, v_steps)
      - hwqueue.roll_up_runs(v_first, v_until, v_steps);
    reap_cursor.counted_to := v_until;
  end loop;
  delete from hwqueue.undone_end u where u.finished_at < reap_cursor.counted_to;
end
$$;

-- True if an end at p_at, of the transaction p_xid, was counted before the clock was set back: it lies below
-- the mark of a step and was visible then. An unknown transaction is an old one.
create or replace function hwqueue.is_counted(p_steps hwqueue.clock_step[], p_at timestamptz, p_xid xid)
returns boolean
language plpgsql immutable
as $$ begin return
  exists (
    select from unnest(p_steps) s
    cross join lateral (select pg_snapshot_xmax(s.counted_as)::text::bigint as top) t
    cross join lateral (select (p_xid::text::bigint - t.top) & 4294967295 as ahead) a  -- modulo 2^32
    where p_at < s.counted_to and pg_visible_in_snapshot(greatest(t.top + a.ahead
      - case when a.ahead > 2147483647 then 4294967296 else 0 end, 3)::text::xid8, s.counted_as));
end $$;

-- True if an end is to be counted (is_counted). p_age: what is of older transactions was. Inlined.
create or replace function hwqueue.is_new(p_at timestamptz, p_xid xid, p_steps hwqueue.clock_step[],
  p_age int default 2147483647) returns boolean
language sql stable
as $$
  select age(p_xid) <= p_age and (cardinality(p_steps) = 0 or not hwqueue.is_counted(p_steps, p_at, p_xid))
$$;

-- The oldest open transaction that may still commit something that has ended already; at most the next
-- id to be assigned. A session that ends something locks the table claim, for more than reading, before
-- it reads the clock, and keeps the lock to the end. So transactions without that lock do not matter:
-- what they will end ends later than this.
create or replace function hwqueue.oldest_open_settlement() returns xid8
language sql volatile
as $$ select hwqueue.oldest_snapshot_holder('hwqueue.claim') $$;

-- The time at which the p_n-th of the leases, unsuccessful attempts and runs in [p_from, p_to) ended that
-- is_counted does not know of; null if fewer did. p_age: what is of older transactions was counted.
create or replace function hwqueue.time_of_nth_end(p_n int, p_from timestamptz, p_to timestamptz,
  p_steps hwqueue.clock_step[], p_age int default 2147483647) returns timestamptz
language plpgsql volatile
as $$ begin return (
  select e.ended_at from (
    select f.finished_at as ended_at
    from hwqueue.queue q
    cross join unnest(array['completed', 'failed', 'cancelled']) s(state)
    cross join lateral (
      select x.finished_at from hwqueue.outcome x
      where x.queue_id = q.queue_id and x.state = s.state and x.finished_at >= p_from and x.finished_at < p_to
        and hwqueue.is_new(x.finished_at, x.xmin, p_steps, p_age)
      order by x.finished_at limit p_n) f
    union all
    (select u.finished_at from hwqueue.undone_end u
     where u.finished_at >= p_from and u.finished_at < p_to
       and hwqueue.is_new(u.finished_at, u.xid, p_steps, p_age)
     order by u.finished_at limit p_n)
    union all
    (select a.ended_at from hwqueue.attempt a where a.ended_at >= p_from and a.ended_at < p_to
       and a.outcome <> 'completed'
       and hwqueue.is_new(a.ended_at, a.xmin, p_steps, p_age)
     order by a.ended_at limit p_n)
    union all
    (select r.finished_at from hwqueue.run r
     where r.finished_at >= p_from and r.finished_at < p_to
       and hwqueue.is_new(r.finished_at, r.xmin, p_steps, p_age)
     order by r.finished_at limit p_n)
  ) e
  order by e.ended_at offset p_n - 1 limit 1
); end $$;

-- Adds what ended in [p_from, p_to), a span within one minute, to the totals of its queues; to the last
-- minute, where the clock was set back behind it. Returns how much that was.
-- Locks: rows of minute_stat. The caller holds the cursor, so no other session writes there. Not
-- idempotent.
create or replace function hwqueue.roll_up_minute(p_from timestamptz, p_to timestamptz,
  p_steps hwqueue.clock_step[]) returns int
language plpgsql volatile
as $$
declare
  v_count int;
begin
  -- one statement, one MVCC snapshot: a requeued lease is in outcome or in requeued, never in both.
  -- finished: the lease's state; outcome: the attempt's, unless it completed: that is counted as the lease;
  -- waited, ran: seconds, of completed leases whose times are still known
  with ended as (
    select f.queue_id, s.state as finished, null::text as outcome, false as retried,
           case when f.eligible_at is not null or l.lease_id is not null  -- of completed ones
                then extract(epoch from f.claimed_at - least(f.claimed_at,
                  coalesce(f.eligible_at, greatest(l.available_at, l.created_at))))::double precision
                end as waited,
           case when f.eligible_at is not null or l.lease_id is not null
             then extract(epoch from f.finished_at - f.claimed_at)::double precision end as ran
    from hwqueue.queue q
    cross join unnest(array['completed', 'failed', 'cancelled']) s(state)
    cross join lateral (
      select x.queue_id, x.lease_id, x.claimed_at, x.finished_at, x.eligible_at from hwqueue.outcome x
      where x.queue_id = q.queue_id and x.state = s.state and x.finished_at >= p_from and x.finished_at < p_to
        and hwqueue.is_new(x.finished_at, x.xmin, p_steps)
      offset 0) f
    left join hwqueue.lease l on s.state = 'completed' and f.eligible_at is null and l.lease_id = f.lease_id
    union all
    select r.queue_id, r.state, null, false, null,
           case when r.state = 'completed' then (  -- of a step that runs again
             select extract(epoch from a.ended_at - a.claimed_at)::double precision from hwqueue.attempt a
             where a.lease_id = r.lease_id and a.ended_at = r.finished_at
               and a.outcome = 'completed' limit 1) end
    from hwqueue.undone_end r where r.finished_at >= p_from and r.finished_at < p_to
      and r.lease_id is not null and hwqueue.is_new(r.finished_at, r.xid, p_steps)
    union all
    select w.queue_id, null, a.outcome,
           a.outcome in ('failed', 'expired', 'superseded')
             and not exists (select 1 from hwqueue.outcome f
                             where f.lease_id = a.lease_id and (f.state = 'failed') is true
                               and f.finished_at = a.ended_at)
             and not exists (select 1 from hwqueue.undone_end r
                 where r.finished_at = a.ended_at and r.lease_id = a.lease_id),
           null, null
    -- a fence (offset 0): scans by time alone, because the key is of no use
    from (select x.* from hwqueue.attempt x where x.ended_at >= p_from and x.ended_at < p_to
            and x.outcome <> 'completed'
            and hwqueue.is_new(x.ended_at, x.xmin, p_steps) offset 0) a
    cross join lateral (  -- of a lease deleted at completion only the outcome is left
      select coalesce((select l.queue_id from hwqueue.lease l where l.lease_id = a.lease_id),
                      (select o.queue_id from hwqueue.outcome o
                          where o.lease_id = a.lease_id)) as queue_id offset 0) w
    where w.queue_id is not null
  ), sums as (
    select e.queue_id, count(*) as ended,
           count(*) filter (where e.finished = 'completed') as completed,
           count(*) filter (where e.finished = 'failed') as failed,
           count(*) filter (where e.finished = 'cancelled') as cancelled,
           count(*) filter (where e.outcome = 'failed') as attempts_failed,
           count(*) filter (where e.outcome = 'expired') as attempts_expired,
           count(*) filter (where e.outcome = 'superseded') as attempts_superseded,
           count(*) filter (where e.outcome = 'released') as attempts_released,
           count(*) filter (where e.outcome = 'cancelled') as attempts_cancelled,
           count(*) filter (where e.retried) as retried,
           coalesce(sum(e.waited), 0) as wait_seconds,
           array_agg(e.waited) filter (where e.waited is not null) as waits,
           coalesce(sum(e.ran), 0) as run_seconds,
           array_agg(e.ran) filter (where e.ran is not null) as runs
    from ended e group by e.queue_id
  ), written as (
    insert into hwqueue.minute_stat (
      queue_id, minute, completed, failed, cancelled,
      attempts_failed, attempts_expired, attempts_superseded, attempts_released, attempts_cancelled,
      retried, wait_seconds, wait_counts, run_seconds, run_counts)
    select s.queue_id, greatest(date_trunc('minute', p_from), o.minute),
           coalesce(o.completed, 0) + s.completed,
           coalesce(o.failed, 0) + s.failed,
           coalesce(o.cancelled, 0) + s.cancelled,
           coalesce(o.attempts_failed, 0) + s.attempts_failed,
           coalesce(o.attempts_expired, 0) + s.attempts_expired,
           coalesce(o.attempts_superseded, 0) + s.attempts_superseded,
           coalesce(o.attempts_released, 0) + s.attempts_released,
           coalesce(o.attempts_cancelled, 0) + s.attempts_cancelled,
           coalesce(o.retried, 0) + s.retried,
           coalesce(o.wait_seconds, 0) + s.wait_seconds,
           hwqueue.add_histograms(o.wait_counts, hwqueue.histogram_of(s.waits)),
           coalesce(o.run_seconds, 0) + s.run_seconds,
           hwqueue.add_histograms(o.run_counts, hwqueue.histogram_of(s.runs))
    from sums s
    left join lateral (
      select x.* from hwqueue.minute_stat x where x.queue_id = s.queue_id
      order by x.minute desc limit 1) o on true
    on conflict (queue_id, minute) do update set
      completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled,
      attempts_failed = excluded.attempts_failed, attempts_expired = excluded.attempts_expired,
      attempts_superseded = excluded.attempts_superseded, attempts_released = excluded.attempts_released,
      attempts_cancelled = excluded.attempts_cancelled, retried = excluded.retried,
      wait_seconds = excluded.wait_seconds, wait_counts = excluded.wait_counts,
      run_seconds = excluded.run_seconds, run_counts = excluded.run_counts
  )
  select coalesce(sum(s.ended), 0) into v_count from sums s;
  return v_count;
end
$$;

-- Adds the runs that ended in [p_from, p_to) to the totals of their workflows. Returns how many those are.
-- A workflow that has a row of its own keeps it: its counters never fall. Ad hoc runs may have any name, so
-- they get a row only while fewer than 50 workflows have one, defined ones while fewer than 100 do. The
-- others are counted together.
-- Locks: rows of run_total. The caller holds the cursor, so no other session writes there. Not
-- idempotent.
create or replace function hwqueue.roll_up_runs(p_from timestamptz, p_to timestamptz,
  p_steps hwqueue.clock_step[]) returns int
language plpgsql volatile
as $$
declare
  v_count int;
begin
  -- one statement, one MVCC snapshot: a run that is retried has ended, or is in undone_end, never both
  with ended as materialized (
    select e.name, e.state, e.finished_at,
           extract(epoch from greatest(e.finished_at - e.submitted_at, '0'))::double precision as took,
           exists (
             select from hwqueue.workflow w where w.workflow_id = e.workflow_id and w.version is not null)
             as is_defined
    from (
      select r.workflow_id, r.name, r.state, r.submitted_at, r.finished_at from hwqueue.run r
      where r.finished_at >= p_from and r.finished_at < p_to
        and hwqueue.is_new(r.finished_at, r.xmin, p_steps)
      union all
      select r.workflow_id, r.workflow, r.state, r.submitted_at, r.finished_at from hwqueue.undone_end r
      where r.finished_at >= p_from and r.finished_at < p_to and r.workflow_id is not null
        and hwqueue.is_new(r.finished_at, r.xid, p_steps)) e
  ), counted as materialized (
    select distinct t.workflow from hwqueue.run_total t where t.workflow <> '(other)'
  ), fresh as (
    select e.name, bool_or(e.is_defined) as is_defined,
           row_number() over (order by bool_or(e.is_defined) desc, e.name) as place
    from ended e where e.name not in (select c.workflow from counted c) group by e.name
  ), other as (
    select f.name from fresh f
    where (select count(*) from counted) + f.place > case when f.is_defined then 100 else 50 end
  ), written as (
    insert into hwqueue.run_total (workflow, outcome, seconds, counts, counted_at)
    select s.workflow, s.state, s.seconds + coalesce(t.seconds, 0),
           hwqueue.add_histograms(t.counts, s.counts), s.counted_at
    from (
      select w.workflow, e.state, sum(e.took) as seconds, hwqueue.histogram_of(array_agg(e.took)) as counts,
             max(e.finished_at) as counted_at
      from ended e
      cross join lateral (
        select case when e.name in (select o.name from other o) then '(other)' else e.name end) w(workflow)
      group by w.workflow, e.state) s
    left join hwqueue.run_total t
      on t.workflow = s.workflow and t.outcome = s.state on conflict (workflow, outcome) do update set
      seconds = excluded.seconds, counts = excluded.counts, counted_at = excluded.counted_at
  )
  select count(*) into v_count from ended;
  return v_count;
end
$$;

-- Upper bounds of the histogram buckets of waits and runs, in seconds; a time equal to a bound belongs
-- to its bucket. A 15th bucket holds longer times. minute_stat holds counts by these, so changing them
-- means rewriting its rows.
create or replace function hwqueue.histogram_bounds() returns double precision[]
language sql immutable parallel safe
as $$ select array[0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400,
    86400]::double precision[] $$;

-- Counts times, in seconds, by bucket.
create or replace function hwqueue.histogram_of(p_seconds double precision[]) returns bigint[]
language plpgsql immutable
as $$ begin return (
  with placed as materialized (
    -- negated, because width_bucket puts a bound into the next bucket
    select 14 - width_bucket(-t.seconds, array[-86400, -14400, -3600, -900, -300, -60, -30, -10, -5, -1,
           -0.5, -0.1, -0.05, -0.01]) as bucket
    from unnest(p_seconds) t(seconds)
  )
  select array(
    select (select count(*) from placed p where p.bucket = b.bucket) from generate_series(0, 14) b(bucket)
    order by b.bucket)
); end $$;

-- Adds two histograms, or subtracts the second (p_sign -1). Null stands for an empty one.
create or replace function hwqueue.add_histograms(p_a bigint[], p_b bigint[],
  p_sign int default 1) returns bigint[]
language plpgsql immutable parallel safe
as $$ begin return
  array(
    select coalesce(p_a[b.bucket], 0) + p_sign * coalesce(p_b[b.bucket], 0)
    from generate_series(1, 15) b(bucket) order by b.bucket);
end $$;

-- The quantile of a histogram (p_part 0.95: the time that 95 of 100 did not exceed), in seconds,
-- interpolated evenly within a bucket; null if nothing was counted.
create or replace function hwqueue.histogram_quantile(p_counts bigint[],
  p_part double precision) returns double precision
language plpgsql immutable parallel safe
as $$ begin return (
  select case when r.bucket = 15 then 86400
         else r.above + (r.bound - r.above) * (r.wanted - r.before) / r.count end
  from (
    select c.bucket, c.count, hwqueue.histogram_bounds() as bounds,
           coalesce((hwqueue.histogram_bounds())[c.bucket - 1], 0) as above,
           (hwqueue.histogram_bounds())[c.bucket] as bound, sum(c.count) over (order by c.bucket) as until,
           sum(c.count) over (order by c.bucket) - c.count as before, p_part * sum(c.count) over () as wanted
    from unnest(p_counts) with ordinality c(count, bucket)
  ) r
  where r.count > 0 and r.until >= r.wanted
  order by r.bucket limit 1
); end $$;
