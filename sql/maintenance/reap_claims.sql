-- What a node that finds nothing to claim does for others: ends a few claims of nodes that have been silent for twice their timeout,
-- and only such as need no lock of their node: its transaction may stay open. Should nobody call reap, these come back all the same.
-- It looks at no more than the 20 oldest.
-- Locks: the claims, skip locked; the lease rows.
create or replace function hwqueue.reap_claims(p_limit int, p_node uuid, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz := hwqueue.claims_from(p_shard);
  v_oldest uuid[];
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  v_oldest := array(
    select c.lease_id from hwqueue.claim c
    where c.shard_id = p_shard and c.check_at between v_from and p_now order by c.check_at limit 20);
  if v_oldest = '{}' then
    return 0;
  end if;
  for v_claim in
    select c.*
    from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.lease_id = any (v_oldest) and c.assignment is null and c.node_id <> p_node
      and c.check_at + c.claim_timeout <= p_now and c.expires_at + q.reap_grace <= p_now
    limit p_limit
    for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
