-- Empties the days of the ring whose events are older than the shard's event_days whole days. A reader or a long transaction may be in the way: after a
-- tenth of a second it is left to the next call. Gives the number of days emptied.
-- A day that new events have come into (prune was not called for two weeks) stays until these are old, too.
-- Locks: partitions of event, exclusively, till the end of the transaction: readers of events wait.
create or replace function hwqueue.prune_events(p_now timestamptz, p_shard int) returns int
language plpgsql volatile set lock_timeout = '100ms'
as $$
declare
  v_keep_from timestamptz := to_timestamp((hwqueue.event_day(p_now) - (
    select s.event_days from hwqueue.shard s where s.shard_id = p_shard)) * 86400);
  v_slot smallint;
  v_newest timestamptz;
  v_count int := 0;
begin
  for v_slot in 0..15 loop
    select e.at into v_newest from hwqueue.event e where e.shard_id = p_shard and e.slot = v_slot order by e.event_id desc limit 1;
    continue when (v_newest < v_keep_from) is not true;
    -- of other shards, too: read once a day
    continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
    begin
      execute format('lock table hwqueue.event_%s in access exclusive mode', v_slot);  -- a table's name cannot be a parameter
      -- again: one may have come into the day while the lock was waited for
      continue when exists (select 1 from hwqueue.event e where e.slot = v_slot and e.at >= v_keep_from);
      execute format('truncate hwqueue.event_%s', v_slot);
      v_count := v_count + 1;
    exception when lock_not_available then
      null;
    end;
  end loop;
  return v_count;
end
$$;
