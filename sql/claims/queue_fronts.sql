-- Where scans of so many classes of these queues start. They differ where a front stands still, or the fronts are far apart: to look up where a class
-- begins (class_fronts) takes as long as to walk over some ten entries that are gone.
create or replace function hwqueue.queue_fronts(p_queue_ids int[], p_class_count int, p_shard int) returns hwqueue.scan_from
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_from;
begin
  select array_agg(f.queue_id), array_agg(f.tier), array_agg(f.rank), array_agg(f.position), array_agg(f.stands),
         bool_or(f.stands) or min(f.tier) <> max(f.tier) or min(f.rank) <> max(f.rank)
           or max(f.position) - min(f.position) > greatest(1000, 10 * p_class_count)
  into v_from.queue_ids, v_from.tiers, v_from.ranks, v_from.positions, v_from.stands, v_from.differ
  from (
    select q.queue_id, f.tier, f.rank, f.position, f.stands
    from unnest(p_queue_ids) q(queue_id)
    cross join lateral hwqueue.queue_front(q.queue_id, p_shard) f
    where f.tier is not null order by f.tier, f.rank, f.position) f;
  return v_from;
end
$$;

-- The same without what comes before a tier and rank: a queue whose front is before it starts there.
create or replace function hwqueue.start_from(p_from hwqueue.scan_from, p_tier smallint, p_rank bigint) returns hwqueue.scan_from
language plpgsql immutable
as $$
begin
  for i in 1 .. cardinality(p_from.tiers) loop
    if (p_from.tiers[i], p_from.ranks[i]) < (p_tier, p_rank) then
      p_from.tiers[i] := p_tier;
      p_from.ranks[i] := p_rank;
      p_from.positions[i] := 0;
    end if;
  end loop;
  return p_from;
end
$$;

-- The position from which a class, by its place in the list, is to be scanned in a tier and rank; in one before its start nothing lives.
create or replace function hwqueue.start_in(p_from hwqueue.scan_from, p_index int, p_tier smallint, p_rank bigint) returns bigint
language sql immutable
as $$
  select case when (p_tier, p_rank) > (f.tier, f.rank) then 0 when (p_tier, p_rank) = (f.tier, f.rank) then f.position
              else 9223372036854775807 end
  from (select coalesce(p_from.class_tiers[p_index], p_from.tiers[1]) as tier, coalesce(p_from.class_ranks[p_index], p_from.ranks[1]) as rank,
               coalesce(p_from.class_positions[p_index], p_from.positions[1]) as position) f
$$;

-- Whether the front of a queue stands still.
create or replace function hwqueue.front_stands(p_queue_id int, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return coalesce((
    select w.version < w.stands_until from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1), false);
end
$$;
