-- Settles one claim: {"outcome": "complete"|"fail"|"release", "result", "error", "retry", "retry_at", "delay"}.
-- An expired claim that nobody has reaped settles like any other: a claim is lost by being granted anew, not by the clock.
-- p_holds_node: the caller holds the node_state of the claim's node. If it does not, and something is set aside for the claim, nothing
-- is done; the verdict is counted. While another session holds the claim nothing is done either; the verdict is busy (await_claims).
-- Locks: the claim, skip locked; the lease row, if it goes back. Raises: nothing for a claim that is gone, the verdict says so: ok, lost, cancelled, finished,
-- bad_token, foreign (another login's or node's), unknown.
-- Idempotent: no, the second settlement finds finished.
create or replace function hwqueue.settle_claim(p_lease uuid, p_token bigint, p_settlement jsonb, p_holds_node boolean, p_now timestamptz, p_shard int,
                                                out verdict text, out state text)
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_next timestamptz;
begin
  -- by token: whoever has an old one waits for nobody
  select c.* into v_claim from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and (c.assignment is null or p_holds_node)
    and hwqueue.is_own(c.login) for update skip locked;
  if not found then
    select c.claim_token, c.assignment, c.login into v_claim.claim_token, v_claim.assignment, v_claim.login
    from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease;
    if v_claim.claim_token = p_token and hwqueue.is_own(v_claim.login) then
      verdict := case when v_claim.assignment is null or p_holds_node then 'busy' else 'counted' end;
      state := 'claimed';
    else
      select w.verdict, w.state into verdict, state from hwqueue.why_not_settled(p_lease, p_token, v_claim.claim_token, p_shard) w;
    end if;
    return;
  end if;
  verdict := 'ok';
  case p_settlement ->> 'outcome'
    when 'complete' then
      perform hwqueue.finish_claim(p_lease, p_token, null, false, true, nullif(p_settlement -> 'result', 'null'), p_shard);
      state := 'completed';
    when 'fail' then
      if coalesce((p_settlement ->> 'retry')::boolean, true) then
        v_next := hwqueue.next_attempt_at(p_lease, v_claim.attempt, p_now, p_shard);
        if v_next is not null then
          v_next := coalesce((p_settlement ->> 'retry_at')::timestamptz, v_next);
        end if;
      end if;
      state := hwqueue.end_claim(v_claim, 'failed', nullif(p_settlement -> 'error', 'null'), v_next, p_now, p_shard);
    when 'release' then
      v_next := p_now + coalesce(hwqueue.json_interval(p_settlement -> 'delay', 'delay'), interval '0');
      state := hwqueue.end_claim(v_claim, 'released', null, v_next, p_now, p_shard);
  end case;
end
$$;

-- Why a token settles nothing. p_current is the token of the claim that runs now, if one does: a right one that settles nothing is another
-- login's or node's.
create or replace function hwqueue.why_not_settled(p_lease uuid, p_token bigint, p_current bigint, p_shard int,
                                                   out verdict text, out state text)
language plpgsql volatile
as $$
declare
  v_last bigint;  -- token of the last claim that has ended
begin
  -- one statement, one snapshot: a lease that is requeued meanwhile takes its last token along; of one that went when it completed the
  -- outcome knows, for a while
  select coalesce(o.claim_token, l.claim_token), coalesce(o.state, hwqueue.lease_state(p_lease, p_shard)) into v_last, state
  from (values (p_lease)) i(lease_id)
  left join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = i.lease_id
  left join hwqueue.outcome o on o.shard_id = p_shard and o.lease_id = i.lease_id;
  verdict := case
    when v_last is null then 'unknown'
    when p_token = p_current then 'foreign'
    when p_token is null or p_token > coalesce(p_current, v_last) or p_token < 1 then 'bad_token'
    when state = 'cancelled' then 'cancelled'
    when state in ('completed', 'failed') and p_token = v_last then 'finished'
    else 'lost' end;
end
$$;
