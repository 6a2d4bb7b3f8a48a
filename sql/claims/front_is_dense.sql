-- Whether the first p_window entries of each of these queues stand close to the first of the fronts, in its tier and rank: then a look at them
-- walks little that is gone.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.front_is_dense(p_queue_ids int[], p_from hwqueue.scan_from, p_window int, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return (
    select bool_and(w.seen = p_window)
    from unnest(p_queue_ids) q(queue_id)
    cross join lateral (
      select count(*) as seen from (
        select from hwqueue.ready r
        where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = p_from.tier and r.rank = p_from.rank
          and r.position between p_from.position and p_from.position + 4095
        order by r.position limit p_window) e) w);
end
$$;
