-- Sending signals: each goes to a wait that is open, or is kept until one begins.
--
-- signal_workflow_run calls offer_signal, workflows/advance calls deliver_signal for what a sender had to
-- leave. Example: a click sends "approved" while another session just releases the wait.
-- The sender finds no open step and leaves an arrival; the next sweep hands the signal to the wait.
--
-- Read offer_signal, then deliver_signal; workflows/signals has the other side.

-- Offers a new signal to the steps that wait for its name, open ones first. Those that are not open get an
-- arrival: one may begin before this transaction commits, of a retry one that has ended, too.
-- Locks: the open steps, skip locked: where another session holds one, an arrival is left; then as step_over.
-- Wakes: waiting workers.
create or replace function hwqueue.offer_signal(p_run hwqueue.run, p_signal bigint, p_name text) returns void
language plpgsql volatile
as $$
declare
  v_step record;
begin
  for v_step in
    select s.step_no, s.state
    from hwqueue.workflow_step d
    cross join lateral (
      select x.step_no, x.state from hwqueue.step x
      where x.run_id = p_run.run_id and x.step_no = d.step_no offset 0) s
    where d.workflow_id = p_run.workflow_id and d.kind = 'wait' and d.settings ->> 'signal' = p_name
    order by s.state <> 'running', s.step_no
  loop
    if v_step.state <> 'running'
      or hwqueue.deliver_signal(p_run.run_id, v_step.step_no, p_name, false) is null then
      perform hwqueue.leave_arrivals(p_run.run_id, array[v_step.step_no], 'signal', '{}', hwqueue.clock());
    end if;
    exit when not exists (
      select from hwqueue.run_signal s
      where s.run_id = p_run.run_id and s.signal_id = p_signal and s.taken_by is null);
  end loop;
end
$$;

-- Hands a wait that is open its oldest signal. Returns whether it did, and null when another session holds
-- the step.
-- Locks: the step and the signal, skip locked; then as step_over. Wakes: waiting workers.
create or replace function hwqueue.deliver_signal(p_run uuid, p_step int, p_name text, p_is_short boolean)
returns boolean
language plpgsql volatile
as $$
declare
  v_state text;
  v_taken record;
begin
  select s.state into v_state from hwqueue.step s
  where s.run_id = p_run and s.step_no = p_step for no key update skip locked;
  if not found then
    return null;
  elsif v_state <> 'running' then
    return false;
  end if;
  -- statements of their own, after the lock: they see what has been sent until then
  v_taken := hwqueue.take_run_signal(p_run, p_name, p_step);
  if v_taken.payload is null then
    return case when not v_taken.is_held then false end;
  end if;
  return hwqueue.step_over(p_run, p_step, row('completed', null, null, v_taken.payload, null), p_is_short,
    hwqueue.clock());
end
$$;

-- Works off the arrivals of kind signal of a step, and returns 0: what it releases comes after a wait.
-- Locks: the arrivals, skip locked; as deliver_signal. Wakes: waiting workers.
create or replace function hwqueue.sweep_signal(p_run uuid, p_step int) returns int
language plpgsql volatile
as $$
declare
  v_arrivals bigint[];
  v_name text := (
    select d.settings ->> 'signal'
    from hwqueue.run r
    join hwqueue.workflow_step d on d.workflow_id = r.workflow_id
    where r.run_id = p_run and d.step_no = p_step);
begin
  v_arrivals := array(
    select a.arrival_id from hwqueue.arrival a
    where a.run_id = p_run and a.step_no = p_step and a.kind = 'signal'
    for update skip locked);
  if v_arrivals <> '{}'
    and hwqueue.deliver_signal(p_run, p_step, v_name, true) is not null then
    delete from hwqueue.arrival a where a.arrival_id = any (v_arrivals);
  end if;
  return 0;
end
$$;
