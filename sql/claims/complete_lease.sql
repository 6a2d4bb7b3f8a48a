-- Settles a claim as done. A completion that arrives before a cancellation has taken effect wins.
-- Locks, raises: as settle_one. Idempotent: no, the second call raises QHL03.
create or replace function hwqueue.complete_lease(p_lease uuid, p_token bigint, p_result jsonb default null, p_shard int default 0) returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'complete', 'result', p_result), p_shard)
$$;
