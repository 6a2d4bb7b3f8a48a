-- Settles a claim as done. A completion that arrives before a cancellation has taken effect wins.
-- Locks: node_state of the claim's node if something was set aside; the claim; the lease row.
-- Raises: as settle_one. Idempotent: no, the second call raises QHL03. Plans: by index, as in claim_task.
create or replace function hwqueue.complete_lease(p_lease uuid, p_token bigint, p_result jsonb default null, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  if p_result is null and current_setting('transaction_isolation') = 'read committed'
     and hwqueue.complete_plain(p_lease, p_token, null, p_shard) then
    return 'completed';
  end if;
  return hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'complete', 'result', p_result), p_shard);
end
$$;
