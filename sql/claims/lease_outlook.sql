-- What a worker's log says of leases that its node runs, or ran last: the state now, how many attempts there
-- may be, in how long it is claimable again (null: it is, or never), and what was asked when it was spawned.
-- own_max_attempts: null where the queue's count. Others get no row.
-- Raises: QHA01, QHN04.
create or replace function hwqueue.lease_outlook(p_node uuid, p_lease_ids uuid[], p_shard int default 0)
returns table (lease_id uuid, state text, max_attempts int, own_max_attempts int, again_in interval, placement jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  if p_lease_ids is null or cardinality(p_lease_ids) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_lease_ids must be a list of at most 1000 ids',
      jsonb_build_object('field', 'p_lease_ids'), 'ask in several calls');
  end if;
  perform hwqueue.check_login(p_node, (
    select s.login from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node), p_shard);
  return query
    select l.lease_id, w.state, coalesce(l.max_attempts, q.max_attempts)::int, l.max_attempts::int,
           case when w.state = 'scheduled' then greatest(l.available_at - v_now, interval '0') end, c.placement
    from hwqueue.lease l
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = l.queue_id
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = l.class_id
    left join hwqueue.claim k on k.shard_id = p_shard and k.lease_id = l.lease_id
    left join hwqueue.outcome o on o.shard_id = p_shard and o.lease_id = l.lease_id
    cross join lateral (select hwqueue.lease_state(l.lease_id, p_shard) as state offset 0) w
    where l.shard_id = p_shard and l.lease_id = any (p_lease_ids) and p_node in (k.node_id, coalesce(o.node_id, l.node_id));
end
$$;
