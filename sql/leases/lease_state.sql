-- The public state of a lease: what its record says once it is finished, else where its entry is. Null: no such lease.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.lease_state(p_lease uuid, p_shard int) returns text
language sql stable
as $$
  select case
    when l.state <> 'open' then l.state
    when exists (select 1 from hwqueue.claim c where c.shard_id = l.shard_id and c.lease_id = l.lease_id) then 'claimed'
    when exists (select 1 from hwqueue.scheduled s where s.shard_id = l.shard_id and s.queue_id = l.queue_id
                 and s.available_at = l.available_at and s.lease_id = l.lease_id) then 'scheduled'
    else 'pending' end
  from hwqueue.lease l
  where l.shard_id = p_shard and l.lease_id = p_lease
$$;
