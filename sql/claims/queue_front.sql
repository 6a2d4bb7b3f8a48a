-- Where the order of a queue begins: the first entry, which may be held by others. Each tier and rank is read
-- from its low-water mark on, what lies between them whole. Nothing when the queue is empty. stands: the
-- front stands still (class_fronts). p_or_mark: the mark itself will do, if it is the only one and nothing
-- comes before it (is_mark): the front is there or later.
create or replace function hwqueue.queue_front(p_queue_id int, p_shard int, p_or_mark boolean default false,
  out tier smallint, out rank bigint, out "position" bigint, out stands boolean, out is_mark boolean)
language plpgsql volatile
as $$
declare
  v_marks record;
  v_place record;
begin
  select w.tiers, w.ranks, w.positions, w.version < w.stands_until as stands into v_marks
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  stands := coalesce(v_marks.stands, false);
  is_mark := false;
  for i in 1 .. coalesce(cardinality(v_marks.tiers), 0) + 1 loop
    v_place := hwqueue.first_between(p_queue_id, v_marks.tiers[i - 1], v_marks.ranks[i - 1],
                                     coalesce(v_marks.tiers[i], 32767), coalesce(v_marks.ranks[i], 0),
                                     p_shard);
    exit when v_place.tier is not null or v_marks.tiers[i] is null;
    if p_or_mark and cardinality(v_marks.tiers) = 1 then  -- as in most queues
      tier := v_marks.tiers[1];
      rank := v_marks.ranks[1];
      position := v_marks.positions[1];
      is_mark := true;
      return;
    end if;
    select r.tier, r.rank, r.position into v_place
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = v_marks.tiers[i]
      and r.rank = v_marks.ranks[i] and r.position >= v_marks.positions[i]
    order by r.position limit 1;
    exit when found;
  end loop;
  tier := v_place.tier;
  rank := v_place.rank;
  position := v_place.position;
end
$$;

-- The first entry of a queue after one tier and rank (null: of any) and before another, both excluded. Column
-- by column: before Postgres 18 a scan does not stop at the upper end of a row comparison.
create or replace function hwqueue.first_between(p_queue_id int, p_from_tier smallint, p_from_rank bigint, p_to_tier int, p_to_rank bigint,
  p_shard int, out tier smallint, out rank bigint, out "position" bigint)
language plpgsql volatile
as $$
declare
  v_same boolean := p_from_tier is not null and p_from_tier = p_to_tier;
begin
  if p_from_tier is not null then
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_from_tier and r.rank > p_from_rank
      and r.rank < case when v_same then p_to_rank else 9223372036854775807 end
    order by r.rank, r.position limit 1;
  end if;
  if tier is null and not v_same then
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier > coalesce(p_from_tier, -1)
      and r.tier < p_to_tier
    order by r.tier, r.rank, r.position limit 1;
    if tier is null then
      select r.tier, r.rank, r.position into tier, rank, "position"
      from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_to_tier and r.rank < p_to_rank
      order by r.rank, r.position limit 1;
    end if;
  end if;
end
$$;
