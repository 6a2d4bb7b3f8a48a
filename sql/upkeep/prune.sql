-- Removing what is no longer needed.

-- Empties the days of the ring whose events are older than the shard's event_days whole days. A reader or a long transaction may be in the way: after a
-- tenth of a second it is left to the next call. Gives the number of days emptied.
-- A day that new events have come into (prune was not called for two weeks) stays until these are old, too.
-- Locks: partitions of event, exclusively, till the end of the transaction: readers of events wait.
create or replace function hwqueue.prune_events(p_now timestamptz, p_shard int) returns int
language plpgsql volatile set lock_timeout = '100ms'
as $$
declare
  v_keep_from timestamptz := to_timestamp((hwqueue.event_day(p_now) - (
    select s.event_days from hwqueue.shard s where s.shard_id = p_shard)) * 86400);
  v_slot smallint;
  v_newest timestamptz;
  v_count int := 0;
begin
  for v_slot in 0..15 loop
    select e.at into v_newest from hwqueue.event e where e.shard_id = p_shard and e.slot = v_slot order by e.event_id desc limit 1;
    continue when (v_newest < v_keep_from) is not true;
    -- of other shards, too: read once a day
    continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
    begin
      execute format('lock table hwqueue.event_%s in access exclusive mode', v_slot);  -- a table's name cannot be a parameter
      -- again: one may have come into the day while the lock was waited for
      continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
      execute format('truncate hwqueue.event_%s', v_slot);
      v_count := v_count + 1;
    exception when lock_not_available then
      null;
    end;
  end loop;
  return v_count;
end
$$;

-- Removes nodes that were deregistered 30 days ago. Their node_state stays: its epoch fences whoever slept for so long.
-- Ends after the node with which p_limit eligibilities have gone, too.
-- Locks: node rows, skip locked.
create or replace function hwqueue.prune_nodes(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_node_id uuid;
  v_gone int := 0;
  v_rows int;
  v_hanging int := 0;
begin
  for v_node_id in
    select n.node_id from hwqueue.node n
    where n.shard_id = p_shard and n.deregistered_at < p_now - interval '30 days'
    order by n.deregistered_at limit p_limit for update skip locked
  loop
    delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.node_id = v_node_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.node_candidates k where k.shard_id = p_shard and k.node_id = v_node_id;
    delete from hwqueue.node n where n.shard_id = p_shard and n.node_id = v_node_id;
    v_gone := v_gone + 1;
    v_hanging := v_hanging + v_rows;
    exit when v_hanging >= p_limit;
  end loop;
  return v_gone;
end
$$;

-- Whose turn it is to prune: one row a shard says when somebody last did, and who holds it is at it.

-- Whether somebody pruned less than p_unless_within ago. A mark of the future does not count: the clock was set back.
create or replace function hwqueue.pruned_within(p_unless_within interval, p_now timestamptz, p_shard int) returns boolean
language sql stable
as $$
  select exists (select 1 from hwqueue.prune_cursor m
                 where m.shard_id = p_shard and m.pruned_at <= p_now and m.pruned_at > p_now - p_unless_within)
$$;

-- Whether the caller should prune, and the mark, if the caller holds it. It should not when somebody did less than p_unless_within
-- ago, nor when somebody is at it, unless that one's transaction has been open for long. Without a span it always should.
-- Locks: the mark, skip locked.
create or replace function hwqueue.lead_prune(p_unless_within interval, p_now timestamptz, p_shard int,
                                                   out goes boolean, out mark hwqueue.prune_cursor)
language plpgsql volatile
as $$
begin
  if not exists (select 1 from hwqueue.prune_cursor m where m.shard_id = p_shard) then  -- a new shard
    insert into hwqueue.prune_cursor (shard_id) select s.shard_id from hwqueue.shard s where s.shard_id = p_shard on conflict do nothing;
  end if;
  select m.* into mark from hwqueue.prune_cursor m where m.shard_id = p_shard for update skip locked;
  goes := p_unless_within = '0' or not hwqueue.pruned_within(
    case when found then p_unless_within else greatest(10 * p_unless_within, interval '1 minute') end, p_now, p_shard);
end
$$;

-- What may be unused is found by looking at it in turn: p_limit classes and profiles a call, from where the last call ended, at the end
-- from the start. Only who holds the mark does it (lead_prune), and notes there that it has pruned.
-- Locks: class and profile rows, skip locked.
create or replace function hwqueue.prune_unused(p_mark hwqueue.prune_cursor, p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_next_class bigint;
  v_next_profile bigint;
begin
  if p_mark.shard_id is null then
    return;
  end if;
  v_next_class := hwqueue.retire_classes(p_mark.class_id, p_limit, p_now, p_shard);
  v_next_profile := hwqueue.prune_profiles(p_mark.profile_id, p_limit, p_now, p_shard);
  update hwqueue.prune_cursor m set class_id = v_next_class, profile_id = v_next_profile, pruned_at = p_now where m.shard_id = p_shard;
end
$$;

-- Marks classes after p_after that no lease refers to, so that spawns do not find them any more: step 1 of stamp_retired.
-- Gives where to go on.
-- Locks: class rows, skip locked.
create or replace function hwqueue.retire_classes(p_after bigint, p_limit int, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after order by c.class_id offset p_limit - 1 limit 1);
  v_unused bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after and c.class_id <= coalesce(v_last, 9223372036854775807)
      and c.retired_at is null and c.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = c.class_id)
    for update of c skip locked);
