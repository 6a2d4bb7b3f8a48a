-- Pruning: deleting what is no longer needed, in bounded steps, once no transaction can still use it.
--
-- Each function deletes about p_limit rows a call and skips rows that another session holds.
--
-- Retired classes and dropped queues are deleted without a lock that a spawn could meet, in three steps:
-- 1. retire_classes, or drop_queue, marks the row. A spawn that looks from then on does not find it.
-- 2. When that is committed, prune stores a transaction id that was assigned later. A spawn has its id
--    before it looks (find_class, find_spawn_queue), so one that found the row unmarked has a lower id.
-- 3. prune_classes and purge_queues delete the row when all transactions with lower ids have ended: no
--    spawn that found the row can still be open.

-- Empties the partitions whose events are all older than the installation's event_days whole days. Events go
-- round a ring of 16 days, one partition a day. Waits a tenth of a second for a partition's lock and leaves
-- it to the next call when a reader or a long transaction holds it.
-- A partition that got new events before it was emptied (prune did not run for two weeks) stays until
-- these are old, too.
-- Locks: partitions of event, access exclusive, to the end of the transaction: readers of events wait.
create or replace function hwqueue.prune_events(p_now timestamptz) returns void
language plpgsql volatile set lock_timeout = '100ms'
as $$
declare
  v_keep_from timestamptz := to_timestamp((hwqueue.event_day(p_now) - (
    select s.event_days from hwqueue.installation s)) * 86400);
  v_slot smallint;
  v_newest timestamptz;
begin
  for v_slot in 0..15 loop
    select e.at into v_newest from hwqueue.event e where e.slot = v_slot order by e.event_id desc limit 1;
    continue when (v_newest < v_keep_from) is not true;
    continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
    begin
      -- a table's name cannot be a parameter
      execute format('lock table hwqueue.event_%s in access exclusive mode', v_slot);
      -- again: a new event may have come into the partition while this waited for the lock
      continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
      execute format('truncate hwqueue.event_%s', v_slot);
    exception when lock_not_available then
      null;
    end;
  end loop;
end
$$;

-- Deletes nodes that were deregistered more than 30 days ago, and returns their number. A worker of such a
-- node that comes back after that time stays fenced: the highest epoch is kept that was deleted,
-- and a node that registers for the first time begins above it (register_node). Stops after the node with
-- which p_limit eligibility rows are gone. Does nothing while another session holds the installation's row.
-- Locks: the installation's row, node_state, node rows, skip locked.
create or replace function hwqueue.prune_nodes(p_limit int, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_node_id uuid;
  v_gone int := 0;
  v_epoch bigint;
  v_highest bigint := 0;
  v_rows int;
  v_hanging int := 0;
begin
  perform 1 from hwqueue.installation s
  where exists (select from hwqueue.node n where n.deregistered_at < p_now - interval '30 days')
  for no key update skip locked;
  if not found then
    return 0;  -- mostly
  end if;
  for v_node_id, v_epoch in
    select n.node_id, s.node_epoch
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at < p_now - interval '30 days'
    order by n.deregistered_at limit p_limit for update of s skip locked for update of n skip locked
  loop
    delete from hwqueue.eligibility e where e.node_id = v_node_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.node_candidates k where k.node_id = v_node_id;
    delete from hwqueue.node_load u where u.node_id = v_node_id;
    delete from hwqueue.node n where n.node_id = v_node_id;
    delete from hwqueue.node_state s where s.node_id = v_node_id;
    v_highest := greatest(v_highest, v_epoch);
    v_gone := v_gone + 1;
    v_hanging := v_hanging + v_rows;
    exit when v_hanging >= p_limit;
  end loop;
  update hwqueue.installation s set node_epoch_floor = v_highest where s.node_epoch_floor < v_highest;
  return v_gone;
end
$$;

-- Retires classes after p_after that no lease, open step or everywhere task refers to and that are an hour
-- old, so that spawns do not find them any more: step 1 of 3. Returns the class to start after next time.
-- Locks: class rows, skip locked.
create or replace function hwqueue.retire_classes(p_after bigint, p_limit int, p_now timestamptz)
returns bigint
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select c.class_id from hwqueue.placement_class c
    where c.class_id > p_after order by c.class_id offset p_limit - 1 limit 1);
  v_unused bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.class_id > p_after and c.class_id <= coalesce(v_last,
        9223372036854775807)
      and c.retired_at is null and c.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.lease l where l.class_id = c.class_id)
      and not exists (select 1 from hwqueue.run_class u where u.class_id = c.class_id)
      and not exists (select 1 from hwqueue.everywhere e where e.class_id = c.class_id)
    for update of c skip locked);
