-- Low-water marks: where the live entries of a queue begin.

-- Marks of classes. While the front of a queue is held by what nobody may run, its mark stays there, and under an old snapshot a
-- scan for another class from there on would walk all that was claimed of it since. So such classes get marks of their own (in
-- low_water, by class_id), which claims look for until the front has moved on for a while.

-- Where scans start, with where each of these classes does, if they differ: at its own mark, or at the front of its queue. One whose queue had
-- nothing starts behind everything.
create or replace function hwqueue.class_scan_starts(p_classes bigint[], p_from hwqueue.scan_starts, p_shard int) returns hwqueue.scan_starts
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
      from hwqueue.class_scan_start(k.class_id, w.tiers, w.ranks, w.positions, s.tier, s.rank, s.position, p_shard) x
      where w.tiers <> array[s.tier] or w.ranks <> array[s.rank]) f;
  end if;
  return p_from;
end
$$;

-- A place in the order of a class, from p_tier, p_rank, p_position on, before which none of it lives: from one of its marks to the next, as long
-- as nothing is left in between.
create or replace function hwqueue.class_scan_start(p_class_id bigint, p_tiers smallint[], p_ranks bigint[], p_positions bigint[], p_tier smallint,
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

-- Low-water marks. What has been claimed stays in the indexes of ready until vacuum may remove it, which an old snapshot anywhere
-- on the server forbids; a scan from the start of an order would walk all of it. So scans start at a mark: in its tier and rank
-- nothing lives below it, and nothing can come. Retries and releases get a fresh position.

-- Whether a claim of so many leases should move the marks on: one in 32 leases does, so that busy orders are served often.
-- Locks: none. Raises: nothing. Idempotent: no, it is a throw of dice.
create or replace function hwqueue.advances_low_water(p_qty int) returns boolean
language sql volatile
as $$ select random() * 32 < p_qty $$;

-- Whether the horizon, which a transaction of another kind may hold back, should ask who has drawn positions: of the claims that move marks one
-- in eight does.
-- Locks: none. Raises: nothing. Idempotent: no, it is a throw of dice.
create or replace function hwqueue.asks_lock_holders() returns boolean
language sql volatile
as $$ select random() * 8 < 1 $$;

-- The last position that anyone has drawn; null when this transaction has an id already. Read before the id is taken, so that every
-- transaction with this id or a later one draws higher positions: transactions take their id before they draw.
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

-- Moves on how far marks may go: what had been drawn at an earlier call is safe once all transactions of that time have ended that have
-- drawn; then p_drawn, what has been drawn by now (last_drawn_position), waits to be. Whoever draws has a lock on the sequence until he ends,
-- so one that wrote something else, in this database or another one, is not waited for; only the locks tell, and to read them takes longer.
-- Locks: the newest row of the horizon, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.advance_horizon(p_drawn bigint, p_shard int) returns void
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
  where h.shard_id = p_shard order by h.version desc limit 1 for update skip locked;
  if not found then
    return;
  end if;
  v_ended := pg_snapshot_xmin(pg_current_snapshot()) >= v_horizon.drawn_before
    or hwqueue.asks_lock_holders() and hwqueue.oldest_snapshot_holder('hwqueue.ready_position_seq') >= v_horizon.drawn_before;
  if not v_ended and hwqueue.valid_next_xid(v_horizon.drawn_before) <> '0' then
    return;
  end if;
  delete from hwqueue.position_horizon h where h.shard_id = p_shard and h.version = v_horizon.version;
  insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
  values (p_shard, v_horizon.version + 1, case when v_ended then v_horizon.drawn_position else v_horizon.safe_position end, p_drawn,
          pg_current_xact_id());
end
$$;

-- Moves the mark of a claimed entry's tier and rank to the first entry that lives there, but not past the horizon. Where the front of the
-- queue stands still, far behind what is claimed, also that of its class (class_scan_starts), and notes it in the queue's row; not of a class that stands
-- for one lease, which may get an entry from another (assign_target_class).
-- Locks: the newest row of the queue's marks, skip locked: who has it may write those of its classes, too. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.advance_low_water(p_entry hwqueue.ready, p_shard int) returns void
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
  where w.shard_id = p_shard and w.queue_id = p_entry.queue_id and w.class_id = 0 order by w.version desc limit 1 for update skip locked;
  -- before the looks at the entries: what the horizon speaks for has ended, so they see it
  v_safe := (select h.safe_position + 1 from hwqueue.position_horizon h where h.shard_id = p_shard order by h.version desc limit 1);
  if v_marks.version is null or v_safe is null then
    return;
  end if;
  v_queue_head := hwqueue.first_live_entry(p_entry.queue_id, p_shard);
  v_is_blocked := coalesce((v_queue_head.tier, v_queue_head.rank) < (p_entry.tier, p_entry.rank)
    or (v_queue_head.tier, v_queue_head.rank) = (p_entry.tier, p_entry.rank) and v_queue_head.position < p_entry.position - 1000, false);
  v_old := hwqueue.low_water_at(v_marks, p_entry.tier, p_entry.rank);
  perform hwqueue.write_low_water(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
    select r.position from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_entry.queue_id and r.tier = p_entry.tier and r.rank = p_entry.rank and r.position >= v_old
    order by r.position limit 1)), v_is_blocked);
  if v_is_blocked and exists (
      select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_entry.class_id and c.target is null) then
    select w.* into v_marks from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = p_entry.queue_id and w.class_id = p_entry.class_id order by w.version desc limit 1;
    if not found then
      v_marks.shard_id := p_shard;
      v_marks.queue_id := p_entry.queue_id;
      v_marks.class_id := p_entry.class_id;
      v_marks.version := 0;
      v_marks.blocked_until := 0;
    end if;
    v_old := hwqueue.low_water_at(v_marks, p_entry.tier, p_entry.rank);
    perform hwqueue.write_low_water(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
      select r.position from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_entry.class_id and r.tier = p_entry.tier and r.rank = p_entry.rank and r.position >= v_old
      order by r.position limit 1)), false);
  end if;