begin
  update hwqueue.placement_class c set retired_at = p_now where c.shard_id = p_shard and c.class_id = any (v_unused);
  return coalesce(v_last, 0);
end
$$;

-- Removes profiles after p_after that no node has any more, with what was judged for them. A registration that is about to use one
-- holds its row. Ends after the profile with which p_limit eligibilities have gone, too; gives where to go on.
-- Locks: profile rows, skip locked.
create or replace function hwqueue.prune_profiles(p_after bigint, p_limit int, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_last bigint := (
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after order by p.profile_id offset p_limit - 1 limit 1);
  v_profile_id bigint;
  v_rows int;
  v_hanging int := 0;
begin
  for v_profile_id in
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after and p.profile_id <= coalesce(v_last, 9223372036854775807)
      and p.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = p.profile_id)
      and not exists (select 1 from hwqueue.profile j where j.shard_id = p_shard and j.judged_as = p.profile_id)
    order by p.profile_id for update of p skip locked
  loop
    -- again, now that the row is held: a registration may have committed between the look and the lock
    continue when exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = v_profile_id)
               or exists (select 1 from hwqueue.profile j where j.shard_id = p_shard and j.judged_as = v_profile_id);
    delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.profile_id = v_profile_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = v_profile_id;
    delete from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = v_profile_id;
    v_hanging := v_hanging + v_rows;
    if v_hanging >= p_limit then
      return v_profile_id;
    end if;
  end loop;
  return coalesce(v_last, 0);
end
$$;

