-- Ends claims that have expired (plus the queue's grace): one attempt used, put back at once while attempts are left.
-- For a node that is claiming (p_node) only those of other nodes whose end needs no lock of a node: its transaction may stay
-- open, and its own claims it may be about to heartbeat.
-- Locks: node_state of their nodes, then the claims, all skip locked; then the lease rows. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_claims(p_limit int, p_node uuid, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_peek record;
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  for v_peek in
    select c.lease_id, c.node_id, c.assignment is not null as counted, q.reap_grace
    from hwqueue.claim c join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.check_at <= p_now
      and (p_node is null or (c.assignment is null and c.node_id <> p_node))
    order by c.check_at limit p_limit
  loop
    if v_peek.counted then
      perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = v_peek.node_id for no key update skip locked;
      continue when not found;
    end if;
    -- also sees that a later claim of the lease is still the peeked one's kind: same node, still due
    select c.* into v_claim from hwqueue.claim c
    where c.shard_id = p_shard and c.lease_id = v_peek.lease_id and c.node_id = v_peek.node_id and c.check_at <= p_now
      and (c.assignment is not null) = v_peek.counted
    for update skip locked;
    continue when not found;
    if v_claim.expires_at + v_peek.reap_grace > p_now then
      update hwqueue.claim c set check_at = c.expires_at + v_peek.reap_grace
      where c.shard_id = p_shard and c.lease_id = v_claim.lease_id;
      continue;
    end if;
    perform hwqueue.end_claim(v_claim, 'expired',
      jsonb_build_object('reason', 'claim_expired', 'expires_at', v_claim.expires_at),
      case when hwqueue.next_attempt_at(v_claim.lease_id, v_claim.attempt, p_now, p_shard) is not null then p_now end, p_now, p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
