-- Whether every lease can still end: all nodes come back and are open, time passes, they claim and complete whatever they
-- get. Returns the leases that are open all the same. The caller rolls it back.
create schema walk;
create function walk.left_open(p_queue text, p_rounds int) returns setof text language plpgsql as $$
declare
  v_node record;
begin
  perform hwqueue.resume_queue(p_queue);
  for v_node in select n.node_id, n.operator_taints from hwqueue.node n where n.deregistered_at is null loop
    perform hwqueue.uncordon_node(v_node.node_id);
    perform hwqueue.untaint_node(v_node.node_id, t ->> 'key') from jsonb_array_elements(v_node.operator_taints) t;
  end loop;
  for v_round in 1..p_rounds loop
    for v_node in
      select s.node_id, s.node_epoch from hwqueue.node_state s join hwqueue.node n using (shard_id, node_id) where n.deregistered_at is null
    loop
      perform hwqueue.heartbeat_node(v_node.node_id, v_node.node_epoch);
      perform hwqueue.claim_task(array[p_queue], v_node.node_id, v_node.node_epoch, 10);
    end loop;
    perform hwqueue.complete_lease(c.lease_id, c.claim_token) from hwqueue.claim c;
    exit when not exists (select from hwqueue.lease l where l.state = 'open');
    update hwqueue.test_clock set offset_by = offset_by + interval '20 s';
    perform hwqueue.reap();
  end loop;
  return query select format('lease %s can no longer end: %s', l.lease_id, hwqueue.lease_state(l.lease_id, 0))
    from hwqueue.lease l where l.state = 'open';
end
$$;
