-- What time brings: scheduled leases that fall due, deadlines that pass, claims that expire.
--
-- reap (upkeep/reap) calls all of it, one leader at a time; claims call promote_if_due, and when they find
-- nothing expire_claim and reap_deadlines (after_claim in claim/head). An example: a lease is scheduled for
-- 10:00. The first claim or reap after that moves its entry from `scheduled` to `ready`, with a new position.
--
-- A session scans for due leases at most ten times a second for the same queues, and whenever it would
-- find nothing otherwise. The setting hwqueue.recent_due_scan of the session records the last scan,
-- which costs no row and no statement. A session that sets it by hand only delays what its own claims
-- make ready.
--
-- Invariant: entries and claims that another session holds are skipped, not waited for; a later call
-- finds them.

-- The value of that setting when the session has scanned these queues in the tenth of a second of p_now.
-- A SQL function of one expression, so the planner inlines it.
create or replace function hwqueue.recent_due_scan(p_queues text[], p_now timestamptz) returns text
language sql stable
as $$
  select (date_part('epoch', p_now) * 10)::bigint || '/'
    || case when cardinality(p_queues) = 1 then p_queues[1] else p_queues::text end
$$;

-- Calls promote_due, unless the session has scanned these queues just now. Returns the number of leases
-- that it moved; null: it has scanned.
-- Locks as promote_due.
create or replace function hwqueue.promote_if_due(p_queues text[], p_queue_ids int[], p_limit int,
  p_folds boolean, p_now timestamptz) returns int
language plpgsql volatile
as $$
begin
  if current_setting('hwqueue.recent_due_scan', true) = hwqueue.recent_due_scan(p_queues, p_now) then
    return null;
  end if;
  perform set_config('hwqueue.recent_due_scan', hwqueue.recent_due_scan(p_queues, p_now), false);
  return hwqueue.promote_due(p_queue_ids, p_limit, p_folds, p_now);
end
$$;

-- Makes scheduled leases ready whose time has come, oldest first, at most p_limit, and returns their
-- number. Mostly there are none, and then it costs one index probe. Those that have lanes go into the next
-- one. p_folds: it folds changes of lanes, too, and counts who passed. p_from: where the scan starts; null:
-- at reap_cursor's. Locks: their entries, skip locked; then their lease rows; then classes that waited
-- for them, skip locked; as fold_lanes.
create or replace function hwqueue.promote_due(p_queue_ids int[], p_limit int, p_folds boolean,
  p_now timestamptz, p_from timestamptz default null)
returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz;
  v_count int;
  v_waiting bigint[];
  v_laned tid[];