begin
  update hwqueue.placement_class c set retired_at = p_now where c.class_id = any (v_unused);
  return coalesce(v_last, 0);
end
$$;

-- Deletes profiles after p_after that no node has any more, with their eligibility rows. A registration
-- that is about to use a profile holds its row. Stops after the profile with which p_limit eligibility
-- rows are gone, and returns the profile to start after next time.
-- Locks: profile rows, skip locked.
create or replace function hwqueue.prune_profiles(p_after bigint, p_limit int, p_now timestamptz)
returns bigint
language plpgsql volatile
as $$
declare
  v_last bigint := (
    select p.profile_id from hwqueue.profile p
    where p.profile_id > p_after order by p.profile_id offset p_limit - 1 limit 1);
  v_profile_id bigint;
  v_rows int;
  v_hanging int := 0;
begin
  for v_profile_id in
    select p.profile_id from hwqueue.profile p
    where p.profile_id > p_after and p.profile_id <= coalesce(v_last, 9223372036854775807)
      and p.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.node n where n.profile_id = p.profile_id)
      and not exists (select 1 from hwqueue.profile j where j.judged_as = p.profile_id)
    order by p.profile_id for update of p skip locked
  loop
    -- again, now that the row is held: a registration may have committed between the scan and the lock
    continue when exists (select 1 from hwqueue.node n where n.profile_id = v_profile_id)
               or exists (select 1 from hwqueue.profile j where j.judged_as = v_profile_id);
    delete from hwqueue.eligibility e where e.profile_id = v_profile_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.profile_queue s where s.profile_id = v_profile_id;
    delete from hwqueue.profile p where p.profile_id = v_profile_id;
    v_hanging := v_hanging + v_rows;
    if v_hanging >= p_limit then
      return v_profile_id;
    end if;
  end loop;
  return coalesce(v_last, 0);
end
$$;

