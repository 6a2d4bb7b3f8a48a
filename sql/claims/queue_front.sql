-- Where the order of a queue begins: the first entry, which may be held by others. Each tier and rank is read from its low-water
-- mark on, the stretches between them whole. Nothing when the queue is empty.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.queue_front(p_queue_id int, p_shard int, out tier smallint, out rank bigint, out "position" bigint,
                                               out is_entry boolean)
language plpgsql volatile
as $$
declare
  v_marks record;
begin
  select w.tiers, w.ranks, w.positions into v_marks
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  is_entry := true;
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

-- The same in fewer looks for the usual queue, whose entries all have one tier and rank: if nothing comes before the only mark, the
-- order begins there or later.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.front_start(p_queue_id int, p_shard int, out tier smallint, out rank bigint, out "position" bigint,
                                               out is_entry boolean)
language plpgsql volatile
as $$
declare
  v_count int;
begin
  select cardinality(w.tiers), w.tiers[1], w.ranks[1], w.positions[1] into v_count, tier, rank, "position"
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  is_entry := false;
  if v_count = 1 then
    perform 1 from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and (r.tier, r.rank) < (front_start.tier, front_start.rank)
    order by r.tier, r.rank limit 1;
    if not found then
      return;
    end if;
  end if;
  select f.tier, f.rank, f.position, f.is_entry into tier, rank, "position", is_entry from hwqueue.queue_front(p_queue_id, p_shard) f;
end
$$;
