-- The ends of steps and of runs.
--
-- Whatever ends a lease notes it if it is of a run, and the public call then calls follow_ended. Whatever
-- ends a step without a lease calls end_step. All call advance_run.
--
-- Invariant: a run ends once, and only when no step is open: the session that ends it holds its tally and
-- its row.

-- Does what follows from the leases of runs that have ended in this call so far (note_ended): ends their
-- steps, and advances their runs. p_is_short: the transaction ends with the call, as that of a node's
-- settlement; a handler's own may stay open. A lease whose step an operator has ended changes nothing. Steps
-- of one run are counted once for each of their children, and items once for their map.
-- Children of a completed step that come after it alone are due at once.
-- Locks: the step; tallies, steps and the run, skip locked. Not idempotent: it empties the list. Wakes:
-- waiting workers.
create or replace function hwqueue.follow_ended(p_is_short boolean) returns void
language plpgsql volatile
as $$
declare
  -- nothing, then four words for each lease: its trace, state, kind and id
  v_words text[] := string_to_array(current_setting('hwqueue.ended', true), ' ');
  v_leases uuid[];
  v_states text[];
  v_traces text[];
  v_found record;
  v_done int := length(set_config('hwqueue.ended', '', true));  -- 0, and the list is empty
begin
  if v_words[1] = '+' then
    v_words := string_to_array(current_setting('hwqueue.ended_before'), ' ') || v_words[2:];
  end if;
  -- few expressions on the way of one step, or item: each costs the first time in a transaction
  if v_words[6] is null and v_words[4] = 'step' then
    update hwqueue.step s
    -- the caller has its transaction id: no entry lies below a mark of reap
    set state = v_words[3], ended_at = hwqueue.clock(),
      -- of no more, because the headers of what comes after it repeat it
      traceparent = nullif(left(translate(v_words[2], e'\x1f', ' '), 200), '')
    from hwqueue.lease l
    join hwqueue.run r on r.run_id = l.run_id
    join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = l.step_no
    where l.lease_id = v_words[5]::uuid and s.run_id = l.run_id and s.step_no = l.step_no
      and s.state = 'running' and l.item_no is null
    returning s.step_no, s.ended_at, r as run, case when d.wants is null then d.children end as children
    into v_found;
    if found then
      perform hwqueue.advance_run(v_found.run, case
        when v_words[3] = 'completed' and v_found.children is not null
          then hwqueue.new_progress(p_released => v_found.children)
        else hwqueue.new_progress(array[v_found.step_no], v_words[3:3]) end, 1, p_is_short,
        v_found.ended_at);
    end if;
  elsif v_words[6] is null and v_words[3] = 'completed' and p_is_short then
    -- in one statement while the window is not to be filled, in two while another session counts one. What
    -- others have left is folded when the window is, and by each of the last items
    update hwqueue.tally t set arrived = t.arrived + 1
    from (
      select x.row_ctid
      from hwqueue.lease l
      cross join lateral (  -- by key, whatever the statistics say
        select y.ctid as row_ctid from hwqueue.tally y
        where y.run_id = l.run_id and y.step_no = l.step_no and y.part > 0
          and y.need - y.arrived - 1 > y.low and y.arrived % 64 < 63  -- else arrive renews it
          and y.unmet = 0 and (y.low > 0 or y.need - y.arrived > 64 or not exists (
            select from hwqueue.arrival a
            where a.run_id = y.run_id and a.step_no = y.step_no and a.kind = 'item'))
        order by y.part desc limit 1 for no key update of y skip locked) x
      where l.lease_id = v_words[5]::uuid) k
    where t.ctid = k.row_ctid;  -- not one that was written after this statement began
    if not found then
      -- mostly another session holds the tally: then this leaves the count, else it holds the tally
      insert into hwqueue.arrival (run_id, step_no, kind, arrived, at, tenant)
      select l.run_id, l.step_no, 'item', 1, hwqueue.clock(),
             coalesce(l.tenant, hwqueue.run_tenant(l.run_id))
      from hwqueue.lease l
      where l.lease_id = v_words[5]::uuid and not exists (
        select from hwqueue.tally y
        where y.run_id = l.run_id and y.step_no = l.step_no and y.part > 0
        order by y.part desc limit 1 for no key update skip locked);
    end if;
    if not found then
      perform hwqueue.items_ended(array[v_words[5]::uuid], v_words[3], true);
    end if;
  elsif v_words[6] is null and v_words[4] = 'item' then
    perform hwqueue.items_ended(array[v_words[5]::uuid], v_words[3], p_is_short);
  elsif v_words[2] is not null then
    -- not in the loop's statement, which would walk over the words for each of them
    select array_agg(v_words[i + 3]::uuid), array_agg(v_words[i + 1]), array_agg(v_words[i])
    into v_leases, v_states, v_traces from generate_series(2, cardinality(v_words), 4) i;
    for v_found in
      with ended as (
        update hwqueue.step s
        set state = e.state, ended_at = hwqueue.clock(),
          traceparent = nullif(left(translate(e.trace, e'\x1f', ' '), 200), '')
        from unnest(v_leases, v_states, v_traces) e(lease_id, state, trace)
        cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
          select x.run_id, x.step_no from hwqueue.lease x
          where x.lease_id = e.lease_id and x.item_no is null offset 0) l
        where 'step' = any (v_words)  -- else all are items
          and s.run_id = l.run_id and s.step_no = l.step_no and s.state = 'running'
        returning s.run_id, s.step_no, s.state
      )
      select e.run_id, array_agg(e.step_no order by e.step_no) as steps,
             array_agg(e.state order by e.step_no) as states
      from ended e group by e.run_id order by e.run_id
    loop
      v_done := v_done + cardinality(v_found.steps);
      perform hwqueue.advance_run(r, hwqueue.new_progress(v_found.steps, v_found.states),
        cardinality(v_found.steps), p_is_short, hwqueue.clock())
      from hwqueue.run r where r.run_id = v_found.run_id;  -- the end of another run may have changed it
    end loop;
    if v_done < cardinality(v_leases) then
      perform hwqueue.items_ended(array_agg(e.lease_id), e.state, p_is_short)
      from unnest(v_leases, v_states) e(lease_id, state) group by e.state order by e.state;
    end if;
  end if;
