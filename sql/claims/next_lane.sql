-- A lane is what claims cannot tell apart but by age: the ready entries of one tier and rank whose classes score the same.
-- Gives the best lane that has an entry, by tier, rank, score (higher first); with p_after_*, the best one after that lane.
-- p_classes, p_scores: what may be claimed, best score first. Looks at the heads of the first p_probe of them; with more classes
-- than that, or than 16, it looks at the first p_window entries of each queue's order before: whatever the front holds has the
-- best tier and rank there is, and only a class with a better score could come first. Not where the front stands still and what is there is
-- far apart, unless there are more classes than p_probe. p_from: where scans start; what was claimed before is in the indexes till a vacuum.
-- classes: of the lane. positions, seen_classes: of entries that it saw there, oldest first; is_head: of the oldest of the lane alone.
-- Locks: none, it only peeks. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.next_lane(p_classes bigint[], p_scores double precision[], p_queue_ids int[],
  p_after_tier smallint, p_after_rank bigint, p_after_score double precision, p_from hwqueue.scan_from,
  p_window int, p_probe int, p_now timestamptz, p_shard int, out tier smallint, out rank bigint, out score double precision, out classes bigint[],
  out positions bigint[], out seen_classes bigint[], out is_head boolean)
language plpgsql stable
as $$
declare
  v_front record;
  v_head record;
  v_from hwqueue.scan_from;
  v_start bigint;
begin
  if p_after_tier is null and cardinality(p_classes) > least(16, p_probe)
     and (not p_from.stands or cardinality(p_classes) > p_probe or hwqueue.front_is_dense(p_queue_ids, p_from, p_window, p_shard)) then
    v_front := hwqueue.front_lane(p_classes, p_scores, p_queue_ids, p_from.tier, p_from.rank, p_from.position, p_window, p_now, p_shard);
    tier := v_front.tier;
    rank := v_front.rank;
    score := v_front.score;
    positions := v_front.positions;
    seen_classes := v_front.classes;
    v_from := p_from;
    for i in 1 .. least(cardinality(p_classes), p_probe) loop
      exit when tier is null or p_scores[i] <= score;
      if p_from.stands and i % 16 = 1 then  -- mostly one of the first has something
        v_from := hwqueue.class_fronts(p_classes[i : i + 15], p_queue_ids, p_from, p_shard);
      end if;
      -- a variable, or it would be no bound of the scan; in order, for the index by class
      v_start := hwqueue.start_in(v_from, (i - 1) % 16 + 1, tier, rank);
      perform 1 from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_classes[i] and r.tier = next_lane.tier and r.rank = next_lane.rank
        and r.position >= v_start and (r.deadline is null or r.deadline > p_now) order by r.position limit 1;
      if found then
        score := p_scores[i];
        positions := null;
      end if;
    end loop;
  end if;
  if tier is null or cardinality(p_queue_ids) > 1 then
    -- no front, or those of several queues: a head behind one of them may come before another
    v_from := hwqueue.class_fronts(p_classes[1 : p_probe], p_queue_ids, p_from, p_shard);
    select h.tier, h.rank, h.position, k.class_id, k.score into v_head
    from (
      select c.class_id, c.score, coalesce(c.tier, v_from.tier) as tier, coalesce(c.rank, v_from.rank) as rank,
             coalesce(c.position, v_from.position) as position, p_after_rank + (c.score >= p_after_score)::int as after_rank
      from unnest(p_classes[1 : p_probe], p_scores[1 : p_probe], v_from.tiers, v_from.ranks, v_from.positions)
           c(class_id, score, tier, rank, position)) k
    cross join lateral (select (p_after_tier, k.after_rank) > (k.tier, k.rank) as is_after) a
    cross join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = k.class_id and (r.deadline is null or r.deadline > p_now)
        and (r.tier, r.rank, r.position) >= (case when a.is_after then p_after_tier else k.tier end,
          case when a.is_after then k.after_rank else k.rank end, case when a.is_after then 0 else k.position end)
      order by r.tier, r.rank, r.position limit 1
    ) h
    order by h.tier, h.rank, k.score desc, h.position limit 1;
    if tier is null or (v_head.tier, v_head.rank, -v_head.score, v_head.position)
                       <= (tier, rank, -score, coalesce(positions[1], 9223372036854775807)) then
      tier := v_head.tier;
      rank := v_head.rank;
      score := v_head.score;
      positions := array[v_head.position];
      seen_classes := array[v_head.class_id];
      is_head := true;
    end if;
  end if;
  if tier is not null then
    classes := array(select k.class_id from unnest(p_classes[1 : p_probe], p_scores[1 : p_probe]) k(class_id, score)
                     where k.score = next_lane.score);
  end if;
end
$$;

-- The best lane among the first p_window entries of each queue's order, with the positions and classes of its entries there. Joined by hash: to look
-- up 100 entries in 1,000 classes takes a third of the time.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.front_lane(p_classes bigint[], p_scores double precision[], p_queue_ids int[], p_from_tier smallint,
  p_from_rank bigint, p_from_position bigint, p_window int, p_now timestamptz, p_shard int, out tier smallint, out rank bigint, out score double precision, out positions bigint[], out classes bigint[])
language plpgsql stable set enable_hashjoin = on set enable_nestloop = off
as $$
begin
  select f.tier, f.rank, f.score, array_agg(f.position order by f.position), array_agg(f.class_id order by f.position)
  into tier, rank, score, positions, classes
  from (
    select w.tier, w.rank, w.position, w.class_id, k.score
    from unnest(p_queue_ids) q(queue_id)
    cross join lateral (
      select r.tier, r.rank, r.position, r.class_id, r.deadline from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = q.queue_id
        and (r.tier, r.rank, r.position) >= (p_from_tier, p_from_rank, p_from_position)
      order by r.tier, r.rank, r.position limit p_window
    ) w
    join unnest(p_classes, p_scores) k(class_id, score) on k.class_id = w.class_id
    where w.deadline is null or w.deadline > p_now
  ) f
  group by f.tier, f.rank, f.score order by f.tier, f.rank, f.score desc limit 1;
end
$$;
