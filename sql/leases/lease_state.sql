-- How a lease ended; null: it is open, or does not exist. Its row is what ends a lease: whoever has deleted the lease's entry inserts it, and
-- whoever deletes it (requeue_lease, prune) has the lease.
create or replace function hwqueue.lease_end(p_lease uuid, p_shard int) returns hwqueue.outcome
language sql stable
as $$ select o from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = p_lease $$;

-- The public state of a lease: how it ended, else where its entry is. Null: no such lease.
create or replace function hwqueue.lease_state(p_lease uuid, p_shard int) returns text
language sql stable
as $$
  select case
    when o.lease_id is not null then o.state
    when exists (select 1 from hwqueue.claim c where c.shard_id = l.shard_id and c.lease_id = l.lease_id) then 'claimed'
    when exists (select 1 from hwqueue.scheduled s where s.shard_id = l.shard_id and s.queue_id = l.queue_id
                 and s.available_at = l.available_at and s.lease_id = l.lease_id) then 'scheduled'
    else 'pending' end
  from hwqueue.lease l
  left join hwqueue.outcome o on o.shard_id = p_shard and o.lease_id = p_lease
  where l.shard_id = p_shard and l.lease_id = p_lease
$$;
