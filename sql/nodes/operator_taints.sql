-- The taints that operators have put on a node; none if it is not registered.
create or replace function hwqueue.operator_taints(p_node uuid, p_shard int) returns jsonb
language plpgsql stable
as $$
begin
  return coalesce((select n.operator_taints from hwqueue.node n where n.shard_id = p_shard and n.node_id = p_node), '[]');
end
$$;
