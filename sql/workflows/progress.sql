-- What follows from the end of a step: children that are released or skipped, a run that fails.
--
-- Example: "train" failed. Its child "publish" wants it completed and is skipped; "report" comes after
-- publish in any case and is released.
--
-- Invariant: no settlement waits for another one. But for its own step, each row of a run is locked with
-- skip locked; what that misses is left as an arrival.

-- Does what follows from steps that have ended, until nothing more follows: counts them for their children,
-- skips and releases what is due. Returns what that adds to the open work (opened, closed, failed).
-- A failed step with fail_run (`fail` of a specification), not go_on (`continue`), lets the run fail; one
-- that ignores its failure has completed. While a run fails or is cancelled nothing is released. A child with
-- one parent is due at once; of others each parent is counted. Steps to skip that another session holds are
-- left as arrivals, which count as opened; what comes after those that are skipped is due next.
-- Locks: tallies, steps and the run, skip locked; new rows. Not idempotent. Wakes: waiting workers.
create or replace function hwqueue.follow_ends(p_run hwqueue.run, p_progress hwqueue.run_progress,
  p_is_short boolean, p_now timestamptz) returns hwqueue.run_progress
language plpgsql volatile
as $$
declare
  p hwqueue.run_progress := p_progress;
  v_run hwqueue.run := p_run;
  v_step record;
  v_done int[];
  v_left int[];
begin
  loop
    if array['failed', 'cancelled'] && p.states then
      for v_step in
        select u.n, u.step_no, d.name, d.on_failure
        from unnest(p.ended, p.states) with ordinality u(step_no, state, n)
        cross join lateral (
          select x.name, x.on_failure from hwqueue.workflow_step x
          where x.workflow_id = v_run.workflow_id and x.step_no = u.step_no offset 0) d
        where u.state in ('failed', 'cancelled') order by u.n
      loop
        if v_step.on_failure = 'ignore' then
          p.states[v_step.n] := 'completed';
          continue;
        end if;
        p.failed := p.failed + 1;
        if v_step.on_failure = 'fail_run' and v_run.state in ('running', 'paused')
          and not v_run.is_finishing then
          v_run.state := hwqueue.begin_failing(v_run, v_step.step_no, v_step.name, p_now);
        end if;
      end loop;
    end if;
    if v_run.state in ('failing', 'cancelling') and (not v_run.is_finishing or v_run.stops) then
      p.released := '{}';
      p.skipped := '{}';
      exit;
    end if;
    if p.ended <> '{}' then
      for v_step in
        select e.to_no, d.parent_count, d.is_any, count(*)::int as arrived,
               (count(*) filter (where not e.holds))::int as unmet,
               (count(*) filter (where not e.holds and u.state in ('failed', 'cancelled')))::int as failed,
               (count(*) filter (where not e.holds and u.state = 'skipped'))::int as skipped
        from unnest(p.ended, p.states) u(step_no, state)
        -- fences (offset 0): step by step and by key, whatever the statistics say
        cross join lateral (
          select c.to_no, hwqueue.edge_holds(c.wants, u.state) as holds
          from hwqueue.workflow_step x cross join unnest(x.children, x.wants) c(to_no, wants)
          where x.workflow_id = v_run.workflow_id and x.step_no = u.step_no offset 0) e
        cross join lateral (
          select x.parent_count, x.is_any from hwqueue.workflow_step x
          where x.workflow_id = v_run.workflow_id and x.step_no = e.to_no offset 0) d
        group by e.to_no, d.parent_count, d.is_any order by e.to_no
      loop
        if v_step.parent_count > 1 then
          p := hwqueue.count_parents(v_run, v_step.to_no, v_step.is_any,
            row(0, v_step.arrived, v_step.unmet, v_step.failed, v_step.skipped), p_is_short, p_now, p);
        elsif v_step.unmet = 0 then
          p.released := p.released || v_step.to_no;
        else
          p.skipped := p.skipped || v_step.to_no;
          p.reasons := p.reasons || case when v_step.failed > 0 then 'parent_failed'
            when v_step.skipped > 0 then 'parent_skipped' else 'parent_completed' end;
        end if;
      end loop;
      p.ended := '{}';
      p.states := '{}';
    end if;
    exit when p.released = '{}' and p.skipped = '{}';
    if p.skipped <> '{}' then
      v_done := array(
        select s.step_no from hwqueue.step s
        where s.run_id = v_run.run_id and s.step_no = any (p.skipped) and s.state = 'waiting'
        order by s.step_no for no key update skip locked);
      update hwqueue.step s set state = 'skipped', reason = k.reason, ended_at = p_now
      from unnest(p.skipped, p.reasons) k(step_no, reason)
      where s.run_id = v_run.run_id and s.step_no = k.step_no and s.step_no = any (v_done);
      v_left := array(
        select s.step_no from hwqueue.step s
        where s.run_id = v_run.run_id and s.step_no = any (p.skipped) and s.state = 'waiting'
          and s.step_no <> all (v_done));
      if v_left <> '{}' then
        perform hwqueue.leave_arrivals(v_run.run_id, v_left, 'skip', array(
          select k.reason from unnest(p.skipped, p.reasons) k(step_no, reason)
          join unnest(v_left) with ordinality l(step_no, n) on l.step_no = k.step_no order by l.n), p_now);
        p.opened := p.opened + cardinality(v_left);
      end if;
      p.ended := p.ended || v_done;
      p.states := p.states || array_fill('skipped'::text, array[cardinality(v_done)]);
      p.skipped := '{}';
      p.reasons := '{}';
    end if;
    if p.released <> '{}' then
      p := hwqueue.release_steps(v_run, p, p_now);
    end if;
  end loop;
  return p;
end
$$;

-- Lets a run fail because a step has failed: nothing is released any more. With the policy fail_fast its
-- other steps are asked to stop, too, by advance_workflows. Returns the run's state.
-- Locks: the run, skip locked; where another session holds it, an arrival is left. Idempotent.
create or replace function hwqueue.begin_failing(p_run hwqueue.run, p_step int, p_name text,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_stops boolean := p_run.policy ->> 'on_failure' = 'fail_fast';
  v_was text;
begin
  select r.state into v_was from hwqueue.run r where r.run_id = p_run.run_id for no key update skip locked;
  if not found then
    perform hwqueue.leave_arrivals(p_run.run_id, array[p_step], 'fail', array[p_name], p_now);
    return 'failing';
  end if;
  if v_was in ('running', 'paused') then
    update hwqueue.run r
    set state = 'failing', reason = 'step_failed', detail = jsonb_build_object('step', p_name),
      stops = coalesce(v_stops, false) and not r.is_finishing
    where r.run_id = p_run.run_id;
    if v_stops or v_was = 'paused' or exists (  -- steps to stop, that were held, or that may sleep
      select from hwqueue.workflow_step d
      where d.workflow_id = p_run.workflow_id and d.kind in ('sleep', 'wait')) then
      perform hwqueue.leave_arrivals(p_run.run_id, array[0], 'state', '{}', p_now);
    end if;
    v_was := 'failing';
  end if;
  return v_was;
end
$$;
