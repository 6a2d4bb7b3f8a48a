-- The leases that a node may run now, best first: heads of its eligible classes that fit, ordered by tier, rank, score
-- (higher first), position. All leases of a class score alike on a node, so each class is judged once and only its head
-- is read. Looks at no more than p_probe classes beyond the first p_window entries of the global order.
-- p_limit: candidates to give; p_depth: entries to read of each class. is_head: the best of its class, others like it follow.
-- Locks: none, it only peeks. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.claim_candidates(
  p_node hwqueue.node, p_room hwqueue.headroom, p_queues hwqueue.queue[], p_tasks text[], p_extra jsonb,
  p_limit int, p_depth int, p_now timestamptz, p_shard int)
returns table (entry hwqueue.ready, score double precision, is_head boolean)
language plpgsql stable
as $$
declare
  v_classes bigint[];
  v_scores double precision[];
  v_window int := greatest(p_limit, (select max(q.window_size) from unnest(p_queues) q));
  v_probe int := (select max(q.probe_size) from unnest(p_queues) q);
  v_flat boolean;
  v_found int;
begin
  select coalesce(array_agg(f.class_id order by f.score desc), '{}'), coalesce(array_agg(f.score order by f.score desc), '{}')
  into v_classes, v_scores
  from hwqueue.fitting_classes(p_node, p_room, p_queues, p_tasks, p_extra, p_shard) f;
  if v_classes = '{}' then
    return;
  end if;
  v_flat := v_scores[1] = v_scores[cardinality(v_scores)];
  if v_flat and cardinality(p_queues) = 1 then
    -- all score alike: the front of the queue's order says it all, unless too little of it is for this node
    return query
      select f, v_scores[1], false from hwqueue.ready_front(p_queues, v_classes, v_window, p_now, p_shard) f
      order by f.tier, f.rank, f.position limit p_limit;
    get diagnostics v_found = row_count;
    if v_found >= p_limit then
      return;
    end if;
  end if;
  -- an entry may come twice; the second time it is gone
  return query
    select c.entry, c.score, c.is_head
    from (
      select h.entry, k.score, true as is_head
      from unnest(v_classes[1 : v_probe], v_scores[1 : v_probe]) k(class_id, score)
      cross join lateral (
        select r as entry from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = k.class_id and (r.deadline is null or r.deadline > p_now)
        order by r.tier, r.rank, r.position limit p_depth
      ) h
      union all
      -- what the probes leave out may still be at the front
      select f, v_scores[array_position(v_classes, f.class_id)], false
      from hwqueue.ready_front(p_queues, v_classes, v_window, p_now, p_shard) f
      where cardinality(v_classes) > v_probe or (v_flat and cardinality(p_queues) > 1)
    ) c
    order by (c.entry).tier, (c.entry).rank, c.score desc, (c.entry).position
    limit p_limit;
end
$$;
