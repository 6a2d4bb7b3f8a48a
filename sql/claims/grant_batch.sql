-- Turns ready entries that score alike and that the caller has locked into claims, all in one statement, in the order of claim_task:
-- where nothing is set aside.
-- Locks: none. Raises: nothing. Idempotent: no.
create or replace function hwqueue.grant_batch(p_places tid[], p_node uuid, p_epoch bigint, p_login text, p_claim_timeout interval, p_generation bigint,
  p_now timestamptz, p_shard int)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               expires_at timestamptz)
language plpgsql volatile
as $$
begin
  return query
    with taken as (
      delete from hwqueue.ready r where r.ctid = any (p_places) returning r.*
    ), detail as materialized (
      select t.lease_id, t.queue_id, t.class_id, t.tier, t.rank, t.position, (p_generation << 40) + t.claim_count + 1 as claim_token,
             (t.attempt_count + 1)::smallint as attempt, q.name, l.task_name, l.params, l.headers,
             coalesce(l.claim_timeout, p_claim_timeout, q.claim_timeout) as claim_timeout,
             case when q.retain_completed = '0' and l.idempotency_key is null then greatest(l.available_at, l.created_at) end as eligible_at
      from taken t
      -- fences (offset 0): by key, lease for lease. How many are taken is in no statistics, and the planner might read all leases there are
      cross join lateral (
        select * from hwqueue.lease x where x.shard_id = p_shard and x.lease_id = t.lease_id offset 0) l
      cross join lateral (
        select * from hwqueue.queue x where x.shard_id = p_shard and x.queue_id = t.queue_id offset 0) q
    ), granted as (
      insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
                                 claimed_at, expires_at, check_at, login, eligible_at)
      select p_shard, d.lease_id, d.queue_id, d.class_id, p_node, p_epoch, d.claim_token, d.attempt, d.claim_timeout,
             p_now, p_now + d.claim_timeout, p_now + d.claim_timeout, p_login,
             d.eligible_at
      from detail d
    )
    select d.lease_id, d.claim_token, d.attempt, d.name, d.task_name, d.params, d.headers, p_now + d.claim_timeout
    from detail d order by d.tier, d.rank, d.position;
end
$$;