-- Deletes what dropped queues held, once nobody can still be spawning into them or claiming from them: waiting and finished leases,
-- about p_limit a call, then classes, at last the queue itself. What runs is waited for. Gives the number of leases and classes.
-- Locks: queue rows, entries, outcomes, class and profile rows: all skip locked; lease rows.
create or replace function hwqueue.purge_queues(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_queue_id int;
  v_left int := p_limit;
begin
  for v_queue_id in
    select q.queue_id from hwqueue.queue q
    where q.shard_id = p_shard and q.dropped_at is not null and q.dropped_before <= v_oldest_running
    order by q.dropped_at limit p_limit for update skip locked
  loop
    v_left := v_left - hwqueue.purge_waiting(v_queue_id, v_left, p_shard);
    v_left := v_left - hwqueue.delete_leases(array(
      select o.lease_id from hwqueue.outcome o
      where o.shard_id = p_shard and o.queue_id = v_queue_id limit v_left for update skip locked), p_shard);
    exit when v_left <= 0;
    -- one statement, one snapshot: a lease that is in none of these does not exist
    if not exists (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = v_queue_id)
       and not exists (select 1 from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = v_queue_id)
       and not exists (select 1 from hwqueue.outcome o where o.shard_id = p_shard and o.queue_id = v_queue_id)
       and not exists (select 1 from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue_id) then
      v_left := v_left - hwqueue.delete_classes(array(
        select c.class_id from hwqueue.placement_class c
        where c.shard_id = p_shard and c.queue_id = v_queue_id limit v_left for update skip locked), v_left, p_shard);
      continue when exists (select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.queue_id = v_queue_id);
      continue when not hwqueue.purge_profiles(v_queue_id, p_shard);
      delete from hwqueue.minute_stat m where m.shard_id = p_shard and m.queue_id = v_queue_id;
      delete from hwqueue.low_water w where w.shard_id = p_shard and w.queue_id = v_queue_id;
      delete from hwqueue.queue_signal s where s.shard_id = p_shard and s.queue_id = v_queue_id;
      delete from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue_id;
    end if;
  end loop;
  return p_limit - v_left;
end
$$;

-- Removes leases of a queue that wait in it. Gives their number.
-- Locks: their entries, skip locked.
create or replace function hwqueue.purge_waiting(p_queue_id int, p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_ready hwqueue.ready[];
  v_scheduled hwqueue.scheduled[];
begin
  v_ready := array(
    select r from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = p_queue_id
    order by r.tier, r.rank, r.position limit p_limit for update skip locked);
  delete from hwqueue.ready r using unnest(v_ready) v
  where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = v.tier and r.rank = v.rank and r.position = v.position;
  v_scheduled := array(
    select s from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = p_queue_id
    order by s.available_at limit p_limit - cardinality(v_ready) for update skip locked);
  delete from hwqueue.scheduled s using unnest(v_scheduled) v
  where s.shard_id = p_shard and s.queue_id = p_queue_id and s.available_at = v.available_at and s.lease_id = v.lease_id;
  return hwqueue.delete_leases(array(select v.lease_id from unnest(v_ready) v union all select v.lease_id from unnest(v_scheduled) v), p_shard);
end
$$;

-- Forgets what profiles may run of a queue. False: another session, a claim that judges, say, holds a profile, whose row for the queue stays.
-- Locks: profile rows, skip locked.
create or replace function hwqueue.purge_profiles(p_queue_id int, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_profiles bigint[] := array(
    select s.profile_id from hwqueue.profile_queue s where s.shard_id = p_shard and s.queue_id = p_queue_id);
  v_held bigint[] := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = any (v_profiles) for no key update skip locked);
begin
  delete from hwqueue.profile_queue s where s.shard_id = p_shard and s.queue_id = p_queue_id and s.profile_id = any (v_held);
  return not exists (select 1 from hwqueue.profile_queue s where s.shard_id = p_shard and s.queue_id = p_queue_id);
end
$$;

-- Removes retired classes that no lease refers to, once nobody can come any more who found them: step 3 of stamp_retired. A class
-- that a late spawn used after all stays until that lease is gone; one that a lease runs as, although it has a class of its own by now
-- (assign_target_class), until it has run.
-- Locks: class rows, skip locked.
create or replace function hwqueue.prune_classes(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());
begin
  return hwqueue.delete_classes(array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before <= v_oldest_running
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = c.class_id)
      -- all of them at once: few classes are retired, and claims have no index by class
      and c.class_id <> all (array(select distinct u.class_id from hwqueue.claim u where u.shard_id = p_shard))
    order by c.retired_at limit p_limit for update of c skip locked), p_limit, p_shard);
end
$$;

