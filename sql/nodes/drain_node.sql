-- Cordons a node; with a deadline its claims are asked to stop by then (verdict preempted at the next heartbeat).
-- Without one, what runs there may finish.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.drain_node(p_node uuid, p_deadline interval default null, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if p_deadline < interval '0' or p_deadline > interval '3650 days' then
    perform hwqueue.refuse('QHA01', format('p_deadline must be from 0 to ten years, got %s', p_deadline),
      jsonb_build_object('field', 'p_deadline'), 'give a span such as interval ''10 minutes''');
  end if;
  if p_deadline is not null then
    perform hwqueue.await_node(p_node, p_shard);
  end if;
  v_node := hwqueue.set_cordon(p_node, p_shard);
  v_now := hwqueue.clock();
  update hwqueue.node n set drain_by = v_now + p_deadline where n.shard_id = p_shard and n.node_id = p_node;
  perform hwqueue.note_event('node_drained', format('node %s is drained', v_node.name) || coalesce(', what runs there is to stop by ' || (v_now + p_deadline), ''),
    p_shard, jsonb_build_object('drain_by', v_now + p_deadline), p_node => p_node);
  if p_deadline is not null then
    perform hwqueue.ask_to_stop(p_node, hwqueue.lock_claims(p_node, p_shard), v_now + p_deadline, 'node is drained', v_now, p_shard);
  end if;
end
$$;
