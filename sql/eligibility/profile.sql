-- Profiles: nodes with the same labels, rack, taints and isolation classes share one row, and
-- eligibility is judged once for all of them.
--
-- Example: 1,000 nodes differ only in their label hostname, and no class mentions it. Each has a profile
-- of its own, but all are judged as one profile that leaves hostname out (judged_as). When a class
-- mentions hostname, split_profiles has each node judged by its own profile again.
--
-- find_profile is for registration, split_profiles for reap. The invariant: the profile without a label
-- refuses every class that mentions it (suits), so such a class waits until split_profiles has run.
--
-- Reading order: find_profile, write_profile, find_judged_profile, split_profiles.

-- A digest of what the nodes of one profile have in common. What a node does not declare is left out, so
-- that a profile keeps its digest when a later version lets nodes declare more.
create or replace function hwqueue.profile_digest(p_node hwqueue.node) returns bytea
language sql stable
as $$
  select sha256(convert_to((jsonb_build_array(p_node.labels, p_node.rack)
    || case when m.more = '{}' then '[]' else jsonb_build_array(m.more) end)::text, 'UTF8'))
  from (select jsonb_strip_nulls(jsonb_build_object(
          'taints', nullif(hwqueue.node_taints(p_node), '[]'),
          'cpu_isolation', to_jsonb(nullif(p_node.cpu_isolation, '{best_effort}')),
          'gpu_exclusivity', to_jsonb(nullif(p_node.gpu_exclusivity, '{shared}')),
          'default_cpu_isolation', nullif(p_node.default_cpu_isolation, 'best_effort'),
          'gpu_share_mode', nullif(p_node.gpu_share_mode, 'fractional'))) as more) m
$$;

-- The profile of all nodes like this one, written if it is new. The lock keeps it from being pruned
-- until the node is written.
-- Locks: the profile, for key share; if it is new, also the one that is judged for it.
create or replace function hwqueue.find_profile(p_node hwqueue.node, p_now timestamptz) returns bigint
language plpgsql volatile
as $$
begin
  return hwqueue.write_profile(p_node, hwqueue.profile_digest(p_node), '{}', p_now);
end
$$;

-- The profile that is judged for nodes like this one, written if it is new; null when that is their own.
-- Locks: the profile, for key share.
create or replace function hwqueue.find_judged_profile(p_node hwqueue.node, p_now timestamptz) returns bigint
language plpgsql volatile
as $$
declare
  v_left_out text[] := hwqueue.ignored_labels_of(p_node.labels);
  v_node hwqueue.node := p_node;
begin
  if v_left_out = '{}' then
    return null;
  end if;
  v_node.labels := p_node.labels - v_left_out;
  return hwqueue.write_profile(v_node,
    sha256(hwqueue.profile_digest(v_node) || convert_to(to_json(v_left_out)::text, 'UTF8')),
    v_left_out, p_now);
end
$$;

-- The profile with this digest, written if there is none. p_left_out: labels that were removed from
-- p_node because the profile leaves them out; such a profile is judged as itself.
-- Locks: the profile, for key share; if it is new, also the one that is judged for it.
create or replace function hwqueue.write_profile(p_node hwqueue.node, p_digest bytea, p_left_out text[],
  p_now timestamptz) returns bigint
language plpgsql volatile
as $$
declare
  v_profile_id bigint;
begin
  loop
    select p.profile_id into v_profile_id from hwqueue.profile p where p.digest = p_digest for key share;
    exit when found;
    insert into hwqueue.profile (digest, labels, rack, taints, anchors, cpu_isolation, gpu_exclusivity,
      default_cpu_isolation, gpu_share_mode, judged_as, left_out, created_at)
    values (p_digest, p_node.labels, p_node.rack, hwqueue.node_taints(p_node),
      hwqueue.profile_anchors(p_node.labels, p_node.rack), p_node.cpu_isolation, p_node.gpu_exclusivity,
      p_node.default_cpu_isolation, p_node.gpu_share_mode,
      case when p_left_out = '{}' then hwqueue.find_judged_profile(p_node, p_now) end, p_left_out, p_now)
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
