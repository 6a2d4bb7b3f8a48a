-- The bounded wait for a better node (design 5.3): in a queue that nodes pull from, a preference means nothing if the first node to ask
-- gets the lease. So a lease is held back from a node, at most for its patience, while a better one lives:
--   wait = patience x (best - affinity here) / (best - worst)
-- over live, uncordoned nodes that may run it and whose total capacity suffices; from the moment the lease became claimable (eligible_at), and
-- nothing sets that back. No better node alive, no wait.

-- How long leases of a class wait for a better node than this one, from the moment they became claimable; zero for one that has waited
-- its patience. What a class prefers about other leases changes at any moment: then it does not wait at all.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.waits_for(p_class hwqueue.placement_class, p_node hwqueue.node, p_eligible_at timestamptz,
                                             p_now timestamptz, p_shard int) returns interval
language plpgsql stable
as $$
declare
  v_patience interval := coalesce(p_class.patience, (
    select q.patience from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_class.queue_id));
  v_here double precision;
  v_best double precision;
  v_worst double precision;
begin
  if p_eligible_at + v_patience <= p_now then
    return '0';
  end if;
  v_here := hwqueue.fixed_affinity(p_class, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids,
                                   hwqueue.node_taints(p_node));
  if v_here is null or v_here >= hwqueue.best_affinity(p_class) then
    return '0';
  end if;
  v_best := hwqueue.extreme_affinity(p_class, v_here, 1, p_now, p_shard);
  if v_best is null then
    return '0';
  end if;
  v_worst := coalesce(hwqueue.extreme_affinity(p_class, v_here, -1, p_now, p_shard), v_here);
  return v_patience * ((v_best - v_here) / (v_best - v_worst));
end
$$;

-- The highest (p_sign 1) or lowest (-1) affinity for a class among live, uncordoned nodes with room for it when they are idle, if it is
-- beyond p_affinity; null: there is none.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.extreme_affinity(p_class hwqueue.placement_class, p_affinity double precision, p_sign int, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_named uuid[] := hwqueue.named_nodes(p_class);
begin
  return (
    select a.affinity
    from (
      select e.affinity, e.profile_id, null::uuid as node_id from hwqueue.profile_eligibility e
      where e.shard_id = p_shard and e.class_id = p_class.class_id
      union all
      select e.affinity, null, e.node_id from hwqueue.node_eligibility e
      where e.shard_id = p_shard and e.class_id = p_class.class_id
      union all  -- those that have not seen the class yet
      select hwqueue.fixed_affinity(p_class, p.labels, p.rack, null, '{}', p.taints), p.profile_id, null
      from hwqueue.profile p
      where p.shard_id = p_shard and (p_class.is_pinned
               or p.classes_seen <= p_class.created_xid and p_class.class_id <> all (p.classes_judged))
        and hwqueue.suits(p_class, p, null, '{}')
      union all
      select hwqueue.fixed_affinity(p_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, p.taints), null, n.node_id
      from hwqueue.node n
      join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
      where n.shard_id = p_shard and n.node_id = any (v_named)
        and hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
    ) a
    where (a.affinity - p_affinity) * p_sign > 0
      and exists (
        select 1 from hwqueue.node n
        join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
        where n.shard_id = p_shard and (n.profile_id = a.profile_id and n.node_id <> all (v_named) or n.node_id = a.node_id) and n.deregistered_at is null
          and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
          and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0)
    order by a.affinity * p_sign desc limit 1);
end
$$;

-- The highest affinity that any node could have for a class.
create or replace function hwqueue.best_affinity(p_class hwqueue.placement_class) returns double precision
language sql immutable
as $$
  select coalesce(100 * sum(w.weight) filter (where w.weight > 0) / sum(abs(w.weight)), 0)
  from (select (p.value ->> 'weight')::double precision as weight from jsonb_array_elements(p_class.preferred) p) w
$$;

-- Whether each claim of a class must be checked by itself: it or others ask something about other leases, or it might like another node better.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.must_be_checked(p_class hwqueue.placement_class, p_affinity double precision, p_shard int) returns boolean
language sql stable
as $$
  select p_class.terms <> '[]' or hwqueue.is_selected(p_class.class_id, p_shard) or hwqueue.is_stale(p_class, p_shard)
    or p_class.patience is distinct from interval '0' and p_affinity < hwqueue.best_affinity(p_class)
$$;

-- The nodes that a class names in its preferences.
create or replace function hwqueue.named_nodes(p_class hwqueue.placement_class) returns uuid[]
language sql immutable
as $$
  select array(
    select (t #>> '{}')::uuid from jsonb_path_query(p_class.preferred, 'lax $[*].when.**.node[*]') t
    where jsonb_typeof(t) = 'string' and t #>> '{}' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
$$;
