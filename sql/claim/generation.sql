-- Noting another server or another life of it, and the repairs that a new server needs.
--
-- Claims call current_generation, reap calls reap_positions. An example: a standby is promoted and has lost
-- the last commits. Its timeline is another one, so the generation (base/claim_tokens) rises, and every new
-- token is above all that the lost commits granted (docs/explanation/lifecycle.md).
--
-- Logical replication copies rows only: after a switch-over sequences start where they were when the
-- subscriber was made, and positions below the low-water marks would never be claimed. raise_sequences
-- and repair_positions mend that.
--
-- Invariant: the tokens of a lease only rise, whatever server grants them.

-- The generation that leads every claim token, noted if this is another server, another database of it, or
-- another life of it than the last time. Reading the server's identity reads a file. That it is the same life
-- proves the same, because no identity changes while a primary runs.
-- Locks: the installation's row, skip locked, only when something changed.
-- p_node: it is cached in node_state, so that the node's claims need not read that row in this life of the
-- server.
-- Locks: the caller holds node_state of p_node.
create or replace function hwqueue.current_generation(p_node uuid default null) returns bigint
language plpgsql volatile
as $$
declare
  v_generation bigint;
begin
  select s.generation into v_generation from hwqueue.installation s
  where hwqueue.is_this_life(s.server_started_at, s.recovered_to, s.storage_path);
  v_generation := coalesce(v_generation, hwqueue.note_server(hwqueue.server_timeline()));
  if p_node is not null then
    -- what the row says; if another session is about to write it, the next claim reads it again
    update hwqueue.node_state n
    set generation = s.generation, server_started_at = s.server_started_at, recovered_to = s.recovered_to,
        storage_path = s.storage_path
    from hwqueue.installation s
    where n.node_id = p_node and hwqueue.is_this_life(s.server_started_at, s.recovered_to, s.storage_path);
  end if;
  return v_generation;
end
$$;

-- Records which server this is, and returns the generation. On another server transaction ids mean
-- something else, so everything that was judged by them is judged again, and sequences may lag behind
-- the tables. The new generation follows from the row and the server alone, so a session that cannot
-- lock the row uses it unwritten. What classes, counters and arrivals make long is left to upkeep, which
-- knows an id of another server by being above all of this one (reap_part, prune_terms, prune,
-- sweep_arrivals, publish_terms). Locks: the installation's row, skip locked; on another server the rows of
-- profile, profile_queue, node_state and what is cached of the fleet.
create or replace function hwqueue.note_server(p_timeline int) returns bigint
language plpgsql volatile
as $$
declare
  v_system bigint := (select c.system_identifier from pg_control_system() c);
  v_is_locked boolean;
  v_row hwqueue.installation;
  v_next bigint;
begin
  perform 1 from hwqueue.installation s for no key update skip locked;
  v_is_locked := found;
  select s.* into v_row from hwqueue.installation s;
  v_next := hwqueue.next_generation(v_row, p_timeline, v_system);
  if not v_is_locked or v_next = v_row.generation then
    return v_next;
  end if;
  update hwqueue.installation s
  set timeline = p_timeline, system_identifier = v_system, server_started_at = pg_postmaster_start_time(),
      recovered_to = pg_last_wal_replay_lsn(), generation = v_next,
      storage_path = pg_relation_filepath('hwqueue.installation'::regclass), node_epoch_floor = greatest(
        s.node_epoch_floor, case when v_row.timeline is not null then v_next >> 22 end);  -- register_node
  if v_row.timeline is not null then  -- else nothing has been claimed or reaped before
    -- new event ids lie above all existing ones and the cursors of webhooks: transaction ids may start again
    -- on the new server, or fall back by those of lost transactions
    update hwqueue.installation s
    set former_event_base = s.event_base, event_base_xid = pg_current_xact_id(),
        event_base = (1::bigint << 40) + greatest(s.event_base,
          greatest((select max(e.event_id) from hwqueue.event e),
            (select max(w.event_cursor) from hwqueue.webhook w), 0)
          - (pg_current_xact_id()::text::bigint << 20));
    perform hwqueue.note_event('generation_raised',
      format('another server: claim tokens go on with generation %s', v_next >> 40),
      jsonb_build_object('from', v_row.generation >> 40, 'to', v_next >> 40));
  end if;
  if v_row.system_identifier <> v_system then
    update hwqueue.profile p set classes_seen = '0', classes_unseen = '{}', judged_xid = null,
      judged_class = null;
    update hwqueue.profile_queue s set classes_seen = '0', classes_unseen = '{}';
    update hwqueue.node_state n
    set classes_seen = '0', classes_unseen = '{}', judged_xid = null, judged_class = null, moved_xid = '0';
    update hwqueue.ignored_label o set unseen = '{}', next_xid = '0';
    delete from hwqueue.spread_fleet f;
    delete from hwqueue.spread_floor f;
    delete from hwqueue.class_range r;
    delete from hwqueue.node_candidates k;
    perform hwqueue.raise_sequences(), hwqueue.repair_positions();
  end if;
  return v_next;