end
$$;

-- What fail_lease, release_lease and suspend_lease have in common: settles by lease and token, turns every
-- verdict but ok into its error, and does what follows in the run of the lease. Waits up to five seconds (or
-- lock_timeout) for another session that holds the claim.
-- Locks: node_state of the claim's node if room is allocated for it; the claim; the lease row, if it
-- goes back.
-- Raises QHL01 lost, QHL02 cancelled, QHL03 finished, QHL04 not found, QHL05 bad token, QHL08 another
-- login's, QHL09 busy, QHA01, QHA02. Not idempotent.
create or replace function hwqueue.settle_one(p_lease uuid, p_token bigint, p_settlement jsonb) returns text
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_claim hwqueue.claim;
  v_result record;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed();
  perform hwqueue.check_settlement(p_settlement, 'p_');
  perform hwqueue.check_kept(p_lease, nullif(p_settlement -> 'result', 'null'), 'result');
  perform pg_current_xact_id();  -- before the clock is read: reap_cursor relies on it
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  loop
    -- without a lock: the assignment may change until the node is locked, then settle_claim reads it
    -- again
    select c.* into v_claim from hwqueue.claim c where c.lease_id = p_lease and c.claim_token = p_token;
    if v_claim.assignment is not null and hwqueue.is_own_claim(v_claim.login, v_claim.node_id) then
      begin
        perform 1 from hwqueue.node_state s where s.node_id = v_claim.node_id for no key update;
      exception when deadlock_detected then  -- this transaction holds the claim, for which the holder waits
        perform hwqueue.refuse_settlement(p_lease, p_token, 'busy', 'claimed');
      end;
    end if;
    select s.verdict, s.state into v_result
    from hwqueue.settle_claim(p_lease, p_token, p_settlement, v_claim.assignment is not null,
        hwqueue.clock()) s;
    exit when v_result.verdict <> 'busy' or not hwqueue.await_claims(array[p_lease], '5s');
  end loop;
  if v_result.verdict <> 'ok' then
    perform hwqueue.refuse_settlement(p_lease, p_token, v_result.verdict, v_result.state);
  end if;
  perform hwqueue.follow_ended(false);
  return v_result.state;