begin
  perform 1 from hwqueue.scheduled s
  where s.queue_id = any (p_queue_ids) and s.available_at <= p_now
    and s.available_at >= coalesce(p_from, (
    select m.scheduled_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity') limit 1;
  if not found then
    return case when p_folds then (hwqueue.fold_changes(p_limit, null, '{}')).passed else 0 end;
  end if;
  v_from := coalesce(p_from, (
    select m.scheduled_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity');
  with due as materialized (
    select d.*
    -- each queue once: skip locked does not skip the session's own locks
    from (select distinct u.queue_id from unnest(p_queue_ids) u(queue_id)) q
    cross join lateral (
      select x.ctid as row_ctid, x.available_at, x.turn from hwqueue.scheduled x
      where x.queue_id = q.queue_id and x.available_at >= v_from and x.available_at <= p_now
      order by x.available_at limit p_limit for update skip locked
    ) d
    order by d.available_at limit p_limit
  ), gone as (
    delete from hwqueue.scheduled s where s.ctid = any (array(
      select d.row_ctid from due d where d.turn is null))
    returning s.*
  ), entry as (
    insert into hwqueue.ready as r (queue_id, tier, attempt_count, claim_count, rank, class_id,
        lease_id, eligible_at, deadline)
    -- one whose deadline has passed must not lie below reap_cursor.deadlines_from
    select d.queue_id, d.tier, d.attempt_count, d.claim_count, d.rank, d.class_id, d.lease_id,
           case when d.deadline <= p_now then p_now else d.available_at end, d.deadline
    from gone d order by d.available_at
    returning r.lease_id, r.position
  ), placed as (
    update hwqueue.lease l set position = e.position from entry e where l.lease_id = e.lease_id
  )
  select (select count(*) from due d),
         (select array_agg(c.class_id) from gone g
          join hwqueue.placement_class c on c.class_id = g.class_id where c.waits),
         (select array_agg(d.row_ctid order by d.available_at, d.turn) from due d where d.turn is not null)
  into v_count, v_waiting, v_laned;
  if v_waiting is not null then
    perform hwqueue.wake_classes_of_entries(v_waiting);
  end if;
  if v_laned is not null then
    perform hwqueue.pass_on(v_laned, null, p_now, false);
  end if;
  return v_count + case when p_folds then (hwqueue.fold_changes(p_limit, null, '{}')).passed else 0 end;
end
$$;

-- Ends claims that have expired, oldest first, and returns their number. One
-- attempt is used; the lease is put back at once while attempts are left. Claims whose node is locked
-- are left to the next call, and use up none of p_limit. It stops after p_until, by the real clock, but
-- not before it has ended one. Locks: node_state of the nodes where room is allocated, then the claims,
-- all skip locked; the lease rows.
create or replace function hwqueue.expire_claims(p_limit int, p_now timestamptz,
  p_from timestamptz, p_until timestamptz)
returns int
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  for v_claim in
    select c.*
    from hwqueue.claim c
    where c.check_at between p_from and p_now and c.expires_at <= p_now
      and (c.assignment is null or hwqueue.lock_free_node(c.node_id))
    order by c.check_at limit p_limit for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock());
    v_count := v_count + 1;
    exit when clock_timestamp() >= p_until;
  end loop;
  return v_count;
end
$$;

-- Ends one expired claim. p_now: read after the claim was locked, which roll_up relies on.
-- Locks: the caller holds the claim, and node_state if room is allocated for it; the lease row. Not
-- idempotent.
create or replace function hwqueue.expire_claim(p_claim hwqueue.claim, p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  perform hwqueue.note_leases('claim_expired', array[p_claim.lease_id],
    case when p_claim.is_reserved then 'reserved in vain: its node did not fetch it'
      else format('attempt %s expired, its node gave no heartbeat', p_claim.attempt) end,
    jsonb_build_object('attempt', p_claim.attempt, 'expires_at', p_claim.expires_at), p_claim.node_id);
  perform hwqueue.end_claim(p_claim, 'expired',
    jsonb_build_object('reason', 'claim_expired', 'expires_at', p_claim.expires_at),
    case when hwqueue.next_attempt_at(p_claim.lease_id, p_claim.attempt, p_now) is not null
      then p_now end, p_now);
end
$$;

-- Ends a claim that ran longer than its lease may, as one that expired: an attempt is used, and the lease is
-- tried again while attempts are left. Returns the new state.
-- Locks: as end_claim. Not idempotent.
create or replace function hwqueue.end_overrun(p_claim hwqueue.claim, p_now timestamptz) returns text
language plpgsql volatile
as $$ begin
  return hwqueue.end_claim(p_claim, 'expired', jsonb_build_object('reason', 'run_time_exceeded', 'max_run', (
      select extract(epoch from c.max_run) from hwqueue.placement_class c
      where c.class_id = p_claim.class_id)),
    hwqueue.next_attempt_at(p_claim.lease_id, p_claim.attempt, p_now), p_now);
end $$;

-- Checks claims that are due for it, at most p_limit. It asks those to stop that have run for as long as
-- their leases may (max_run), when their first timeout has passed, at the earliest; it ends those that go on
-- for a whole claim timeout after that, or after the grace that a preemption gave them. Of those that live on
-- it moves check_at to their expires_at, or to when they will have run for as long as they may, if that comes
-- first: heartbeats do not update check_at, to spare its index. It does not move it past the end of the
-- claim, because scans for expired claims go by check_at. Returns how many it has asked or ended, or moved,
-- whichever is more.
-- Locks: claims; node_state of those that it ends, before; all skip locked; the lease rows.
create or replace function hwqueue.check_claims(p_limit int, p_now timestamptz,
  p_from timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_asked uuid[] := array(
    select c.lease_id from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    where c.check_at between p_from and p_now and c.is_reserved is null
      and coalesce(c.stop_requested_at > p_now, true) and c.claimed_at + k.max_run <= p_now
    order by c.check_at limit p_limit for update of c skip locked);
  v_claim hwqueue.claim;
  v_stopped int := cardinality(v_asked);
  v_alive uuid[];
begin
  update hwqueue.claim c
  set stop_requested_at = p_now, stop_reason = 'run_time_exceeded', stop_by = p_now + c.claim_timeout,
      stop_detail = 'it runs longer than max_run'
  where c.lease_id = any (v_asked);
  perform hwqueue.note_leases('claim_stop_requested', v_asked, 'asked to stop: it runs longer than max_run',
    '{"reason": "run_time_exceeded"}');
  perform hwqueue.wake_node(n.node_id, n.login)
  from (select distinct c.node_id, c.login from hwqueue.claim c
        where c.lease_id = any (v_asked)) n;
  for v_claim in
    select c.* from hwqueue.claim c
    join hwqueue.node_state s on s.node_id = c.node_id join hwqueue.queue q on q.queue_id = c.queue_id
    where c.stop_requested_at is not null and (c.stop_reason = 'run_time_exceeded' and c.stop_by <= p_now
      or c.stop_reason in ('tier_preempted', 'cancelled')  -- its tenant chooses the one, operators the other
        and c.stop_by + least(c.claim_timeout, q.claim_timeout) <= p_now)
    limit p_limit - v_stopped for no key update of s skip locked for update of c skip locked
  loop
    if v_claim.stop_reason = 'run_time_exceeded' then
      perform hwqueue.end_overrun(v_claim, hwqueue.clock());
    else
      perform hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
    end if;
    v_stopped := v_stopped + 1;
  end loop;
  v_alive := array(
    select c.lease_id
    from hwqueue.claim c
    where c.check_at between p_from and p_now and c.expires_at > p_now
    order by c.check_at limit p_limit
    for update skip locked);
  update hwqueue.claim c
  set check_at = case when k.max_run is null or c.stop_requested_at <= p_now then c.expires_at
      else least(c.expires_at, greatest(p_now, c.claimed_at + k.max_run)) end
  from hwqueue.placement_class k
  where k.class_id = c.class_id and c.lease_id = any (v_alive);
  return greatest(v_stopped, cardinality(v_alive));
end
$$;

-- Fails leases that were not claimed by their deadline, and returns their number: ready ones, and with p_from
-- scheduled ones, too, before they fall due. p_from: where the scan of those that are ready starts; null: at
-- reap_cursor's. Locks: their entries, skip locked.
create or replace function hwqueue.reap_deadlines(p_limit int, p_now timestamptz,
  p_from timestamptz default null) returns int
language plpgsql volatile
as $$
declare
  v_places tid[] := array(  -- by themselves: mostly there are none
    select x.ctid from hwqueue.ready x
    where x.deadline is not null and greatest(x.deadline, x.eligible_at) between coalesce(p_from, (
        select m.deadlines_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity')
      and p_now
    order by greatest(x.deadline, x.eligible_at) limit p_limit for update skip locked);
  v_late uuid[];
begin
  if v_places <> '{}' then
    with gone as (delete from hwqueue.ready r where r.ctid = any (v_places) returning r.lease_id)
    select array_agg(g.lease_id) into v_late from gone g;
  end if;
  if p_from is not null then
    with gone as (
      delete from hwqueue.scheduled s where s.ctid = any (array(
        select x.ctid from hwqueue.scheduled x where x.deadline <= p_now
        order by x.deadline limit p_limit - coalesce(cardinality(v_late), 0) for update skip locked))
      returning s.lease_id
    )
    select v_late || array_agg(g.lease_id) into v_late from gone g;
  end if;
  if v_late is not null then
    perform hwqueue.lease_ended(v_late, 'failed', null, 'not claimed by its deadline');
  end if;
  return coalesce(cardinality(v_late), 0);
end
$$;
