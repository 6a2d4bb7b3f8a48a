-- Repairs what is behind the tables after a server did not bring its sequences: logical replication copies rows alone, so after a switch-over
-- sequences begin where they were when the subscriber was made. Positions below the low-water marks would then never be claimed.

-- Lets the sequences of keys go on above what their tables hold; never sets one back.
-- Locks: none. Raises: nothing. Idempotent: yes. What it does is not undone when the transaction rolls back.
create or replace function hwqueue.raise_sequences() returns void
language plpgsql volatile
as $$
begin
  perform setval('hwqueue.queue_queue_id_seq', m.most)
  from (select max(q.queue_id)::bigint as most from hwqueue.queue q) m, hwqueue.queue_queue_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.placement_class_class_id_seq', m.most)
  from (select max(c.class_id) as most from hwqueue.placement_class c) m, hwqueue.placement_class_class_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.profile_profile_id_seq', m.most)
  from (select max(p.profile_id) as most from hwqueue.profile p) m, hwqueue.profile_profile_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.term_term_id_seq', m.most)
  from (select max(t.term_id) as most from hwqueue.term t) m, hwqueue.term_term_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.spread_fleet_fleet_id_seq', m.most)
  from (select max(f.fleet_id) as most from hwqueue.spread_fleet f) m, hwqueue.spread_fleet_fleet_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.spread_floor_floor_id_seq', m.most)
  from (select max(f.floor_id) as most from hwqueue.spread_floor f) m, hwqueue.spread_floor_floor_id_seq s where s.last_value <= m.most;
  perform setval('hwqueue.class_range_range_id_seq', m.most)
  from (select max(r.range_id) as most from hwqueue.class_range r) m, hwqueue.class_range_range_id_seq s where s.last_value <= m.most;
end
$$;

-- Whether positions are drawn again that were drawn before: the sequence is behind what the horizon noted.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.are_positions_behind(p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return coalesce((
    select h.drawn_position > s.last_value from hwqueue.position_horizon h cross join hwqueue.ready_position_seq s
    where h.shard_id = p_shard order by h.version desc limit 1), false);
end
$$;

-- The number of low-water marks above an entry that lives: claims pass such an entry by for ever. One look at an index for each mark.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.count_wrong_marks(p_shard int) returns bigint
language plpgsql volatile
as $$
begin
  return (
    select count(*)
    from hwqueue.low_water w
    cross join lateral unnest(w.tiers, w.ranks, w.positions) m(tier, rank, position)
    where w.shard_id = p_shard and case
      when w.class_id = 0 then exists (
        select from hwqueue.ready r
        where r.shard_id = p_shard and r.queue_id = w.queue_id and r.tier = m.tier and r.rank = m.rank and r.position < m.position)
      else exists (
        select from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = w.class_id and r.tier = m.tier and r.rank = m.rank and r.position < m.position) end);
end
$$;

-- Sets the low-water marks back to the start, from where claims move them on again, and lets positions go on above all that were drawn; writes
-- an event. In this order: transactions that drew low positions may still be open, so the horizon waits for them before marks pass anything.
-- Whoever holds the horizon or a mark keeps it: reap looks again.
-- Locks: the horizon and the marks, skip locked. Raises: nothing. Idempotent: yes. False: the horizon was held by another session.
create or replace function hwqueue.repair_positions(p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_last bigint := (select s.last_value from hwqueue.ready_position_seq s);
  v_most bigint := greatest(
    v_last, (select max(r.position) from hwqueue.ready r),
    (select max(m.position) from hwqueue.low_water w cross join lateral unnest(w.positions) m(position)),
    (select max(greatest(h.safe_position, h.drawn_position)) from hwqueue.position_horizon h));
  v_version bigint;
  v_marks hwqueue.low_water;
  v_reset int := 0;
begin
  if v_most >= v_last then
    perform setval('hwqueue.ready_position_seq', v_most);
  end if;
  select h.version into v_version from hwqueue.position_horizon h
  where h.shard_id = p_shard order by h.version desc limit 1 for update skip locked;
  if not found then
    return false;
  end if;
  delete from hwqueue.position_horizon h where h.shard_id = p_shard and h.version = v_version;
  insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
  values (p_shard, v_version + 1, 0, v_most, pg_current_xact_id());
  for v_marks in
    select w.* from hwqueue.low_water w where w.shard_id = p_shard and w.tiers <> '{}' for update skip locked
  loop
    delete from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = v_marks.queue_id and w.class_id = v_marks.class_id and w.version = v_marks.version;
    insert into hwqueue.low_water (shard_id, queue_id, class_id, version)
    values (p_shard, v_marks.queue_id, v_marks.class_id, v_marks.version + 1);
    v_reset := v_reset + 1;
  end loop;
  perform hwqueue.note_event('positions_repaired', format('%s low-water marks start anew, positions go on at %s', v_reset, v_most), p_shard,
    jsonb_build_object('marks', v_reset, 'from', v_last, 'to', v_most));
  return true;
end
$$;

-- Repairs positions when there is need: every time that the sequence is found behind, and at a sweep also when a mark is wrong for whatever
-- other reason.
-- Locks: as repair_positions. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_positions(p_sweeps boolean, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if hwqueue.are_positions_behind(p_shard) then
    perform hwqueue.raise_sequences(), hwqueue.repair_positions(p_shard);
  elsif p_sweeps and hwqueue.count_wrong_marks(p_shard) > 0 then
    perform hwqueue.repair_positions(p_shard);
  end if;
end
$$;