end
$$;

-- Where scans of so many classes of these queues start. They differ where a front stands still, or the fronts are far apart: to look up where a class
-- begins (class_scan_starts) takes as long as to walk over some ten entries that are gone.
create or replace function hwqueue.queue_scan_starts(p_queue_ids int[], p_class_count int, p_shard int) returns hwqueue.scan_starts
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_starts;
begin
  select array_agg(f.queue_id), array_agg(f.tier), array_agg(f.rank), array_agg(f.position), array_agg(f.stands),
         bool_or(f.stands) or min(f.tier) <> max(f.tier) or min(f.rank) <> max(f.rank)
           or max(f.position) - min(f.position) > greatest(1000, 10 * p_class_count)
  into v_from.queue_ids, v_from.tiers, v_from.ranks, v_from.positions, v_from.stands, v_from.differ
  from (
    select q.queue_id, f.tier, f.rank, f.position, f.stands
    from unnest(p_queue_ids) q(queue_id)
    cross join lateral hwqueue.first_live_entry(q.queue_id, p_shard) f
    where f.tier is not null order by f.tier, f.rank, f.position) f;
  return v_from;
end
$$;

-- The same without what comes before a tier and rank: a queue whose front is before it starts there.
create or replace function hwqueue.scan_starts_after(p_from hwqueue.scan_starts, p_tier smallint, p_rank bigint) returns hwqueue.scan_starts
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
create or replace function hwqueue.scan_start_of(p_from hwqueue.scan_starts, p_index int, p_tier smallint, p_rank bigint) returns bigint
language sql immutable
as $$
  select case when (p_tier, p_rank) > (f.tier, f.rank) then 0 when (p_tier, p_rank) = (f.tier, f.rank) then f.position
              else 9223372036854775807 end
  from (select coalesce(p_from.class_tiers[p_index], p_from.tiers[1]) as tier, coalesce(p_from.class_ranks[p_index], p_from.ranks[1]) as rank,
               coalesce(p_from.class_positions[p_index], p_from.positions[1]) as position) f
