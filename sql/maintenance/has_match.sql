-- Whether some live node may run leases of a class, by what it is and has in all; what is in use, or runs elsewhere, does not count, nor
-- whether it is cordoned. Answers "is it refused for good?", by the rules that claims go by.

-- Judged by claims for its profile: a live node is found at once.
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

-- Asked of those that have not judged the class yet, of profiles, or of nodes when the class names nodes, resources or trust domains; what claims
-- have judged is remembered (is_known_match). Null: too many are left for what the class costs, and the next claims will tell.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.has_match(p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
declare
  v_most int := greatest(1, 20 * hwqueue.judge_budget() / p_class.cost);
  v_nodes uuid[];
  v_profiles bigint[];
begin
  if p_class.is_pinned then
    v_nodes := array(
      select n.node_id
      from hwqueue.node n
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null and n.anchors && p_class.anchors and hwqueue.is_live(n, s, p_now)
        and (not hwqueue.has_judged(p_class, s.classes_unseen, s.classes_seen, p_shard)
             -- by all its attestations: some may have expired
             or exists (select 1 from hwqueue.node_eligibility e
                        where e.shard_id = p_shard and e.node_id = n.node_id and e.queue_id = p_class.queue_id and e.class_id = p_class.class_id))
      limit v_most + 1);
    return case when exists (
        select 1
        from unnest(v_nodes[1 : v_most]) u(node_id)
        join hwqueue.node n on n.shard_id = p_shard and n.node_id = u.node_id
        join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
        where hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
          and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0) then true
      when cardinality(v_nodes) <= v_most then false end;
  end if;
  v_profiles := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.judged_as is null and p.anchors && p_class.anchors
      and not hwqueue.has_judged(p_class, p.classes_unseen, p.classes_seen, p_shard)
      and hwqueue.has_live_node(p_class, p.profile_id, p_now, p_shard)
    limit v_most + 1);
  return case when exists (
      select 1
      from unnest(v_profiles[1 : v_most]) u(profile_id)
      join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = u.profile_id
      where hwqueue.suits(p_class, p, null, '{}')) then true
    when cardinality(v_profiles) <= v_most then false end;
end
$$;

-- Whether a profile, or a node, with this view of the classes has judged one. Nobody judges a class that is
-- no candidate yet (in_force).
create or replace function hwqueue.has_judged(p_class hwqueue.placement_class, p_unseen xid8[], p_next_xid xid8, p_shard int)
returns boolean
language sql stable
as $$
  select not hwqueue.is_unseen(p_class.created_xid, p_unseen, hwqueue.valid_mark(p_next_xid)) and not p_class.waits
    and (p_class.terms = '[]' or hwqueue.in_force(p_class.terms, p_shard))
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
