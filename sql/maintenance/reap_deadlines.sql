-- Fails leases that were not claimed by their deadline. Scheduled ones are looked after by reap alone: when they fall due, they are
-- here. p_from: where the scan starts; null: at the mark.
-- Locks: their entries, skip locked.
create or replace function hwqueue.reap_deadlines(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz default null) returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz := coalesce(p_from, (
    select m.deadlines_from from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity');
  v_late hwqueue.ready[];
begin
  v_late := array(
    select r from hwqueue.ready r
    where r.shard_id = p_shard and r.deadline is not null and greatest(r.deadline, r.eligible_at) between v_from and p_now
    order by greatest(r.deadline, r.eligible_at) limit p_limit for update skip locked);
  if v_late = '{}' then
    return 0;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
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
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
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
