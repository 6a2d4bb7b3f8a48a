-- Where the order of a queue begins: the first entry, which may be held by others. Each tier and rank is read from its low-water
-- mark on, the stretches between them whole. Nothing when the queue is empty.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.queue_front(p_queue_id int, p_shard int, out tier smallint, out rank bigint, out "position" bigint)
language plpgsql volatile
as $$
declare
  v_marks record;
begin
  select w.tiers, w.ranks, w.positions into v_marks
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  for i in 0 .. cardinality(v_marks.tiers) loop
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id
      and (r.tier, r.rank, r.position) >= (coalesce(v_marks.tiers[i], -1), coalesce(v_marks.ranks[i], 0), coalesce(v_marks.positions[i], 0))
      and (r.tier, r.rank) < (coalesce(v_marks.tiers[i + 1], 32767), coalesce(v_marks.ranks[i + 1], 0))
    order by r.tier, r.rank, r.position limit 1;
    exit when found;
  end loop;
end
$$;
