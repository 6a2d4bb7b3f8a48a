-- Makes an open lease claimable again at p_at: a fresh position, the rank it always had. p_since: since when it has been claimable, if it was.
-- Locks: the lease row; its class, skip locked, if that waits; the caller holds (and has deleted) its former entry. Raises: nothing. Idempotent: no.
-- Wakes: waiting workers, when it is claimable at once. Gives the new state.
create or replace function hwqueue.put_back(p_lease uuid, p_attempt_count int, p_claim_count int, p_at timestamptz, p_now timestamptz, p_shard int,
                                            p_since timestamptz default null) returns text
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_found record;
  v_position bigint := 0;
begin
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease for no key update;
  if p_at > p_now then
    insert into hwqueue.scheduled (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, available_at, deadline)
    values (p_shard, v_lease.queue_id, v_lease.tier, p_attempt_count, p_claim_count, v_lease.rank, v_lease.class_id, p_lease,
            p_at, v_lease.deadline);
  else
    insert into hwqueue.ready as r (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
    values (p_shard, v_lease.queue_id, v_lease.tier, p_attempt_count, p_claim_count, v_lease.rank, v_lease.class_id, p_lease,
            coalesce(p_since, p_now), v_lease.deadline)
    returning r.position into v_position;
  end if;
  update hwqueue.lease l
  set position = v_position, available_at = p_at, attempt_count = p_attempt_count
  where l.shard_id = p_shard and l.lease_id = p_lease;
  if p_at > p_now then
    return 'scheduled';
  end if;
  select q as queue, c.waits into v_found
  from hwqueue.queue q join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = v_lease.class_id
  where q.shard_id = p_shard and q.queue_id = v_lease.queue_id;
  if v_found.waits then
    perform hwqueue.wake_due(array[v_lease.class_id], p_shard);
  end if;
  perform hwqueue.wake_workers(v_found.queue, p_shard);
  return 'pending';
end
$$;
