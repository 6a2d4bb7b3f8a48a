-- Profiles: nodes with the same labels, rack, taints and isolation classes share one row, and
-- eligibility is judged once for all of them.
--
-- Example: 1,000 nodes differ only in their label hostname, and no class mentions it. Each has a profile
-- of its own, but all are judged as one profile that leaves hostname out (judged_as). When a class
-- mentions hostname, split_profiles has each node judged by its own profile again. The invariant: until
-- then the profile without the label refuses every class that mentions it (suits).

-- The profile of all nodes like this one, written if it is new. If labels of the node are ignored, another
-- one is judged for it: that of nodes without them (p_left_out: the labels that p_node has lost).
-- Locks: the profile, for key share, so that it is not pruned before the node is written; if it is new,
-- also the one that is judged for it.
create or replace function hwqueue.find_profile(p_node hwqueue.node, p_now timestamptz,
  p_left_out text[] default '{}') returns bigint
language plpgsql volatile
as $$
declare
  v_digest bytea := sha256(convert_to(jsonb_build_array(p_node.labels, p_node.rack,
    hwqueue.node_taints(p_node), p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.default_cpu_isolation,
    p_node.gpu_share_mode, p_left_out)::text, 'UTF8'));
  v_ignored text[];
  v_judged hwqueue.node := p_node;
  v_judged_as bigint;
  v_profile_id bigint;
begin
  loop
    select p.profile_id into v_profile_id from hwqueue.profile p where p.digest = v_digest for key share;
    exit when found;
    v_ignored := case when p_left_out = '{}' then hwqueue.ignored_labels_of(p_node.labels) else '{}' end;
    if v_ignored <> '{}' then
      v_judged.labels := p_node.labels - v_ignored;
      v_judged_as := hwqueue.find_profile(v_judged, p_now, v_ignored);
    end if;
    insert into hwqueue.profile (digest, labels, rack, taints, anchors, cpu_isolation, gpu_exclusivity,
      default_cpu_isolation, gpu_share_mode, judged_as, left_out, created_at)
    values (v_digest, p_node.labels, p_node.rack, hwqueue.node_taints(p_node),
      array(select a from hwqueue.anchors_of(p_node.labels, p_node.rack) a), p_node.cpu_isolation,
      p_node.gpu_exclusivity, p_node.default_cpu_isolation, p_node.gpu_share_mode, v_judged_as, p_left_out,
      p_now)
    on conflict do nothing;
  end loop;
  return v_profile_id;
end
$$;

-- Finds new classes that mention left-out labels, and has up to p_limit of the nodes concerned judged by
-- their own profiles from now on. Returns how many.
-- Locks: ignored_label, node_state, profiles, all skip locked.
create or replace function hwqueue.split_profiles(p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_label hwqueue.ignored_label;
  v_nodes uuid[];
  v_profiles bigint[];
begin
  for v_label in
    select o.* from hwqueue.ignored_label o
    where not o.is_mentioned and hwqueue.has_new_classes(hwqueue.valid_next_xid(o.next_xid), o.unseen)
    order by o.key for no key update skip locked
  loop
    update hwqueue.ignored_label o
    set unseen = s.unseen, next_xid = s.next_xid,
        is_mentioned = exists (
            select 1 from hwqueue.placement_class c
            where not c.is_pinned and c.created_xid >= hwqueue.valid_next_xid(v_label.next_xid)
              and hwqueue.mentions_label(c, array[v_label.key]))
          or exists (
            select 1 from hwqueue.placement_class c
            where not c.is_pinned and c.created_xid = any (v_label.unseen)
              and hwqueue.mentions_label(c, array[v_label.key]))
    from hwqueue.visible_now() s
    where o.key = v_label.key;
  end loop;
  v_profiles := array(  -- mostly empty
    select p.profile_id from hwqueue.profile s
    join hwqueue.profile p on p.judged_as = s.profile_id
    where s.left_out && array(select o.key from hwqueue.ignored_label o where o.is_mentioned));
  if v_profiles = '{}' then
    return 0;
  end if;
  v_nodes := array(
    select s.node_id from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.profile_id = any (v_profiles) and s.profile_id <> n.profile_id
    order by s.node_id limit p_limit for no key update of s skip locked);
  -- n.profile_id is read again, now that the rows are locked
  update hwqueue.node_state s set profile_id = n.profile_id
  from hwqueue.node n
  where s.node_id = any (v_nodes) and n.node_id = s.node_id and n.profile_id = any (v_profiles);
  -- for update: a session that is registering a node with the profile holds it for key share
  v_profiles := array(
    select p.profile_id from hwqueue.profile p
    where p.profile_id = any (v_profiles)
    order by p.profile_id limit p_limit for update skip locked);
  update hwqueue.profile p set judged_as = null
  where p.profile_id = any (v_profiles) and not exists (
    select 1 from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.profile_id = p.profile_id and s.profile_id <> n.profile_id);
  return cardinality(v_nodes);
end
$$;
