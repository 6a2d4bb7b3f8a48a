-- Every queue with what waits and runs in it.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.list_queues(p_shard int default 0)
returns table (queue text, paused boolean, pending bigint, scheduled bigint, claimed bigint, policy jsonb, shard_id int)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select q.name, q.paused_at is not null,
         (select count(*) from hwqueue.ready r where r.shard_id = q.shard_id and r.queue_id = q.queue_id),
         (select count(*) from hwqueue.scheduled s where s.shard_id = q.shard_id and s.queue_id = q.queue_id),
         (select count(*) from hwqueue.claim c where c.shard_id = q.shard_id and c.queue_id = q.queue_id),
         hwqueue.queue_policy(q), q.shard_id
  from hwqueue.queue q
  where q.shard_id = p_shard and q.dropped_at is null
  order by q.name
$$;
