-- Repairs what is behind the tables after a server did not bring its sequences: logical replication copies
-- rows alone, so after a switch-over sequences begin where they were when the subscriber was made. Positions
-- below the low-water marks would then never be claimed.

-- Sets the sequences of keys above what their tables hold, never back. A rollback does not undo that.
create or replace function hwqueue.raise_sequences() returns void
language plpgsql volatile
as $$
begin
  perform setval('hwqueue.queue_queue_id_seq', max(q.queue_id)) from hwqueue.queue q
  having max(q.queue_id) >= (select s.last_value from hwqueue.queue_queue_id_seq s);
  perform setval('hwqueue.placement_class_class_id_seq', max(c.class_id)) from hwqueue.placement_class c
  having max(c.class_id) >= (select s.last_value from hwqueue.placement_class_class_id_seq s);
  perform setval('hwqueue.profile_profile_id_seq', max(p.profile_id)) from hwqueue.profile p
  having max(p.profile_id) >= (select s.last_value from hwqueue.profile_profile_id_seq s);
  perform setval('hwqueue.term_term_id_seq', max(t.term_id)) from hwqueue.term t
  having max(t.term_id) >= (select s.last_value from hwqueue.term_term_id_seq s);
  perform setval('hwqueue.spread_fleet_fleet_id_seq', max(f.fleet_id)) from hwqueue.spread_fleet f
  having max(f.fleet_id) >= (select s.last_value from hwqueue.spread_fleet_fleet_id_seq s);
  perform setval('hwqueue.spread_floor_floor_id_seq', max(f.floor_id)) from hwqueue.spread_floor f
  having max(f.floor_id) >= (select s.last_value from hwqueue.spread_floor_floor_id_seq s);
  perform setval('hwqueue.class_range_range_id_seq', max(r.range_id)) from hwqueue.class_range r
  having max(r.range_id) >= (select s.last_value from hwqueue.class_range_range_id_seq s);
  perform setval('hwqueue.node_candidates_version_seq', max(k.version)) from hwqueue.node_candidates k
  having max(k.version) >= (select s.last_value from hwqueue.node_candidates_version_seq s);
end
$$;

-- The number of low-water marks above an entry that lives: claims never find such an entry. One index probe
-- for each mark.
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
        where r.shard_id = p_shard and r.queue_id = w.queue_id
          and r.tier = m.tier and r.rank = m.rank and r.position < m.position)
      else exists (
        select from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = w.class_id
          and r.tier = m.tier and r.rank = m.rank and r.position < m.position) end);
end
$$;

-- Resets the low-water marks, which claims then move on again, and sets the sequence of positions above all
-- that were drawn; writes an event. In this order: transactions that drew low positions may still be open, so
-- the horizon waits for them before marks pass anything. A mark, or the horizon, that another session holds
-- is skipped: the next reap tries again. False: the horizon was held by another session.
-- Locks: the horizon and the marks, skip locked.
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
  perform setval('hwqueue.ready_position_seq', v_most);
  select h.version into v_version from hwqueue.position_horizon h
  where h.shard_id = p_shard order by h.version desc limit 1 for update skip locked;
  if not found then
    return false;
  end if;
  delete from hwqueue.position_horizon h where h.shard_id = p_shard and h.version = v_version;
  insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
  values (p_shard, v_version + 1, 0, v_most, pg_current_xact_id());
  for v_marks in
    select w.* from hwqueue.low_water w where w.shard_id = p_shard and w.positions <> case w.class_id when 0 then '{0}' else '{}' end::bigint[]
    for update skip locked
  loop
    delete from hwqueue.low_water w
    where w.shard_id = p_shard and w.queue_id = v_marks.queue_id and w.class_id = v_marks.class_id
      and w.version = v_marks.version;
    perform hwqueue.write_first_mark(v_marks.queue_id, v_marks.class_id, v_marks.version + 1, p_shard);
    v_reset := v_reset + 1;
  end loop;
  perform hwqueue.note_event('positions_repaired',
    format('%s low-water marks start anew, positions go on at %s', v_reset, v_most), p_shard,
    jsonb_build_object('marks', v_reset, 'from', v_last, 'to', v_most));
  return true;
end
$$;

-- Repairs positions when there is need: every time that the sequence is found behind, and at a sweep also
-- when a mark is wrong for any other reason.
-- Locks: as repair_positions.
create or replace function hwqueue.reap_positions(p_sweeps boolean, p_shard int) returns void
language plpgsql volatile
as $$
begin
  -- positions are drawn again that were drawn before
  if (select h.drawn_position > s.last_value from hwqueue.position_horizon h, hwqueue.ready_position_seq s
      where h.shard_id = p_shard order by h.version desc limit 1) then
    perform hwqueue.raise_sequences(), hwqueue.repair_positions(p_shard);
  elsif p_sweeps and hwqueue.count_wrong_marks(p_shard) > 0 then
    perform hwqueue.repair_positions(p_shard);
  end if;
end
$$;
