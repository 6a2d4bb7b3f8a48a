-- Removes nodes that were deregistered 30 days ago. Their node_state stays: its epoch fences whoever slept for so long.
-- Ends after the node with which p_limit eligibilities have gone, too.
-- Locks: node rows, skip locked.
create or replace function hwqueue.prune_nodes(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_node_id uuid;
  v_gone int := 0;
  v_rows int;
  v_hanging int := 0;
begin
  for v_node_id in
    select n.node_id from hwqueue.node n
    where n.shard_id = p_shard and n.deregistered_at < p_now - interval '30 days'
    order by n.deregistered_at limit p_limit for update skip locked
  loop
    delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.node_id = v_node_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.node_candidates k where k.shard_id = p_shard and k.node_id = v_node_id;
    delete from hwqueue.node n where n.shard_id = p_shard and n.node_id = v_node_id;
    v_gone := v_gone + 1;
    v_hanging := v_hanging + v_rows;
    exit when v_hanging >= p_limit;
  end loop;
  return v_gone;
end
$$;
