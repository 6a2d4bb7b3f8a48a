-- The parts of reap and prune, of which none undoes another.
--
-- api/upkeep.reap and prune call run_parts. Example: statement_timeout ends the part that rolls up figures.
-- That part is undone; claims that had expired are ended all the same. The next calls run it last, and let it
-- count half as much.
--
-- Invariant: whoever calls, however short its statement_timeout, a part that takes longer keeps no other one
-- from being done. What a part has done is whole.
--
-- Read run_parts; what a part does is in reap_part (upkeep/reap) and prune_part (upkeep/prune).

-- What a call has done that begins. p_holds: it holds the cursor, so its notes are its own.
create or replace function hwqueue.nothing_done(p_holds boolean) returns hwqueue.upkeep_done
language sql immutable
as $$ select jsonb_populate_record(null::hwqueue.upkeep_done, jsonb_build_object('holds', p_holds,
  'more', false, 'expired', 0, 'promoted', 0, 'deadlines', 0, 'reaches', 0, 'leases', 0, 'classes', 0,
  'nodes', 0)) $$;

-- Runs the parts of p_kind that are due, each in a savepoint: what is cut short or fails is undone alone and
-- noted (base/postponed). Once time is up no further part begins, because it would not be timed again, and
-- the part that took longest is to blame. Nothing is caught where the notes are another session's.
-- Locks, wakes: as the parts. Plans are made once, for any arguments, and by index: a table that is small now
-- may be large before the session ends.
create or replace function hwqueue.run_parts(p_kind text, p_parts text[], p_limit int,
  p_done hwqueue.upkeep_done, p_now timestamptz, p_shard int) returns hwqueue.upkeep_done
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_part record;
  v_began_at timestamptz;
  v_longest interval := '-1';
  v_slowest text;
  v_state text;
  v_error text;
begin
  for v_part in select d.part, d.most from hwqueue.parts_due(p_kind, p_parts, p_limit, p_now, p_shard) d loop
    v_began_at := clock_timestamp();
    v_state := null;
    v_error := null;
    begin
      p_done := case p_kind when 'reap'
          then hwqueue.reap_part(v_part.part, v_part.most, p_limit, p_done, p_now, p_shard)
        else hwqueue.prune_part(v_part.part, v_part.most, p_done, p_now, p_shard) end;
    exception when query_canceled or others then
      v_state := sqlstate;
      v_error := sqlerrm;
      if not p_done.holds then
        raise;
      end if;
    end;
    if clock_timestamp() - v_began_at > v_longest then
      v_longest := clock_timestamp() - v_began_at;
      v_slowest := v_part.part;
    end if;
    continue when v_state is null and not (p_done.holds and hwqueue.is_time_up());
    if hwqueue.is_time_up() and v_slowest <> v_part.part then
      perform hwqueue.postpone(p_kind || ' ' || v_slowest, null, null, null, p_now, p_shard);
    else
      perform hwqueue.postpone(p_kind || ' ' || v_part.part, null, v_state, v_error, p_now, p_shard);
    end if;
    if hwqueue.is_time_up() then
      p_done.more := true;
      exit;
    end if;
  end loop;
  return p_done;
end
$$;
