-- What waits and runs in each queue. oldest_at: since when the oldest ready lease has been claimable; next_at: when the next scheduled one becomes so.
-- stopping: running leases that were asked to stop; expired: claims that nobody has extended, for reap to end.
-- Locks: none. Raises: QHQ01, QHA03. Idempotent: yes.
create or replace function hwqueue.queue_depth(p_queue text default null, p_shard int default 0)
returns table (shard_id int, queue text, pending bigint, scheduled bigint, running bigint, stopping bigint, expired bigint,
               oldest_at timestamptz, next_at timestamptz, paused_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_custom_plan
as $$
declare
  v_queue_id int;
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  return query
    select p_shard, q.name, coalesce(r.leases, 0), coalesce(d.leases, 0), coalesce(c.leases, 0), coalesce(c.stopping, 0), coalesce(c.expired, 0),
           r.oldest_at, d.next_at, q.paused_at
    from hwqueue.queue q
    left join (
      select e.queue_id, count(*) as leases, min(e.eligible_at) as oldest_at from hwqueue.ready e
      where e.shard_id = p_shard and (v_queue_id is null or e.queue_id = v_queue_id) group by e.queue_id) r on r.queue_id = q.queue_id
    left join (
      select e.queue_id, count(*) as leases, min(e.available_at) as next_at from hwqueue.scheduled e
      where e.shard_id = p_shard and (v_queue_id is null or e.queue_id = v_queue_id) group by e.queue_id) d on d.queue_id = q.queue_id
    left join (
      select e.queue_id, count(*) as leases, count(*) filter (where e.stop_requested_at <= v_now) as stopping,
             count(*) filter (where e.expires_at <= v_now) as expired
      from hwqueue.claim e
      where e.shard_id = p_shard and (v_queue_id is null or e.queue_id = v_queue_id) group by e.queue_id) c on c.queue_id = q.queue_id
    where q.shard_id = p_shard and q.dropped_at is null and (v_queue_id is null or q.queue_id = v_queue_id)
    order by q.name;
end
$$;

-- All queues, of all shards.
create or replace view hwqueue.queue_depth as
select d.* from hwqueue.shard s cross join lateral hwqueue.queue_depth(p_shard => s.shard_id) d;
