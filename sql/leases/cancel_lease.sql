-- Cancels a lease. One that waits is cancelled at once; a running one is asked to stop, which its worker learns at the next
-- heartbeat, and stays claimed until it settles or expires, one claim timeout from now at the latest unless it heartbeats.
-- Cancelling a cancelled lease changes nothing.
-- Locks: the entry or the claim. Raises: QHL03 finished, QHL04, QHA01, QHA02. Idempotent: yes. Gives the state.
create or replace function hwqueue.cancel_lease(p_lease uuid, p_reason text default null, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_claim hwqueue.claim;
  v_entry hwqueue.scheduled;
  v_state text;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  v_entry := hwqueue.take_entry(p_lease, p_shard);
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
  v_now := hwqueue.clock();
  if v_entry.lease_id is not null then
    perform hwqueue.end_waiting(array[p_lease], 'cancelled', jsonb_build_object('reason', 'cancelled', 'detail', p_reason), v_now, p_shard);
    perform hwqueue.note_leases('lease_cancelled', array[p_lease], concat_ws(': ', 'cancelled while it waited', p_reason), p_shard);
    return 'cancelled';
  end if;
  select c.* into v_claim from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease for update;
  update hwqueue.claim c
  set stop_requested_at = least(c.stop_requested_at, v_now), stop_reason = 'cancelled', stop_detail = p_reason,
      expires_at = least(c.expires_at, v_now + c.claim_timeout), check_at = least(c.check_at, v_now + c.claim_timeout)
  where c.shard_id = p_shard and c.lease_id = p_lease;
  if found then
    if v_claim.stop_reason is distinct from 'cancelled' then
      perform hwqueue.note_leases('claim_stop_requested', array[p_lease], concat_ws(': ', 'asked to stop: cancelled', p_reason), p_shard,
        '{"reason": "cancelled"}', v_claim.node_id);
    end if;
    return 'claimed';
  end if;
  v_state := (hwqueue.lease_end(p_lease, p_shard)).state;
  if v_state is null then  -- it has just been requeued, or pruned
    return hwqueue.cancel_lease(p_lease, p_reason, p_shard);
  elsif v_state <> 'cancelled' then
    perform hwqueue.refuse('QHL03', format('lease %s is %s already', p_lease, v_state),
      jsonb_build_object('lease_id', p_lease, 'state', v_state), 'a finished lease cannot be cancelled');
  end if;
  return v_state;
end
$$;

-- Writes down how leases ended that waited: the caller has deleted their entries, and read the clock after that. p_error null: by their deadline.
-- Locks: none but the entries. Idempotent: no.
create or replace function hwqueue.end_waiting(p_leases uuid[], p_state text, p_error jsonb, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claimed_at, claim_token, node_id, attempt, state, error)
  select p_shard, l.lease_id, l.queue_id, p_now, l.claimed_at, l.claim_token, l.node_id, l.attempt_count, p_state,
         coalesce(p_error, jsonb_build_object('reason', 'deadline_exceeded', 'deadline', l.deadline))
  from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (p_leases);
end
$$;
