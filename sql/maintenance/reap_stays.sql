-- Sets when claims have to stop that came to a node beside a no_execute taint which their leases tolerate for a time (or that were adopted
-- there): the edit that put the taint on the node did not see them. Gives their number.
-- Locks: node_state, then the claims, all skip locked.
create or replace function hwqueue.reap_stays(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_node_id uuid;
  v_node hwqueue.node;
  v_leases uuid[];
  v_count int := 0;
begin
  for v_node_id in
    select s.node_id
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
    where n.shard_id = p_shard and (n.taints || n.operator_taints) @> '[{"effect": "no_execute"}]' and n.deregistered_at is null
    for no key update of s skip locked
  loop
    select n.* into v_node from hwqueue.node n where n.shard_id = p_shard and n.node_id = v_node_id;
    v_leases := array(
      select c.lease_id
      from hwqueue.claim c
      join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
      where c.shard_id = p_shard and c.node_id = v_node_id and c.stop_requested_at is null
        and (hwqueue.first_stop(v_node.taints || v_node.operator_taints, k.tolerate, c.claimed_at)).stop_at is not null
      limit p_limit - v_count
      for update of c skip locked);
    perform hwqueue.set_taint_stops(v_node, v_leases, p_now, p_shard);
    v_count := v_count + cardinality(v_leases);
    exit when v_count >= p_limit;
  end loop;
  return v_count;
end
$$;
