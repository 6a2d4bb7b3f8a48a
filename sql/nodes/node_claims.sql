-- What runs on a node and what is set aside for it, the oldest claims first. stop_by: by when it was asked to stop.
-- Locks: none. Raises: QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.node_claims(p_node uuid, p_limit int default 500, p_shard int default 0)
returns table (lease_id uuid, shard_id int, queue text, task_name text, tenant text, service_id uuid, claim_token bigint, attempt smallint,
               claimed_at timestamptz, expires_at timestamptz, stop_reason text, stop_by timestamptz, assignment jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer');
  return query
    select r.lease_id, r.shard_id, q.name, l.task_name, c.tenant, c.service_id, r.claim_token, r.attempt, r.claimed_at, r.expires_at,
           r.stop_reason, r.stop_by, r.assignment
    from hwqueue.claim r
    join hwqueue.lease l on l.shard_id = r.shard_id and l.lease_id = r.lease_id
    join hwqueue.queue q on q.shard_id = r.shard_id and q.queue_id = r.queue_id
    join hwqueue.placement_class c on c.shard_id = r.shard_id and c.class_id = r.class_id
    where r.shard_id = p_shard and r.node_id = p_node
    order by r.claimed_at, r.lease_id limit p_limit;
end
$$;
