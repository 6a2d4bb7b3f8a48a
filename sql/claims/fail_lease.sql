-- Settles a claim as failed. The lease is tried again by its retry policy (or at p_retry_at) while attempts are left;
-- else, or with p_retry false, it is dead and kept. Gives the new state.
-- Locks, raises: as settle_one. Idempotent: no. Wakes: waiting workers, when it may run again at once.
create or replace function hwqueue.fail_lease(p_lease uuid, p_token bigint, p_error jsonb, p_retry boolean default true,
                                              p_retry_at timestamptz default null, p_shard int default 0) returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'fail', 'error', p_error, 'retry', p_retry,
    'retry_at', case when p_retry_at between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then to_char(p_retry_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
                    else p_retry_at::text end), p_shard)
$$;
