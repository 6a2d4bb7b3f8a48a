-- Judges the classes that a node's profile has not seen yet (and, for classes that name nodes or resources, that the
-- node has not), and remembers which are eligible. A class is unseen if the transaction that wrote it could still have
-- been running when the profile last looked: so a spawn of a new class tells nobody and waits for nobody.
-- Gives what could not be remembered because another claim is judging for the profile at this moment.
-- Locks: node_state is held by the caller; the profile row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judge_classes(p_node hwqueue.node, p_state hwqueue.node_state, p_shard int)
returns table (class_id bigint, queue_id int, affinity double precision)
language plpgsql volatile
as $$
declare
  -- read before the classes are: whatever finished below the horizon, the statements below can see
  v_horizon xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_node_seen xid8 := hwqueue.valid_mark(p_state.classes_seen, v_horizon);
  v_profile_seen xid8;
  v_profile hwqueue.profile;
begin
  select p.* into v_profile from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = p_node.profile_id;
  v_profile_seen := hwqueue.valid_mark(v_profile.classes_seen, v_horizon);
  -- ordered, so that it is one look at the index: mostly there is nothing, and a scan would read every class to find that out
  perform 1 from hwqueue.placement_class c
  where c.shard_id = p_shard and c.created_xid >= least(v_profile_seen, v_node_seen) order by c.created_xid limit 1;
  if not found then
    return;
  end if;
  perform hwqueue.judge_pinned(p_node, p_state, v_node_seen, v_horizon, p_shard);
  select p.* into v_profile from hwqueue.profile p
  where p.shard_id = p_shard and p.profile_id = p_node.profile_id for no key update skip locked;
  if found then
    perform hwqueue.judge_for_profile(v_profile, v_horizon, p_shard);
  else
    return query
      select c.class_id, c.queue_id, hwqueue.affinity_score(c.preferred, p_node.labels, p_node.rack, null, '{}')
      from hwqueue.placement_class c
      where c.shard_id = p_shard and c.created_xid >= v_profile_seen and not c.is_pinned
        and c.anchors && hwqueue.profile_anchors(p_node.labels, p_node.rack)
        and hwqueue.exprs_hold(c.required, p_node.labels, p_node.rack, null, '{}')
        and not exists (select 1 from hwqueue.profile_eligibility e
                        where e.shard_id = p_shard and e.profile_id = p_node.profile_id
                          and e.queue_id = c.queue_id and e.class_id = c.class_id);
  end if;
end
$$;

-- A mark above the horizon comes from another server (a restored dump): start again.
create or replace function hwqueue.valid_mark(p_mark xid8, p_horizon xid8) returns xid8
language sql immutable parallel safe
as $$ select case when p_mark > p_horizon then '0'::xid8 else p_mark end $$;

-- The caller holds the profile's row.
create or replace function hwqueue.judge_for_profile(p_profile hwqueue.profile, p_horizon xid8, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_seen xid8 := hwqueue.valid_mark(p_profile.classes_seen, p_horizon);
  v_new bigint[];
begin
  v_new := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= v_seen and not c.is_pinned and c.anchors && p_profile.anchors
      and c.class_id <> all (p_profile.classes_judged));
  if v_new = '{}' and p_profile.classes_seen = p_horizon then
    return;
  end if;
  insert into hwqueue.profile_eligibility (shard_id, profile_id, queue_id, class_id, affinity)
  select p_shard, p_profile.profile_id, c.queue_id, c.class_id,
         hwqueue.affinity_score(c.preferred, p_profile.labels, p_profile.rack, null, '{}')
  from hwqueue.placement_class c
  where c.shard_id = p_shard and c.class_id = any (v_new)
    and hwqueue.exprs_hold(c.required, p_profile.labels, p_profile.rack, null, '{}')
  on conflict do nothing;
  -- without an estimate of their reach the classes stay unseen, and the next claim judges them again
  if hwqueue.refresh_reach(array(
       select n from unnest(v_new) n
       where not exists (select 1 from hwqueue.class_reach r where r.shard_id = p_shard and r.class_id = n)), p_shard) is null then
    return;
  end if;
  update hwqueue.profile p
  set classes_seen = p_horizon, classes_judged = array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= p_horizon and c.class_id = any (p_profile.classes_judged || v_new))
  where p.shard_id = p_shard and p.profile_id = p_profile.profile_id;
end
$$;

-- The same for the classes that name nodes or resources, under the lock of the node.
create or replace function hwqueue.judge_pinned(p_node hwqueue.node, p_state hwqueue.node_state, p_seen xid8, p_horizon xid8, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_resources uuid[] := p_node.resources || p_node.gpu_ids;
  v_new bigint[];
begin
  v_new := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= p_seen and c.is_pinned and c.anchors && p_node.anchors
      and c.class_id <> all (p_state.classes_judged));
  if v_new = '{}' and p_state.classes_seen = p_horizon then
    return;
  end if;
  insert into hwqueue.node_eligibility (shard_id, node_id, queue_id, class_id, affinity)
  select p_shard, p_node.node_id, c.queue_id, c.class_id,
         hwqueue.affinity_score(c.preferred, p_node.labels, p_node.rack, p_node.node_id, v_resources)
  from hwqueue.placement_class c
  where c.shard_id = p_shard and c.class_id = any (v_new)
    and hwqueue.exprs_hold(c.required, p_node.labels, p_node.rack, p_node.node_id, v_resources)
  on conflict do nothing;
  update hwqueue.node_state s
  set classes_seen = p_horizon, classes_judged = array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= p_horizon and c.class_id = any (p_state.classes_judged || v_new))
  where s.shard_id = p_shard and s.node_id = p_node.node_id;
end
$$;