-- Deletes dropped queues (step 3 of 3): waiting and finished leases, about p_limit a call, then classes, then
-- what profiles may run of it, then the queue itself. Starts when no spawn or claim that found the queue can
-- still be open. What runs, or another session holds, is left to a later call. Returns the number of leases
-- and classes deleted.
-- Locks: queue rows, entries, outcomes, class and profile rows, all skip locked; lease rows.
create or replace function hwqueue.purge_queues(p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_queue_id int;
  v_leases uuid[];
  v_profiles bigint[];
  v_left int := p_limit;
begin
  for v_queue_id in
    select q.queue_id from hwqueue.queue q
    where q.dropped_at is not null and q.dropped_before <= pg_snapshot_xmin(pg_current_snapshot())
    order by q.dropped_at limit p_limit for update skip locked
  loop
    with was_ready as (
      delete from hwqueue.ready r where r.ctid = any (array(
        select x.ctid from hwqueue.ready x where x.queue_id = v_queue_id
        order by x.tier, x.rank, x.position limit v_left for update skip locked))
      returning r.lease_id
    ), was_scheduled as (
      delete from hwqueue.scheduled s where s.ctid = any (array(
        select x.ctid from hwqueue.scheduled x where x.queue_id = v_queue_id
        order by x.available_at limit v_left - (select count(*) from was_ready) for update skip locked))
      returning s.lease_id
    )
    select coalesce(array_agg(w.lease_id), '{}') into v_leases
    from (select r.lease_id from was_ready r union all select s.lease_id from was_scheduled s) w;
    perform hwqueue.leave_lanes(v_leases);
    perform hwqueue.note_ended(array_agg(l.lease_id), 'cancelled', l.item_no is null)
    from hwqueue.lease l
    where l.lease_id = any (v_leases) and l.run_id is not null group by l.item_no is null;
    perform hwqueue.follow_ended(true);
    v_left := v_left - hwqueue.remove_leases(v_leases);
    v_left := v_left - hwqueue.remove_leases(array(
      select o.lease_id from hwqueue.outcome o
      where o.queue_id = v_queue_id limit v_left for update skip locked));
    exit when v_left <= 0;
    -- one statement, one MVCC snapshot: a lease that is in none of these tables does not exist
    continue when exists (select 1 from hwqueue.ready r where r.queue_id = v_queue_id)
       or exists (select 1 from hwqueue.scheduled s where s.queue_id = v_queue_id)
       or exists (select 1 from hwqueue.outcome o where o.queue_id = v_queue_id)
       or exists (select 1 from hwqueue.claim c where c.queue_id = v_queue_id);
    v_left := v_left - hwqueue.delete_classes(array(
      select c.class_id from hwqueue.placement_class c
      where c.queue_id = v_queue_id limit v_left for update skip locked), v_left);
    continue when exists (select 1 from hwqueue.placement_class c where c.queue_id = v_queue_id);
    v_profiles := array(
      select p.profile_id from hwqueue.profile p where p.profile_id = any (array(
        select s.profile_id from hwqueue.profile_queue s where s.queue_id = v_queue_id))
      for no key update skip locked);
    delete from hwqueue.profile_queue s where s.queue_id = v_queue_id and s.profile_id = any (v_profiles);
    -- one is left: a claim that judges, for example, holds the profile
    continue when exists (select 1 from hwqueue.profile_queue s where s.queue_id = v_queue_id);
    delete from hwqueue.minute_stat m where m.queue_id = v_queue_id;
    delete from hwqueue.low_water w where w.queue_id = v_queue_id;
    delete from hwqueue.queue_signal s where s.queue_id = v_queue_id;
    delete from hwqueue.queue_price p where p.queue_id = v_queue_id;
    delete from hwqueue.queue q where q.queue_id = v_queue_id;
  end loop;
  return p_limit - v_left;
end
$$;

-- Deletes retired classes that no lease refers to, once no spawn that found them can still be open: step
-- 3 of 3. Returns their number. A class that a late spawn used after all stays until that lease is gone.
-- A class as which a claim runs stays until the claim ends, even if the lease has another class by then
-- (assign_target_class).
-- Locks: class rows, skip locked.
create or replace function hwqueue.prune_classes(p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_idle bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.retired_at is not null and c.retired_before <= pg_snapshot_xmin(pg_current_snapshot())
      and not exists (select 1 from hwqueue.lease l where l.class_id = c.class_id)
      and not exists (select 1 from hwqueue.run_class u where u.class_id = c.class_id)
      and not exists (select 1 from hwqueue.everywhere e where e.class_id = c.class_id)
    order by c.retired_at limit p_limit);
begin
  if v_idle = '{}' then
    return 0;
  end if;
  return hwqueue.delete_classes(array(
    select c.class_id from hwqueue.placement_class c
    where c.class_id = any (v_idle)
      -- all claims at once: few classes are retired, and claims have no index by class
      and c.class_id <> all (array(select distinct u.class_id from hwqueue.claim u))
    order by c.retired_at for update of c skip locked), p_limit);
end
$$;

-- Deletes classes with their eligibility and fleet rows, and returns the number of classes. Stops after
-- the class with which p_limit eligibility rows are gone. A class stays while another session holds one
-- of those rows. Its class_range row may be held by a claim, so prune_part deletes it.
-- Locks: the caller holds the class rows; eligibility and fleet rows, skip locked.
create or replace function hwqueue.delete_classes(p_class_ids bigint[], p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_class_id bigint;
  v_deleted int := 0;
  v_rows int;
  v_hanging int := 0;
begin
  foreach v_class_id in array p_class_ids loop
    -- skip locked: a registration or reap may have written them in a transaction that stays open
    delete from hwqueue.eligibility e where e.ctid = any (array(
      select o.ctid from hwqueue.eligibility o where o.class_id = v_class_id for update skip locked));
    get diagnostics v_rows = row_count;
    v_hanging := v_hanging + v_rows;
    continue when exists (select 1 from hwqueue.eligibility e where e.class_id = v_class_id);
    delete from hwqueue.class_fleet f where f.ctid = any (array(
      select o.ctid from hwqueue.class_fleet o where o.class_id = v_class_id for update skip locked));
    continue when exists (select 1 from hwqueue.class_fleet f
        where f.class_id = v_class_id);
    delete from hwqueue.class_term m where m.class_id = v_class_id;
    delete from hwqueue.low_water w using hwqueue.placement_class c
    where c.class_id = v_class_id and w.queue_id = c.queue_id and w.class_id = v_class_id;
    delete from hwqueue.placement_class c where c.class_id = v_class_id;
    v_deleted := v_deleted + 1;
    exit when v_hanging >= p_limit;
  end loop;
  return v_deleted;
end
$$;

-- Deletes finished leases past their queue's retention, the oldest of each queue first, and returns their
-- number. Leases of steps go with their run (prune_runs). Takes only leases that roll_up has counted, or
-- that ended more than an hour ago.
-- Once an hour it reads from the start. If it deletes all that is due, it leaves only steps, and rows that
-- another session holds. So the other calls start an hour before where that one ended, unless a retention
-- has changed or the clock was set back. p_cursor: the row of prune_cursor, if the caller holds it.
-- Locks: their outcomes, skip locked; then the lease rows.
create or replace function hwqueue.prune_leases(p_cursor hwqueue.prune_cursor, p_limit int,
  p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_counted_to timestamptz := (
    select m.counted_to from hwqueue.reap_cursor m
    order by m.version desc limit 1);
  v_policy text := (
    select md5(string_agg(format('%s %s %s', q.queue_id, q.retain_completed, q.retain_failed), ','
             order by q.queue_id))
    from hwqueue.queue q);
  v_starts boolean := (p_cursor.leases_policy = v_policy
    and p_now between p_cursor.leases_at and p_cursor.leases_at + interval '1 hour') is not true;
  v_old uuid[];
begin
  v_old := array(
    select f.lease_id
    from hwqueue.queue q
    cross join unnest(array['completed', 'cancelled', 'failed']) s(state)
    cross join lateral (
      select case when s.state = 'failed' then q.retain_failed else q.retain_completed end as retain) t
    cross join lateral (
      select o.lease_id from hwqueue.outcome o
      where o.queue_id = q.queue_id and o.state = s.state and o.is_step is null
        and o.finished_at < least(greatest(p_now - interval '1 hour', v_counted_to), p_now - t.retain)
        and o.finished_at >= case when v_starts then '-infinity' else
          least(p_cursor.leases_counted, p_cursor.leases_at - t.retain) - interval '1 hour' end
      order by o.finished_at limit p_limit
      for update skip locked
    ) f
    limit p_limit);
  perform hwqueue.remove_leases(v_old);
  if v_starts and cardinality(v_old) < p_limit and p_cursor.singleton is not null then
    update hwqueue.prune_cursor m
    set leases_at = p_now, leases_counted = v_counted_to, leases_policy = v_policy;
  end if;
  return cardinality(v_old);
end
$$;

-- Deletes leases with all that hangs on them (keys, outcomes, attempts, checkpoints, signals, progress, log
-- lines; gangs that have none left), and returns their number.
-- Locks: the caller holds their entries or outcomes; the lease rows; gangs, skip locked.
create or replace function hwqueue.remove_leases(p_leases uuid[]) returns int
language plpgsql volatile
as $$
declare
  v_teams uuid[] := array(select distinct l.team_id from hwqueue.lease l where l.lease_id = any (p_leases));
begin
  if p_leases = '{}' then
    return 0;
  end if;
  delete from hwqueue.idempotency i where i.ctid = any (array(
    select k.row_ctid from hwqueue.spawned_keys(p_leases) s cross join lateral (
      select x.ctid as row_ctid from hwqueue.idempotency x
      where x.tenant = s.tenant and x.queue_id = s.queue_id
        and x.idempotency_key = s.idempotency_key and x.lease_id = s.lease_id
      -- a spawn that takes over a unique key (take_unique_key) finds that its lease is gone
      for update skip locked) k));
  delete from hwqueue.outcome o where o.lease_id = any (p_leases);
  delete from hwqueue.attempt a where a.lease_id = any (p_leases);
  delete from hwqueue.lease l where l.lease_id = any (p_leases);
  delete from hwqueue.checkpoint s where s.lease_id = any (p_leases);
  delete from hwqueue.lease_signal s where s.lease_id = any (p_leases);
  -- after the lease, whose row a report and new log lines hold
  delete from hwqueue.progress p where p.lease_id = any (p_leases);
  delete from hwqueue.attempt_log g where g.lease_id = any (p_leases);
  perform hwqueue.prune_gangs(0, v_teams);  -- prune may not come to them behind gangs that are kept
  return cardinality(p_leases);
end
$$;
