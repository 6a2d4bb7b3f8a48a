-- All there is to know of one lease; times are null while they do not apply. wire: the params blob as it was sent.
-- Locks: none. Raises: QHL04. Idempotent: yes.
create or replace function hwqueue.get_lease(p_lease uuid, p_shard int default 0)
returns table (lease_id uuid, shard_id int, queue text, task_name text, state text, priority smallint, tenant text, service_id uuid,
               labels jsonb, placement jsonb, params jsonb, headers jsonb, attempt smallint, max_attempts smallint,
               available_at timestamptz, deadline timestamptz, created_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
               expires_at timestamptz, node_id uuid, claim_token bigint, assignment jsonb, result jsonb, error jsonb, attempts jsonb,
               idempotency_key text, stop_reason text, wire bytea)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.find_lease(p_lease, p_shard);
  return query
    select l.lease_id, l.shard_id, q.name, l.task_name, hwqueue.lease_state(l.lease_id, l.shard_id), l.priority, c.tenant, c.service_id,
           c.labels, c.placement, l.params, l.headers, coalesce(r.attempt, o.attempt, l.attempt_count), coalesce(l.max_attempts, q.max_attempts),
           l.available_at, l.deadline, l.created_at, coalesce(r.claimed_at, o.claimed_at, l.claimed_at),
           o.finished_at, r.expires_at, coalesce(r.node_id, o.node_id, l.node_id),
           nullif(coalesce(r.claim_token, o.claim_token, l.claim_token), 0), r.assignment, o.result, o.error,
           coalesce((select jsonb_agg(jsonb_build_object('attempt', a.attempt, 'claim_token', a.claim_token, 'node_id', a.node_id,
                       'outcome', a.outcome, 'claimed_at', a.claimed_at, 'ended_at', a.ended_at, 'error', a.error) order by a.claim_token)
                     from hwqueue.attempt a where a.shard_id = l.shard_id and a.lease_id = l.lease_id), '[]'),
           l.idempotency_key, r.stop_reason, l.wire
    from hwqueue.lease l
    join hwqueue.queue q on q.shard_id = l.shard_id and q.queue_id = l.queue_id
    join hwqueue.placement_class c on c.shard_id = l.shard_id and c.class_id = l.class_id
    left join hwqueue.claim r on r.shard_id = l.shard_id and r.lease_id = l.lease_id
    left join hwqueue.outcome o on o.shard_id = l.shard_id and o.lease_id = l.lease_id
    where l.shard_id = p_shard and l.lease_id = p_lease;
end
$$;
