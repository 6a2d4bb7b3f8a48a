-- Ends claims that have expired (plus the queue's grace): one attempt used, put back at once while attempts are left.
-- A node that finds nothing to claim (p_node) does it for others that have been silent for twice their timeout, and only where
-- that needs no lock of their node: its transaction may stay open.
-- Locks: the claims, then node_state of their nodes, all skip locked, so that the order does not matter; the lease rows.
-- Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_claims(p_limit int, p_node uuid, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_grace interval;
  v_count int := 0;
begin
  for v_claim in
    select c.* from hwqueue.claim c
    where c.shard_id = p_shard and c.check_at <= p_now
      and (p_node is null or (c.assignment is null and c.node_id <> p_node and c.check_at + c.claim_timeout <= p_now))
    order by c.check_at limit p_limit
    for update skip locked
  loop
    v_grace := coalesce((select q.reap_grace from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_claim.queue_id), '0');
    if v_claim.expires_at + v_grace > p_now then
      update hwqueue.claim c set check_at = c.expires_at + v_grace where c.shard_id = p_shard and c.lease_id = v_claim.lease_id;
      continue;
    end if;
    if v_claim.assignment is not null then
      perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = v_claim.node_id for no key update skip locked;
      continue when not found;  -- the node is at work: the next reap will see
    end if;
    perform hwqueue.end_claim(v_claim, 'expired',
      jsonb_build_object('reason', 'claim_expired', 'expires_at', v_claim.expires_at),
      case when hwqueue.next_attempt_at(v_claim.lease_id, v_claim.attempt, p_now, p_shard) is not null then p_now end, p_now, p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
