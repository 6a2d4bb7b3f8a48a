-- Deletes what dropped queues held, once nobody can still be spawning into them or claiming from them and nothing runs: leases a
-- bounded number a call, at last the queue itself.
-- Locks: queue and lease rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.purge_queues(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_queue_id int;
  v_leases uuid[];
begin
  for v_queue_id in
    select q.queue_id from hwqueue.queue q
    where q.shard_id = p_shard and q.dropped_at is not null and q.dropped_before <= v_oldest_running
    limit p_limit for update skip locked
  loop
    continue when exists (select 1 from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue_id);
    v_leases := array(select l.lease_id from hwqueue.lease l
                      where l.shard_id = p_shard and l.queue_id = v_queue_id limit p_limit for update skip locked);
    if v_leases <> '{}' then
      delete from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = v_queue_id and r.lease_id = any (v_leases);
      delete from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = v_queue_id and s.lease_id = any (v_leases);
      delete from hwqueue.attempt a where a.shard_id = p_shard and a.lease_id = any (v_leases);
      delete from hwqueue.idempotency i where i.shard_id = p_shard and i.queue_id = v_queue_id and i.lease_id = any (v_leases);
      delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (v_leases);
    end if;
    if not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.queue_id = v_queue_id) then
      delete from hwqueue.class_reach r using hwqueue.placement_class c
      where c.shard_id = p_shard and c.queue_id = v_queue_id and r.shard_id = p_shard and r.class_id = c.class_id;
      delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.queue_id = v_queue_id;
      delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.queue_id = v_queue_id;
      delete from hwqueue.profile_queue s where s.shard_id = p_shard and s.queue_id = v_queue_id;
      delete from hwqueue.placement_class c where c.shard_id = p_shard and c.queue_id = v_queue_id;
      delete from hwqueue.finished f where f.shard_id = p_shard and f.queue_id = v_queue_id;
      delete from hwqueue.low_water w where w.shard_id = p_shard and w.queue_id = v_queue_id;
      delete from hwqueue.queue_signal s where s.shard_id = p_shard and s.queue_id = v_queue_id;
      delete from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue_id;
    end if;
  end loop;
end
$$;
