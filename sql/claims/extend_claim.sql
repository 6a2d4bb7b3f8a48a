-- Moves the end of a claim to p_extend from now, of a cancelled one to its claim timeout from now at most.
-- Returns the new end.
-- It waits up to five seconds (or lock_timeout) for another session that holds the claim.
-- Locks: the claim. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.extend_claim(p_lease uuid, p_token bigint, p_extend interval, p_shard int default 0) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_until timestamptz;
  v_running bigint;
  v_is_own boolean;
  v_why record;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_extend(p_extend);
  loop
    perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token
      and hwqueue.is_own(c.login) for update skip locked;
    exit when found;
    select c.claim_token, hwqueue.is_own(c.login) into v_running, v_is_own
    from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease;
    if v_running is distinct from p_token or not v_is_own then
      select w.verdict, w.state into v_why from hwqueue.why_not_settled(p_lease, p_token, v_running, p_shard) w;
      perform hwqueue.refuse_settlement(p_lease, p_token, v_why.verdict, v_why.state, p_shard);
    elsif not hwqueue.await_claims(array[p_lease], '5s', p_shard) then
      perform hwqueue.refuse_settlement(p_lease, p_token, 'busy', 'claimed', p_shard);
    end if;
  end loop;
  v_until := hwqueue.clock() + (
    select case when c.stop_reason = 'cancelled' then least(p_extend, c.claim_timeout) else p_extend end
    from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease);
  -- check_at may only trail expires_at: pull it back when the claim is shortened
  update hwqueue.claim c set expires_at = v_until, check_at = least(c.check_at, v_until)
  where c.shard_id = p_shard and c.lease_id = p_lease;
  return v_until;
end
$$;

-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_extend(p_extend interval) returns void
language plpgsql immutable
as $$
begin
  if p_extend is null or p_extend < interval '1 second' or p_extend > interval '30 days' or not isfinite(p_extend) then
    perform hwqueue.refuse('QHA01', format('p_extend must be from one second to 30 days, got %s', coalesce(p_extend::text, 'null')),
      jsonb_build_object('field', 'p_extend'), 'give a span such as interval ''5 minutes'', and extend it again');
  end if;
end
$$;
