-- Removes finished leases whose queue keeps them no longer, classes that no lease refers to, nodes long deregistered, profiles
-- that no node has, and what dropped queues left.
-- Bounded: at most p_limit leases a call; call it until it removes none.
-- Locks: lease, class and profile rows, skip locked. Raises: QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.prune(p_limit int default 10000, p_shard int default 0)
returns table (leases int, classes int, nodes int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_old uuid[];
begin
  perform hwqueue.require_read_committed();
  if p_limit is null or p_limit not between 1 and 1000000 then
    perform hwqueue.refuse('QHA01', 'p_limit must be from 1 to 1000000', jsonb_build_object('field', 'p_limit'), 'call again for more');
  end if;
  perform hwqueue.stamp_retired(p_limit, p_shard);
  v_now := hwqueue.clock();
  v_old := array(
    select l.lease_id
    from hwqueue.queue q
    cross join unnest(array['completed', 'cancelled', 'failed']) s(state)
    cross join lateral (
      select f.lease_id from hwqueue.finished f
      where f.shard_id = p_shard and f.queue_id = q.queue_id and f.state = s.state
        and f.finished_at < v_now - case when s.state = 'failed' then q.retain_failed else q.retain_completed end
      order by f.finished_at limit p_limit
    ) f
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = f.lease_id
    where q.shard_id = p_shard
    limit p_limit
    for update of l skip locked);
  if v_old <> '{}' then  -- the planner takes "any of none" for proof that a partial index holds them, and reads all of it
    delete from hwqueue.idempotency i using hwqueue.lease l
    where l.shard_id = p_shard and l.lease_id = any (v_old) and i.shard_id = p_shard and i.queue_id = l.queue_id
      and i.idempotency_key = l.idempotency_key and i.lease_id = l.lease_id;
    delete from hwqueue.attempt a where a.shard_id = p_shard and a.lease_id = any (v_old);
    delete from hwqueue.finished f using hwqueue.lease l
    where l.shard_id = p_shard and l.lease_id = any (v_old) and f.shard_id = p_shard and f.queue_id = l.queue_id and f.state = l.state
      and f.finished_at = l.finished_at and f.lease_id = l.lease_id;
    delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (v_old);
  end if;
  leases := cardinality(v_old);
  classes := hwqueue.prune_classes(p_limit, v_now, p_shard);
  nodes := hwqueue.prune_nodes(p_limit, v_now, p_shard);
  perform hwqueue.prune_profiles(p_limit, v_now, p_shard), hwqueue.purge_queues(p_limit, p_shard);
  return next;
end
$$;