end
$$;

-- Sets the sequences of identity columns above what their tables hold, never lower, but that of positions
-- (repair_positions). A rollback does not undo that.
create or replace function hwqueue.raise_sequences() returns void
language plpgsql volatile
as $$
declare
  v_one record;
  v_most bigint;
begin
  for v_one in
    select d.objid::regclass as sequence, d.refobjid::regclass as place, a.attname as name
    from pg_depend d
    join pg_class q on q.oid = d.objid and q.relkind = 'S' and q.relnamespace = 'hwqueue'::regnamespace
      and q.relname <> 'ready_position_seq'
    join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass and d.deptype = 'i'
  loop
    execute format('select max(%I) from %s', v_one.name, v_one.place) into v_most;
    perform setval(v_one.sequence, v_most)
    where v_most >= coalesce(pg_sequence_last_value(v_one.sequence), 0);
  end loop;
end
$$;

-- The number of low-water marks above a live entry, which claims would never find. One index probe for
-- each.
create or replace function hwqueue.count_wrong_marks() returns bigint
language plpgsql volatile
as $$ begin return (
  select count(*)
  from hwqueue.low_water w
  cross join lateral unnest(w.tiers, w.ranks, w.positions) m(tier, rank, position)
  where case
    when w.class_id = 0 then exists (
      select from hwqueue.ready r
      where r.queue_id = w.queue_id and r.tier = m.tier and r.rank = m.rank and r.position < m.position)
    else exists (
      select from hwqueue.ready r
      where r.class_id = w.class_id and r.tier = m.tier and r.rank = m.rank and r.position < m.position) end
); end $$;

-- Resets the low-water marks, which claims then advance again, and sets the sequence of positions above
-- all that were drawn, those of single leases that are reserved among them: they go back to where they were
-- in line (put_back_in_line). Marks that are left after upkeep_budget are reset when they are found wrong
-- (reap_positions). Writes an event. In this order: transactions that drew low positions may still
-- be open, so the position horizon waits for them before low-water marks pass anything. A low-water mark,
-- or the horizon, that another session holds is skipped: the next reap tries again. False: another
-- session holds the horizon. Locks: the horizon and the low-water marks, skip locked.
create or replace function hwqueue.repair_positions() returns boolean
language plpgsql volatile
as $$
declare
  v_last bigint := (select s.last_value from hwqueue.ready_position_seq s);
  v_most bigint := greatest(
    v_last, (select max(r.position) from hwqueue.ready r), (select max(s.turn) from hwqueue.scheduled s),
    (select max(l.position) from hwqueue.claim c
     join hwqueue.lease l on l.lease_id = c.lease_id
     where c.is_reserved and c.team_id is null),
    (select max(m.position) from hwqueue.low_water w cross join lateral unnest(w.positions) m(position)),
    (select max(greatest(h.safe_position, h.drawn_position)) from hwqueue.position_horizon h));
  v_version bigint;
  v_marks hwqueue.low_water;
  v_reset int := 0;
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget();
begin
  perform setval('hwqueue.ready_position_seq', v_most);
  select h.version into v_version from hwqueue.position_horizon h
  order by h.version desc limit 1 for update skip locked;
  if not found then
    return false;
  end if;
  delete from hwqueue.position_horizon h where h.version = v_version;
  insert into hwqueue.position_horizon (version, safe_position, drawn_position, drawn_before)
  values (v_version + 1, 0, v_most, pg_current_xact_id());
  for v_marks in
    select w.* from hwqueue.low_water w where w.positions <> case w.class_id when 0
           then '{0}' else '{}' end::bigint[]
    order by w.class_id for update skip locked  -- those of queues first
  loop
    delete from hwqueue.low_water w
    where w.queue_id = v_marks.queue_id and w.class_id = v_marks.class_id and w.version = v_marks.version;
    perform hwqueue.write_first_low_water(v_marks.queue_id, v_marks.class_id, v_marks.version + 1);
    v_reset := v_reset + 1;
    exit when clock_timestamp() >= v_until;
  end loop;
  perform hwqueue.note_event('positions_repaired',
    format('%s low-water marks start anew, positions go on at %s', v_reset, v_most),
    jsonb_build_object('marks', v_reset, 'from', v_last, 'to', v_most));
  return true;
end
$$;

-- Repairs positions when the sequence is found behind. With p_sweeps (every five minutes, see reap)
-- also when a low-water mark is wrong for any other reason.
-- Locks as repair_positions.
create or replace function hwqueue.reap_positions(p_sweeps boolean) returns void
language plpgsql volatile
as $$
begin
  -- the sequence would draw positions again
  if (select h.drawn_position > s.last_value from hwqueue.position_horizon h, hwqueue.ready_position_seq s
      order by h.version desc limit 1) then
    perform hwqueue.raise_sequences(), hwqueue.repair_positions();
  elsif p_sweeps and hwqueue.count_wrong_marks() > 0 then
    perform hwqueue.repair_positions();
  end if;
end
$$;
