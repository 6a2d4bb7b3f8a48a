-- Gives a node nothing new until uncordon_node; what runs there goes on.
-- Locks: node_state. Raises: QHN01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.cordon_node(p_node uuid, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  v_node := hwqueue.set_cordon(p_node, p_shard);
  if v_node.cordoned_at is null then
    perform hwqueue.note_event('node_cordoned', format('node %s is cordoned', v_node.name), p_shard, p_node => p_node);
  end if;
end
$$;

-- Cordons a node; gives what it was before.
-- Locks: node_state. Raises: QHN01.
create or replace function hwqueue.set_cordon(p_node uuid, p_shard int) returns hwqueue.node
language plpgsql volatile
as $$
declare
  v_before hwqueue.node;
  v_now timestamptz;
begin
  perform hwqueue.lock_node(p_node, null, p_shard);
  v_before := hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  if v_before.cordoned_at is null then
    update hwqueue.node n set cordoned_at = v_now where n.shard_id = p_shard and n.node_id = p_node;
    perform hwqueue.note_edit(p_node, p_shard);
  end if;
  return v_before;
end
$$;
