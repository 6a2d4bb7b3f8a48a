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

-- The mark of a queue, the first of them if there are several (marks: how many). is_front: it is the only one and nothing comes before it, so
-- the front is there or later. Most queues have one tier and rank.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.only_mark(p_queue_id int, p_shard int, out marks int, out tier smallint, out rank bigint, out "position" bigint,
                                             out is_front boolean)
language plpgsql volatile
as $$
begin
  select cardinality(w.tiers), w.tiers[1], w.ranks[1], w.positions[1] into marks, tier, rank, "position"
  from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  is_front := marks is not distinct from 1;
  if is_front then
    -- column by column: before Postgres 18 a scan does not stop at the upper end of a row comparison; in order, for this index
    perform 1 from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = only_mark.tier and r.rank < only_mark.rank
    order by r.rank, r.position limit 1;
    if not found then
      perform 1 from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier < only_mark.tier
      order by r.tier, r.rank, r.position limit 1;
    end if;
    is_front := not found;
  end if;
end
$$;
