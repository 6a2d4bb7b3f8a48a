-- The ends of steps and of runs.
--
-- Whatever ends the lease of a step calls step_ended or steps_ended: settlements, expiry, deadlines,
-- cancellations, dropped queues. Whatever ends a step without a lease calls step_over. Example: the last
-- step of a run completes. Its end makes the open work of the run 0, and finish_run releases the finally
-- steps, or ends the run.
--
-- Invariant: a run ends once, and only when no step is open: the session that ends it holds its tally and
-- its row.
--
-- Read step_ended and step_over first, then count_work and finish_run.

-- Carries on with the run of a lease that has ended. p_is_short: the caller's transaction ends with its
-- call. A lease whose step an operator has ended already changes nothing.
-- Children of a completed step that come after it alone are due at once, and the definition has their list:
-- a chain reads no edges.
-- Locks: the step; then tallies, steps and the run, skip locked. Not idempotent. Wakes: waiting workers.
create or replace function hwqueue.step_ended(p_lease uuid, p_state text, p_is_short boolean, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  -- after the caller has its transaction id, so that no entry lies below a mark of reap
  v_now timestamptz := hwqueue.clock();
  v_found record;
begin
  update hwqueue.step s set state = p_state, ended_at = v_now
  from hwqueue.lease l
  join hwqueue.run r on r.shard_id = p_shard and r.run_id = l.run_id
  join hwqueue.workflow_step d on d.shard_id = p_shard and d.workflow_id = r.workflow_id
    and d.step_no = l.step_no
  where l.shard_id = p_shard and l.lease_id = p_lease and s.shard_id = p_shard and s.run_id = l.run_id
    and s.step_no = l.step_no and s.state = 'running'
  returning s.step_no, r as run, d.children into v_found;
  if found then
    perform hwqueue.carry_run(v_found.run, case
      when p_state = 'completed' and v_found.children is not null
        then hwqueue.new_progress(p_released => v_found.children)
      else hwqueue.new_progress(array[v_found.step_no], array[p_state]) end, 1, p_is_short, v_now, p_shard);
  end if;
end
$$;

-- The same for some leases. Steps of one run are counted together, once for each of their children.
-- Locks and wakes: as step_ended.
create or replace function hwqueue.steps_ended(p_leases uuid[], p_state text, p_shard int,
  p_is_short boolean default false) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();  -- as in step_ended
  v_item record;
begin
  for v_item in
    with ended as (
      update hwqueue.step s set state = p_state, ended_at = v_now
      from hwqueue.lease l
      where l.shard_id = p_shard and l.lease_id = any (p_leases) and s.shard_id = p_shard
        and s.run_id = l.run_id and s.step_no = l.step_no and s.state = 'running'
      returning s.run_id, s.step_no
    )
    select e.run_id, array_agg(e.step_no order by e.step_no) as steps
    from ended e group by e.run_id order by e.run_id
  loop
    perform hwqueue.carry_on(v_item.run_id, hwqueue.new_progress(v_item.steps,
      array_fill(p_state, array[cardinality(v_item.steps)])), cardinality(v_item.steps), p_is_short, v_now,
      p_shard);
  end loop;
end
$$;

-- Ends a step that has no lease and is open, as the verdict says, and carries on with its run. False: it has
-- ended already.
-- Locks: the step, which the caller may hold; then tallies, steps and the run, skip locked. Not idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.step_over(p_run uuid, p_step int, p_verdict hwqueue.step_verdict,
  p_is_short boolean, p_now timestamptz, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  update hwqueue.step s
  set state = p_verdict.state, reason = p_verdict.reason, error = p_verdict.error, result = p_verdict.result,
    due_at = null, ended_at = p_now
  where s.shard_id = p_shard and s.run_id = p_run and s.step_no = p_step and s.state = 'running'
    and s.lease_id is null;
  if not found then
    return false;
  end if;
  perform hwqueue.carry_on(p_run, hwqueue.new_progress(array[p_step], array[p_verdict.state]), 1, p_is_short,
    p_now, p_shard);
  return true;
end
$$;

-- Carries on with a run, and counts what that does to its open work. p_closed: how many open steps the
-- caller has ended, or taken arrivals of. Returns how many it has opened.
-- Locks and wakes: as go_on; the tally of the open work, skip locked. Not idempotent.
create or replace function hwqueue.carry_on(p_run uuid, p_progress hwqueue.run_progress, p_closed int,
  p_is_short boolean, p_now timestamptz, p_shard int) returns int
language sql volatile
as $$
  select coalesce((
    select hwqueue.carry_run(r, p_progress, p_closed, p_is_short, p_now, p_shard)
    from hwqueue.run r where r.shard_id = p_shard and r.run_id = p_run), 0)
$$;

-- The same of a run that the caller has read.
create or replace function hwqueue.carry_run(p_run hwqueue.run, p_progress hwqueue.run_progress,
  p_closed int, p_is_short boolean, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  p hwqueue.run_progress;
begin
  p := hwqueue.go_on(p_run, p_progress, p_is_short, p_now, p_shard);
  -- a step that releases one other leaves the open work as it was
  if p.opened <> p_closed + p.closed or p.failed > 0 then
    perform hwqueue.count_work(p_run.run_id, p.opened, p_closed + p.closed, p.failed, p_now, p_shard);
  end if;
  return p.opened;
end
$$;

-- Adds to the open work of a run: steps that were opened, steps that have ended, failures among them. Ends
-- the run when nothing is open.
-- Locks: the tally and the run, skip locked. Not idempotent.
create or replace function hwqueue.count_work(p_run uuid, p_opened int, p_closed int, p_failed int,
  p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_count record;
begin
  v_count := hwqueue.arrive(p_run, 0, row(p_opened, p_closed, 0, p_failed, 0), false, p_now, p_shard);
  if v_count.is_full then
    perform hwqueue.finish_run(p_run, (v_count.tally).failed, p_now, p_shard);
  end if;
end
$$;

-- Ends a run that has no open work, or releases its finally steps first. p_failed: failures that nothing
-- ignores.
-- Locks: the caller holds the tally of the open work; the run, skip locked: where another session holds it,
-- an arrival is left. Idempotent. Wakes: waiting workers.
create or replace function hwqueue.finish_run(p_run uuid, p_failed int, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_state text;
  v_final int[];
  p hwqueue.run_progress;
begin
  select r.* into v_run from hwqueue.run r
  where r.shard_id = p_shard and r.run_id = p_run for no key update skip locked;
  if not found then
    perform hwqueue.leave_arrivals(p_run, array[0], 'count', '{}', p_now, p_shard);
    return;
  elsif v_run.finished_at is not null then
    return;
  end if;
  v_state := case when v_run.state = 'cancelling' then 'cancelled'
    when v_run.state = 'failing' or p_failed > 0 then 'failed' else 'completed' end;
  if not v_run.is_finishing then
    v_final := array(
      select d.step_no from hwqueue.workflow_step d
      where d.shard_id = p_shard and d.workflow_id = v_run.workflow_id
        and d.runs_at_end in (v_state, 'ended'));
    if v_final <> '{}' then
      update hwqueue.run r set is_finishing = true where r.shard_id = p_shard and r.run_id = p_run;
      v_run.is_finishing := true;
      p := hwqueue.go_on(v_run, hwqueue.new_progress(p_released => v_final, p_most => 5000), true, p_now,
        p_shard);
      update hwqueue.tally t set need = t.need + p.opened - p.closed, failed = t.failed + p.failed
      where t.shard_id = p_shard and t.run_id = p_run and t.step_no = 0 and t.part = 0;
      if p.opened > 0 then
        return;
      end if;
      v_state := case when v_state = 'completed' and p.failed > 0 then 'failed' else v_state end;
    end if;
  end if;
  perform hwqueue.end_run(v_run, v_state, p_now, p_shard);
end
$$;

-- Writes the end of a run. Its definition may say what its result is; one that lacks a value, or has more
-- than 1 MiB, is left out, with a reason.
-- Locks: the caller holds the run. Not idempotent.
create or replace function hwqueue.end_run(p_run hwqueue.run, p_state text, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_bound record;
  v_reason text := p_run.reason;
  v_result jsonb;
begin
  if p_state = 'completed' then
    v_reason := null;
    if p_run.policy ? 'result' then
      v_bound := hwqueue.bind_value(p_run.policy -> 'result', p_run, hwqueue.results_of(p_run, array(
        select d.step_no from hwqueue.workflow_step d
        where d.shard_id = p_shard and d.workflow_id = p_run.workflow_id
          and d.name = any ((hwqueue.binding_steps(p_run.policy -> 'result', '')).steps)), p_shard));
      v_reason := case when v_bound.missing is not null then 'binding_missing'
        when v_bound.too_large or hwqueue.text_bytes(v_bound.value, 1048576) > 1048576
          then 'result_too_large' end;
      v_result := case when v_reason is null then v_bound.value end;
    end if;
  elsif p_state = 'failed' then
    v_reason := coalesce(v_reason, 'step_failed');
  end if;
  update hwqueue.run r
  set state = p_state, reason = v_reason, result = v_result, finished_at = p_now,
    prune_at = p_now + make_interval(secs => coalesce(
      (p_run.policy -> 'retain' ->> case when p_state = 'failed' then 'failed' else 'completed' end)::float8,
      case when p_state = 'failed' then 2592000 else 604800 end))
  where r.shard_id = p_shard and r.run_id = p_run.run_id;
  if p_run.policy ? 'unique' then
    delete from hwqueue.run_key k
    where k.shard_id = p_shard and k.run_id = p_run.run_id and k.while_running;
  end if;
  -- of kind state, or for steps that will not be released any more
  delete from hwqueue.arrival a where a.ctid = any (array(
    select x.ctid from hwqueue.arrival x
    where x.run_id = p_run.run_id and x.shard_id = p_shard and x.kind in ('state', 'fail', 'signal')
    for update skip locked));
  if p_state = 'failed' then
    perform hwqueue.note_event('workflow_run_failed', format('run of workflow %s failed: %s', p_run.name,
        v_reason), p_shard,
      jsonb_build_object('run_id', p_run.run_id, 'workflow', p_run.name, 'reason', v_reason,
        'detail', p_run.detail));
  elsif p_state = 'cancelled' then
    perform hwqueue.note_event('workflow_run_cancelled',
      format('run of workflow %s is cancelled', p_run.name), p_shard,
      jsonb_build_object('run_id', p_run.run_id, 'workflow', p_run.name, 'detail', p_run.detail));
  end if;
end
$$;
