-- Low-water marks: the positions where scans of a queue start.
--
-- Example: 8,946 of 10,000 entries were claimed while a report held an old MVCC snapshot. Vacuum may not
-- remove their dead tuples from the indexes of ready, so a scan from the start would step over all of
-- them. With the low-water mark at 8947 a scan starts there: in its tier and rank no entry lives below
-- the mark, and none will come. Retries and releases draw a fresh position. A lease that was reserved in
-- vain gets its old one again: then the mark goes back to it, in the same transaction (put_back_in_line).
--
-- Claims read the marks (first_live_entry, queue_scan_starts) and, at random, advance them
-- (advance_low_water). A mark may not pass the position horizon (advance_horizon): at or below that, no
-- transaction still has an uncommitted entry. When the queue is head-of-line blocked, its mark cannot
-- advance. Then the classes that are claimed behind the queue head have low-water marks of their own.

-- Low-water marks of classes (low_water.class_id), against head-of-line blocking. While no node may run
-- the queue head, the queue's own mark stays there. Under an old MVCC snapshot a scan for another class
-- would then step over all entries of that class claimed since. Claims use the marks of classes until
-- the queue head has moved for a while (low_water.blocked_to_version).

-- Where scans of a class start: at the head of its queue or, where that is blocked, at the class's own
-- low-water mark; where the starts do not differ, at the first head of all. A class of a queue that was empty
-- starts behind every position, so it is never scanned. Inlined.
create or replace function hwqueue.class_start(p_class_id bigint, p_from hwqueue.scan_starts)
returns table (tier smallint, rank bigint, "position" bigint)
language sql stable
as $$
  select f.tier, f.rank, f.position
  from (
    select case when not p_from.by_class or cardinality(p_from.queue_ids) = 1 then 1
      else array_position(p_from.queue_ids, (
        select c.queue_id from hwqueue.placement_class c where c.class_id = p_class_id)) end as number
    offset 0) q  -- fenced, so that it is evaluated once
  cross join lateral (
    select coalesce(p_from.tiers[q.number], 32767::smallint) as tier,
           coalesce(p_from.ranks[q.number], 0) as rank,
           coalesce(p_from.positions[q.number], 0) as position) s
  left join lateral (
    select w.tiers, w.ranks, w.positions from hwqueue.low_water w
    where p_from.are_blocked[q.number] and w.queue_id = p_from.queue_ids[q.number]
      and w.class_id = p_class_id
    order by w.version desc limit 1) w on true
  cross join lateral (
    select s.tier, s.rank, greatest(s.position, w.positions[1]) as position
    -- most queues have one tier and rank
    where w.tiers is null or w.tiers = array[s.tier] and w.ranks = array[s.rank]
    union all
    select x.tier, x.rank, x.position
    from hwqueue.class_scan_start(p_class_id, w.tiers, w.ranks, w.positions, s.tier, s.rank, s.position) x
    where w.tiers <> array[s.tier] or w.ranks <> array[s.rank]) f
$$;

-- The tier, rank and position from which to scan a class, at or after p_tier, p_rank and p_position: no
-- entry of the class lives between the two. Goes from one low-water mark of the class to the next, as
-- long as no entry is left in between.
create or replace function hwqueue.class_scan_start(p_class_id bigint, p_tiers smallint[], p_ranks bigint[],
  p_positions bigint[], p_tier smallint, p_rank bigint, p_position bigint,
  out tier smallint, out rank bigint, out "position" bigint)
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
    if (v_mark.tier, v_mark.rank) <> (tier, rank) then
      -- column by column: before Postgres 18 a scan does not stop at the upper end of a row comparison
      perform 1 from hwqueue.ready r
      where r.class_id = p_class_id and r.tier = class_scan_start.tier and r.rank = class_scan_start.rank
        and r.position >= class_scan_start.position
      order by r.position limit 1;
      exit when found;
      perform 1 from hwqueue.ready r
      where r.class_id = p_class_id and r.tier = class_scan_start.tier and r.rank > class_scan_start.rank
        and r.rank < case when v_mark.tier = class_scan_start.tier then v_mark.rank
          else 9223372036854775807 end
      order by r.rank, r.position limit 1;
      exit when found;
      if tier < v_mark.tier then
        perform 1 from hwqueue.ready r
        where r.class_id = p_class_id and r.tier > class_scan_start.tier and r.tier < v_mark.tier
        order by r.tier, r.rank, r.position limit 1;
        exit when found;
        perform 1 from hwqueue.ready r
        where r.class_id = p_class_id and r.tier = v_mark.tier and r.rank < v_mark.rank
        order by r.rank, r.position limit 1;
        exit when found;
      end if;
      position := 0;
    end if;
    position := greatest(position, v_mark.position);
    tier := v_mark.tier;
    rank := v_mark.rank;
  end loop;
