-- The class of a lease that a term names: one of its own, so that the others of its class go on as before; else the class as it is.
-- Above read committed every lease with an id of the caller's own gets one.
-- Locks: as find_class. Raises: as find_class.
create or replace function hwqueue.target_class(p_class_id bigint, p_lease uuid, p_shard int) returns bigint
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.term t where t.shard_id = p_shard and t.anchors && array['lease:' || p_lease] limit 1;
  -- an older snapshot may not show the term
  if not found and current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return p_class_id;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  if not found or v_class.target = p_lease then
    return v_class.class_id;
  end if;
  return hwqueue.find_class(v_class.queue_id, v_class.task_name, v_class.tenant, v_class.service_id, v_class.labels, v_class.placement,
                            p_shard, v_class.patience, p_lease);
end
$$;

-- Gives a lease that a term names a class of its own, if it has none, so that the term does not concern others; while it runs, from its next
-- attempt on. False when its entry is held by another session, or deleted by this one: then nothing was done.
-- Locks: the lease's entry, skip locked; its class, skip locked; its row. Raises: as find_class.
create or replace function hwqueue.give_target(p_lease uuid, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_place tid;
  v_class_id bigint;
begin
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  v_class_id := hwqueue.target_class(v_lease.class_id, p_lease, p_shard);
  if v_class_id is null or v_class_id = v_lease.class_id or (hwqueue.lease_end(p_lease, p_shard)).state is not null then
    return true;
  end if;
  -- the one update that entries ever see: who locks one looks at its class again
  select r.ctid into v_place from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
    and r.position = v_lease.position and r.lease_id = p_lease for update skip locked;
  if found then
    update hwqueue.ready r set class_id = v_class_id where r.ctid = v_place;
    perform hwqueue.wake_due(array[v_class_id], p_shard);
  else
    select s.ctid into v_place from hwqueue.scheduled s
    where s.shard_id = p_shard and s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at and s.lease_id = p_lease
    for update skip locked;
    if found then
      update hwqueue.scheduled s set class_id = v_class_id where s.ctid = v_place;
      -- no candidate before the lease is due (wake_due)
      update hwqueue.placement_class c set waits = true
      where c.shard_id = p_shard and c.class_id = v_class_id and c.created_xid = pg_current_xact_id();
    else
      perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease for update skip locked;
      if not found then
        return false;
      end if;
    end if;
  end if;
  update hwqueue.lease l set class_id = v_class_id where l.shard_id = p_shard and l.lease_id = p_lease;
  return true;
end
$$;
