-- What a claim must know of a queue that it names, and of what a node's profile may run there; no row: it is unknown or paused.
-- tier, rank, position: the queue's low-water mark, if it has one (marks: how many it has; most queues have one tier and rank).
-- is_front: the profile likes all its classes alike, it has seen all there are, and nothing comes before the mark: then the next lease is
-- the first of those classes from the mark on. last: how far to look for it: others stand there as well, or, where the front of the queue stands
-- still, what has been claimed since. is_first: and none of them must be checked against others.
-- drops_completed: its leases go when they complete.
-- Locks: none. Raises: nothing. Idempotent: yes. A SQL function of one select: the planner puts it in place of its call;
-- the looks are ordered, so that each has its index.
create or replace function hwqueue.look_at_queue(p_queue text, p_profile_id bigint, p_classes_seen xid8, p_classes_unseen xid8[], p_shard int)
returns setof hwqueue.queue_look
language sql stable
as $$
  select q.queue_id, q.name, q.claim_timeout, q.window_size, e.classes, e.task_names, e.most_cpu_milli, e.most_memory_mib,
         cardinality(w.tiers), w.tiers[1], w.ranks[1], w.positions[1],
         case when cardinality(e.classes) > 1 then (
                select r.position from hwqueue.ready r
                where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = 0 and r.rank = w.ranks[1] and r.position >= w.positions[1]
                order by r.position limit 1) + case when cardinality(e.classes) <= 64 then least(q.window_size, 40) else q.window_size end - 1
              when w.stands then w.positions[1] + 1031
              else 9223372036854775807 end,
         f.is_front, f.is_front and e.checked = '{}' and cardinality(e.classes) <= 200, e.checked, array[q.queue_id],
         q.retain_completed = '0'
  from hwqueue.queue q
  left join lateral (  -- limit: as a plain join it may read all queues of the profile
    select x.* from hwqueue.profile_queue x
    where x.shard_id = p_shard and x.profile_id = p_profile_id and x.queue_id = q.queue_id limit 1) e on true
  left join lateral (
    select m.tiers, m.ranks, m.positions, m.version < m.stands_until as stands from hwqueue.low_water m
    where m.shard_id = p_shard and m.queue_id = q.queue_id and m.class_id = 0 order by m.version desc limit 1) w on true
  cross join lateral (
    select coalesce(e.is_even and e.classes <> '{}' and cardinality(w.tiers) = 1 and w.tiers[1] = 0
           and (
             select c.class_id from hwqueue.placement_class c
             where c.shard_id = p_shard and c.created_xid >= least(e.classes_seen, p_classes_seen) order by c.created_xid limit 1) is null
           -- mostly there is none unseen, and the look costs more than all the others
           and (e.classes_unseen || p_classes_unseen = '{}' or (
             select x.class_id from unnest(e.classes_unseen || p_classes_unseen) u(xid)
             cross join lateral (
               select c.class_id from hwqueue.placement_class c
               where c.shard_id = p_shard and c.created_xid >= u.xid and c.created_xid <= u.xid order by c.created_xid limit 1) x
             limit 1) is null)
           and (
             select r.position from hwqueue.ready r
             where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = 0 and r.rank < w.ranks[1]
             order by r.rank, r.position limit 1) is null, false) as is_front offset 0) f
  where q.shard_id = p_shard and q.name = p_queue and q.dropped_at is null and q.paused_at is null
$$;

-- The same of several queues: the one whose first entry comes first of all, from there on (rank, position) to the first entry of the next (last),
-- and the ids of all. is_first: each of the queues is open and is as look_at_queue says, without leases of this node alone (p_pinned), which may
-- be liked better, or is empty; else what comes first is not known here. No row: none of them is open.
-- Locks: none. Raises: nothing. Idempotent: yes. Inlined like the other.
create or replace function hwqueue.look_at_queues(p_queues text[], p_profile_id bigint, p_classes_seen xid8, p_classes_unseen xid8[],
                                                  p_pinned int[], p_shard int)
returns setof hwqueue.queue_look
language sql stable
as $$
  select k.queue_id, k.name, k.claim_timeout, k.window_size, k.classes, k.task_names, k.most_cpu_milli, k.most_memory_mib,
         k.marks, k.tier, k.rank, k.position,
         least(coalesce(k.last, k.position + least(k.window_size, 40) - 1), case when lead(k.tier) over o = 0 and lead(k.rank) over o = k.rank then lead(k.position) over o - 1 end),
         null::boolean, bool_and(k.is_known) over () and count(*) over () = cardinality(p_queues) and k.tier = 0, null::bigint[], array_agg(k.queue_id) over (),
         k.drops_completed
  from (
    select l.queue_id, l.name, l.claim_timeout, l.window_size, l.classes, l.task_names, l.most_cpu_milli, l.most_memory_mib, l.marks, l.drops_completed,
           f.tier, f.rank, f.position, l.last,
           coalesce(l.marks = 1 and l.tier = 0
             and (l.is_first and l.queue_id <> all (p_pinned)
                  or f.tier is null and (
                    select r.position from hwqueue.ready r
                    where r.shard_id = p_shard and r.queue_id = l.queue_id and r.tier = 0 and r.rank < l.rank
                    order by r.rank, r.position limit 1) is null), false) as is_known
    from unnest(p_queues) n(name)
    cross join lateral hwqueue.look_at_queue(n.name, p_profile_id, p_classes_seen, p_classes_unseen, p_shard) l
    left join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = l.queue_id and (r.tier, r.rank, r.position) >= (0, l.rank, l.position)
      order by r.tier, r.rank, r.position limit 1) f on true
  ) k
  window o as (order by k.tier, k.rank, k.position)
  order by k.tier, k.rank, k.position limit 1
$$;
