-- Where the order of a queue begins: the first entry, which may be held by others. Each tier and rank is read from its low-water
-- mark on, what lies between them whole. Nothing when the queue is empty. stands: the front stands still (class_fronts).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.queue_front(p_queue_id int, p_shard int, out tier smallint, out rank bigint, out "position" bigint, out stands boolean)
language plpgsql volatile
as $$
declare
  v_marks record;
  v_tier smallint := -1;
  v_rank bigint := 0;
begin
  select w.tiers, w.ranks, w.positions, w.version < w.stands_until as stands into v_marks
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  stands := coalesce(v_marks.stands, false);
  for i in 1 .. coalesce(cardinality(v_marks.tiers), 0) + 1 loop
    select b.tier, b.rank, b.position into tier, rank, "position"
    from hwqueue.first_between(p_queue_id, v_tier, v_rank, coalesce(v_marks.tiers[i], 32767), coalesce(v_marks.ranks[i], 0), p_shard) b;
    exit when tier is not null or v_marks.tiers[i] is null;
    v_tier := v_marks.tiers[i];
    v_rank := v_marks.ranks[i];
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = v_tier and r.rank = v_rank and r.position >= v_marks.positions[i]
    order by r.position limit 1;
    exit when found;
  end loop;
end
$$;

-- The first entry of a queue after one tier and rank and before another, both excluded. Column by column: before Postgres 18 a scan
-- does not stop at the upper end of a row comparison.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.first_between(p_queue_id int, p_from_tier smallint, p_from_rank bigint, p_to_tier int, p_to_rank bigint,
  p_shard int, out tier smallint, out rank bigint, out "position" bigint)
language plpgsql volatile
as $$
declare
  v_same boolean := p_from_tier = p_to_tier;
begin
  select r.tier, r.rank, r.position into tier, rank, "position"
  from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_from_tier and r.rank > p_from_rank
    and r.rank < case when v_same then p_to_rank else 9223372036854775807 end
  order by r.rank, r.position limit 1;
  if tier is null and not v_same then
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier > p_from_tier and r.tier < p_to_tier
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
