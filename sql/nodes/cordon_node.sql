-- Gives a node nothing new until uncordon_node; what runs there goes on.
-- Locks: node_state. Raises: QHN01, QHA02. Idempotent: yes.
create or replace function hwqueue.cordon_node(p_node uuid, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.lock_node(p_node, null, p_shard), hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  update hwqueue.node n set cordoned_at = coalesce(n.cordoned_at, v_now) where n.shard_id = p_shard and n.node_id = p_node;
  perform hwqueue.note_edit(p_node, p_shard);
end
$$;
