-- Fails leases that were not claimed by their deadline.
-- Locks: their entries, skip locked; then the lease rows. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_deadlines(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_late uuid[];
begin
  v_late := array(
    select r.lease_id from hwqueue.ready r where r.shard_id = p_shard and r.deadline <= p_now
    order by r.deadline limit p_limit for update skip locked);
  delete from hwqueue.ready r where r.shard_id = p_shard and r.deadline <= p_now and r.lease_id = any (v_late);
  v_late := v_late || array(
    select s.lease_id from hwqueue.scheduled s where s.shard_id = p_shard and s.deadline <= p_now
    order by s.deadline limit p_limit for update skip locked);
  delete from hwqueue.scheduled s where s.shard_id = p_shard and s.deadline <= p_now and s.lease_id = any (v_late);
  if v_late <> '{}' then  -- the planner takes "any of none" for proof that a partial index holds them, and reads all of it
    update hwqueue.lease l
    set state = 'failed', finished_at = p_now,
        error = jsonb_build_object('reason', 'deadline_exceeded', 'deadline', l.deadline)
    where l.shard_id = p_shard and l.lease_id = any (v_late);
    insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
    select p_shard, l.queue_id, 'failed', p_now, l.lease_id
    from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (v_late);
  end if;
  return cardinality(v_late);
end
$$;
