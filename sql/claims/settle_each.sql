-- Settles a batch, one by one. For claims that other sessions hold it waits once, for less than a second (or lock_timeout): longer than
-- deadlock_timeout it never holds up the node. What is held still then is busy.
-- Locks: node_state is held by the caller; the claims by lease_id, skip locked; the rows of leases that go back.
-- Raises: nothing. Idempotent: no.
create or replace function hwqueue.settle_each(p_node uuid, p_settle jsonb, p_shard int)
returns table (ordinal int, lease_id uuid, verdict text, state text)
language plpgsql volatile
as $$
declare
  v_item jsonb;
  v_result record;
  v_busy int[];
  v_leases uuid[] := '{}';
begin
  loop
    for v_item, ordinal in
      select e.value, e.ordinality from jsonb_array_elements(p_settle) with ordinality e
      where v_busy is null or e.ordinality = any (v_busy)
      order by (e.value ->> 'lease_id')::uuid, e.ordinality
    loop
      lease_id := v_item ->> 'lease_id';
      if v_item ->> 'outcome' = 'complete' and not v_item ? 'result'
         and hwqueue.finish_claim(lease_id, (v_item ->> 'claim_token')::numeric::bigint, p_node, false, false, null, p_shard) then
        verdict := 'ok';
        state := 'completed';
        return next;
        continue;
      end if;
      v_result := hwqueue.settle_own_claim(p_node, lease_id, (v_item ->> 'claim_token')::numeric::bigint, v_item, p_shard);
      verdict := case v_result.verdict when 'unknown' then 'lost' when 'foreign' then 'bad_token' else v_result.verdict end;
      state := v_result.state;
      if verdict = 'busy' and v_busy is null then
        v_leases := v_leases || lease_id;
      else
        return next;
      end if;
    end loop;
    exit when v_busy is not null or v_leases = '{}';
    v_busy := array(
      select e.ordinality from jsonb_array_elements(p_settle) with ordinality e where (e.value ->> 'lease_id')::uuid = any (v_leases));
    perform hwqueue.await_claims(v_leases, '900ms', p_shard);
  end loop;
end
$$;

-- Settles a claim of a node whose state the caller has locked (null: of any node, locked by the caller); a claim of another node is not touched.
-- Locks: the claim, skip locked; the lease row, if it goes back. Raises: nothing. Idempotent: no.
create or replace function hwqueue.settle_own_claim(p_node uuid, p_lease uuid, p_token bigint, p_settlement jsonb, p_shard int,
                                                    out verdict text, out state text)
language plpgsql volatile
as $$
begin
  perform 1 from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and c.node_id <> p_node;
  if found then
    verdict := 'bad_token';
    state := 'claimed';
    return;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
  select s.verdict, s.state into verdict, state
  from hwqueue.settle_claim(p_lease, p_token, p_settlement, true, hwqueue.clock(), p_shard) s;
end
$$;
