-- Locks entries that were seen at these positions, of these classes, up to p_limit of them. An entry may have
-- got another class since it was seen (give_target): by class again, under the lock.
-- Locks: the entries, skip locked.
create or replace function hwqueue.lock_seen(p_positions bigint[], p_seen_classes bigint[], p_tier smallint,
  p_rank bigint, p_limit int, p_shard int) returns tid[]
language plpgsql volatile
as $$
begin
  return array(
    select r.ctid
    from unnest(p_positions, p_seen_classes) with ordinality f(position, class_id, ordinal)
    cross join lateral (  -- with a limit, one by one; a span and an order, which only the index by class has
      select x.ctid as place from hwqueue.ready x
      where x.shard_id = p_shard and x.class_id = f.class_id and x.tier = p_tier and x.rank = p_rank
        and x.position between f.position and f.position
      order by x.position limit 1) h
    join hwqueue.ready r on r.ctid = h.place
    where (r.class_id = f.class_id) is true  -- not for an index: by its place
    order by f.ordinal limit p_limit
    for update of r skip locked);
end
$$;

-- Locks the oldest entries of a lane among the first p_depth, up to p_limit of them, and gives their places.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.lock_lane(p_classes bigint[], p_from hwqueue.scan_from, p_tier smallint,
  p_rank bigint, p_depth int, p_limit int, p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_from := hwqueue.class_fronts(p_classes, p_from, p_shard);
begin
  return array(
    select r.ctid
    from (
      select h.place
      from unnest(p_classes) with ordinality k(class_id, ordinality)
      cross join lateral (
        select x.ctid as place, x.position from hwqueue.ready x
        where x.shard_id = p_shard and x.class_id = k.class_id and x.tier = p_tier and x.rank = p_rank
          and x.position >= hwqueue.start_in(v_from, k.ordinality::int, p_tier, p_rank)
          and (x.deadline is null or x.deadline > p_now)
        order by x.position limit p_depth
      ) h
      order by h.position limit p_depth
    ) c
    join hwqueue.ready r on r.ctid = c.place
    where (r.class_id = any (p_classes)) is true  -- as above
    limit p_limit
    for update of r skip locked);
end
$$;

-- The oldest entries of a lane, up to p_limit, as positions and classes, oldest first.
create or replace function hwqueue.lane_entries(p_classes bigint[], p_from hwqueue.scan_from, p_tier smallint,
  p_rank bigint, p_limit int, p_now timestamptz, p_shard int, out positions bigint[], out classes bigint[])
language plpgsql stable
as $$
declare
  v_from hwqueue.scan_from := hwqueue.class_fronts(p_classes, p_from, p_shard);
begin
  select coalesce(array_agg(c.position), '{}'), coalesce(array_agg(c.class_id), '{}') into positions, classes
  from (
    select h.position, k.class_id
    from unnest(p_classes) with ordinality k(class_id, ordinality)
    cross join lateral (
      select x.position from hwqueue.ready x
      where x.shard_id = p_shard and x.class_id = k.class_id and x.tier = p_tier and x.rank = p_rank
        and x.position >= hwqueue.start_in(v_from, k.ordinality::int, p_tier, p_rank)
        and (x.deadline is null or x.deadline > p_now)
      order by x.position limit p_limit
    ) h
    order by h.position limit p_limit
  ) c;
end
$$;
