-- Takes a node out of the fleet; its claims end at once, one attempt used. Its epoch is kept, so that an instance that
-- missed it stays fenced when the node is registered again. Its attestations end, too, and it belongs to no login any more; taints of
-- operators stay, as cordons do.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA02, QHA03. Idempotent: no, the second call finds no node.
create or replace function hwqueue.deregister_node(p_node uuid, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_ended int;
  v_state hwqueue.node_state;
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.await_node(p_node, p_shard);
  v_state := hwqueue.lock_node(p_node, null, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  v_ended := hwqueue.end_older_claims(p_node, v_state.node_epoch + 1, v_now, p_shard);
  delete from hwqueue.served v where v.shard_id = p_shard and v.node_id = p_node;
  delete from hwqueue.attestation a where a.shard_id = p_shard and a.node_id = p_node;
  perform hwqueue.note_attestations(p_node, p_shard);
  update hwqueue.node n set deregistered_at = v_now where n.shard_id = p_shard and n.node_id = p_node;
  update hwqueue.node_state s set login = null where s.shard_id = p_shard and s.node_id = p_node;
  perform hwqueue.note_edit(p_node, p_shard);
  perform hwqueue.note_event('node_deregistered', format('node %s is deregistered, %s claims ended', v_node.name, v_ended), p_shard,
    jsonb_build_object('claims_ended', v_ended), p_node => p_node);
end
$$;
