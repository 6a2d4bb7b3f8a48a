-- A label with very many values (a host name, an instance id) makes a profile of each node, and every profile is judged for every class. While
-- no class mentions such a label, nodes that differ in nothing else may run the same. So their profiles are judged as one (profile.judged_as):
-- a profile without those labels (left_out), that no node registers with. node_state has the profile that is judged, node the whole one, by
-- which all else goes.
-- When a class comes to mention a left-out label it does not suit the profile without it (suits), whoever asks and whenever. So no claim can
-- be granted wrongly; reap then lets each of the nodes be judged by itself, and until it has, the class waits.

-- How many values of a label there may be before it is left out.
create or replace function hwqueue.most_label_values() returns int
language sql immutable parallel safe
as $$ select 1000 $$;

-- Whether what a class asks of nodes may mention one of these labels. By its text, so rather once too often than once too few.
create or replace function hwqueue.mentions_label(p_class hwqueue.placement_class, p_keys text[]) returns boolean
language sql immutable parallel safe
as $$
  select exists (
    select 1 from unnest(p_keys) k
    where position(substr(to_jsonb(k)::text, 2, length(to_jsonb(k)::text) - 2) in p_class.required::text || p_class.preferred::text) > 0)
$$;

-- Which of these labels are left out. A label is found to have too many values when a profile is new and there are many profiles already.
-- One that a class mentions, or has mentioned since, is never left out again.
-- Locks: new rows of left_out_label.
create or replace function hwqueue.left_out_labels(p_labels jsonb, p_shard int) returns text[]
language plpgsql volatile
as $$
declare
  v_many int := hwqueue.most_label_values();
  v_keys text[];
begin
  if (select count(*) from (select 1 from hwqueue.profile p where p.shard_id = p_shard limit v_many) x) = v_many then
    v_keys := array(
      select l.key
      from hwqueue.profile p cross join lateral jsonb_each(p.labels) l
      where p.shard_id = p_shard and p_labels ? l.key
        and not exists (select 1 from hwqueue.left_out_label o where o.shard_id = p_shard and o.key = l.key)
      group by l.key having count(distinct l.value) >= v_many order by l.key);
    -- in one statement with what it sees, so that reap looks at the classes that this cannot see
    insert into hwqueue.left_out_label (shard_id, key, is_mentioned, unseen, next_xid)
    select p_shard, k, exists (
             select 1 from hwqueue.placement_class c
             where c.shard_id = p_shard and not c.is_pinned and hwqueue.mentions_label(c, array[k])), s.unseen, s.next_xid
    from unnest(v_keys) k cross join hwqueue.seen_now() s
    on conflict do nothing;
  end if;
  return array(
    select o.key from hwqueue.left_out_label o
    where o.shard_id = p_shard and p_labels ? o.key and not o.is_mentioned order by o.key);
end
$$;

-- The profile that is judged for nodes like this one, written if it is new; null: their own.
-- Locks: the profile, for key share.
create or replace function hwqueue.find_judged_profile(p_node hwqueue.node, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_left_out text[] := hwqueue.left_out_labels(p_node.labels, p_shard);
  v_node hwqueue.node := p_node;
  v_digest bytea;
  v_profile_id bigint;
begin
  if v_left_out = '{}' then
    return null;
  end if;
  v_node.labels := p_node.labels - v_left_out;
  v_digest := sha256(hwqueue.profile_digest(v_node) || convert_to(to_json(v_left_out)::text, 'UTF8'));
  loop
    select p.profile_id into v_profile_id from hwqueue.profile p where p.shard_id = p_shard and p.digest = v_digest for key share;
    if found then
      return v_profile_id;
    end if;
    insert into hwqueue.profile (shard_id, digest, labels, rack, taints, anchors, cpu_isolation, gpu_exclusivity, default_cpu_isolation,
      gpu_share_mode, left_out, created_at)
    values (p_shard, v_digest, v_node.labels, v_node.rack, hwqueue.node_taints(v_node), hwqueue.profile_anchors(v_node.labels, v_node.rack),
      v_node.cpu_isolation, v_node.gpu_exclusivity, v_node.default_cpu_isolation, v_node.gpu_share_mode, v_left_out, p_now)
    on conflict do nothing;
  end loop;
end
$$;

-- The profiles that are judged as this one, and itself.
create or replace function hwqueue.profiles_judged_as(p_profile_id bigint, p_shard int) returns bigint[]
language plpgsql stable
as $$
begin
  return array(select p.profile_id from hwqueue.profile p where p.shard_id = p_shard and p.judged_as = p_profile_id) || p_profile_id;
end
$$;

-- Looks whether new classes mention left-out labels; where they do, up to p_limit nodes are judged by their own profiles from now on. Returns
-- how many.
-- Locks: left_out_label, node_state, profiles, all skip locked.
create or replace function hwqueue.split_profiles(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_label hwqueue.left_out_label;
  v_nodes uuid[];
  v_profiles bigint[];
begin
  for v_label in
    select o.* from hwqueue.left_out_label o
    where o.shard_id = p_shard and not o.is_mentioned and hwqueue.has_new_classes(hwqueue.valid_mark(o.next_xid), o.unseen, p_shard)
    order by o.key for no key update skip locked
  loop
    update hwqueue.left_out_label o
    set unseen = s.unseen, next_xid = s.next_xid,
        is_mentioned = exists (
            select 1 from hwqueue.placement_class c
            where c.shard_id = p_shard and not c.is_pinned and c.created_xid >= hwqueue.valid_mark(v_label.next_xid)
              and hwqueue.mentions_label(c, array[v_label.key]))
          or exists (
            select 1 from hwqueue.placement_class c
            where c.shard_id = p_shard and not c.is_pinned and c.created_xid = any (v_label.unseen)
              and hwqueue.mentions_label(c, array[v_label.key]))
    from hwqueue.seen_now() s
    where o.shard_id = p_shard and o.key = v_label.key;
  end loop;
  v_profiles := array(  -- mostly none
    select p.profile_id from hwqueue.profile s
    join hwqueue.profile p on p.shard_id = p_shard and p.judged_as = s.profile_id
    where s.shard_id = p_shard and s.left_out && array(
      select o.key from hwqueue.left_out_label o where o.shard_id = p_shard and o.is_mentioned));
  if v_profiles = '{}' then
    return 0;
  end if;
  v_nodes := array(
    select s.node_id from hwqueue.node n join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.profile_id = any (v_profiles) and s.profile_id <> n.profile_id
    order by s.node_id limit p_limit for no key update of s skip locked);
  -- read again, now that they are held
  update hwqueue.node_state s set profile_id = n.profile_id
  from hwqueue.node n
  where s.shard_id = p_shard and s.node_id = any (v_nodes) and n.shard_id = p_shard and n.node_id = s.node_id
    and n.profile_id = any (v_profiles);
  -- for update: who is about to register with the profile holds it for key share
  v_profiles := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = any (v_profiles) order by p.profile_id limit p_limit for update skip locked);
  update hwqueue.profile p set judged_as = null
  where p.shard_id = p_shard and p.profile_id = any (v_profiles) and not exists (
    select 1 from hwqueue.node n join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.profile_id = p.profile_id and s.profile_id <> n.profile_id);
  return cardinality(v_nodes);
end
$$;
