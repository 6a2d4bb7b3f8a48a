-- Takes a claim away and gives back what it had set aside.
-- Locks: node_state is held by the caller when the claim has an assignment; then the claim. Raises: nothing.
-- Idempotent: the second call finds nothing and does nothing.
create or replace function hwqueue.remove_claim(p_lease uuid, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
begin
  delete from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease returning c.* into v_claim;
  perform hwqueue.give_back(v_claim.node_id, v_claim.assignment, p_shard);
  if v_claim.counted is not null then
    perform hwqueue.add_counts(v_claim.counted, -1, p_shard);
  end if;
end
$$;
