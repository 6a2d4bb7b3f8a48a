-- Estimates the reach of classes that have no estimate yet, then of those whose estimate is the oldest, over a minute old: at most
-- p_limit classes a call, found by index. Gives their number, and up to where all classes have an estimate.
-- Locks: the shard's row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_reaches(p_limit int, p_estimated_to xid8, p_now timestamptz, p_shard int,
                                                out reaches int, out estimated_to xid8)
language plpgsql volatile
as $$
declare
  -- read before the classes are: whatever finished below the horizon, the statements below can see
  v_horizon xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_new bigint[];
  v_old bigint[];
begin
  v_new := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.created_xid >= hwqueue.valid_mark(p_estimated_to) and c.retired_at is null
      and not exists (select 1 from hwqueue.class_reach r where r.shard_id = p_shard and r.class_id = c.class_id)
    order by c.created_xid, c.class_id limit p_limit);
  v_old := array(
    select r.class_id from hwqueue.class_reach r
    where r.shard_id = p_shard and r.refreshed_at < p_now - interval '1 minute'
    order by r.refreshed_at limit p_limit - cardinality(v_new));
  reaches := coalesce(hwqueue.refresh_reach(v_new || v_old, p_shard), 0);
  estimated_to := case
    when reaches < cardinality(v_new || v_old) then p_estimated_to  -- somebody else is at it, or there is no node
    when cardinality(v_new) < p_limit then v_horizon
    else (select c.created_xid from hwqueue.placement_class c
          where c.shard_id = p_shard and c.class_id = v_new[cardinality(v_new)]) end;
end
$$;
