-- How well nodes suit a class at best and at worst, for patience: remembered as the fleet is for max_skew (spread_fleet).

-- How well the best and the worst node suit a class, as it is remembered; null when that holds no longer: a node has moved (see spread_fleet),
-- or one of the two has been silent for too long. What others do in silence makes no difference.
create or replace function hwqueue.known_range(p_class_id bigint, p_now timestamptz, p_shard int) returns hwqueue.class_range
language plpgsql stable
as $$
declare
  v_range hwqueue.class_range;
begin
  select r.* into v_range from hwqueue.class_range r
  where r.shard_id = p_shard and r.class_id = p_class_id order by r.range_id desc limit 1;
  return case
    when v_range.live_until > p_now and not hwqueue.has_moved(v_range.unseen, v_range.next_xid, p_shard) and not exists (
      select 1 from hwqueue.node_state s
      where s.shard_id = p_shard and s.node_id = any (array[v_range.best_node, v_range.worst_node])
        and (s.seen_at + s.heartbeat_timeout > p_now) is not true) then v_range end;
end
$$;

-- The highest and the lowest affinity for a class among live, uncordoned nodes with room for it when they are idle; null: there are none.
-- Good for a second while a node may yet prove to be alive, by a sign of life that was given in time and is not committed (look_at_fleet).
create or replace function hwqueue.look_at_range(p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns hwqueue.class_range
language plpgsql stable
as $$
declare
  v_named uuid[] := array(  -- in its preferences
    select (t #>> '{}')::uuid from jsonb_path_query(p_class.preferred, 'lax $[*].when.**.node[*]') t
    where jsonb_typeof(t) = 'string' and t #>> '{}' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
  v_range hwqueue.class_range;
begin
  with able as materialized (
    select e.affinity, e.profile_id, null::uuid as node_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.class_id = p_class.class_id
    union all
    select e.affinity, null, e.node_id from hwqueue.node_eligibility e
    where e.shard_id = p_shard and e.class_id = p_class.class_id
    union all  -- those that have not seen the class yet; of a class that costs much, claims will tell
    select hwqueue.fixed_affinity(p_class, p.labels, p.rack, null, '{}', p.taints), p.profile_id, null
    from hwqueue.profile p
    where p.shard_id = p_shard and p.judged_as is null and p_class.cost <= 500
      and (p_class.is_pinned or hwqueue.is_unseen(p_class.created_xid, p.classes_unseen, p.classes_seen))
      and hwqueue.suits(p_class, p, null, '{}')
    union all
    select hwqueue.fixed_affinity(p_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, p.taints), null, n.node_id
    from hwqueue.node n
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
    where n.shard_id = p_shard and n.node_id = any (v_named) and p_class.cost <= 500
      and hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
  )
  select b.affinity, w.affinity, b.node_id, w.node_id, coalesce(d.until, 'infinity'), x.unseen, x.next_xid
  into v_range.best, v_range.worst, v_range.best_node, v_range.worst_node, v_range.live_until, v_range.unseen, v_range.next_xid
  from hwqueue.seen_now() x
  left join lateral (
    select p_now + interval '1 second' as until from hwqueue.node_state s
    where s.shard_id = p_shard and s.seen_at + s.heartbeat_timeout <= p_now and s.seen_at + 2 * s.heartbeat_timeout > p_now limit 1) d on true
  -- from either end, to the first that lives
  left join lateral (
    select a.affinity, l.node_id from (select * from able order by affinity desc offset 0) a
    cross join lateral hwqueue.able_node(p_class, a.profile_id, v_named, a.node_id, p_now, p_shard) l(node_id)
    where l.node_id is not null limit 1) b on true
  left join lateral (
    select a.affinity, l.node_id from (select * from able order by affinity offset 0) a
    cross join lateral hwqueue.able_node(p_class, a.profile_id, v_named, a.node_id, p_now, p_shard) l(node_id)
    where l.node_id is not null limit 1) w on true;
  v_range.shard_id := p_shard;
  v_range.class_id := p_class.class_id;
  return v_range;
end
$$;

-- One of these nodes that lives, is not cordoned and has room for a class when it is idle: those of a profile, without some, or one node.
-- Null: there is none.
create or replace function hwqueue.able_node(p_class hwqueue.placement_class, p_profile_id bigint, p_without uuid[], p_node uuid, p_now timestamptz,
                                             p_shard int) returns uuid
language plpgsql stable
as $$
begin
  return (
    select n.node_id
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.profile_id = any (hwqueue.profiles_judged_as(p_profile_id, p_shard)) and n.node_id <> all (p_without)
      and n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
      and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0
    union all
    select n.node_id
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.node_id = p_node
      and n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
      and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0
    limit 1);
end
$$;
