-- Low-water marks. What has been claimed stays in the indexes of ready until vacuum may remove it, which an old snapshot anywhere
-- on the server forbids; a scan from the start of an order would walk all of it. So scans start at a mark: in its tier and rank
-- nothing lives below it, and nothing can come. Retries and releases get a fresh position.

-- Whether a claim of so many leases should move the marks on: one in 32 leases does, so that busy orders are served often.
-- Locks: none. Raises: nothing. Idempotent: no, it is a throw of dice.
create or replace function hwqueue.moves_low_water(p_qty int) returns boolean
language sql volatile
as $$ select random() * 32 < p_qty $$;

-- The last position that anyone has drawn; null when this transaction has an id already. Read before the id is taken, so that every
-- transaction with this id or a later one draws higher positions: transactions take their id before they draw.
-- Locks: none. Raises: nothing. Idempotent: yes.
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

-- Moves on how far marks may go: what had been drawn at an earlier call is safe once all transactions of that time have ended; then
-- p_drawn, what has been drawn by now (last_drawn_position), waits to be.
-- Locks: the newest row of the horizon, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.move_horizon(p_drawn bigint, p_shard int) returns void
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
  v_ended := pg_snapshot_xmin(pg_current_snapshot()) >= v_horizon.drawn_before;
  if not v_ended and hwqueue.valid_mark(v_horizon.drawn_before) <> '0' then
    return;
  end if;
  delete from hwqueue.position_horizon h where h.shard_id = p_shard and h.version = v_horizon.version;
  insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
  values (p_shard, v_horizon.version + 1, case when v_ended then v_horizon.drawn_position else v_horizon.safe_position end, p_drawn,
          pg_current_xact_id());
end
$$;

-- Moves the mark of one tier and rank to the first entry that lives there, but not past the horizon. p_class_id 0: in the order of
-- the whole queue. Keeps 16 marks an order; the oldest go, and so do those that 256 calls did not move.
-- Locks: the newest row of the queue's marks, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.move_low_water(p_queue_id int, p_class_id bigint, p_tier smallint, p_rank bigint, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_marks hwqueue.low_water;
  v_old bigint;
  v_new bigint;
begin
  select w.* into v_marks from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = p_class_id
  order by w.version desc limit 1 for update skip locked;
  if not found then
    return;
  end if;
  select coalesce(max(m.position), 0) into v_old
  from unnest(v_marks.tiers, v_marks.ranks, v_marks.positions) m(tier, rank, position) where m.tier = p_tier and m.rank = p_rank;
  -- in this order: what the horizon speaks for has ended, so the look at the entries sees it
  v_new := (select h.safe_position + 1 from hwqueue.position_horizon h where h.shard_id = p_shard order by h.version desc limit 1);
  v_new := least(v_new, (
    select r.position from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_tier and r.rank = p_rank and r.position >= v_old
    order by r.position limit 1));
  if v_new is null or v_new <= v_old then
    return;
  end if;
  delete from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = p_class_id and w.version = v_marks.version;
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, tiers, ranks, positions, moved)
  select p_shard, p_queue_id, p_class_id, v_marks.version + 1,
         array_agg(k.tier order by k.tier, k.rank), array_agg(k.rank order by k.tier, k.rank),
         array_agg(k.position order by k.tier, k.rank), array_agg(k.moved order by k.tier, k.rank)
  from (
    select m.* from (
      select o.tier, o.rank, o.position, o.moved
      from unnest(v_marks.tiers, v_marks.ranks, v_marks.positions, v_marks.moved) o(tier, rank, position, moved)
      where (o.tier, o.rank) <> (p_tier, p_rank) and o.moved > v_marks.version - 256
      union all
      select p_tier, p_rank, v_new, v_marks.version + 1
    ) m order by m.moved desc limit 16
  ) k;
end
$$;
