-- Hands a claim back unfinished, after p_delay, using up no attempt: for workers that stop. Gives the new state.
-- Locks, raises: as settle_one. Idempotent: no. Wakes: waiting workers, when it may run again at once.
create or replace function hwqueue.release_lease(p_lease uuid, p_token bigint, p_delay interval default '0', p_shard int default 0) returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'release', 'delay', case when isfinite(p_delay) then to_jsonb(extract(epoch from p_delay)) else to_jsonb(p_delay::text) end), p_shard)
$$;
