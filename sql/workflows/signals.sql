-- Signals of runs that steps take: a wait takes the oldest one of its name, or is open until one comes. Those
-- of leases are in claim/checkpoint.
--
-- workflows/release takes a signal when a wait is released, workflows/delivery when a signal is sent, and
-- workflows/advance when a wait has timed out. Example: "approved" is sent before the wait is released. It is
-- kept, and the wait takes it: the step has completed at once, its result is the payload.
--
-- Invariant: a session that begins or ends a wait holds its row, and so does one that hands it a signal. Each
-- looks in a statement after the lock. A sender that meets a step which is not open, or misses its row,
-- leaves an arrival of kind `signal`. So a signal and a wait that meet find each other, whichever commits
-- first.
--
-- Read take_run_signal.

-- Takes the oldest signal of this name for a step, and returns its payload; null: there is none. is_held:
-- another session holds one, and may yet leave it.
-- Locks: the caller holds the step; the signal, skip locked. Not idempotent.
create or replace function hwqueue.take_run_signal(p_run uuid, p_name text, p_step int,
  out payload jsonb, out is_held boolean)
language plpgsql volatile
as $$
declare
  v_signal hwqueue.run_signal;
begin
  select s.* into v_signal from hwqueue.run_signal s
  where s.run_id = p_run and s.name = p_name and s.taken_by is null
  order by s.signal_id limit 1 for update skip locked;
  if not found then
    is_held := exists (
      select from hwqueue.run_signal s where s.run_id = p_run and s.name = p_name and s.taken_by is null);
    return;
  end if;
  is_held := false;
  payload := v_signal.payload;
  update hwqueue.run_signal s set taken_by = p_step, payload = null
  where s.run_id = p_run and s.signal_id = v_signal.signal_id;
end
$$;

-- Returns how a step ends that is due: a sleep has completed; a wait takes a signal that has just come, or
-- ends as its on_timeout says, which an event tells.
-- Locks: the caller holds the step; a signal, skip locked. Not idempotent.
create or replace function hwqueue.due_verdict(p_step hwqueue.step) returns hwqueue.step_verdict
language plpgsql volatile
as $$
declare
  v_found record;
  v_payload jsonb;
begin
  select d.name, d.kind, d.settings, r.name as workflow, r.tenant into v_found
  from hwqueue.run r
  join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = p_step.step_no
  where r.run_id = p_step.run_id;
  if v_found.kind = 'sleep' then
    return row('completed', null, null, null, null)::hwqueue.step_verdict;
  end if;
  v_payload := (hwqueue.take_run_signal(p_step.run_id, v_found.settings ->> 'signal',
    p_step.step_no)).payload;
  if v_payload is not null then
    return row('completed', null, null, v_payload, null)::hwqueue.step_verdict;
  end if;
  perform hwqueue.note_event('workflow_wait_timed_out', format('step %s of workflow %s has waited for signal '
      '%s in vain', v_found.name, v_found.workflow, v_found.settings ->> 'signal'),
    jsonb_build_object('run_id', p_step.run_id, 'workflow', v_found.workflow, 'step', v_found.name,
      'signal', v_found.settings ->> 'signal'));
  return row(case v_found.settings ->> 'on_timeout' when 'skip' then 'skipped'
    when 'continue' then 'completed' else 'failed' end, 'timeout', null, null, null)::hwqueue.step_verdict;
end
$$;
