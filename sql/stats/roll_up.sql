-- Counts what ended since the last call (count_ended), about p_limit of it and 60 minutes in which anything did, so that nothing is ever
-- counted twice or missed. Claims and
-- settlements write nothing for it: it reads what they leave behind, finished leases and attempts, by the time they ended.
-- Such a row may be committed long after that time, so the count goes only up to a moment before which nothing can come any more.
-- Whoever writes one takes its transaction's id before it reads the clock. So what can still come from before p_now is from
-- transactions with lower ids than this one's, which was taken after p_now; likewise what an earlier call has noted. Once they have ended
-- it is seen. Gives the mark moved on, and whether there is more.
-- Locks: the caller holds p_mark and had no id before p_now; rows of minute_stat, requeued.
create or replace function hwqueue.roll_up(p_limit int, p_mark hwqueue.reap_mark, p_now timestamptz, p_shard int,
                                           out mark hwqueue.reap_mark, out more boolean)
language plpgsql volatile
as $$
declare
  v_own xid8 := pg_current_xact_id();
  v_oldest xid8 := pg_snapshot_xmin(pg_current_snapshot());  -- after the id
  v_safe timestamptz := '-infinity';
  v_left int := p_limit;
  v_stretches int := 60;  -- each takes milliseconds, however little it is
  v_first timestamptz;
  v_until timestamptz;
begin
  mark := p_mark;
  more := false;
  if v_oldest < p_mark.count_noted_before then
    v_oldest := hwqueue.oldest_ender();  -- it takes longer, and is rarely needed
  end if;
  if v_oldest >= v_own then
    v_safe := p_now;
  elsif v_oldest >= p_mark.count_noted_before then
    v_safe := p_mark.count_noted_at;
  end if;
  if v_oldest >= p_mark.count_noted_before or v_own < p_mark.count_noted_before then  -- used up, or of another server
    mark.count_noted_at := p_now;
    mark.count_noted_before := v_own;
  end if;
  while mark.counted_to < v_safe loop
    v_first := hwqueue.nth_ended(1, mark.counted_to, v_safe, p_shard);
    if v_first is null then
      mark.counted_to := v_safe;
      exit;
    end if;
    more := v_left <= 0 or v_stretches <= 0;
    exit when more;
    v_stretches := v_stretches - 1;
    v_until := least(v_safe, date_trunc('minute', v_first) + interval '1 minute');
    -- those that ended at the same instant as the last of them are counted, too; null: there are fewer
    v_until := least(v_until, hwqueue.nth_ended(v_left, v_first, v_until, p_shard) + interval '1 microsecond');
    v_left := v_left - hwqueue.count_ended(v_first, v_until, p_shard);
    mark.counted_to := v_until;
  end loop;
  delete from hwqueue.requeued r where r.shard_id = p_shard and r.finished_at < mark.counted_to;
end
$$;

-- The oldest running transaction that may bring something that has ended already, at most the next one that will begin. Whoever ends something
-- has a lock on the table claim before it reads the clock, more than one for reading, and keeps it to the end. So transactions without
-- do not matter: what they will end ends later than this.
create or replace function hwqueue.oldest_ender() returns xid8
language sql volatile
as $$ select hwqueue.oldest_holder('hwqueue.claim') $$;

-- Removes minutes that are older than a day. The last one before that stays: the first that is left is read as the difference to it.
-- Locks: rows of minute_stat, skip locked.
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
