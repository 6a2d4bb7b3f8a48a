-- The bounded wait for a better node (design 5.3): in a queue that nodes pull from, a preference means nothing if the first node to ask
-- gets the lease. So a lease is held back from a node, at most for its patience, while a better one lives:
--   wait = patience x (best - affinity here) / (best - worst)
-- over live, uncordoned nodes that may run it and whose total capacity suffices; from the moment the lease became claimable (eligible_at), and
-- nothing sets that back. No better node alive, no wait.

-- How long leases of a class wait for a better node than this one, from the moment they became claimable: no longer than their patience, and
-- exactly that if the lease at hand has waited so long. What a class prefers about other leases changes at any moment: then it does not wait at all.
-- is_known: it was not necessary to look at the fleet, or is not worth remembering. p_looks: look if it is; else there is no wait then.
create or replace function hwqueue.waits_for(p_class hwqueue.placement_class, p_node hwqueue.node, p_eligible_at timestamptz, p_looks boolean,
                                             p_now timestamptz, p_shard int, out wait interval, out is_known boolean)
language plpgsql stable
as $$
declare
  v_patience interval := p_class.patience;
  v_here double precision;
  v_range hwqueue.class_range;
begin
  wait := '0';
  is_known := true;
  if p_class.preferred = '[]' and hwqueue.node_taints(p_node) = '[]' then
    return;  -- all nodes are as good
  elsif v_patience is null then
    v_patience := (select q.patience from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_class.queue_id);
  end if;
  if p_eligible_at + v_patience <= p_now then
    wait := v_patience;  -- younger leases of the class are not through
    return;
  end if;
  v_here := hwqueue.fixed_affinity(p_class, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids,
                                   hwqueue.node_taints(p_node));
  if v_here is null or v_here >= hwqueue.best_affinity(p_class) then
    return;
  end if;
  v_range := hwqueue.known_range(p_class.class_id, p_now, p_shard);
  if v_range.class_id is null then
    is_known := p_class.preferred = '[]';
    if not p_looks then
      return;
    end if;
    v_range := hwqueue.look_at_range(p_class, p_now, p_shard);
  end if;
  wait := hwqueue.wait_between(v_patience, v_here, v_range.best, v_range.worst);
end
$$;

-- The wait on a node of that affinity.
create or replace function hwqueue.wait_between(p_patience interval, p_here double precision, p_best double precision, p_worst double precision)
returns interval
language sql immutable parallel safe
as $$
  select case when p_best > p_here then p_patience * ((p_best - p_here) / (p_best - least(p_worst, p_here))) else '0' end
$$;

-- The highest affinity that any node could have for a class, its strength included: as fixed_affinity has it, to the last bit.
create or replace function hwqueue.best_affinity(p_class hwqueue.placement_class) returns double precision
language sql immutable
as $$
  select hwqueue.class_strength(p_class) * coalesce(100 * sum(w.weight) filter (where w.weight > 0) / sum(abs(w.weight)), 0)
  from (select (p.value ->> 'weight')::double precision as weight from jsonb_array_elements(p_class.preferred) p) w
$$;

-- Whether each claim of a class must be checked by itself: it or others ask something about other leases, or it might like another node better.
create or replace function hwqueue.must_be_checked(p_class hwqueue.placement_class, p_affinity double precision, p_shard int) returns boolean
language sql stable
as $$
  select p_class.terms <> '[]' or hwqueue.is_selected(p_class.class_id, p_shard) or hwqueue.is_stale(p_class, p_shard)
    or p_class.patience is distinct from interval '0' and p_affinity < hwqueue.best_affinity(p_class)
$$;