end
$$;

-- Counts those of these leases that are items of maps, once for each map.
-- Locks and wakes: as advance_map.
create or replace function hwqueue.items_ended(p_leases uuid[], p_state text, p_is_short boolean) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.advance_map(i.run_id, i.step_no, row(0, i.count, 0, i.count * (p_state = 'failed')::int,
    i.count * (p_state = 'cancelled')::int), p_is_short, hwqueue.clock(), i.tenant)
  from (
    select l.run_id, l.step_no, min(l.tenant) as tenant, count(*)::int as count
    from unnest(p_leases) u(lease_id)
    cross join lateral (  -- a fence (offset 0): by key, and not by the index of all items
      select x.run_id, x.step_no, x.item_no, x.tenant from hwqueue.lease x
      where x.lease_id = u.lease_id offset 0) l
    where l.item_no is not null
    group by l.run_id, l.step_no order by l.run_id, l.step_no) i;
end $$;

-- Ends a step that is open, and has no lease or has items, as the verdict says, and advances its run.
-- False: it has ended already.
-- Locks: the step, which the caller may hold; then tallies, steps and the run, skip locked. Not idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.end_step(p_run uuid, p_step int, p_verdict hwqueue.step_verdict,
  p_is_short boolean, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
begin
  update hwqueue.step s
  set state = p_verdict.state, reason = p_verdict.reason, error = p_verdict.error, result = p_verdict.result,
    due_at = null, ended_at = p_now
  from hwqueue.run r
  where s.run_id = p_run and s.step_no = p_step and s.state = 'running'
    and (s.lease_id is null or exists (  -- a task that has added items
      select from hwqueue.map m where m.run_id = p_run and m.step_no = p_step))
    and r.run_id = p_run
  returning r.* into v_run;
  if not found then
    return false;
  end if;
  perform hwqueue.advance_run(v_run, hwqueue.new_progress(array[p_step], array[p_verdict.state]), 1,
    p_is_short, p_now);
  return true;
end
$$;

-- Counts items of a map that have ended, and goes on with the map when that is due: its window is to be
-- filled, items were added, an item has failed, or nothing is open. It lets as many items in as the window
-- has room for, 1,000 at most, and ends the map when nothing of it is open and nothing more comes. Returns
-- how many items it has let in; the end of the map counts as one.
-- A transaction that may stay open (not p_is_short) leaves its count as an arrival: with the tally it would
-- hold up the window. p_tenant: as in arrive.
-- Locks: the tally of the map, skip locked; as fill_map and end_step. Not idempotent. Wakes: waiting
-- workers.
create or replace function hwqueue.advance_map(p_run uuid, p_step int, p_delta hwqueue.tally_delta,
  p_is_short boolean, p_now timestamptz, p_tenant text default null) returns int
language plpgsql volatile
as $$
declare
  v_count record := hwqueue.arrive(p_run, p_step, true, p_delta, not p_is_short, p_now, p_tenant);
  v_tally hwqueue.tally := v_count.tally;
  -- a variable each: in one record, values that are stored apart would be read, the run's input among them
  v_run hwqueue.run;
  v_map hwqueue.map;
  v_defined hwqueue.workflow_step;
  v_goes_on boolean;
  v_fills boolean;
  v_before int := v_tally.need;
  v_open_runs int := 0;
  v_failed_runs int := 0;
  v_cancelled_runs int := 0;
begin
  if v_tally.run_id is null or p_delta.arrived > v_count.failed + p_delta.failed + p_delta.skipped
    and v_tally.need - v_tally.arrived > v_tally.low and v_tally.unmet = 0 then
    return 0;
  end if;
  -- statements after the lock: they see what former holders have written
  select m.* into v_map
  from hwqueue.map m
  join hwqueue.step s on s.run_id = m.run_id and s.step_no = m.step_no
  where m.run_id = p_run and m.step_no = p_step and s.state = 'running';
  if not found then
    return 0;
  end if;
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  select d.* into v_defined from hwqueue.workflow_step d
  where d.workflow_id = v_run.workflow_id and d.step_no = p_step;
  v_goes_on := v_run.state in ('running', 'paused') or v_run.is_finishing and not v_run.stops;
  v_fills := v_run.state = 'running' or v_run.is_finishing and not v_run.stops;
  if v_map.runs_since is not null then  -- no tally counts them: each is looked at, and leaves an arrival
    select c.open, c.failed, c.cancelled into v_open_runs, v_failed_runs, v_cancelled_runs
    from hwqueue.count_added_runs(v_map, v_run.attempt) c;
  end if;
  if hwqueue.has_failed_items(v_defined, v_map.items, v_tally.failed + v_failed_runs,
    v_tally.skipped + v_cancelled_runs) then
    -- known now: nothing else of the run is released while its last items run
    if v_defined.on_failure = 'fail_run' and v_goes_on and not v_run.is_finishing then
      perform hwqueue.begin_failing(v_run, p_step, v_defined.name, p_now);
    end if;
  elsif v_fills then
    v_tally := hwqueue.fill_map(v_run, v_map, v_defined, v_tally, 1000, p_now);
  end if;
  v_tally.failed := v_tally.failed + v_failed_runs;
  v_tally.skipped := v_tally.skipped + v_cancelled_runs;
  if v_goes_on and hwqueue.map_room(v_map, v_defined, v_tally) > 0 then
    if v_fills then  -- more than this call does; of a paused run resume goes on
      perform hwqueue.leave_arrivals(p_run, array[p_step], 'item', '{}', p_now);
    end if;
  elsif v_tally.arrived = v_tally.need and v_open_runs = 0 then
    perform hwqueue.end_step(p_run, p_step, hwqueue.map_verdict(v_run, v_map, v_defined, v_tally),
      p_is_short, p_now);
    return v_tally.need - v_before + 1;
  end if;
  return v_tally.need - v_before;
end
$$;

-- Does what follows from steps that have ended or are due, and counts the open work of their run. p_closed:
-- how many open steps the caller has ended, or taken arrivals of. Returns how many it has opened.
-- Locks and wakes: as follow_ends; the tally of the open work, skip locked. Not idempotent.
create or replace function hwqueue.advance_run(p_run hwqueue.run, p_progress hwqueue.run_progress,
  p_closed int, p_is_short boolean, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  p hwqueue.run_progress;
begin
  p := hwqueue.follow_ends(p_run, p_progress, p_is_short, p_now);
  -- a step that releases one other leaves the open work as it was; a run may begin without any
  if p.opened <> p_closed + p.closed or p.failed > 0 or p.opened = 0 and p_closed = 0 then
    perform hwqueue.count_work(p_run.run_id, p.opened, p_closed + p.closed, p.failed, p_now, p_run.tenant);
  end if;
  return p.opened;
end
$$;

-- Adds to the open work of a run: steps that were opened, steps that have ended, failures among them. Ends
-- the run when nothing is open. p_tenant: as in arrive.
-- Locks: the tally and the run, skip locked. Not idempotent.
create or replace function hwqueue.count_work(p_run uuid, p_opened int, p_closed int, p_failed int,
  p_now timestamptz, p_tenant text default null) returns void
language plpgsql volatile
as $$
declare
  v_count record;
begin
  v_count := hwqueue.arrive(p_run, 0, false, row(p_opened, p_closed, 0, p_failed, 0), false, p_now, p_tenant);
  if v_count.is_full then
    perform hwqueue.finish_run(p_run, (v_count.tally).failed, p_now);
  end if;
end
$$;

-- Ends a run that has no open work, or releases its finally steps first. p_failed: failures that nothing
-- ignores. Its definition may say what its result is; one that lacks a value, or has more than 1 MiB, is left
-- out, with a reason. A nested run ends the step that it is with it.
-- It has ended when this reads the clock, not at p_now: roll_up counts by that time. A run whose submission
-- was traced is left for take_ended_runs.
-- Locks: the caller holds the tally of the open work; the run, skip locked: where another session holds it,
-- an arrival is left; as end_parent_step. Idempotent. Wakes: waiting workers.
create or replace function hwqueue.finish_run(p_run uuid, p_failed int, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_state text;
  v_final int[];
  v_results jsonb;
  v_bound record;
  v_reason text;
  v_result jsonb;
  v_now timestamptz;
begin
  select r.* into v_run from hwqueue.run r where r.run_id = p_run for no key update skip locked;
  if not found then
    perform hwqueue.leave_arrivals(p_run, array[0], 'count', '{}', p_now);
    return;
  elsif v_run.finished_at is not null then
    return;
  end if;
  v_state := case when v_run.state = 'cancelling' then 'cancelled'
    when v_run.state = 'failing' or p_failed > 0 then 'failed' else 'completed' end;
  if not v_run.is_finishing then
    v_final := array(
      select d.step_no from hwqueue.workflow_step d
      where d.workflow_id = v_run.workflow_id and d.runs_at_end in (v_state, 'ended'));
    if v_final <> '{}' then
      update hwqueue.run r set is_finishing = true, stops = false  -- but for a later cancel
      where r.run_id = p_run returning r.* into v_run;
      perform hwqueue.advance_run(v_run, hwqueue.new_progress(p_released => v_final, p_most => 5000), 0, true,
        p_now);
      return;  -- it has ended by now if none of them began
    end if;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  v_now := hwqueue.clock();
  v_reason := case when v_state = 'failed' then coalesce(v_run.reason, 'step_failed')
    when v_state = 'cancelled' then v_run.reason end;
  if v_state = 'completed' and v_run.policy ? 'result' then
    v_results := hwqueue.results_of(v_run, array(
      select d.step_no from hwqueue.workflow_step d
      where d.workflow_id = v_run.workflow_id
        and d.name = any ((hwqueue.binding_steps(v_run.policy -> 'result', '')).steps)));
    v_bound := hwqueue.bind_value(v_run.policy -> 'result', v_run, v_results);
    perform hwqueue.note_bound(coalesce(pg_column_size(v_results), 134217728)
      + coalesce(pg_column_size(v_bound.value), 0));
    v_reason := case when v_results is null then 'result_too_large'
      when v_bound.missing is not null then 'binding_missing'
      when v_bound.too_large or hwqueue.text_bytes(v_bound.value, 1048576) > 1048576
        then 'result_too_large' end;
    v_result := case when v_reason is null then v_bound.value end;
  end if;
  update hwqueue.run r
  set state = v_state, reason = v_reason, result = v_result, finished_at = v_now,
    prune_at = v_now + make_interval(secs => coalesce(
      (r.policy -> 'retain' ->> case when v_state = 'failed' then 'failed' else 'completed' end)::float8,
      case when v_state = 'failed' then 2592000 else 604800 end))
  where r.run_id = p_run returning r.* into v_run;
  if v_run.policy ? 'unique' then
    delete from hwqueue.run_key k
    where k.run_id = p_run and k.while_running;
  end if;
  -- of kind state, or for steps that will not be released any more
  delete from hwqueue.arrival a where a.ctid = any (array(
    select x.ctid from hwqueue.arrival x
    where x.run_id = p_run and x.kind in ('state', 'fail', 'signal', 'item')
    for update skip locked));
  if v_state = 'failed' then
    perform hwqueue.note_event('workflow_run_failed', format('run of workflow %s failed: %s', v_run.name,
        concat_ws(': ', replace(v_reason, '_', ' '), hwqueue.first_step_error(v_run))),
      jsonb_build_object('run_id', p_run, 'workflow', v_run.name, 'reason', v_reason,
        'detail', v_run.detail) || hwqueue.present('parent_run_id', to_jsonb(v_run.parent_run_id)));
  elsif v_state = 'cancelled' then
    perform hwqueue.note_event('workflow_run_cancelled',
      format('run of workflow %s is cancelled', v_run.name),
      jsonb_build_object('run_id', p_run, 'workflow', v_run.name, 'detail', v_run.detail)
        || hwqueue.present('parent_run_id', to_jsonb(v_run.parent_run_id)));
  end if;
  if v_run.headers ? 'traceparent' then
    insert into hwqueue.traced_run (run_id, attempt, workflow, state, reason, traceparent,
      submitted_at, finished_at)
    values (p_run, v_run.attempt, v_run.name, v_state, v_reason,
      v_run.headers ->> 'traceparent', v_run.submitted_at, v_now);
  end if;
  if v_run.parent_run_id is not null then
    perform hwqueue.end_parent_step(v_run, p_now);
  end if;
end
$$;

-- What the first failed step of a run said: "step load: ValueError: no such film".
create or replace function hwqueue.first_step_error(p_run hwqueue.run) returns text
language plpgsql stable
as $$ begin return (
  select format('step %s: %s', d.name,
    coalesce(hwqueue.error_words(coalesce(s.error, o.error)), replace(s.reason, '_', ' '), s.state))
  from hwqueue.step s
  join hwqueue.workflow_step d on d.workflow_id = p_run.workflow_id and d.step_no = s.step_no
  left join hwqueue.outcome o on o.lease_id = s.lease_id
  where s.run_id = p_run.run_id and s.state = 'failed'
  order by s.ended_at, s.step_no limit 1
); end $$;

-- Whether the step of a nested run waits for it.
create or replace function hwqueue.is_awaited(p_run hwqueue.run) returns boolean
language plpgsql volatile
as $$ begin
  return exists (
    select from hwqueue.run r
    join hwqueue.step s on s.run_id = r.run_id and s.step_no = p_run.parent_step_no
    left join hwqueue.map m on m.run_id = s.run_id and m.step_no = s.step_no
    where r.run_id = p_run.parent_run_id and s.state = 'running'
      and p_run.parent_attempt >= coalesce(m.runs_since, r.attempt));
end $$;

-- Ends the step that a nested run is, once that run has ended, and advances the run above. An arrival is
-- left where another session holds the step, and at a step to which the run was added. Returns whether it has
-- ended the step.
-- Locks: the step above, skip locked; then as end_step. Idempotent. Wakes: waiting workers.
create or replace function hwqueue.end_parent_step(p_run hwqueue.run, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
begin
  if not hwqueue.is_awaited(p_run) then
    return false;
  elsif exists (
    select from hwqueue.map m
    where m.run_id = p_run.parent_run_id and m.step_no = p_run.parent_step_no) then
    perform hwqueue.leave_arrivals(p_run.parent_run_id, array[p_run.parent_step_no], 'item', '{}', p_now);
    return false;
  end if;
  perform 1 from hwqueue.step s
  where s.run_id = p_run.parent_run_id and s.step_no = p_run.parent_step_no for no key update skip locked;
  if not found then
    perform hwqueue.leave_arrivals(p_run.parent_run_id, array[p_run.parent_step_no], 'nested', '{}', p_now);
    return false;
  end if;
  return hwqueue.end_step(p_run.parent_run_id, p_run.parent_step_no, row(p_run.state,
    case when p_run.state <> 'completed' then 'nested_' || p_run.state end,
    case when p_run.state <> 'completed' then jsonb_strip_nulls(jsonb_build_object('run_id', p_run.run_id,
      'workflow', p_run.name, 'reason', p_run.reason, 'detail', p_run.detail,
      'first_error', hwqueue.first_step_error(p_run))) end, p_run.result, null), false, p_now);
end
$$;
