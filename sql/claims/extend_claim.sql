-- Moves the end of a claim to p_extend from now. Gives the new end.
-- Locks: the claim. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.extend_claim(p_lease uuid, p_token bigint, p_extend interval, p_shard int default 0) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_until timestamptz;
  v_why record;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_extend(p_extend);
  perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token
    and hwqueue.is_own(c.login) for update;
  if not found then
    select w.verdict, w.state into v_why
    from hwqueue.why_not_settled(p_lease, p_token, (
      select c.claim_token from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease), p_shard) w;
    perform hwqueue.refuse_settlement(p_lease, p_token, v_why.verdict, v_why.state, p_shard);
  end if;
  v_until := hwqueue.clock() + p_extend;
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
  if p_extend is null or p_extend < interval '1 second' or p_extend > interval '3650 days' or not isfinite(p_extend) then
    perform hwqueue.refuse('QHA01', format('p_extend must be from one second to ten years, got %s', coalesce(p_extend::text, 'null')),
      jsonb_build_object('field', 'p_extend'), 'give a span such as interval ''5 minutes''');
  end if;
end
$$;
