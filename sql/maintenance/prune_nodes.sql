-- Removes nodes that were deregistered 30 days ago. Their node_state stays: its epoch fences whoever slept for so long.
-- Locks: node rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_nodes(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_gone uuid[];
begin
  v_gone := array(
    select n.node_id from hwqueue.node n
    where n.shard_id = p_shard and n.deregistered_at < p_now - interval '30 days'
    limit p_limit for update skip locked);
  delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.node_id = any (v_gone);
  delete from hwqueue.node n where n.shard_id = p_shard and n.node_id = any (v_gone);
  return cardinality(v_gone);
end
$$;
