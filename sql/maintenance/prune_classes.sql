-- Removing classes that no lease refers to, in three steps and without a lock that a spawn could meet.
-- 1. A class without leases is retired: spawns that look from then on write a new one.
-- 2. When that is committed, the retired class is stamped with a transaction id that was given out later. A spawn has its id
--    before it looks (find_class), so whoever found the class unretired has a lower one.
-- 3. When all lower ones are over, the class is deleted, unless one of them did spawn with it.

-- Step 2. Must come first in a transaction that has written nothing: else its id is older than the look, and nothing is stamped.
-- Locks: class rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.stamp_retired_classes(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_retired bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before is null limit p_limit);
  v_later xid8;
begin
  if v_retired = '{}' or pg_current_xact_id_if_assigned() is not null then
    return;
  end if;
  v_later := pg_current_xact_id();
  update hwqueue.placement_class c set retired_before = v_later
  where c.shard_id = p_shard and c.class_id in (
    select o.class_id from hwqueue.placement_class o
    where o.shard_id = p_shard and o.class_id = any (v_retired) and o.retired_before is null
    for update skip locked);
end
$$;

-- Steps 3 and 1.
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
