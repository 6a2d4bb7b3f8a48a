-- Marks of classes. While the front of a queue is held by what nobody may run, its mark stays there, and under an old snapshot a
-- scan for another class from there on would walk all that was claimed of it since. So such classes get marks of their own (in
-- low_water, by class_id), which claims look for until the front has moved on for a while.

-- Where scans start, with where each of these classes does, if they differ: at its own mark, or at the front of its queue. One whose queue had
-- nothing starts behind everything.
create or replace function hwqueue.class_fronts(p_classes bigint[], p_from hwqueue.scan_from, p_shard int) returns hwqueue.scan_from
language plpgsql volatile
as $$
begin
  if p_from.differ then
    select array_agg(f.tier order by k.ordinality), array_agg(f.rank order by k.ordinality), array_agg(f.position order by k.ordinality)
    into p_from.class_tiers, p_from.class_ranks, p_from.class_positions
    from unnest(p_classes) with ordinality k(class_id, ordinality)
    cross join lateral (
      select case when cardinality(p_from.queue_ids) = 1 then 1 else array_position(p_from.queue_ids, (
        select c.queue_id from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = k.class_id)) end as number
      offset 0) q  -- fenced: asked once
    cross join lateral (
      select coalesce(p_from.tiers[q.number], 32767::smallint) as tier, coalesce(p_from.ranks[q.number], 0) as rank,
             coalesce(p_from.positions[q.number], 0) as position) s
    left join lateral (
      select w.tiers, w.ranks, w.positions from hwqueue.low_water w
      where p_from.stands[q.number] and w.shard_id = p_shard and w.queue_id = p_from.queue_ids[q.number] and w.class_id = k.class_id
      order by w.version desc limit 1) w on true
    cross join lateral (
      select s.tier, s.rank, greatest(s.position, w.positions[1]) as position
      where w.tiers is null or w.tiers = array[s.tier] and w.ranks = array[s.rank]  -- mostly a queue has one tier and rank
      union all
      select x.tier, x.rank, x.position
      from hwqueue.class_front(k.class_id, w.tiers, w.ranks, w.positions, s.tier, s.rank, s.position, p_shard) x
      where w.tiers <> array[s.tier] or w.ranks <> array[s.rank]) f;
  end if;
  return p_from;
end
$$;

-- A place in the order of a class, from p_tier, p_rank, p_position on, before which none of it lives: from one of its marks to the next, as long
-- as nothing is left in between.
create or replace function hwqueue.class_front(p_class_id bigint, p_tiers smallint[], p_ranks bigint[], p_positions bigint[], p_tier smallint,
  p_rank bigint, p_position bigint, p_shard int, out tier smallint, out rank bigint, out "position" bigint)
language plpgsql volatile
as $$
declare
  v_mark record;
begin
  tier := p_tier;
  rank := p_rank;
  position := p_position;
  for v_mark in
    select m.tier, m.rank, m.position from unnest(p_tiers, p_ranks, p_positions) m(tier, rank, position)
    where (m.tier, m.rank) >= (p_tier, p_rank)
    order by m.tier, m.rank
  loop
    exit when (v_mark.tier, v_mark.rank) <> (tier, rank)
      and hwqueue.class_lives_before(p_class_id, tier, rank, position, v_mark.tier, v_mark.rank, p_shard);
    position := case when (v_mark.tier, v_mark.rank) = (tier, rank) then greatest(position, v_mark.position) else v_mark.position end;
    tier := v_mark.tier;
    rank := v_mark.rank;
  end loop;
end
$$;

-- Whether anything of a class lives from a place on and before a later tier and rank. Column by column: before Postgres 18 a scan does not
-- stop at the upper end of a row comparison.
create or replace function hwqueue.class_lives_before(p_class_id bigint, p_tier smallint, p_rank bigint, p_position bigint, p_to_tier smallint,
                                                      p_to_rank bigint, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  perform 1 from hwqueue.ready r
  where r.shard_id = p_shard and r.class_id = p_class_id and r.tier = p_tier and r.rank = p_rank and r.position >= p_position
  order by r.position limit 1;
  if not found then
    perform 1 from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = p_class_id and r.tier = p_tier and r.rank > p_rank
      and r.rank < case when p_tier = p_to_tier then p_to_rank else 9223372036854775807 end
    order by r.rank, r.position limit 1;
  end if;
  if not found and p_tier < p_to_tier then
    perform 1 from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = p_class_id and r.tier > p_tier and r.tier < p_to_tier
    order by r.tier, r.rank, r.position limit 1;
    if not found then
      perform 1 from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_class_id and r.tier = p_to_tier and r.rank < p_to_rank
      order by r.rank, r.position limit 1;
    end if;
  end if;
  return found;
end
$$;
