-- What becomes due: scheduled leases, deadlines, and claims that have expired.

-- Scheduled leases whose time has come are made ready by reap, by claims that would find nothing otherwise, and by other claims now and
-- then: a session looks for them at most ten times a second, for all that it claims from the same queues in between. That it has looked
-- is noted in a setting of the session, hwqueue.recent_due_scan, which costs no row and no statement; who sets it by hand delays what his own
-- claims make ready.

-- What the setting says when the session has looked for these queues in the tenth of a second of p_now.
-- Locks: none. Raises: nothing. Idempotent: yes. A SQL function of one expression: it is put in place of its call.
create or replace function hwqueue.recent_due_scan(p_queues text[], p_now timestamptz, p_shard int) returns text
language sql stable
as $$
  select (date_part('epoch', p_now) * 10)::bigint || '/' || p_shard || case when cardinality(p_queues) = 1 then p_queues[1] else p_queues::text end
$$;

-- Makes due leases of queues ready as promote_due does, unless the session has looked for them. Gives how many; null: it has.
-- Locks, raises: as promote_due. Idempotent: yes.
create or replace function hwqueue.promote_if_due(p_queues text[], p_queue_ids int[], p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
begin
  if current_setting('hwqueue.recent_due_scan', true) = hwqueue.recent_due_scan(p_queues, p_now, p_shard) then
    return null;
  end if;
  perform set_config('hwqueue.recent_due_scan', hwqueue.recent_due_scan(p_queues, p_now, p_shard), false);
  return hwqueue.promote_due(p_queue_ids, p_limit, p_now, p_shard);
end
$$;

-- Makes scheduled leases claimable whose time has come, oldest first, at most p_limit of them. Mostly there are none, and every claim
-- asks: that is one look at the index.
-- p_from: where the scan starts; null: at the mark.
-- Locks: their entries, skip locked; then their lease rows; then classes that waited for them, skip locked.
create or replace function hwqueue.promote_due(p_queue_ids int[], p_limit int, p_now timestamptz, p_shard int, p_from timestamptz default null)
returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz;
  v_due hwqueue.scheduled[];
  v_waiting bigint[];
begin
  perform 1 from hwqueue.scheduled s
  where s.shard_id = p_shard and s.queue_id = any (p_queue_ids) and s.available_at <= p_now and s.available_at >= coalesce(p_from, (
    select m.scheduled_from from hwqueue.reap_cursor m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity')
  limit 1;
  if not found then
    return 0;
  end if;
  select m.scheduled_from into v_from from hwqueue.reap_cursor m where m.shard_id = p_shard order by m.version desc limit 1;
  v_from := coalesce(p_from, v_from, '-infinity');
  v_due := array(
    select d.entry
    from (select distinct u.queue_id from unnest(p_queue_ids) u(queue_id)) q  -- one's own locks are not skipped: each queue once
    cross join lateral (
      select s as entry, s.available_at from hwqueue.scheduled s
      where s.shard_id = p_shard and s.queue_id = q.queue_id and s.available_at >= v_from and s.available_at <= p_now
      order by s.available_at limit p_limit for update skip locked
    ) d
    order by d.available_at limit p_limit);
  if v_due = '{}' then
    return 0;  -- held by others
  end if;
  with gone as (
    delete from hwqueue.scheduled s using unnest(v_due) d
    where s.shard_id = p_shard and s.queue_id = d.queue_id and s.available_at = d.available_at and s.lease_id = d.lease_id
    returning s.class_id
  )
  select array_agg(c.class_id) into v_waiting
  from gone g join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = g.class_id
  where c.waits;
  with entry as (
    insert into hwqueue.ready as r (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
    -- one that is too late already must not come below the mark of the deadlines
    select p_shard, d.queue_id, d.tier, d.attempt_count, d.claim_count, d.rank, d.class_id, d.lease_id,
           case when d.deadline <= p_now then p_now else d.available_at end, d.deadline
    from unnest(v_due) d order by d.available_at
    returning r.lease_id, r.position
  )
  update hwqueue.lease l set position = e.position
  from entry e where l.shard_id = p_shard and l.lease_id = e.lease_id;
  if v_waiting is not null then
    perform hwqueue.wake_classes_of_entries(v_waiting, p_shard);
  end if;
  return cardinality(v_due);
end
$$;

-- What a node that finds nothing to claim does for others: ends a few claims of nodes that have been silent for twice their timeout,
-- and only such as need no lock of their node: its transaction may stay open. Should nobody call reap, these come back all the same.
-- It looks at no more than the 20 oldest.
-- Locks: the claims, skip locked; the lease rows.
create or replace function hwqueue.reap_claims(p_limit int, p_node uuid, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz := hwqueue.claims_scan_start(p_shard);
  v_oldest uuid[];
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  v_oldest := array(
    select c.lease_id from hwqueue.claim c
    where c.shard_id = p_shard and c.check_at between v_from and p_now order by c.check_at limit 20);
  if v_oldest = '{}' then
    return 0;
  end if;
  for v_claim in
    select c.*
    from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.lease_id = any (v_oldest) and c.assignment is null and c.node_id <> p_node
      and c.check_at + c.claim_timeout <= p_now and c.expires_at + q.reap_grace <= p_now
    limit p_limit
    for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- Ends claims that have expired (plus the queue's grace), oldest first: one attempt used, put back at once while attempts are left.
-- A node that is at work is left alone, and its claims use up none of the limit: the next reap will see. Stops after p_until, by the real
-- clock, but not before it has ended one.
-- Locks: node_state of the nodes where something was set aside, then the claims, all skip locked: the claim of a node at work is not held; the
-- lease rows. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.expire_claims(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz, p_until timestamptz)
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
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.assignment is null and c.expires_at + q.reap_grace <= p_now
    order by c.check_at limit p_limit
    for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
    if clock_timestamp() >= p_until then
      return v_count;
    end if;
  end loop;
  for v_claim in
    select c.*
    from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    join hwqueue.node_state s on s.shard_id = c.shard_id and s.node_id = c.node_id
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.assignment is not null and c.expires_at + q.reap_grace <= p_now
    order by c.check_at limit p_limit - v_count
    for no key update of s skip locked for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
    exit when clock_timestamp() >= p_until;
  end loop;
  return v_count;
end
$$;

-- Ends one claim that nobody heartbeats. p_now: read after the claim was locked (roll_up rests on it).
-- Locks: the caller holds the claim, and node_state where something was set aside; the lease row. Idempotent: no.
create or replace function hwqueue.expire_claim(p_claim hwqueue.claim, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  perform hwqueue.note_leases('claim_expired', array[p_claim.lease_id], format('attempt %s expired, its node gave no heartbeat', p_claim.attempt), p_shard,
    jsonb_build_object('attempt', p_claim.attempt, 'expires_at', p_claim.expires_at), p_claim.node_id);
  perform hwqueue.end_claim(p_claim, 'expired', jsonb_build_object('reason', 'claim_expired', 'expires_at', p_claim.expires_at),
    case when hwqueue.next_attempt_at(p_claim.lease_id, p_claim.attempt, p_now, p_shard) is not null then p_now end, p_now, p_shard);
end
$$;

-- Lets reap look again, when they expire, at claims that it meets although they live: heartbeats do not touch the index that it
-- reads. Not when their grace is over: whoever asks for expired claims finds them by check_at. Gives their number.
-- Locks: the claims, skip locked.
create or replace function hwqueue.postpone_checks(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_alive uuid[];
begin
  v_alive := array(
    select c.lease_id
    from hwqueue.claim c
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.expires_at > p_now
    order by c.check_at limit p_limit
    for update skip locked);
  update hwqueue.claim c set check_at = c.expires_at where c.shard_id = p_shard and c.lease_id = any (v_alive);
  return cardinality(v_alive);
end
$$;

-- Fails leases that were not claimed by their deadline. Scheduled ones are looked after by reap alone: when they fall due, they are
-- here. p_from: where the scan starts; null: at the mark.
-- Locks: their entries, skip locked.
create or replace function hwqueue.reap_deadlines(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz default null) returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz := coalesce(p_from, (
    select m.deadlines_from from hwqueue.reap_cursor m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity');
  v_late hwqueue.ready[];
begin
  v_late := array(
    select r from hwqueue.ready r
    where r.shard_id = p_shard and r.deadline is not null and greatest(r.deadline, r.eligible_at) between v_from and p_now
    order by greatest(r.deadline, r.eligible_at) limit p_limit for update skip locked);
  if v_late = '{}' then
    return 0;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  delete from hwqueue.ready r using unnest(v_late) v
  where r.shard_id = p_shard and r.queue_id = v.queue_id and r.tier = v.tier and r.rank = v.rank and r.position = v.position;
  return hwqueue.fail_late(array(select v.lease_id from unnest(v_late) v), hwqueue.clock(), p_shard);
end
$$;

-- The same for leases that are not due yet.
-- Locks: their entries, skip locked.
create or replace function hwqueue.reap_scheduled(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_late hwqueue.scheduled[];
begin
  v_late := array(
    select s from hwqueue.scheduled s where s.shard_id = p_shard and s.deadline <= p_now
    order by s.deadline limit p_limit for update skip locked);
  if v_late = '{}' then
    return 0;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  delete from hwqueue.scheduled s using unnest(v_late) v
  where s.shard_id = p_shard and s.queue_id = v.queue_id and s.available_at = v.available_at and s.lease_id = v.lease_id;
  return hwqueue.fail_late(array(select v.lease_id from unnest(v_late) v), hwqueue.clock(), p_shard);
end
$$;

-- Finishes leases whose entries the caller has locked and deleted; p_now: read after that. Gives their number.
-- Locks: none but the entries. Idempotent: no.
create or replace function hwqueue.fail_late(p_leases uuid[], p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
begin
  perform hwqueue.end_waiting(p_leases, 'failed', null, p_now, p_shard);
  perform hwqueue.note_leases('lease_deadline_exceeded', p_leases, 'not claimed by its deadline', p_shard);
  return cardinality(p_leases);
end
$$;
