-- Marks of classes. While the front of a queue is held by what nobody may run, its mark stays there, and under an old snapshot a
-- scan for another class from there on would walk all that was claimed of it since. So such classes get marks of their own (in
-- low_water, by class_id), which claims look for until the front has moved on for a while.

-- Whether the front of one of these queues stands still.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.front_stands(p_queue_ids int[], p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  perform 1
  from unnest(p_queue_ids) q(queue_id)
  cross join lateral (
    select w.version, w.stands_until from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = q.queue_id and w.class_id = 0 order by w.version desc limit 1) m
  where m.version < m.stands_until;
  return found;
end
$$;

-- Where scans of these classes of these queues start, given where the first of the fronts is and whether it stands.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_fronts(p_classes bigint[], p_queue_ids int[], p_from hwqueue.scan_from, p_shard int)
returns hwqueue.scan_from
language plpgsql volatile
as $$
begin
  if p_from.stands then
    select array_agg(f.tier order by k.ordinality), array_agg(f.rank order by k.ordinality), array_agg(f.position order by k.ordinality)
    into p_from.tiers, p_from.ranks, p_from.positions
    from unnest(p_classes) with ordinality k(class_id, ordinality)
    left join lateral (
      select w.tiers, w.ranks, w.positions
      from unnest(p_queue_ids) q(queue_id)
      cross join lateral (
        select m.tiers, m.ranks, m.positions from hwqueue.low_water m
        where m.shard_id = p_shard and m.queue_id = q.queue_id and m.class_id = k.class_id order by m.version desc limit 1) w
      limit 1) w on true
    cross join lateral (
      select p_from.tier, p_from.rank, greatest(p_from.position, w.positions[1]) as position
      where w.tiers is null or w.tiers = array[p_from.tier] and w.ranks = array[p_from.rank]  -- mostly a queue has one tier and rank
      union all
      select x.tier, x.rank, x.position
      from hwqueue.class_front(k.class_id, w.tiers, w.ranks, w.positions, p_from.tier, p_from.rank, p_from.position, p_shard) x
      where w.tiers <> array[p_from.tier] or w.ranks <> array[p_from.rank]) f;
  end if;
  return p_from;
end
$$;

-- The position from which a class, by its place in the list, is to be scanned in a tier and rank; in one before its start nothing lives.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.start_in(p_from hwqueue.scan_from, p_index int, p_tier smallint, p_rank bigint) returns bigint
language sql immutable
as $$
  select case when (p_tier, p_rank) > (f.tier, f.rank) then 0 when (p_tier, p_rank) = (f.tier, f.rank) then f.position
              else 9223372036854775807 end
  from (select coalesce(p_from.tiers[p_index], p_from.tier) as tier, coalesce(p_from.ranks[p_index], p_from.rank) as rank,
               coalesce(p_from.positions[p_index], p_from.position) as position) f
$$;

-- A place in the order of a class, from p_tier, p_rank, p_position on, before which none of it lives: from one of its marks to the next, as long
-- as nothing is left in between.
-- Locks: none. Raises: nothing. Idempotent: yes.
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
-- Locks: none. Raises: nothing. Idempotent: yes.
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
