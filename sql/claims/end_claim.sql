-- Ends a claim that did not complete: deletes it, gives its room back, writes the attempt down, and puts the lease back
-- at p_next, or finishes it when p_next is null. A lease that was asked to stop because it is cancelled is not put back.
-- Locks: node_state is held by the caller when something was set aside, and the claim; then the lease row, if it goes back.
-- Raises: nothing. Idempotent: no. Gives the new state.
create or replace function hwqueue.end_claim(p_claim hwqueue.claim, p_outcome text, p_error jsonb, p_next timestamptz,
                                             p_now timestamptz, p_shard int) returns text
language plpgsql volatile
as $$
declare
  v_cancelled boolean := p_claim.stop_reason is not distinct from 'cancelled';
  v_attempts int := p_claim.attempt - case when p_outcome = 'released' then 1 else 0 end;
  v_state text := case when v_cancelled then 'cancelled' else 'failed' end;
begin
  perform hwqueue.remove_claim(p_claim.lease_id, p_shard);
  insert into hwqueue.attempt (shard_id, lease_id, claim_token, attempt, node_id, outcome, claimed_at, ended_at, error)
  values (p_shard, p_claim.lease_id, p_claim.claim_token, p_claim.attempt, p_claim.node_id,
          case when v_cancelled then 'cancelled' else p_outcome end, p_claim.claimed_at, p_now, p_error);
  if p_next is not null and not v_cancelled then
    update hwqueue.lease l
    set claim_token = p_claim.claim_token, node_id = p_claim.node_id, claimed_at = p_claim.claimed_at
    where l.shard_id = p_shard and l.lease_id = p_claim.lease_id;
    return hwqueue.put_back(p_claim.lease_id, v_attempts, (p_claim.claim_token & ((1::bigint << 40) - 1))::int, p_next, p_now, p_shard);
  end if;
  insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claimed_at, claim_token, node_id, attempt, state, error)
  values (p_shard, p_claim.lease_id, p_claim.queue_id, p_now, p_claim.claimed_at, p_claim.claim_token, p_claim.node_id, v_attempts,
          v_state, coalesce(p_error, case when v_cancelled then jsonb_build_object('reason', 'cancelled', 'detail', p_claim.stop_detail) end));
  perform hwqueue.note_leases(case when v_cancelled then 'lease_cancelled' else 'lease_failed' end, array[p_claim.lease_id],
    case when v_cancelled then 'cancelled while it ran' else format('dead after attempt %s, which ended %s', p_claim.attempt, p_outcome) end,
    p_shard, jsonb_build_object('attempt', p_claim.attempt, 'outcome', p_outcome, 'error', left(p_error ->> 'message', 200)), p_claim.node_id);
  return v_state;
end
$$;

-- When the next attempt may start after p_attempt of them, null when there is none left.
create or replace function hwqueue.next_attempt_at(p_lease uuid, p_attempt int, p_now timestamptz, p_shard int) returns timestamptz
language sql volatile
as $$
  select case when p_attempt < coalesce(l.max_attempts, q.max_attempts)
              then p_now + hwqueue.retry_delay(coalesce(l.retry, q.retry), p_attempt) end
  from hwqueue.lease l
  join hwqueue.queue q on q.shard_id = l.shard_id and q.queue_id = l.queue_id
  where l.shard_id = p_shard and l.lease_id = p_lease
$$;
