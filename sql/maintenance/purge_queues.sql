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
