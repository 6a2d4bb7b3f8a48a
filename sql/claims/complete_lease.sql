-- Settles a claim as done. A completion that arrives before a cancellation has taken effect wins.
-- Locks: node_state of the claim's node if something was set aside; the claim.
-- Raises: as settle_one. Idempotent: no, the second call raises QHL03. Plans: by index, as in claim_task.
create or replace function hwqueue.complete_lease(p_lease uuid, p_token bigint, p_result jsonb default null, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_result jsonb := nullif(p_result, 'null');
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if v_result is not null then
    perform hwqueue.check_result(p_lease, v_result, 'result', p_shard);
  end if;
  if hwqueue.finish_claim(p_lease, p_token, null, true, false, v_result, p_shard) then
    return 'completed';
  end if;
  -- a peek: if the claim moves before the locks are held, its token will not match any more
  perform 1 from hwqueue.node_state s
  where s.shard_id = p_shard and s.node_id = (
    select c.node_id from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token
      and hwqueue.is_own(c.login))
  for no key update;
  if found and hwqueue.finish_claim(p_lease, p_token, null, false, false, v_result, p_shard) then
    return 'completed';
  end if;
  return hwqueue.settle_one(p_lease, p_token, case when v_result is null then '{"outcome": "complete"}'
    else jsonb_build_object('outcome', 'complete', 'result', v_result) end, p_shard);
end
$$;
