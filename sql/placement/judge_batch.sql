-- Judging in batches of at most 500 classes, in the order of the transactions that wrote them: a claim judges one, and up to
-- eight while it finds nothing to run, so it is bounded however many classes are new; what it judged is kept.

-- A mark that no transaction of this server can have left comes from another one (a restored dump): start again.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.valid_mark(p_mark xid8) returns xid8
language sql stable
as $$ select case when p_mark > pg_snapshot_xmax(pg_current_snapshot()) then '0'::xid8 else p_mark end $$;

-- The next classes to judge: written by p_seen or later, not judged yet, hanging on one of the anchors. Claims forbid bitmap scans; this
-- is what the GIN index on anchors is for.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.unseen_classes(p_seen xid8, p_judged bigint[], p_anchors text[], p_pinned boolean, p_shard int)
returns bigint[]
language sql stable set enable_bitmapscan = on
as $$
  select array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= p_seen and c.is_pinned = p_pinned and c.anchors && p_anchors
      and not exists (select 1 from unnest(p_judged) j where j = c.class_id)
    order by c.created_xid, c.class_id limit 500)
$$;

-- Up to where all classes are judged once these are: the horizon, or, when the batch was full, the last of it.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.next_mark(p_batch bigint[], p_horizon xid8, p_shard int) returns xid8
language sql stable
as $$
  select case when cardinality(p_batch) < 500 then p_horizon else least(p_horizon, (
    select c.created_xid from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id = p_batch[cardinality(p_batch)])) end
$$;

-- Of the judged classes, those that the mark does not speak for.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judged_beyond(p_judged bigint[], p_mark xid8, p_shard int) returns bigint[]
language sql stable
as $$
  select array(
    select c.class_id from unnest(p_judged) j join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = j
    where c.created_xid >= p_mark)
$$;

-- Judges a batch for a profile; true when there may be more.
-- Locks: the caller holds the profile's row; the shard's row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judge_for_profile(p_profile hwqueue.profile, p_horizon xid8, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_batch bigint[] := hwqueue.unseen_classes(hwqueue.valid_mark(p_profile.classes_seen), p_profile.classes_judged, p_profile.anchors,
                                             false, p_shard);
  v_mark xid8 := hwqueue.next_mark(v_batch, p_horizon, p_shard);
begin
  if v_batch = '{}' and p_profile.classes_seen = v_mark then
    return false;
  end if;
  perform hwqueue.rebind_classes(v_batch, false, p_shard), hwqueue.note_selected(v_batch, p_shard);
  insert into hwqueue.profile_eligibility (shard_id, profile_id, queue_id, class_id, task_name, cpu_milli, memory_mib, gpu_count,
    gpu_milli, gpu_wanted, custom, affinity, is_checked, cpu_isolation, gpu_exclusivity)
  select p_shard, p_profile.profile_id, c.queue_id, c.class_id, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count,
         c.gpu_milli, c.gpu_wanted, c.custom, a.affinity, hwqueue.must_be_checked(c, a.affinity, p_shard), i.cpu,
         hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_profile.gpu_share_mode)
  from hwqueue.placement_class c
  cross join lateral (select hwqueue.fixed_affinity(c, p_profile.labels, p_profile.rack, null, '{}', p_profile.taints) as affinity offset 0) a
  cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation, p_profile.default_cpu_isolation) as cpu) i
  where c.shard_id = p_shard and c.class_id = any (v_batch)
    and hwqueue.suits(c, p_profile, null, '{}')
  on conflict do nothing;
  perform hwqueue.note_eligible(p_profile.profile_id, v_batch, p_shard);
  -- without an estimate of their reach the classes stay unseen, and the next claim judges them again
  if hwqueue.refresh_reach(array(
       select b from unnest(v_batch) b
       where not exists (select 1 from hwqueue.class_reach r where r.shard_id = p_shard and r.class_id = b)), p_shard) is null then
    return false;
  end if;
  update hwqueue.profile p
  set classes_seen = v_mark, classes_judged = hwqueue.judged_beyond(p_profile.classes_judged || v_batch, v_mark, p_shard)
  where p.shard_id = p_shard and p.profile_id = p_profile.profile_id;
  update hwqueue.profile_queue s set classes_seen = v_mark where s.shard_id = p_shard and s.profile_id = p_profile.profile_id;
  return cardinality(v_batch) = 500;
end
$$;

-- The same for the classes that name nodes, resources or trust domains, for one node. With all its attestations: a claim asks which of
-- them have expired.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judge_pinned(p_node hwqueue.node, p_state hwqueue.node_state, p_horizon xid8, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_resources uuid[] := p_node.resources || p_node.gpu_ids;
  v_batch bigint[] := hwqueue.unseen_classes(hwqueue.valid_mark(p_state.classes_seen), p_state.classes_judged, p_node.anchors, true, p_shard);
  v_mark xid8 := hwqueue.next_mark(v_batch, p_horizon, p_shard);
begin
  if v_batch = '{}' and p_state.classes_seen = v_mark then
    return false;
  end if;
  perform hwqueue.rebind_classes(v_batch, false, p_shard), hwqueue.note_selected(v_batch, p_shard);
  insert into hwqueue.node_eligibility (shard_id, node_id, queue_id, class_id, task_name, cpu_milli, memory_mib, gpu_count,
    gpu_milli, gpu_wanted, custom, trusts, affinity, is_checked, cpu_isolation, gpu_exclusivity)
  select p_shard, p_node.node_id, c.queue_id, c.class_id, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count,
         c.gpu_milli, c.gpu_wanted, c.custom, c.trusts, a.affinity, hwqueue.must_be_checked(c, a.affinity, p_shard), i.cpu,
         hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_node.gpu_share_mode)
  from hwqueue.placement_class c
  join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = p_node.profile_id
  cross join lateral (
    select hwqueue.fixed_affinity(c, p_node.labels, p_node.rack, p_node.node_id, v_resources, p.taints) as affinity offset 0) a
  cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation, p_node.default_cpu_isolation) as cpu) i
  where c.shard_id = p_shard and c.class_id = any (v_batch)
    and hwqueue.suits(c, p, p_node.node_id, v_resources, p_node.attested, p_node.gpu_ids, p_node.gpu_parents)
  on conflict do nothing;
  update hwqueue.node_state s
  set classes_seen = v_mark, classes_judged = hwqueue.judged_beyond(p_state.classes_judged || v_batch, v_mark, p_shard),
      pinned_queues = array(select distinct e.queue_id from hwqueue.node_eligibility e
                            where e.shard_id = p_shard and e.node_id = p_node.node_id)
  where s.shard_id = p_shard and s.node_id = p_node.node_id;
  return cardinality(v_batch) = 500;
end
$$;
