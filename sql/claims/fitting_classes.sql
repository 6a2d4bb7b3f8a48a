-- The score by which claims order leases of one tier and rank, higher first.
create or replace function hwqueue.lease_score(p_queue hwqueue.queue, p_affinity double precision, p_fit double precision)
returns double precision
language sql immutable parallel safe
as $$ select p_queue.weight_affinity * p_affinity + p_queue.weight_fit * p_fit $$;

-- The classes of these queues that a node may run and has room for now, with their score there:
-- sum of weight x term (design 5.2), affinity -100..100 and fit 0..100.
-- p_extra: classes judged but not remembered, [{"class_id", "affinity"}].
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.fitting_classes(p_node hwqueue.node, p_room hwqueue.headroom, p_queues hwqueue.queue[], p_tasks text[],
                                                   p_extra jsonb, p_shard int)
returns table (class_id bigint, score double precision)
language sql stable
as $$
  select (j.c).class_id, hwqueue.lease_score(j.q, j.affinity, hwqueue.fit_score(j.c, j.share, p_room))
  from (
    select c.k as c, q, e.affinity, r.share
    from unnest(p_queues) q
    join lateral (
      select pe.class_id, pe.affinity from hwqueue.profile_eligibility pe
      where pe.shard_id = p_shard and pe.profile_id = p_node.profile_id and pe.queue_id = q.queue_id
      union all
      select ne.class_id, ne.affinity from hwqueue.node_eligibility ne
      where ne.shard_id = p_shard and ne.node_id = p_node.node_id and ne.queue_id = q.queue_id
      union all
      select x.class_id, x.affinity from jsonb_to_recordset(p_extra) x(class_id bigint, affinity double precision)
      where x.class_id is not null
    ) e on true
    -- fences (offset 0): by index, class for class. How many classes are eligible is in no statistics, and the planner would
    -- read every class there is, or ask all of them what they lack
    cross join lateral (
      select k from hwqueue.placement_class k where k.shard_id = p_shard and k.class_id = e.class_id offset 0) c
    left join lateral (
      select s.share from hwqueue.class_reach s where s.shard_id = p_shard and s.class_id = e.class_id offset 0) r on true
    where (c.k).queue_id = q.queue_id and (p_tasks is null or (c.k).task_name = any (p_tasks))
    offset 0
  ) j
  where hwqueue.lacking(j.c, p_room) = ''
$$;
