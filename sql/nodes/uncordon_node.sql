-- Ends cordon and drain; claims that were asked to stop stay asked.
-- Locks: node_state. Raises: QHN01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.uncordon_node(p_node uuid, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.lock_node(p_node, null, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  if v_node.cordoned_at is not null then
    update hwqueue.node n set cordoned_at = null, drain_by = null where n.shard_id = p_shard and n.node_id = p_node;
    perform hwqueue.note_edit(p_node, p_shard);
    perform hwqueue.note_event('node_uncordoned', format('node %s gets work again', v_node.name), p_shard, p_node => p_node);
  end if;
end
$$;
