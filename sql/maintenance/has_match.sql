-- Whether some live node may run leases of a class, by what it is and has in all; what is in use, or runs elsewhere, does not count, nor
-- whether it is cordoned. Answers "is it refused for good?", by the rules that claims go by.

-- Judged by claims: a live node is found at once.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.is_known_match(p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return exists (
    select 1 from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.class_id = p_class.class_id and hwqueue.has_live_node(p_class, e.profile_id, p_now, p_shard));
end
$$;

-- Asked of the whole fleet: of profiles, or of nodes when the class names nodes, resources or trust domains.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.has_match(p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  if p_class.is_pinned then
    return exists (
      select 1
      from hwqueue.node n
      join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null and n.anchors && p_class.anchors and hwqueue.is_live(n, s, p_now)
        and hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
        and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0);
  end if;
  return exists (
    select 1 from hwqueue.profile p
    where p.shard_id = p_shard and p.anchors && p_class.anchors and hwqueue.suits(p_class, p, null, '{}')
      and hwqueue.has_live_node(p_class, p.profile_id, p_now, p_shard));
end
$$;

-- Whether a live node of a profile is large enough.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.has_live_node(p_class hwqueue.placement_class, p_profile_id bigint, p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return exists (
    select 1
    from hwqueue.node n
    -- the fence (offset 0): by key, whatever the statistics say
    cross join lateral (
      select x as state from hwqueue.node_state x where x.shard_id = p_shard and x.node_id = n.node_id offset 0) s
    where n.shard_id = p_shard and n.profile_id = any (hwqueue.profiles_judged_as(p_profile_id, p_shard)) and n.deregistered_at is null and hwqueue.is_live(n, s.state, p_now)
      -- what is plainly too small needs no closer look, which is dear
      and coalesce(n.cpu_milli >= p_class.cpu_milli, true) and coalesce(n.memory_mib >= p_class.memory_mib, true)
      and cardinality(n.gpu_ids) >= p_class.gpu_count
      and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0);
end
$$;