-- Deletes classes with what was judged and estimated of them, up to the one with which p_limit such rows have gone. Gives their number. What is
-- remembered of their patience may be held by a claim: prune_fleets removes it.
-- A class stays as long as another session holds what was judged of it.
-- Locks: the caller holds the class rows; what was judged, skip locked.
create or replace function hwqueue.delete_classes(p_class_ids bigint[], p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_class_id bigint;
  v_deleted int := 0;
  v_rows int;
  v_hanging int := 0;
begin
  foreach v_class_id in array p_class_ids loop
    -- skip locked: a registration or a step for terms, in a transaction that may last, may have written them
    delete from hwqueue.profile_eligibility e where e.ctid = any (array(
      select o.ctid from hwqueue.profile_eligibility o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    get diagnostics v_rows = row_count;
    v_hanging := v_hanging + v_rows;
    delete from hwqueue.node_eligibility e where e.ctid = any (array(
      select o.ctid from hwqueue.node_eligibility o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    get diagnostics v_rows = row_count;
    v_hanging := v_hanging + v_rows;
    continue when exists (select 1 from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = v_class_id)
               or exists (select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = v_class_id);
    delete from hwqueue.class_fleet f where f.ctid = any (array(
      select o.ctid from hwqueue.class_fleet o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    continue when exists (select 1 from hwqueue.class_fleet f where f.shard_id = p_shard and f.class_id = v_class_id);
    delete from hwqueue.class_nodes m where m.shard_id = p_shard and m.class_id = v_class_id;
    delete from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = v_class_id;
    delete from hwqueue.class_rule r where r.shard_id = p_shard and r.class_id = v_class_id;
    delete from hwqueue.low_water w using hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id = v_class_id and w.shard_id = p_shard and w.queue_id = c.queue_id and w.class_id = v_class_id;
    delete from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_class_id;
    v_deleted := v_deleted + 1;
    exit when v_hanging >= p_limit;
  end loop;
  return v_deleted;
end
$$;

-- Removes finished leases whose queue keeps them no longer, the oldest of each queue first, once they have been
-- counted, or nobody has counted them for an hour.
-- Locks: their outcomes, skip locked; then the lease rows.
create or replace function hwqueue.prune_leases(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_counted_before timestamptz := greatest(p_now - interval '1 hour', (
    select m.counted_to from hwqueue.reap_cursor m where m.shard_id = p_shard order by m.version desc limit 1));
  v_old uuid[];
begin
  v_old := array(
    select f.lease_id
    from hwqueue.queue q
    cross join unnest(array['completed', 'cancelled', 'failed']) s(state)
    cross join lateral (
      select o.lease_id from hwqueue.outcome o
      where o.shard_id = p_shard and o.queue_id = q.queue_id and o.state = s.state
        and o.finished_at < least(v_counted_before, p_now - case when s.state = 'failed' then q.retain_failed else q.retain_completed end)
      order by o.finished_at limit p_limit
      for update skip locked
    ) f
    where q.shard_id = p_shard
    limit p_limit);
  return hwqueue.delete_leases(v_old, p_shard);
end
$$;

-- Deletes leases that nobody waits for, with what hangs on them. Gives their number.
-- Locks: the caller holds their entries or outcomes; the lease rows.
create or replace function hwqueue.delete_leases(p_leases uuid[], p_shard int) returns int
language plpgsql volatile
as $$
begin
  if p_leases = '{}' then
    return 0;
  end if;
  -- the fence (offset 0) keeps the planner from asking every key there is for its lease
  delete from hwqueue.idempotency i where i.ctid = any (array(
    select k.ctid
    from hwqueue.lease l
    join hwqueue.placement_class c on c.shard_id = l.shard_id and c.class_id = l.class_id
    cross join lateral (
      select x.ctid from hwqueue.idempotency x
      where x.shard_id = p_shard and x.tenant = c.tenant and x.queue_id = l.queue_id and x.idempotency_key = l.idempotency_key
        and x.lease_id = l.lease_id offset 0) k
    where l.shard_id = p_shard and l.lease_id = any (p_leases) and l.idempotency_key is not null));
  delete from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = any (p_leases);
  delete from hwqueue.attempt a where a.shard_id = p_shard and a.lease_id = any (p_leases);
  delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (p_leases);
  return cardinality(p_leases);
end
$$;

-- Retired classes and dropped queues are deleted without a lock that a spawn could meet, in three steps:
-- 1. The row is marked: who looks from then on does not find it.
-- 2. When that is committed, the row is stamped with a transaction id that was given out later. A spawn has its id before it
--    looks (find_class, spawn_queue), so whoever found the row unmarked has a lower one.
-- 3. When all lower ones are over, nobody can come any more who found it.
-- This is step 2. It must come first in a transaction that has written nothing: else its id is older than the look, and nothing
-- is stamped.
-- Locks: class and queue rows, skip locked.
create or replace function hwqueue.stamp_retired(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_classes bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before is null limit p_limit);
  v_queues int[] := array(
    select q.queue_id from hwqueue.queue q
    where q.shard_id = p_shard and q.dropped_at is not null and q.dropped_before is null limit p_limit);
  v_later xid8;
begin
  if v_classes = '{}' and v_queues = '{}' or pg_current_xact_id_if_assigned() is not null then
    return;
  end if;
  v_later := pg_current_xact_id();
  update hwqueue.placement_class c set retired_before = v_later
  where c.shard_id = p_shard and c.class_id in (
    select o.class_id from hwqueue.placement_class o
    where o.shard_id = p_shard and o.class_id = any (v_classes) and o.retired_before is null for update skip locked);
  update hwqueue.queue q set dropped_before = v_later
  where q.shard_id = p_shard and q.queue_id in (
    select o.queue_id from hwqueue.queue o
    where o.shard_id = p_shard and o.queue_id = any (v_queues) and o.dropped_before is null for update skip locked);
end
$$;

-- Removes terms that no class asks any more, with their counts, and counts that have come to nothing; what they selected is claimed as
-- before they came. Gives the number of terms.
-- Locks: the shard's row, skip locked: new terms wait for it, too; profile rows, floors and counts, skip locked.
create or replace function hwqueue.prune_terms(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_terms bigint[];
  v_classes bigint[];
begin
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return 0;
  end if;
  v_terms := array(
    select t.term_id from hwqueue.affinity_term t
    where t.shard_id = p_shard and not exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and c.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)))
    order by t.term_id limit p_limit);
  v_classes := array(select distinct m.class_id from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = any (v_terms));
  delete from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = any (v_terms);
  perform hwqueue.clear_checked(v_classes, p_shard);
  delete from hwqueue.affinity_term t where t.shard_id = p_shard and t.term_id = any (v_terms);
  -- floors of terms that are gone, and those that are too old to be used (cached_skew_reason)
  delete from hwqueue.spread_floor f where f.ctid = any (array(
    select o.ctid from hwqueue.spread_floor o
    where o.shard_id = p_shard and (hwqueue.is_old_floor(o.next_xid) or not exists (
      select 1 from hwqueue.affinity_term t where t.shard_id = p_shard and t.term_id = o.term_id)) limit p_limit for update skip locked));
  perform hwqueue.prune_counts(p_limit, p_shard);
  return cardinality(v_terms);
end
$$;

-- Takes the marks of classes away that need not be checked at the claim any more, in profiles that nobody holds.
-- Locks: profile rows, skip locked; the caller holds the shard's row, so that no term is told meanwhile.
create or replace function hwqueue.clear_checked(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_locked bigint[] := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id in (
      select e.profile_id from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids) and e.is_checked)
    for no key update skip locked);
begin
  update hwqueue.profile_eligibility e set is_checked = false
  from hwqueue.placement_class c
  where e.shard_id = p_shard and e.profile_id = any (v_locked) and e.class_id = any (p_class_ids) and e.is_checked
    and c.shard_id = p_shard and c.class_id = e.class_id
    and not coalesce(hwqueue.must_be_checked(c, e.affinity, p_shard), true);
  update hwqueue.profile_queue s
  set checked = array(
    select e.class_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.is_checked and e.gpu_count = 0
      and e.custom is null limit 201)
  where s.shard_id = p_shard and s.profile_id = any (v_locked);
end
$$;

-- Removes what is remembered of the fleet, for max_skew and for patience, and nobody has asked for in an hour: nobody may ask again; and what is
-- remembered for classes that are gone.
-- Locks: those rows, skip locked.
create or replace function hwqueue.prune_fleets(p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.spread_fleet f where f.ctid = any (array(
    select o.ctid from hwqueue.spread_fleet o
    where o.shard_id = p_shard and o.live_until < p_now - interval '1 hour' limit p_limit for update skip locked));
  delete from hwqueue.class_range r where r.ctid = any (array(
    select o.ctid from hwqueue.class_range o
    where o.shard_id = p_shard and (o.live_until < p_now - interval '1 hour' or not exists (
      select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = o.class_id)) limit p_limit for update skip locked));
end
$$;

-- What claims leave behind in term_count. A count of max_skew says when it was last lowered (dropped_xid), and who remembers a floor from
-- before that must find it there (cached_skew_reason). So one that has come to nothing goes when every floor of its term knows of that, and nobody
-- is on the way with one that may not: whoever looks has the table of floors locked before, and keeps it to the end.

-- Whether whatever is remembered of a term knows that a count was lowered.
create or replace function hwqueue.caches_know_of_drop(p_term_id bigint, p_dropped xid8, p_shard int) returns boolean
language sql stable
as $$
  select coalesce(bool_and(not hwqueue.is_unseen(p_dropped, f.unseen, f.next_xid)), true)
  from hwqueue.spread_floor f where f.shard_id = p_shard and f.term_id = p_term_id
$$;

-- Whether another session has looked, or is about to, in a transaction that is open. Who comes later sees what was committed before this.
create or replace function hwqueue.has_open_reader() returns boolean
language sql volatile
as $$
  select exists (
    select from pg_locks l
    where l.locktype = 'relation' and l.relation = 'hwqueue.spread_floor'::regclass and l.mode = 'RowExclusiveLock' and l.granted
      and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;

-- Removes counts that have come to nothing and those of terms that are gone; what claims have added beside a row that was held
-- is added up in one. A row that a claim has written between the snapshot and the lock is missed: the next call takes it.
-- Locks: term_count, skip locked.
create or replace function hwqueue.prune_counts(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_before pg_snapshot := pg_current_snapshot();  -- what was lowered by then is seen by all who look from here on
  v_is_known boolean := not hwqueue.has_open_reader();
begin
  delete from hwqueue.term_counter k where k.ctid = any (array(
    select o.ctid from hwqueue.term_counter o
    where o.shard_id = p_shard and (
      o.leases = 0 and o.holders = 0 and (o.dropped_xid is null or v_is_known and o.dropped_xid <> pg_current_xact_id()
        and pg_visible_in_snapshot(o.dropped_xid, v_before) and hwqueue.caches_know_of_drop(o.term_id, o.dropped_xid, p_shard))
      or not exists (select 1 from hwqueue.affinity_term t where t.shard_id = p_shard and t.term_id = o.term_id))
    limit p_limit for update skip locked));
  with parted as (
    select o.term_id, o.domain from hwqueue.term_counter o
    where o.shard_id = p_shard group by o.term_id, o.domain having count(*) > 1 limit p_limit
  ), held as (
    select o.ctid as place from parted p
    join hwqueue.term_counter o on o.shard_id = p_shard and o.term_id = p.term_id and o.domain = p.domain for update of o skip locked
  ), gone as (
    delete from hwqueue.term_counter k where k.ctid = any (array(select h.place from held h)) returning k.*
  )
  insert into hwqueue.term_counter (shard_id, term_id, domain, leases, holders, updates, dropped_xid)
  select p_shard, g.term_id, g.domain, sum(g.leases), sum(g.holders), 0,
         case when bool_or(g.dropped_xid is not null) then pg_current_xact_id() end  -- the latest of them need not be the last to be seen
  from gone g group by g.term_id, g.domain;
end
$$;
