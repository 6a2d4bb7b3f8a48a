-- Placement classes with what waits and runs of each. profiles: kinds of nodes that claims have found
-- eligible so far (for a class that names nodes, resources or trust domains: nodes). reach: the share of the
-- nodes that suit it, when upkeep looked last, or a claim's first estimate; null before both. words: what the
-- class asks, for people; of the first 500 rows, since they take long to write. Ordered by id: pass the last
-- class_id of a page as p_after of the next.
-- Locks: none. Raises: QHQ01, QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.placement_class_stats(p_queue text default null, p_after bigint default 0, p_limit int default 100, p_shard int default 0)
returns table (shard_id int, class_id bigint, queue text, tenant text, service_id uuid, task_name text, words text, labels jsonb, placement jsonb,
               anchors text[], patience interval, pending bigint, oldest_at timestamptz, running bigint, profiles bigint,
               reach double precision, created_at timestamptz, retired_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off set plan_cache_mode = force_custom_plan
as $$
declare
  v_queue_id int;
  v_ids bigint[];
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  perform hwqueue.check_limit(p_limit);
  v_ids := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after and (v_queue_id is null or c.queue_id = v_queue_id)
    order by c.class_id limit p_limit);
  return query
    select p_shard, c.class_id, q.name, c.tenant, c.service_id, c.task_name, case when row_number() over (order by c.class_id) <= 500 then hwqueue.class_words(c) end, c.labels, c.placement, c.anchors, c.patience,
           coalesce(w.leases, 0), w.oldest_at, coalesce(r.leases, 0), coalesce(e.profiles, 0), h.share, c.created_at, c.retired_at
    from hwqueue.placement_class c
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id and q.dropped_at is null
    left join (select x.class_id, count(*) as leases, min(x.eligible_at) as oldest_at from hwqueue.ready x
               where x.shard_id = p_shard and x.class_id = any (v_ids) group by 1) w on w.class_id = c.class_id
    left join (select x.class_id, count(*) as leases from hwqueue.claim x where x.shard_id = p_shard and x.class_id = any (v_ids) group by 1) r
      on r.class_id = c.class_id
    left join (select x.class_id, sum(x.profiles)::bigint as profiles
               from (select p.class_id, count(*) as profiles from hwqueue.profile_eligibility p
                     where p.shard_id = p_shard and p.class_id = any (v_ids) group by 1
                     union all
                     select n.class_id, count(*) from hwqueue.node_eligibility n where n.shard_id = p_shard and n.class_id = any (v_ids) group by 1) x
               group by 1) e on e.class_id = c.class_id
    left join hwqueue.class_fleet h on h.shard_id = p_shard and h.class_id = c.class_id
    where c.shard_id = p_shard and c.class_id = any (v_ids)
    order by c.class_id;
end
$$;

-- All classes, of all shards.
create or replace view hwqueue.placement_class_stats as
select c.* from hwqueue.shard s cross join lateral hwqueue.placement_class_stats(p_limit => null, p_shard => s.shard_id) c;
