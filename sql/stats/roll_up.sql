-- Counts what ended since the last call (count_ended), about p_limit of it, so that nothing is ever counted twice or missed. Claims and
-- settlements write nothing for it: it reads what they leave behind, finished leases and attempts, by the time they ended.
-- Such a row may be committed long after that time, so the count goes only up to a moment before which nothing can come any more.
-- Whoever writes one takes its transaction's id before it reads the clock. So what can still come from before p_now is from
-- transactions with lower ids than this one's, which was taken after p_now; likewise what p_mark noted at an earlier call. Once they have
-- ended it is seen. Gives how far it has come, and whether there is more.
-- Locks: the caller holds p_mark and had no id before p_now; rows of minute_stat, requeued. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.roll_up(p_limit int, p_mark hwqueue.reap_mark, p_now timestamptz, p_shard int,
                                           out counted_to timestamptz, out more boolean)
language plpgsql volatile
as $$
declare
  v_own xid8 := pg_current_xact_id();
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());  -- after the id
  v_safe timestamptz := case when v_oldest_running >= v_own then p_now
                             when v_oldest_running >= p_mark.noted_before then p_mark.noted_at else '-infinity' end;
  v_left int := p_limit;
  v_first timestamptz;
  v_until timestamptz;
begin
  counted_to := p_mark.counted_to;
  more := false;
  while counted_to < v_safe loop
    v_first := hwqueue.nth_ended(1, counted_to, v_safe, p_shard);
    if v_first is null then
      counted_to := v_safe;
      exit;
    end if;
    more := v_left <= 0;
    exit when more;
    v_until := least(v_safe, date_trunc('minute', v_first) + interval '1 minute');
    -- those that ended at the same instant as the last of them are counted, too; null: there are fewer
    v_until := least(v_until, hwqueue.nth_ended(v_left, v_first, v_until, p_shard) + interval '1 microsecond');
    v_left := v_left - hwqueue.count_ended(v_first, v_until, p_shard);
    counted_to := v_until;
  end loop;
  delete from hwqueue.requeued r where r.shard_id = p_shard and r.finished_at < counted_to;
end
$$;

-- Before this, prune may delete what has ended: it has been counted, or nobody has counted it for an hour.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.counted_before(p_now timestamptz, p_shard int) returns timestamptz
language sql stable
as $$
  select greatest(p_now - interval '1 hour', (
    select m.counted_to from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1))
$$;

-- Removes minutes that are older than a day. The last one before that stays: the first that is left is read as the difference to it.
-- Locks: rows of minute_stat, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_minutes(p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.minute_stat m where m.ctid = any (array(
    select o.place
    from hwqueue.queue q
    cross join lateral (
      select x.minute from hwqueue.minute_stat x
      where x.shard_id = p_shard and x.queue_id = q.queue_id and x.minute < p_now - interval '1 day'
      order by x.minute desc limit 1) k
    cross join lateral (
      select x.ctid as place from hwqueue.minute_stat x
      where x.shard_id = p_shard and x.queue_id = q.queue_id and x.minute < k.minute
      order by x.minute limit p_limit for update skip locked) o
    where q.shard_id = p_shard limit p_limit));
end
$$;
