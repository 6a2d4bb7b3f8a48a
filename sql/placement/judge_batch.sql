-- Judging in batches, in the order of the transactions that wrote the classes: a claim judges one batch, of up to 500 classes that
-- cost no more than judge_budget, and up to eight while it finds nothing to run; reap judges ahead of claims. So a claim is bounded however
-- many classes are new and whatever they ask. What was judged is kept.

-- Judges up to p_limit classes for a profile. Returns how many; p_limit: there may be more. p_is_upkeep: a batch with
-- a class that costs more than judge_budget is left to claims.
-- Locks: the caller holds the profile's row; the shard's row, skip locked.
create or replace function hwqueue.judge_for_profile(p_profile hwqueue.profile, p_limit int, p_is_upkeep boolean, p_shard int)
returns int
language plpgsql volatile
as $$
declare
  v_next record;
begin
  select n.batch, n.judged, n.more into v_next
  from hwqueue.next_classes(
    row(p_profile.classes_seen, p_profile.classes_unseen, p_profile.judged_xid, p_profile.judged_class)::hwqueue.judged,
    p_profile.anchors, false, p_limit, p_shard) n;
  if v_next.batch = '{}' and p_profile.judged_xid = pg_current_xact_id_if_assigned() then
    return 0;  -- what is unseen is the caller's own, and judged
  elsif p_is_upkeep and exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.class_id = any (v_next.batch) and c.cost > hwqueue.judge_budget()) then
    return 0;
  elsif v_next.batch <> '{}' then
    perform hwqueue.rebind_classes(v_next.batch, false, p_shard), hwqueue.note_selected(v_next.batch, p_shard);
    insert into hwqueue.profile_eligibility (shard_id, profile_id, queue_id, class_id, task_name, cpu_milli, memory_mib, gpu_count,
      gpu_milli, gpu_wanted, custom, affinity, is_checked, cpu_isolation, gpu_exclusivity)
    select p_shard, p_profile.profile_id, c.queue_id, c.class_id, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count,
           c.gpu_milli, c.gpu_wanted, c.custom, a.affinity, hwqueue.must_be_checked(c, a.affinity, p_shard), i.cpu,
           hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_profile.gpu_share_mode)
    from hwqueue.placement_class c
    cross join lateral (select hwqueue.fixed_affinity(c, p_profile.labels, p_profile.rack, null, '{}', p_profile.taints) as affinity offset 0) a
    cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation, p_profile.default_cpu_isolation) as cpu) i
    where c.shard_id = p_shard and c.class_id = any (v_next.batch)
      and hwqueue.suits(c, p_profile, null, '{}')
    on conflict do nothing;
    perform hwqueue.note_eligible(p_profile.profile_id, v_next.batch, p_shard);
    -- of classes that ask for GPUs: it orders claims of nothing else. For the rest, and when another session is
    -- at it, reap makes the estimate
    perform hwqueue.refresh_reach(array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.class_id = any (v_next.batch) and c.gpu_count > 0
        and not exists (select 1 from hwqueue.class_fleet r where r.shard_id = p_shard and r.class_id = c.class_id)
      order by c.class_id limit 50), p_shard);
  end if;
  update hwqueue.profile p
  set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen,
      judged_xid = (v_next.judged).xid, judged_class = (v_next.judged).class_id
  where p.shard_id = p_shard and p.profile_id = p_profile.profile_id;
  update hwqueue.profile_queue s set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen
  where s.shard_id = p_shard and s.profile_id = p_profile.profile_id;
  return case when v_next.more then p_limit else cardinality(v_next.batch) end;
end
$$;

-- The same for the classes that name nodes, resources or trust domains, for one node. With all its attestations: a claim asks which of
-- them have expired.
-- Locks: node_state is held by the caller.
create or replace function hwqueue.judge_pinned(p_node hwqueue.node, p_state hwqueue.node_state, p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_resources uuid[] := p_node.resources || p_node.gpu_ids;
  v_next record;
begin
  select n.batch, n.judged, n.more into v_next
  from hwqueue.next_classes(row(p_state.classes_seen, p_state.classes_unseen, p_state.judged_xid, p_state.judged_class)::hwqueue.judged,
                            p_node.anchors, true, p_limit, p_shard) n;
  if v_next.batch = '{}' and p_state.judged_xid = pg_current_xact_id_if_assigned() then
    return 0;
  elsif v_next.batch <> '{}' then
    perform hwqueue.rebind_classes(v_next.batch, false, p_shard), hwqueue.note_selected(v_next.batch, p_shard);
    insert into hwqueue.node_eligibility (shard_id, node_id, queue_id, class_id, task_name, cpu_milli, memory_mib, gpu_count,
      gpu_milli, gpu_wanted, custom, trusts, affinity, is_checked, cpu_isolation, gpu_exclusivity)
    select p_shard, p_node.node_id, c.queue_id, c.class_id, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count,
           c.gpu_milli, c.gpu_wanted, c.custom, c.trusts, a.affinity, hwqueue.must_be_checked(c, a.affinity, p_shard), i.cpu,
           hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_node.gpu_share_mode)
    from hwqueue.placement_class c
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = p_node.node_id  -- p_node has the profile that is judged
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
    cross join lateral (
      select hwqueue.fixed_affinity(c, p_node.labels, p_node.rack, p_node.node_id, v_resources, p.taints) as affinity offset 0) a
    cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation, p_node.default_cpu_isolation) as cpu) i
    where c.shard_id = p_shard and c.class_id = any (v_next.batch)
      and hwqueue.suits(c, p, p_node.node_id, v_resources, p_node.attested, p_node.gpu_ids, p_node.gpu_parents)
    on conflict do nothing;
  end if;
  update hwqueue.node_state s
  set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen,
      judged_xid = (v_next.judged).xid, judged_class = (v_next.judged).class_id,
      pinned_queues = case when v_next.batch = '{}' then s.pinned_queues else array(
        select distinct e.queue_id from hwqueue.node_eligibility e where e.shard_id = p_shard and e.node_id = p_node.node_id) end
  where s.shard_id = p_shard and s.node_id = p_node.node_id;
  return case when v_next.more then p_limit else cardinality(v_next.batch) end;
end
$$;
