-- Removes finished leases whose queue keeps them no longer, the oldest of each queue first, once they have been counted.
-- Locks: the lease rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_leases(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_counted_before timestamptz := hwqueue.counted_before(p_now, p_shard);
  v_old uuid[];
begin
  v_old := array(
    select l.lease_id
    from hwqueue.queue q
    cross join unnest(array['completed', 'cancelled', 'failed']) s(state)
    cross join lateral (
      select f.lease_id from hwqueue.finished f
      where f.shard_id = p_shard and f.queue_id = q.queue_id and f.state = s.state
        and f.finished_at < least(v_counted_before, p_now - case when s.state = 'failed' then q.retain_failed else q.retain_completed end)
      order by f.finished_at limit p_limit
    ) f
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = f.lease_id and l.state = s.state
    where q.shard_id = p_shard
    limit p_limit
    for update of l skip locked);
  return hwqueue.delete_leases(v_old, p_shard);
end
$$;

-- Removes finished leases of a queue that is dropped. Gives their number.
-- Locks: the lease rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.purge_finished(p_queue_id int, p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
begin
  return hwqueue.delete_leases(array(
    select l.lease_id
    from hwqueue.finished f
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = f.lease_id and l.state = f.state
    where f.shard_id = p_shard and f.queue_id = p_queue_id
    limit p_limit
    for update of l skip locked), p_shard);
end
$$;

-- Deletes leases that nobody waits for, with what hangs on them. Gives their number.
-- Locks: the caller holds the lease rows. Raises: nothing. Idempotent: yes.
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
  delete from hwqueue.finished f where f.ctid = any (array(
    select k.ctid
    from hwqueue.lease l
    cross join lateral (
      select x.ctid from hwqueue.finished x
      where x.shard_id = p_shard and x.queue_id = l.queue_id and x.state = l.state and x.finished_at = l.finished_at
        and x.lease_id = l.lease_id offset 0) k
    where l.shard_id = p_shard and l.lease_id = any (p_leases)));
  delete from hwqueue.attempt a where a.shard_id = p_shard and a.lease_id = any (p_leases);
  delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (p_leases);
  return cardinality(p_leases);
end
$$;
