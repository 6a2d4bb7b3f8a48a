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
  return (select s.last_value from hwqueue.ready_position_seq s);
end
$$;

-- Moves the mark of one tier and rank to the first entry that lives there, but never past a position that a transaction could still
-- bring: up to what had been drawn at an earlier call, once all transactions of that time have ended. p_class_id 0: in the order of
-- the whole queue. p_drawn: what has been drawn by now (last_drawn_position), for a later call.
-- Keeps 16 marks an order; the oldest go, and so do those that 256 calls did not move.
-- Locks: the newest row of the queue's marks, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.move_low_water(p_queue_id int, p_class_id bigint, p_tier smallint, p_rank bigint, p_drawn bigint, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_marks hwqueue.low_water;
  v_old bigint := 0;
  v_first bigint;
  v_ended boolean;
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
  -- one statement, one snapshot: who has ended is seen
  select pg_snapshot_xmin(pg_current_snapshot()) >= v_marks.drawn_before,
         (select r.position from hwqueue.ready r
          where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_tier and r.rank = p_rank and r.position >= v_old
          order by r.position limit 1)
  into v_ended, v_first;
  if not v_ended and v_marks.drawn_before <= pg_snapshot_xmax(pg_current_snapshot()) then
    return;
  end if;
  v_new := case when v_ended then least(coalesce(v_first, v_marks.drawn_position + 1), v_marks.drawn_position + 1) else 0 end;
  if v_new <= v_old and p_drawn is null then
    return;
  end if;
  delete from hwqueue.low_water w
  where w.shard_id = p_shard and w.queue_id = p_queue_id and w.class_id = p_class_id and w.version = v_marks.version;
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, tiers, ranks, positions, moved, drawn_position, drawn_before)
  select p_shard, p_queue_id, p_class_id, v_marks.version + 1,
         coalesce(array_agg(k.tier order by k.tier, k.rank), '{}'), coalesce(array_agg(k.rank order by k.tier, k.rank), '{}'),
         coalesce(array_agg(k.position order by k.tier, k.rank), '{}'), coalesce(array_agg(k.moved order by k.tier, k.rank), '{}'),
         case when p_drawn is null then v_marks.drawn_position else p_drawn end,
         case when p_drawn is null then v_marks.drawn_before else pg_current_xact_id() end
  from (
    select m.tier, m.rank, max(m.position) as position, max(m.moved) as moved
    from (select o.* from unnest(v_marks.tiers, v_marks.ranks, v_marks.positions, v_marks.moved) o(tier, rank, position, moved)
          where o.moved > v_marks.version - 256
          union all select p_tier, p_rank, v_new, v_marks.version + 1 where v_new > v_old) m(tier, rank, position, moved)
    group by m.tier, m.rank order by max(m.moved) desc limit 16
  ) k;
end
$$;
