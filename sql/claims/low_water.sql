-- Low-water marks. What has been claimed stays in the indexes of ready until vacuum may remove it, which an old snapshot anywhere
-- on the server forbids; a scan from the start of an order would walk all of it. So scans start at a mark: in its tier and rank
-- nothing lives below it, and nothing can come. Retries and releases get a fresh position.

-- Whether a claim of so many leases should move the marks on: one in 32 leases does, so that busy orders are served often.
-- Locks: none. Raises: nothing. Idempotent: no, it is a throw of dice.
create or replace function hwqueue.moves_low_water(p_qty int) returns boolean
language sql volatile
as $$ select random() * 32 < p_qty $$;

-- Whether the horizon, which a transaction of another kind may hold back, should ask who has drawn positions: of the claims that move marks one
-- in eight does.
-- Locks: none. Raises: nothing. Idempotent: no, it is a throw of dice.
create or replace function hwqueue.reads_locks() returns boolean
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
  v_ended := pg_snapshot_xmin(pg_current_snapshot()) >= v_horizon.drawn_before
    or hwqueue.reads_locks() and hwqueue.oldest_holder('hwqueue.ready_position_seq') >= v_horizon.drawn_before;
  if not v_ended and hwqueue.valid_mark(v_horizon.drawn_before) <> '0' then
    return;
  end if;
  delete from hwqueue.position_horizon h where h.shard_id = p_shard and h.version = v_horizon.version;
  insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
  values (p_shard, v_horizon.version + 1, case when v_ended then v_horizon.drawn_position else v_horizon.safe_position end, p_drawn,
          pg_current_xact_id());
end
$$;

-- Moves the mark of a claimed entry's tier and rank to the first entry that lives there, but not past the horizon. Where the front of the
-- queue stands still, far behind what is claimed, also that of its class (class_fronts), and notes it in the queue's row; not of a class that stands
-- for one lease, which may get an entry from another (give_target).
-- Locks: the newest row of the queue's marks, skip locked: who has it may write those of its classes, too. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.move_low_water(p_entry hwqueue.ready, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_marks hwqueue.low_water;
  v_front record;
  v_stands boolean;
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
  v_front := hwqueue.queue_front(p_entry.queue_id, p_shard);
  v_stands := coalesce((v_front.tier, v_front.rank) < (p_entry.tier, p_entry.rank)
    or (v_front.tier, v_front.rank) = (p_entry.tier, p_entry.rank) and v_front.position < p_entry.position - 1000, false);
  v_old := hwqueue.mark_at(v_marks, p_entry.tier, p_entry.rank);
  perform hwqueue.write_mark(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
    select r.position from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_entry.queue_id and r.tier = p_entry.tier and r.rank = p_entry.rank and r.position >= v_old
    order by r.position limit 1)), v_stands);
  if v_stands and exists (
      select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_entry.class_id and c.target is null) then
    select w.* into v_marks from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = p_entry.queue_id and w.class_id = p_entry.class_id order by w.version desc limit 1;
    if not found then
      v_marks.shard_id := p_shard;
      v_marks.queue_id := p_entry.queue_id;
      v_marks.class_id := p_entry.class_id;
      v_marks.version := 0;
      v_marks.stands_until := 0;
    end if;
    v_old := hwqueue.mark_at(v_marks, p_entry.tier, p_entry.rank);
    perform hwqueue.write_mark(v_marks, p_entry.tier, p_entry.rank, v_old, least(v_safe, (
      select r.position from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_entry.class_id and r.tier = p_entry.tier and r.rank = p_entry.rank and r.position >= v_old
      order by r.position limit 1)), false);
  end if;
end
$$;