end
$$;

-- Decides at random whether a claim of p_qty leases advances the low-water marks: one in 32 leases does,
-- so that busy queues are advanced often.
create or replace function hwqueue.should_advance_low_water(p_qty int) returns boolean
language sql volatile
as $$ select random() * 32 < p_qty $$;

-- Decides at random whether advance_horizon reads who holds a lock on the sequence of positions. Without
-- that, a transaction that never drew a position may hold the horizon back. One in eight of the claims
-- that advance marks does so.
create or replace function hwqueue.asks_lock_holders() returns boolean
language sql volatile
as $$ select random() * 8 < 1 $$;

-- The last position that any session has drawn; null when this transaction already has an id. It must be
-- read before the transaction takes its id. Transactions take their id before they draw, so every
-- transaction with this id or a later one draws higher positions.
create or replace function hwqueue.last_drawn_position() returns bigint
language plpgsql volatile
as $$
begin
  if pg_current_xact_id_if_assigned() is not null then
    return null;
  end if;
  return (select case when s.is_called then s.last_value else 0 end from hwqueue.ready_position_seq s);
end
$$;

-- Advances the position horizon, up to which low-water marks may go. The positions drawn by an earlier
-- call become safe once all transactions have ended that had drawn by then. Then p_drawn, the last
-- position drawn now (last_drawn_position), waits to become safe. A session that draws has a lock on the
-- sequence until its transaction ends. So a transaction that wrote something else, in this database or
-- another one, is not waited for. Only the locks tell the two apart, and reading them takes longer
-- (asks_lock_holders).
-- Locks: the newest row of the horizon, skip locked.
create or replace function hwqueue.advance_horizon(p_drawn bigint) returns void
language plpgsql volatile
as $$
declare
  v_horizon hwqueue.position_horizon;
  v_ended boolean;
begin
  if p_drawn is null then
    return;
  end if;
  select h.* into v_horizon from hwqueue.position_horizon h
  order by h.version desc limit 1 for update skip locked;
  if not found then
    return;
  end if;
  v_ended := pg_snapshot_xmin(pg_current_snapshot()) >= v_horizon.drawn_before
    or hwqueue.asks_lock_holders() and hwqueue.oldest_snapshot_holder('hwqueue.ready_position_seq') >=
      v_horizon.drawn_before;
  if not v_ended and hwqueue.valid_next_xid(v_horizon.drawn_before) <> '0' then
    return;
  end if;
  delete from hwqueue.position_horizon h where h.version = v_horizon.version;
  insert into hwqueue.position_horizon (version, safe_position, drawn_position, drawn_before)
  values (v_horizon.version + 1,
    case when v_ended then v_horizon.drawn_position else v_horizon.safe_position end, p_drawn,
    pg_current_xact_id());
end
$$;

-- Moves the low-water mark of a claimed entry's tier and rank to the first entry that lives there, but
-- not past the horizon. The queue is head-of-line blocked when its head is in an earlier tier or rank
-- than the claimed entry, or more than 1,000 positions before it. Then this notes so in the queue's row
-- of low_water (blocked_to_version), and moves the mark of the entry's class, too (class_start). A
-- class made for one lease gets no mark: it may get an entry that another class had
-- (assign_target_class), at an old position.
-- Locks: the newest row of the queue's marks, skip locked; the session that holds it may write those of
-- the queue's classes, too.
create or replace function hwqueue.advance_low_water(p_entry hwqueue.ready) returns void
language plpgsql volatile
as $$
declare
  v_marks hwqueue.low_water;
  v_queue_head record;
  v_is_blocked boolean;
  v_safe bigint;
  v_old bigint;
