-- Whose turn it is to reap, and where the scans start. What was reaped stays in the indexes until vacuum may remove it, which an
-- old snapshot anywhere on the server forbids; a scan from the start would walk all of it. So scans start at marks: nothing lives
-- below one, and nothing can come. Whoever writes an entry takes its transaction's id before it reads the clock, and the entry
-- is due no earlier than that: so what could still come below a moment comes from transactions that had an id by then.

-- Whether the caller should reap, the newest mark, and whether the caller holds it and may move it on. It should not reap when
-- somebody did less than p_unless_within ago, nor when somebody is at it, unless that one's transaction has been open for long.
-- A transaction that has an id already leaves the mark alone: its id says nothing about p_now.
-- Locks: the newest mark, skip locked.
create or replace function hwqueue.take_reap_turn(p_unless_within interval, p_now timestamptz, p_shard int,
                                                  out goes boolean, out holds boolean, out mark hwqueue.reap_mark)
language plpgsql volatile
as $$
declare
  v_held bigint;
begin
  select m.* into mark from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1;
  -- a mark of the future: the clock was set back
  goes := mark.version is null or p_now >= mark.reaped_at + p_unless_within or p_now < mark.reaped_at;
  holds := false;
  if not goes or pg_current_xact_id_if_assigned() is not null then
    return;
  end if;
  if mark.version is null then
    insert into hwqueue.reap_mark (shard_id, version) select s.shard_id, 0 from hwqueue.shard s where s.shard_id = p_shard
    on conflict do nothing;
  end if;
  select m.version into v_held from hwqueue.reap_mark m
  where m.shard_id = p_shard order by m.version desc limit 1 for update skip locked;
  if v_held is null then
    goes := p_unless_within = '0' or p_now > mark.reaped_at + greatest(10 * p_unless_within, interval '1 minute');
  elsif v_held is distinct from mark.version then
    -- somebody has just been at it, or this is the first
    goes := p_unless_within = '0' or mark.version is null;
    select m.* into mark from hwqueue.reap_mark m where m.shard_id = p_shard and m.version = v_held;
  end if;
  holds := v_held is not null;
end
$$;

-- Writes down that the caller has reaped, and moves the marks on: up to what was noted at an earlier call once all transactions
-- of that time have ended, but not beyond anything that is still there. p_from: the mark as this call used it.
-- Locks: the caller holds p_mark; it took its id after p_now. Idempotent: no.
create or replace function hwqueue.move_reap_mark(p_mark hwqueue.reap_mark, p_from hwqueue.reap_mark, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_next hwqueue.reap_mark := p_from;
  v_seen record;
begin
  -- one statement, one snapshot: what those who have ended brought is seen
  select pg_snapshot_xmin(s.snapshot) >= p_mark.noted_before as ended, pg_snapshot_xmax(s.snapshot) < p_mark.noted_before as foreign_id,
    (select c.check_at from hwqueue.claim c
     where c.shard_id = p_shard and c.check_at >= p_from.claims_from and c.check_at < p_mark.noted_at
     order by c.check_at limit 1) as claim_at,
    (select greatest(r.deadline, r.eligible_at) from hwqueue.ready r
     where r.shard_id = p_shard and r.deadline is not null
       and greatest(r.deadline, r.eligible_at) >= p_from.deadlines_from and greatest(r.deadline, r.eligible_at) < p_mark.noted_at
     order by greatest(r.deadline, r.eligible_at) limit 1) as deadline_at,
    (select min(f.available_at) from hwqueue.queue q
     cross join lateral (
       select e.available_at from hwqueue.scheduled e
       where e.shard_id = p_shard and e.queue_id = q.queue_id and e.available_at >= p_from.scheduled_from and e.available_at < p_mark.noted_at
       order by e.available_at limit 1) f
     where q.shard_id = p_shard) as scheduled_at
  into v_seen from (select pg_current_snapshot() as snapshot) s;
  v_next.version := p_mark.version + 1;
  v_next.reaped_at := p_now;
  v_next.claims_from := least(case when v_seen.ended then p_mark.noted_at else p_mark.claims_from end, v_seen.claim_at);
  v_next.deadlines_from := least(case when v_seen.ended then p_mark.noted_at else p_mark.deadlines_from end, v_seen.deadline_at);
  v_next.scheduled_from := least(case when v_seen.ended then p_mark.noted_at else p_mark.scheduled_from end, v_seen.scheduled_at);
  if v_seen.ended or v_seen.foreign_id then
    v_next.noted_at := p_now;
    v_next.noted_before := pg_current_xact_id();
  end if;
  delete from hwqueue.reap_mark m where m.shard_id = p_shard and m.version = p_mark.version;
  insert into hwqueue.reap_mark select v_next.*;
end
$$;

-- How long judging, and ending claims, each go on in one call; each does one step at least. A quarter of statement_timeout, where that is less.
-- Of the real clock: it is about what the server can do, not about what is due.
create or replace function hwqueue.upkeep_budget() returns interval
language sql stable
as $$ select least(interval '1 second', nullif(current_setting('statement_timeout'), '0')::interval / 4) $$;
