-- Locks the oldest entries of a tier and rank whose classes are among p_classes, in a stretch of p_window
-- positions (more for a larger batch, less where other queues share them) from p_from on; gives their places.
-- When that list is too long to be complete (201), each entry's class is looked up. Of a few classes (64) it
-- takes from p_from on, however far, and of the tiers and ranks behind as well: after a short walk (a mark
-- lags by up to 32 claims) it asks for their heads, whatever else stands there; of a single class the walk is
-- longer, since it comes upon nothing else.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.lock_stretch(p_profile_id bigint, p_queue_id int, p_classes bigint[], p_tasks text[], p_room hwqueue.headroom,
  p_tier smallint, p_rank bigint, p_from bigint, p_window int, p_limit int,
  p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
declare
  v_to bigint := p_from + greatest(p_window, 8 * p_limit) - 1;
  v_places tid[];
begin
  if cardinality(p_classes) = 1 then
    v_places := array(
      select r.ctid from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_classes[1] and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and p_from + 1023 + 8 * p_limit and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit
      for update skip locked);
  elsif cardinality(p_classes) <= 200 then
    v_places := array(
      select r.ctid from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from
          and case when cardinality(p_classes) <= 64 then least(v_to, p_from + 31 + 8 * p_limit) else v_to end
        and r.class_id = any (p_classes) and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit
      for update skip locked);
  else
    v_places := array(
      select r.ctid from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to
        and exists (select 1 from hwqueue.profile_eligibility e
                    where e.shard_id = p_shard and e.profile_id = p_profile_id and e.queue_id = p_queue_id
                      and e.class_id = r.class_id and e.gpu_count = 0 and e.custom is null and (p_tasks is null or e.task_name = any (p_tasks))
                      and hwqueue.shortage(e.cpu_milli, e.memory_mib, 0, 0, '{}', null, p_room) = 0)
        and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit
      for update skip locked);
  end if;
  if v_places = '{}' and cardinality(p_classes) <= 64 then
    v_places := hwqueue.lock_heads(p_classes, p_queue_id, p_tier, p_rank, p_from, p_limit, p_now, p_shard);
  end if;
  return v_places;
end
$$;

-- Locks the oldest entries of these classes of a queue by tier, rank and position, as far as others have not locked them, and gives their places;
-- looks further back while all that it saw is held by others. Nothing in the queue lives before p_from_*.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.lock_heads(p_classes bigint[], p_queue_id int, p_from_tier smallint, p_from_rank bigint, p_from_position bigint,
                                              p_limit int, p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_from;
  v_depth int := p_limit;
  v_seen tid[];
  v_places tid[];
begin
  if hwqueue.front_stands(p_queue_id, p_shard) then
    v_from := hwqueue.class_fronts(p_classes, (array[p_queue_id], array[p_from_tier], array[p_from_rank], array[p_from_position],
                                               array[true], true, null, null, null), p_shard);
  end if;
  if cardinality(p_classes) = 1 then
    return array(
      select r.ctid from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_classes[1] and (r.deadline is null or r.deadline > p_now)
        and (r.tier, r.rank, r.position)
            >= (coalesce(v_from.class_tiers[1], p_from_tier), coalesce(v_from.class_ranks[1], p_from_rank), coalesce(v_from.class_positions[1], p_from_position))
      order by r.tier, r.rank, r.position limit p_limit
      for update skip locked);
  end if;
  loop
    v_seen := array(
      select h.place
      from unnest(p_classes, v_from.class_tiers, v_from.class_ranks, v_from.class_positions) k(class_id, tier, rank, position)
      cross join lateral (
        select x.ctid as place, x.tier, x.rank, x.position from hwqueue.ready x
        where x.shard_id = p_shard and x.class_id = k.class_id and (x.deadline is null or x.deadline > p_now)
          and (x.tier, x.rank, x.position)
              >= (coalesce(k.tier, p_from_tier), coalesce(k.rank, p_from_rank), coalesce(k.position, p_from_position))
        order by x.tier, x.rank, x.position limit v_depth
      ) h
      order by h.tier, h.rank, h.position limit v_depth);
    v_places := array(
      select r.ctid from hwqueue.ready r
      -- by class again: what stood there may be gone, and another entry have its place
      where r.ctid = any (v_seen) and r.shard_id = p_shard and r.class_id = any (p_classes) and (r.deadline is null or r.deadline > p_now)
      order by r.tier, r.rank, r.position limit p_limit
      for update skip locked);
    exit when v_places <> '{}' or cardinality(v_seen) < v_depth or v_depth >= 16384;
    v_depth := least(8 * v_depth, 16384);
  end loop;
  return v_places;
end
$$;