begin
  select w.* into v_marks from hwqueue.low_water w
  where w.queue_id = p_entry.queue_id and w.class_id = 0
  order by w.version desc limit 1 for update skip locked;
  -- read before the entries are scanned: transactions at or below the horizon have ended, so the scans see
  -- what they wrote
  v_safe := (
    select h.safe_position + 1 from hwqueue.position_horizon h order by h.version desc limit 1);
  if v_marks.version is null or v_safe is null then
    return;
  end if;
  v_queue_head := hwqueue.first_live_entry(p_entry.queue_id);
  v_is_blocked := coalesce((v_queue_head.tier, v_queue_head.rank) < (p_entry.tier, p_entry.rank)
    or (v_queue_head.tier, v_queue_head.rank) = (p_entry.tier, p_entry.rank)
    and v_queue_head.position < p_entry.position - 1000, false);
  v_old := hwqueue.low_water_at(v_marks, p_entry.tier, p_entry.rank);
  perform hwqueue.write_low_water(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
    select r.position from hwqueue.ready r
    where r.queue_id = p_entry.queue_id and r.tier = p_entry.tier
      and r.rank = p_entry.rank and r.position >= v_old
    order by r.position limit 1)), v_is_blocked);
  if v_is_blocked and exists (
      select 1 from hwqueue.placement_class c where c.class_id = p_entry.class_id and c.target is null) then
    select w.* into v_marks from hwqueue.low_water w
    where w.queue_id = p_entry.queue_id and w.class_id = p_entry.class_id
    order by w.version desc limit 1;
    if not found then
      v_marks.queue_id := p_entry.queue_id;
      v_marks.class_id := p_entry.class_id;
      v_marks.version := 0;
      v_marks.blocked_to_version := 0;
    end if;
    v_old := hwqueue.low_water_at(v_marks, p_entry.tier, p_entry.rank);
    perform hwqueue.write_low_water(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
      select r.position from hwqueue.ready r
      where r.class_id = p_entry.class_id and r.tier = p_entry.tier
        and r.rank = p_entry.rank and r.position >= v_old
      order by r.position limit 1)), false);
  end if;
end
$$;

-- Where scans of p_class_count classes of these queues start. The starts differ by class when a queue
-- head is blocked or the queue heads are far apart. Looking up the start of one class (class_start) takes as
-- long as stepping over some ten dead index entries.
create or replace function hwqueue.queue_scan_starts(p_queue_ids int[], p_class_count int)
returns hwqueue.scan_starts
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_starts;
  v_head record;
begin
  if cardinality(p_queue_ids) = 1 then
    v_head := hwqueue.first_live_entry(p_queue_ids[1]);
    return case when v_head.tier is not null then
      row(p_queue_ids, array[v_head.tier], array[v_head.rank], array[v_head.position],
        array[v_head.is_blocked], v_head.is_blocked)::hwqueue.scan_starts end;
  end if;
  select array_agg(f.queue_id), array_agg(f.tier), array_agg(f.rank), array_agg(f.position),
         array_agg(f.is_blocked),
         bool_or(f.is_blocked) or min(f.tier) <> max(f.tier) or min(f.rank) <> max(f.rank)
           or max(f.position) - min(f.position) > greatest(1000, 10 * p_class_count)
  into v_from.queue_ids, v_from.tiers, v_from.ranks, v_from.positions, v_from.are_blocked, v_from.by_class
  from (
    select q.queue_id, f.tier, f.rank, f.position, f.is_blocked
    from unnest(p_queue_ids) q(queue_id)
    cross join lateral hwqueue.first_live_entry(q.queue_id) f
    where f.tier is not null order by f.tier, f.rank, f.position) f;
  return v_from;
end
$$;

-- The head of a queue: its first entry, which other sessions may have locked. Reads each tier and rank
-- from its low-water mark on, and everything between those that have one. All null when the queue is
-- empty.
-- is_blocked: the queue is head-of-line blocked (class_start). p_or_mark: when the queue has a single
-- mark and no entry comes before it, returns the mark itself and sets is_mark; the queue head is there
-- or later.
create or replace function hwqueue.first_live_entry(p_queue_id int, p_or_mark boolean default false,
  out tier smallint, out rank bigint, out "position" bigint, out is_blocked boolean, out is_mark boolean)
language plpgsql volatile
as $$
declare
  v_marks record;
  v_from smallint;
  v_to int;
  v_same boolean;
