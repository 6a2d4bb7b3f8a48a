-- What waits in vain and what it would need: of each reason the 50 largest placement classes, the others together. Judged are the 200 classes
-- with most leases ready and the 200 whose oldest lease has waited longest: what nobody can run gets old. So the cost is bounded; how many
-- leases that leaves out is told. Reasons are those of pending_reasons: no live node will do, or none of those has room.
create or replace function hwqueue.demand_metrics(p_now timestamptz, p_shard int)
returns table (name text, labels jsonb, value double precision)
language plpgsql stable set enable_nestloop = off  -- all nodes: by hash, whatever the statistics say
as $$
declare
  v_look hwqueue.fleet_look := hwqueue.look_at_nodes(p_now, p_shard);
begin
  return query
    with waiting as materialized (
      select w.*, row_number() over (order by w.pending desc, w.class_id) <= 200
                  or row_number() over (order by w.oldest_at, w.class_id) <= 200 as is_judged
      from (select r.class_id, count(*) as pending, min(r.eligible_at) as oldest_at from hwqueue.ready r where r.shard_id = p_shard group by r.class_id) w
    ), ids as materialized (
      select coalesce(array_agg(w.class_id), '{}') as class_ids from waiting w where w.is_judged
    ), room as materialized (
      select p.class_id, bit_and(p.mask) as mask
      from ids cross join lateral hwqueue.capacity_parts(ids.class_ids, false, v_look.open, v_look.none, p_now, p_shard) p
      group by p.class_id
    ), judged as materialized (
      select f.class_id, case when f.nodes_matching = 0 then 'no_match'
                              when bit_count(f.nodes & v_look.open & coalesce(r.mask, f.nodes) & coalesce(t.mask, f.nodes)) = 0
                              then 'contended' end as reason
      from ids
      cross join lateral hwqueue.class_fleets(ids.class_ids, v_look, p_now, p_shard) f
      left join room r on r.class_id = f.class_id
      left join hwqueue.untaken_masks(ids.class_ids, v_look.none, p_now, p_shard) t on t.class_id = f.class_id
    ), unmet as materialized (
      select q.name as queue, c.class_id, c.task_name, j.reason, w.pending, w.oldest_at, w.pending * c.cpu_milli / 1000.0 as cpu_cores,
             w.pending * c.memory_mib * 1048576 as memory_bytes,
             w.pending * case when c.gpu_milli > 0 then c.gpu_milli / 1000.0 else c.gpu_count end as gpus,
             row_number() over (partition by j.reason order by w.pending desc, w.class_id) as place
      from judged j
      join waiting w on w.class_id = j.class_id
      join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = j.class_id
      join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id and q.dropped_at is null
      where j.reason is not null
    ), shown as (
      select u.queue, u.class_id::text as class, u.reason, u.pending, u.oldest_at, u.cpu_cores, u.memory_bytes, u.gpus
      from unmet u where u.place <= 50
      union all
      select '', 'other', u.reason, sum(u.pending), min(u.oldest_at), sum(u.cpu_cores), sum(u.memory_bytes), sum(u.gpus)
      from unmet u where u.place > 50 group by u.reason
    )
    select s.name, jsonb_build_object('queue', d.queue, 'class', d.class, 'reason', d.reason), s.value
    from shown d
    cross join lateral (values
      ('hwqueue_unmet_leases', d.pending::double precision),
      ('hwqueue_unmet_oldest_seconds', hwqueue.seconds_since(d.oldest_at, p_now)),
      ('hwqueue_unmet_cpu_cores', d.cpu_cores),
      ('hwqueue_unmet_memory_bytes', d.memory_bytes),
      ('hwqueue_unmet_gpus', d.gpus)
    ) s(name, value)
    union all
    select 'hwqueue_unmet_class_info',
           jsonb_build_object('class', u.class_id::text, 'queue', u.queue, 'task', u.task_name, 'placement', left(hwqueue.class_words(c), 200)), 1
    from unmet u
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = u.class_id
    where u.place <= 50
    union all
    select 'hwqueue_unmet_unjudged_leases', '{}', coalesce(sum(w.pending), 0) from waiting w where not w.is_judged
    union all
    select 'highway_tasks_pending_no_affinity_match', jsonb_build_object('queue', q.name), coalesce(sum(u.pending), 0)
    from hwqueue.queue q
    left join unmet u on u.queue = q.name and u.reason = 'no_match'
    where q.shard_id = p_shard and q.dropped_at is null
    group by q.name;
end
$$;
