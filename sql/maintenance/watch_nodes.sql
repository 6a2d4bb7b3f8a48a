-- Tells once when a node has gone silent (no sign of life within its timeout), and when it is back. Looks at p_limit nodes after p_after, in
-- turn over the calls; gives where to go on.
-- Locks: the caller holds the mark of reap.
create or replace function hwqueue.watch_nodes(p_after uuid, p_limit int, p_now timestamptz, p_shard int) returns uuid
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last uuid := (
    select n.node_id from hwqueue.node n
    where n.shard_id = p_shard and n.node_id > p_after order by n.node_id offset p_limit - 1 limit 1);
  v_node record;
begin
  for v_node in
    select n.node_id, n.name, n.deregistered_at is null as is_registered, (s.state).seen_at, t.told_at
    from hwqueue.node n
    -- fences (offset 0): node by node and by key, whatever the statistics say
    cross join lateral (
      select x as state from hwqueue.node_state x where x.shard_id = p_shard and x.node_id = n.node_id offset 0) s
    left join lateral (
      select x.told_at from hwqueue.silent_node x where x.shard_id = p_shard and x.node_id = n.node_id offset 0) t on true
    where n.shard_id = p_shard and n.node_id > p_after and n.node_id <= coalesce(v_last, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      and (n.deregistered_at is null and not hwqueue.is_live(n, s.state, p_now)) <> (t.told_at is not null)
    order by n.node_id
  loop
    if v_node.told_at is null then
      insert into hwqueue.silent_node (shard_id, node_id, told_at) values (p_shard, v_node.node_id, p_now);
      perform hwqueue.note_event('node_silent', format('node %s has given no sign of life since %s', v_node.name, v_node.seen_at), p_shard,
        jsonb_build_object('seen_at', v_node.seen_at), p_node => v_node.node_id);
    else
      delete from hwqueue.silent_node t where t.shard_id = p_shard and t.node_id = v_node.node_id;
      if v_node.is_registered then
        perform hwqueue.note_event('node_back', format('node %s is back', v_node.name), p_shard,
          jsonb_build_object('silent_since', v_node.told_at), p_node => v_node.node_id);
      end if;
    end if;
  end loop;
  return coalesce(v_last, '00000000-0000-0000-0000-000000000000');
end
$$;