begin
  select w.tiers, w.ranks, w.positions, w.version < w.blocked_to_version as is_blocked into v_marks
  from hwqueue.low_water w
  where w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1;
  is_blocked := coalesce(v_marks.is_blocked, false);
  is_mark := false;
  for i in 1 .. coalesce(cardinality(v_marks.tiers), 0) + 1 loop
    -- between two marks, column by column: before Postgres 18 a scan does not stop at the upper end of a
    -- row comparison
    v_from := v_marks.tiers[i - 1];
    v_to := coalesce(v_marks.tiers[i], 32767);
    v_same := coalesce(v_from = v_to, false);
    if v_from is not null then
      select r.tier, r.rank, r.position into tier, rank, "position"
      from hwqueue.ready r
      where r.queue_id = p_queue_id and r.tier = v_from and r.rank > v_marks.ranks[i - 1]
        and r.rank < case when v_same then v_marks.ranks[i] else 9223372036854775807 end
      order by r.rank, r.position limit 1;
    end if;
    if tier is null and not v_same then
      if v_to > coalesce(v_from, -1) + 1 then  -- mostly all is in tier 0
        select r.tier, r.rank, r.position into tier, rank, "position"
        from hwqueue.ready r
        where r.queue_id = p_queue_id and r.tier > coalesce(v_from, -1) and r.tier < v_to
        order by r.tier, r.rank, r.position limit 1;
      end if;
      if tier is null then
        select r.tier, r.rank, r.position into tier, rank, "position"
        from hwqueue.ready r
        where r.queue_id = p_queue_id and r.tier = v_to and r.rank < coalesce(v_marks.ranks[i], 0)
        order by r.rank, r.position limit 1;
      end if;
    end if;
    exit when tier is not null or v_marks.tiers[i] is null;
    if p_or_mark and cardinality(v_marks.tiers) = 1 then  -- as in most queues
      tier := v_marks.tiers[1];
      rank := v_marks.ranks[1];
      position := v_marks.positions[1];
      is_mark := true;
      return;
    end if;
    select r.tier, r.rank, r.position into tier, rank, "position"
    from hwqueue.ready r
    where r.queue_id = p_queue_id and r.tier = v_marks.tiers[i]
      and r.rank = v_marks.ranks[i] and r.position >= v_marks.positions[i]
    order by r.position limit 1;
    exit when found;
  end loop;
end
$$;

-- The low-water mark of a tier and rank; 0 when there is none.
create or replace function hwqueue.low_water_at(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint)
returns bigint
language plpgsql immutable  -- in SQL it would be parsed at each call, because it cannot be inlined
as $$ begin
  return coalesce((
    select m.position from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions) m(tier, rank, position)
    where m.tier = p_tier and m.rank = p_rank), 0);
end $$;

-- Writes a new version of p_marks, in which the mark of one tier and rank moves from p_old to p_new if
-- that is further. Keeps the 16 marks that moved last. Of a queue it drops those that 256 versions did
-- not move, so that most queues come back to one mark. A mark at 0, as the first one is, carries no
-- information and is dropped. p_is_blocked: for the next 256 versions claims use the marks of classes.
-- Locks: the caller holds the newest row of the queue's marks.
create or replace function hwqueue.write_low_water(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint,
  p_old bigint, p_new bigint, p_is_blocked boolean) returns void
language plpgsql volatile
as $$
declare
  v_version bigint := p_marks.version + 1;
begin
  if p_new <= p_old and (not p_is_blocked or p_marks.blocked_to_version > v_version + 128) then
    return;
  end if;
  delete from hwqueue.low_water w
  where w.queue_id = p_marks.queue_id and w.class_id = p_marks.class_id and w.version = p_marks.version;
  insert into hwqueue.low_water
    (queue_id, class_id, version, blocked_to_version, tiers, ranks, positions, moved)
  select p_marks.queue_id, p_marks.class_id, v_version,
         case when p_is_blocked then v_version + 256 else p_marks.blocked_to_version end,
         array_agg(k.tier order by k.tier, k.rank), array_agg(k.rank order by k.tier, k.rank),
         array_agg(k.position order by k.tier, k.rank), array_agg(k.moved order by k.tier, k.rank)
  from (
    select m.* from (
      select o.tier, o.rank, o.position, o.moved
      from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions, p_marks.moved)
        o(tier, rank, position, moved)
      where (o.tier, o.rank) <> (p_tier, p_rank) and o.position > 0
        and (p_marks.class_id <> 0 or o.moved > v_version - 257)
      union all
      select p_tier, p_rank, greatest(p_old, p_new), v_version
    ) m order by m.moved desc limit 16
  ) k;
end
$$;

-- Writes the first version of low-water marks. A queue (p_class_id 0) gets a mark at 0 in the tier and
-- rank that most leases have. So its first claims find the queue head as later ones do. A class gets
-- none.
create or replace function hwqueue.write_first_low_water(p_queue_id int, p_class_id bigint, p_version bigint)
returns void
language plpgsql volatile
as $$ begin
  insert into hwqueue.low_water (queue_id, class_id, version, tiers, ranks, positions, moved)
  select p_queue_id, p_class_id, p_version, m.zero::smallint[], m.zero::bigint[], m.zero::bigint[],
         case when p_class_id = 0 then array[p_version] else '{}' end
  from (select case when p_class_id = 0 then '{0}' else '{}' end::int[] as zero) m;
end $$;