$$;

-- Whether the front of a queue stands still.
create or replace function hwqueue.is_head_blocked(p_queue_id int, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return coalesce((
    select w.version < w.blocked_until from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1), false);
end
$$;

-- Where the order of a queue begins: the first entry, which may be held by others. Each tier and rank is read
-- from its low-water mark on, what lies between them whole. Nothing when the queue is empty. stands: the
-- front stands still (class_scan_starts). p_or_mark: the mark itself will do, if it is the only one and nothing
-- comes before it (is_mark): the front is there or later.
create or replace function hwqueue.first_live_entry(p_queue_id int, p_shard int, p_or_mark boolean default false,
  out tier smallint, out rank bigint, out "position" bigint, out stands boolean, out is_mark boolean)
language plpgsql volatile
as $$
declare
  v_marks record;
  v_place record;
begin
  select w.tiers, w.ranks, w.positions, w.version < w.blocked_until as stands into v_marks
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

-- The mark of a tier and rank; 0: there is none.
create or replace function hwqueue.low_water_at(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint) returns bigint
language plpgsql immutable
as $$
begin
  return coalesce((
    select m.position from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions) m(tier, rank, position)
    where m.tier = p_tier and m.rank = p_rank), 0);
end
$$;

-- Writes marks anew, that of one tier and rank moved on from p_old to p_new, if that is further. Keeps 16; the oldest go, and of a queue those that
-- 256 versions did not move, so that it comes back to one; one at 0, as the first is, says nothing. p_is_blocked: for the next 256 versions claims shall look for marks of classes.
-- Locks: the caller holds the newest row of the queue's marks. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.write_low_water(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint, p_old bigint, p_new bigint,
                                              p_is_blocked boolean) returns void
language plpgsql volatile
as $$
declare
  v_version bigint := p_marks.version + 1;
begin
  if p_new <= p_old and (not p_is_blocked or p_marks.blocked_until > v_version + 128) then
    return;
  end if;
  delete from hwqueue.low_water w
  where w.shard_id = p_marks.shard_id and w.queue_id = p_marks.queue_id and w.class_id = p_marks.class_id and w.version = p_marks.version;
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, blocked_until, tiers, ranks, positions, moved)
  select p_marks.shard_id, p_marks.queue_id, p_marks.class_id, v_version,
         case when p_is_blocked then v_version + 256 else p_marks.blocked_until end,
         array_agg(k.tier order by k.tier, k.rank), array_agg(k.rank order by k.tier, k.rank),
         array_agg(k.position order by k.tier, k.rank), array_agg(k.moved order by k.tier, k.rank)
  from (
    select m.* from (
      select o.tier, o.rank, o.position, o.moved
      from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions, p_marks.moved) o(tier, rank, position, moved)
      where (o.tier, o.rank) <> (p_tier, p_rank) and o.position > 0 and (p_marks.class_id <> 0 or o.moved > v_version - 257)
      union all
      select p_tier, p_rank, greatest(p_old, p_new), v_version
    ) m order by m.moved desc limit 16
  ) k;
end
$$;

-- Writes marks as they are at first: of a queue (p_class_id 0) that of the tier and rank that most leases have, so that the first claims find
-- its head as later ones do; of a class none.
-- Locks: new rows. Raises: nothing. Idempotent: no.
create or replace function hwqueue.write_first_low_water(p_queue_id int, p_class_id bigint, p_version bigint, p_shard int) returns void
language sql volatile
as $$
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, tiers, ranks, positions, moved)
  select p_shard, p_queue_id, p_class_id, p_version, m.zero::smallint[], m.zero::bigint[], m.zero::bigint[], case when p_class_id = 0 then array[p_version] else '{}' end
  from (select case when p_class_id = 0 then '{0}' else '{}' end::int[] as zero) m
$$;
