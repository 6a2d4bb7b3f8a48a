-- Takes the waiting entry of an open lease out of ready or scheduled, which makes the caller its only holder until commit.
-- Gives null when the lease is claimed (the claim is then locked) or finished. Entries move between the tables while this
-- looks, so it looks again until it holds one; whoever moved it has committed by then.
-- Locks: the entry or the claim. Raises: QHL04. Idempotent: no.
create or replace function hwqueue.take_entry(p_lease uuid, p_shard int) returns hwqueue.scheduled
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_entry hwqueue.scheduled;
begin
  for v_try in 1 .. 100 loop
    v_lease := hwqueue.find_lease(p_lease, p_shard);
    if (hwqueue.lease_end(p_lease, p_shard)).state is not null then
      return null;
    end if;
    perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease for update;
    if found then
      return null;
    end if;
    delete from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
      and r.position = v_lease.position and r.lease_id = p_lease
    returning r.shard_id, r.queue_id, r.tier, r.attempt_count, r.claim_count, r.rank, r.class_id, r.lease_id, r.eligible_at, r.deadline
    into v_entry;
    if not found then
      delete from hwqueue.scheduled s
      where s.shard_id = p_shard and s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at and s.lease_id = p_lease
      returning s.* into v_entry;
    end if;
    if found then
      return v_entry;
    end if;
  end loop;
  perform hwqueue.refuse('XX000', format('lease %s is open but waits and runs nowhere', p_lease),
    jsonb_build_object('lease_id', p_lease), 'the tables contradict each other: please report this');
  return null;
end
$$;
