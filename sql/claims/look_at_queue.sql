-- What a claim that names one queue needs to know of it and of what a node's profile may run there; no row: it is unknown or paused.
-- is_first: the profile likes all its classes alike, none must be checked against others, it has seen all there are, and nothing comes before the mark at rank and position:
-- most queues have one tier and rank. is_due: scheduled leases wait to be promoted.
-- Locks: none. Raises: nothing. Idempotent: yes. A SQL function of one select: the planner puts it in place of its call;
-- the looks are ordered, so that each has its index.
create or replace function hwqueue.look_at_queue(p_queue text, p_profile_id bigint, p_classes_seen xid8, p_classes_unseen xid8[],
                                                p_now timestamptz, p_shard int)
returns table (queue_id int, name text, claim_timeout interval, window_size int, classes bigint[], task_names text[], most_cpu_milli bigint,
               most_memory_mib bigint, rank bigint, "position" bigint, is_first boolean, is_due boolean)
language sql stable
as $$
  select q.queue_id, q.name, q.claim_timeout, q.window_size, e.classes, e.task_names, e.most_cpu_milli, e.most_memory_mib,
         w.ranks[1], w.positions[1],
         e.is_even and e.checked = '{}' and cardinality(e.classes) between 1 and 200 and cardinality(w.tiers) = 1 and w.tiers[1] = 0
           and (
             select c.class_id from hwqueue.placement_class c
             where c.shard_id = p_shard and c.created_xid >= least(e.classes_seen, p_classes_seen) order by c.created_xid limit 1) is null
           and (
             select x.class_id from unnest(e.classes_unseen || p_classes_unseen) u(xid)
             cross join lateral (
               select c.class_id from hwqueue.placement_class c
               where c.shard_id = p_shard and c.created_xid >= u.xid and c.created_xid <= u.xid order by c.created_xid limit 1) x
             limit 1) is null
           and (
             select r.position from hwqueue.ready r
             where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = 0 and r.rank < w.ranks[1]
             order by r.rank, r.position limit 1) is null,
         (select s.available_at from hwqueue.scheduled s
          where s.shard_id = p_shard and s.queue_id = q.queue_id and s.available_at <= p_now and s.available_at >= coalesce((
            select m.scheduled_from from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity')
          order by s.available_at limit 1) is not null
  from hwqueue.queue q
  left join lateral (  -- limit: as a plain join it may read all queues of the profile
    select x.* from hwqueue.profile_queue x
    where x.shard_id = p_shard and x.profile_id = p_profile_id and x.queue_id = q.queue_id limit 1) e on true
  left join lateral (
    select m.tiers, m.ranks, m.positions from hwqueue.low_water m
    where m.shard_id = p_shard and m.queue_id = q.queue_id and m.class_id = 0 order by m.version desc limit 1) w on true
  where q.shard_id = p_shard and q.name = p_queue and q.dropped_at is null and q.paused_at is null
$$;
