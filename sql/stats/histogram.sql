-- Upper bounds of the histograms of waits and runs, in seconds; each belongs to its own bucket. What is longer comes last.
-- minute_stat holds counts by these: they change only together with its rows.
create or replace function hwqueue.histogram_bounds() returns double precision[]
language sql immutable parallel safe
as $$ select array[0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400]::double precision[] $$;

-- How many of some times (in seconds) are in each bucket.
create or replace function hwqueue.histogram_of(p_seconds double precision[]) returns bigint[]
language sql immutable
as $$
  with placed as materialized (
    -- of the negatives: width_bucket takes a bound for the first of the next bucket
    select 14 - width_bucket(-t.seconds, array[-86400, -14400, -3600, -900, -300, -60, -30, -10, -5, -1, -0.5, -0.1, -0.05, -0.01]) as bucket
    from unnest(p_seconds) t(seconds)
  )
  select array(
    select (select count(*) from placed p where p.bucket = b.bucket) from generate_series(0, 14) b(bucket) order by b.bucket)
$$;

-- Two histograms in one, or one without the other (p_sign -1). Null: nothing in it.
create or replace function hwqueue.add_histograms(p_a bigint[], p_b bigint[], p_sign int default 1) returns bigint[]
language sql immutable parallel safe
as $$
  select array(
    select coalesce(p_a[b.bucket], 0) + p_sign * coalesce(p_b[b.bucket], 0) from generate_series(1, 15) b(bucket) order by b.bucket)
$$;

-- The time that a part of those counted did not exceed (p_part 0.95: 95 of 100), in seconds, as if they were spread evenly within each
-- bucket; null: nothing was counted.
create or replace function hwqueue.histogram_quantile(p_counts bigint[], p_part double precision) returns double precision
language sql immutable parallel safe
as $$
  select case when r.bucket = 15 then 86400 else r.above + (r.bound - r.above) * (r.wanted - r.before) / r.count end
  from (
    select c.bucket, c.count, hwqueue.histogram_bounds() as bounds, coalesce((hwqueue.histogram_bounds())[c.bucket - 1], 0) as above,
           (hwqueue.histogram_bounds())[c.bucket] as bound, sum(c.count) over (order by c.bucket) as until,
           sum(c.count) over (order by c.bucket) - c.count as before, p_part * sum(c.count) over () as wanted
    from unnest(p_counts) with ordinality c(count, bucket)
  ) r
  where r.count > 0 and r.until >= r.wanted
  order by r.bucket limit 1
$$;
