-- Removes finished leases whose queue keeps them no longer, the oldest of each queue first, once they have been
-- counted, or nobody has counted them for an hour.
-- Locks: their outcomes, skip locked; then the lease rows.
create or replace function hwqueue.prune_leases(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_counted_before timestamptz := greatest(p_now - interval '1 hour', (
    select m.counted_to from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1));
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
