-- Whether the first p_window entries of each queue stand close together, in the tier and rank of its front: then a look at them walks little that
-- is gone.
create or replace function hwqueue.front_is_dense(p_from hwqueue.scan_from, p_window int, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return (
    select bool_and(w.seen = p_window)
    from unnest(p_from.queue_ids, p_from.tiers, p_from.ranks, p_from.positions) q(queue_id, tier, rank, position)
    cross join lateral (
      select count(*) as seen from (
        select from hwqueue.ready r
        where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = q.tier and r.rank = q.rank
          and r.position between q.position and q.position + 4095
        order by r.position limit p_window) e) w);
end
$$;
