-- Retired classes and dropped queues are deleted without a lock that a spawn could meet, in three steps:
-- 1. The row is marked: who looks from then on does not find it.
-- 2. When that is committed, the row is stamped with a transaction id that was given out later. A spawn has its id before it
--    looks (find_class, spawn_queue), so whoever found the row unmarked has a lower one.
-- 3. When all lower ones are over, nobody can come any more who found it.
-- This is step 2. It must come first in a transaction that has written nothing: else its id is older than the look, and nothing
-- is stamped.
-- Locks: class and queue rows, skip locked.
create or replace function hwqueue.stamp_retired(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_classes bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before is null limit p_limit);
  v_queues int[] := array(
    select q.queue_id from hwqueue.queue q
    where q.shard_id = p_shard and q.dropped_at is not null and q.dropped_before is null limit p_limit);
  v_later xid8;
begin
  if v_classes = '{}' and v_queues = '{}' or pg_current_xact_id_if_assigned() is not null then
    return;
  end if;
  v_later := pg_current_xact_id();
  update hwqueue.placement_class c set retired_before = v_later
  where c.shard_id = p_shard and c.class_id in (
    select o.class_id from hwqueue.placement_class o
    where o.shard_id = p_shard and o.class_id = any (v_classes) and o.retired_before is null for update skip locked);
  update hwqueue.queue q set dropped_before = v_later
  where q.shard_id = p_shard and q.queue_id in (
    select o.queue_id from hwqueue.queue o
    where o.shard_id = p_shard and o.queue_id = any (v_queues) and o.dropped_before is null for update skip locked);
end
$$;
