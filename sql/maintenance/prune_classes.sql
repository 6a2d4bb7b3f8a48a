-- Removes classes that no lease refers to: steps 1 and 3 of stamp_retired; a class that a late spawn used after all stays until
-- that lease is gone.
-- Locks: class rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_classes(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_gone bigint[];
begin
  v_gone := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before <= v_oldest_running
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = c.class_id)
    limit p_limit for update skip locked);
  delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = any (v_gone);
  delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = any (v_gone);
  delete from hwqueue.class_reach r where r.shard_id = p_shard and r.class_id = any (v_gone);
  delete from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = any (v_gone);
  update hwqueue.placement_class c set retired_at = p_now
  where c.shard_id = p_shard and c.class_id in (
    select o.class_id from hwqueue.placement_class o
    where o.shard_id = p_shard and o.retired_at is null and o.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = o.class_id)
    order by o.class_id limit p_limit for update skip locked);
  return cardinality(v_gone);
end
$$;
