-- Grants a node up to p_qty leases that it may run now, best first; zero rows when there are none.
-- p_claim_timeout counts for leases that bring none of their own; else the queue's.
-- Locks: node_state, then scheduled and ready entries (skip locked). Raises: QHQ01, QHN01, QHN03, QHA01, QHA02.
-- Idempotent: no. An error or a lost connection means that the outcome is unknown: treat it as not granted.
create or replace function hwqueue.claim_task(p_queues text[], p_node uuid, p_epoch bigint, p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_shard int default 0)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_queues hwqueue.queue[];
  v_state hwqueue.node_state;
  v_now timestamptz;
  v_leases uuid[];
  v_scores double precision[];
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_claim_arguments(p_queues, p_qty, p_claim_timeout);
  v_state := hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);
  v_queues := hwqueue.open_queues(p_queues, p_shard);
  v_now := hwqueue.clock();
  select array_agg(g.lease_id), array_agg(g.score) into v_leases, v_scores
  from hwqueue.claim_leases(v_state, v_queues, p_qty, p_tasks, p_claim_timeout, v_now, p_shard) g;
  -- a statement of its own: the one above cannot see the claims that it wrote
  return query
    select c.lease_id, c.claim_token, c.attempt, q.name, l.task_name, l.params, l.headers, g.score, c.expires_at, c.assignment, p_shard
    from unnest(v_leases, v_scores) with ordinality g(lease_id, score, ordinal)
    join hwqueue.claim c on c.shard_id = p_shard and c.lease_id = g.lease_id
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = g.lease_id
    join unnest(v_queues) q on q.queue_id = c.queue_id
    order by g.ordinal;
end
$$;
