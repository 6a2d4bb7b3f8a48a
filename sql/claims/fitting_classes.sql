-- The score by which claims order leases of one tier and rank, higher first.
create or replace function hwqueue.lease_score(p_weight_affinity double precision, p_weight_fit double precision, p_weight_spread double precision,
  p_affinity double precision, p_fit double precision, p_spread double precision) returns double precision
language sql immutable parallel safe
as $$ select p_weight_affinity * p_affinity + p_weight_fit * p_fit + p_weight_spread * p_spread $$;

-- The score of a class that prefers something about other leases, or how they spread.
create or replace function hwqueue.class_score(p_class_id bigint, p_node hwqueue.node, p_room hwqueue.headroom, p_queue hwqueue.queue, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_class hwqueue.placement_class;
  v_facts jsonb;
begin
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  v_facts := hwqueue.term_facts(v_class, p_node, null, p_now, p_shard);
  return hwqueue.lease_score(p_queue.weight_affinity, p_queue.weight_fit, p_queue.weight_spread,
    hwqueue.class_affinity(v_class, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids, v_facts,
                           hwqueue.node_taints(p_node)),
    hwqueue.fit_score(v_class.cpu_milli, v_class.memory_mib, v_class.gpu_count, v_class.gpu_milli, (
      select r.share from hwqueue.class_fleet r where r.shard_id = p_shard and r.class_id = p_class_id), p_room),
    hwqueue.spread_score(v_class, v_facts, null, null, p_now, p_shard));
end
$$;

-- The classes of these queues that a node may run and has room for now, best score first:
-- sum of weight x term (design 5.2), affinity -100..100 (with the class's strength) and fit 0..100.
-- p_only: of these (claim_candidates), null: of all; p_extra: classes judged but not remembered, [{"class_id", "affinity"}];
-- p_without: classes that this call has found blocked.
-- checked: those that must be checked at the claim, in no order. Attestations expire, so classes that mention trust domains
-- are asked again.
create or replace function hwqueue.fitting_classes(p_node hwqueue.node, p_room hwqueue.headroom, p_queue_ids int[], p_tasks text[], p_only bigint[],
                                                   p_extra jsonb, p_without bigint[], p_now timestamptz, p_shard int,
                                                   out classes bigint[], out scores double precision[], out checked bigint[])
language plpgsql stable
as $$
declare
  v_attested text[] := hwqueue.attested_at(p_node, p_now);
begin
  select coalesce(array_agg(f.class_id order by f.score desc, f.class_id), '{}'),
         coalesce(array_agg(f.score order by f.score desc, f.class_id), '{}'), coalesce(array_agg(f.class_id) filter (where f.is_checked), '{}')
  into classes, scores, checked
  from (
    select e.class_id, e.is_checked,
           case when e.affinity is null then hwqueue.class_score(e.class_id, p_node, p_room, q, p_now, p_shard)
                else hwqueue.lease_score(q.weight_affinity, q.weight_fit, q.weight_spread, e.affinity,
                  hwqueue.fit_score(e.cpu_milli, e.memory_mib, e.gpu_count, e.gpu_milli, r.share, p_room), 0) end as score
    from hwqueue.queue q
    cross join lateral (
      select * from hwqueue.eligible_classes(p_node.profile_id, p_node.node_id, q.queue_id, p_only, p_shard)
      union all
      select c.class_id, x.affinity, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count, c.gpu_milli, c.gpu_wanted,
             c.custom, i.cpu, hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_node.gpu_share_mode), '{}'::text[],
             hwqueue.must_be_checked(c, x.affinity, p_shard)
      from jsonb_to_recordset(p_extra) x(class_id bigint, affinity double precision)
      join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = x.class_id
      cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation, p_node.default_cpu_isolation) as cpu) i
      where c.queue_id = q.queue_id and not exists (  -- remembered by another session meanwhile
        select from hwqueue.profile_eligibility o
        where o.shard_id = p_shard and o.profile_id = p_node.profile_id and o.queue_id = q.queue_id and o.class_id = c.class_id)
    ) e
    left join lateral (  -- fenced: by its key, not all of them for each class
      select s.share from hwqueue.class_fleet s
      where s.shard_id = p_shard and s.class_id = e.class_id and e.gpu_count > 0 and p_room.gpu_total > 0 offset 0) r on true
    where q.shard_id = p_shard and q.queue_id = any (p_queue_ids) and (p_tasks is null or e.task_name = any (p_tasks))
      and (p_without = '{}' or e.class_id not in (select unnest(p_without)))
      -- to score these takes long
      and (e.affinity is not null or (
        select true from hwqueue.ready r where r.shard_id = p_shard and r.class_id = e.class_id order by r.tier, r.rank, r.position limit 1))
      and hwqueue.shortage(e.cpu_milli, e.memory_mib, e.gpu_count, e.gpu_milli, e.gpu_wanted, e.custom, p_room,
                           e.cpu_isolation, e.gpu_exclusivity) = 0
      and (e.trusts <@ v_attested or hwqueue.still_suits(e.class_id, p_node, v_attested, p_shard))
  ) f;
end
$$;
