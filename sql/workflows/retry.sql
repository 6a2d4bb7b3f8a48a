-- Runs for people: finding one, retrying what failed, declaring a step done.
--
-- Example: of 40 steps "train" failed and six that come after it were never released. A retry releases train
-- again, under the same lease id, and the others as they become due; 33 results stay.
--
-- Invariant: a retry begins when nothing of the run is open, so nothing of it can change meanwhile. What does
-- not run again has completed, and is counted for the steps that do. What has completed keeps its tally.

-- The record of a run (find_run), with its row locked: settlements go on, other changes of the run wait.
-- Locks: the run. Raises: QHF03, QHA02.
create or replace function hwqueue.lock_run(p_run uuid) returns hwqueue.run
language plpgsql volatile
as $$
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate'), hwqueue.find_run(p_run);
  perform pg_current_xact_id();  -- before the clock is read: reap_cursor relies on it
  perform 1 from hwqueue.run r where r.run_id = p_run for no key update;
  return hwqueue.find_run(p_run);
end
$$;

-- Locks steps before an operator changes them, and returns them as they are then. Waits up to five seconds
-- (or lock_timeout) for a settlement that has released one and is still open. p_name: of the only one, else
-- null.
-- Locks: the tallies of their items, so that nobody else spawns any; the steps. Raises: QHL09.
create or replace function hwqueue.hold_steps(p_run uuid, p_steps int[], p_name text) returns hwqueue.step[]
language plpgsql volatile
as $$
declare
  v_wait text := current_setting('lock_timeout');
  v_map int;
  v_steps hwqueue.step[];
begin
  if v_wait = '0' then
    perform set_config('lock_timeout', '5s', true);
  end if;
  for v_map in
    select distinct t.step_no from hwqueue.tally t
    where t.run_id = p_run and t.step_no = any (p_steps) and t.part > 0 order by 1 loop
    loop
      perform 1 from hwqueue.tally t
      where t.run_id = p_run and t.step_no = v_map and t.part > 0 for no key update;
      exit when hwqueue.hold_items(p_run, v_map) is not null or not exists (
        select from hwqueue.tally t where t.run_id = p_run and t.step_no = v_map and t.part > 0);
    end loop;  -- the one that this session waited for was renewed
  end loop;
  v_steps := array(
    select s from hwqueue.step s
    where s.run_id = p_run and s.step_no = any (p_steps)
    order by s.step_no for no key update);
  perform set_config('lock_timeout', v_wait, true);
  return v_steps;
exception
  when lock_not_available then
    perform hwqueue.refuse('QHL09', format('%s is busy: another session holds it',
        coalesce('step ' || to_json(p_name), 'a step of run ' || p_run)),
      jsonb_build_object('run_id', p_run, 'step', p_name),
      'nothing was done; call again. A transaction that was left open holds it, one that has completed a '
      'step before it, say');
end
$$;

-- Refuses a call for a run that is in another state.
-- Raises: QHF04, always.
create or replace function hwqueue.refuse_run_state(p_run hwqueue.run, p_hint text) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.refuse('QHF04', format('run %s is %s', p_run.run_id, p_run.state),
    jsonb_build_object('run_id', p_run.run_id, 'state', p_run.state), p_hint);
end $$;

-- Returns those of some changes that decide where a lease runs, or make its class.
create or replace function hwqueue.class_changes(p_changes jsonb) returns text[]
language plpgsql immutable parallel safe
as $$ begin return
  array(select k from unnest(array['placement', 'wire', 'labels', 'queue']) k where p_changes ? k);
end $$;

-- Reads the options of a retry, and returns the steps that it runs again.
-- Raises: QHF04 for a run that has not ended or has nothing to retry, QHF06, QHA01.
create or replace function hwqueue.read_retry(p_run hwqueue.run, p_options jsonb) returns int[]
language plpgsql volatile
as $$
declare
  v_mode text;
  v_named int[];
begin
  perform hwqueue.check_object(p_options, array['mode', 'steps', 'input'], 'options');
  v_mode := hwqueue.json_choice(p_options -> 'mode', 'options.mode',
    array['failed', 'failed_and_downstream', 'all']);
  if p_options ? 'steps' and v_mode is not null or p_options ? 'input' and v_mode is distinct from 'all' then
    perform hwqueue.refuse('QHA01', case when p_options ? 'input' then 'options.input needs mode all'
        else 'options has both mode and steps' end,
      jsonb_build_object('field', case when p_options ? 'input' then 'options.input'
        else 'options.steps' end),
      'for example {"steps": ["train"]}, or {"mode": "all", "input": {...}}');
  end if;
  if p_run.finished_at is null then
    perform hwqueue.refuse_run_state(p_run, 'cancel it first, or wait until it has ended');
  elsif exists (  -- its parent waits for it, or has counted its end
    select from hwqueue.run r where r.run_id = p_run.parent_run_id) then
    perform hwqueue.refuse('QHF04', format('run %s is a step of run %s: it cannot be retried by itself',
        p_run.run_id, p_run.parent_run_id),
      jsonb_build_object('run_id', p_run.run_id, 'state', p_run.state, 'parent_run_id', p_run.parent_run_id,
        'root_run_id', p_run.root_run_id),
      format('retry the run that was submitted: select hwqueue.retry_workflow_run(p_run => ''%s'')',
        p_run.root_run_id));
  end if;
  v_named := hwqueue.named_steps(p_run, p_options -> 'steps', 'options.steps');
  if p_run.state = 'completed' and v_named = '{}' and v_mode is distinct from 'all' then
    perform hwqueue.refuse_run_state(p_run, 'nothing has failed: name steps, or give mode all');
  end if;
  return hwqueue.retried_steps(p_run,
    case when v_named <> '{}' then 'failed_and_downstream' else coalesce(v_mode, 'failed') end, v_named);
end
$$;

-- Returns the steps that a retry runs again. Mode failed_and_downstream: those that have not completed, and
-- all that come after them, by whatever edge, completed or not. failed: the same, but a join `any` that has
-- completed stays, with what comes after it alone. all: every step. p_named: these count as not completed, in
-- mode failed_and_downstream. Finally steps run once in each attempt.
create or replace function hwqueue.retried_steps(p_run hwqueue.run, p_mode text, p_named int[]) returns int[]
language plpgsql volatile
as $$
declare
  v_steps int[] := array(
    select s.step_no
    from hwqueue.step s
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.runs_at_end from hwqueue.workflow_step x
      where x.workflow_id = p_run.workflow_id and x.step_no = s.step_no offset 0) d
    where s.run_id = p_run.run_id
      and (p_mode = 'all' or s.state <> 'completed' or d.runs_at_end is not null
        or s.step_no = any (p_named)));
begin
  return array(
    with recursive again as (
      select n as step_no from unnest(v_steps) n
      union
      select e.to_no
      from again a
      cross join lateral (
        select unnest(x.children) as to_no from hwqueue.workflow_step x
        where x.workflow_id = p_run.workflow_id and x.step_no = a.step_no offset 0) e
      cross join lateral (
        select x.is_any from hwqueue.workflow_step x
        where x.workflow_id = p_run.workflow_id and x.step_no = e.to_no
        offset 0) d
      where p_mode <> 'failed' or not d.is_any)
    select a.step_no from again a order by 1);
end
$$;

-- Makes steps of a run that has ended wait again, and begins its next attempt with what is due. p_mode: of
-- their nested runs, failed or all. p_input: null: as it was.
-- Maps among the steps begin as if for the first time that are in p_whole, or one of whose parents runs
-- again, because their list may be another one. Of other maps only items run again that have not completed.
-- The same holds for tasks that have added items, and for their own leases.
-- Locks: the caller holds the run. Not idempotent. Wakes: waiting workers.
create or replace function hwqueue.reset_run(p_run hwqueue.run, p_steps int[], p_whole int[], p_mode text,
  p_input jsonb, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_run hwqueue.run;
  v_due record;
  v_maps int[] := array(
    select m.step_no from hwqueue.map m where m.run_id = p_run.run_id and m.step_no = any (p_steps)
      and (m.step_no = any (p_whole) or exists (
        select from hwqueue.workflow_step d
        where d.workflow_id = p_run.workflow_id and d.step_no = m.step_no and d.parents && p_steps)));
begin
  if v_maps <> '{}' then
    delete from hwqueue.map_list c where c.run_id = p_run.run_id and c.step_no = any (v_maps);
    delete from hwqueue.map m where m.run_id = p_run.run_id and m.step_no = any (v_maps);
    delete from hwqueue.added a where a.run_id = p_run.run_id and a.step_no = any (v_maps);
    update hwqueue.lease l set item_no = null
    where l.run_id = p_run.run_id and l.step_no = any (v_maps) and l.item_no = -1;
  end if;
  -- roll_up may not have counted its end yet
  insert into hwqueue.undone_end (workflow_id, workflow, state, submitted_at, finished_at, xid)
  values (p_run.workflow_id, p_run.name, p_run.state, p_run.submitted_at, p_run.finished_at,
    (select r.xmin from hwqueue.run r where r.run_id = p_run.run_id));
  update hwqueue.run r
  set state = 'running', reason = null, detail = null, stops = false, is_finishing = false,
    attempt = r.attempt + 1, deadline = null, result = null, finished_at = null, prune_at = null,
    input = coalesce(p_input, r.input), parent_attempt = (
      select n.attempt from hwqueue.run n where n.run_id = r.parent_run_id),
    policy = r.policy - 'available_at' || jsonb_build_object('retry_mode', p_mode)
  where r.run_id = p_run.run_id returning r.* into v_run;
  delete from hwqueue.arrival a where a.run_id = p_run.run_id;
  update hwqueue.step s
  set state = 'waiting', reason = null, error = null, result = null, due_at = null, began_at = null,
    ended_at = null, traceparent = null
  where s.run_id = p_run.run_id and s.step_no = any (p_steps);
  update hwqueue.tally t set need = 0, arrived = 0, failed = 0
  where t.run_id = p_run.run_id and t.step_no = 0 and t.part = 0;
  with due as (  -- by the parents that have completed
    select d.step_no, k.arrived, k.unmet, case when d.is_any and k.arrived > k.unmet then true
        when k.arrived = d.parent_count then k.unmet = 0 end as begins
    from hwqueue.workflow_step d
    cross join lateral (
      select count(*) as arrived, count(*) filter (where not hwqueue.edge_holds(
               x.wants[array_position(x.children, d.step_no)], 'completed')) as unmet
      from unnest(d.parents) e(step_no)
      -- fences (offset 0): by key, whatever the statistics say
      cross join lateral (
        select from hwqueue.step y
        where y.run_id = p_run.run_id and y.step_no = e.step_no and y.state = 'completed' offset 0) s
      cross join lateral (
        select y.children, y.wants from hwqueue.workflow_step y
        where y.workflow_id = p_run.workflow_id and y.step_no = e.step_no offset 0) x) k
    where d.workflow_id = p_run.workflow_id and d.step_no = any (p_steps) and d.runs_at_end is null
  ), counted as (
    update hwqueue.tally t
    set arrived = u.arrived, unmet = u.unmet, failed = 0, skipped = 0, is_decided = u.begins is not null
    from due u
    cross join lateral (
      select x.ctid as row_ctid from hwqueue.tally x
      where x.run_id = p_run.run_id and x.step_no = u.step_no and x.part = 0 for no key update offset 0) k
    where t.ctid = k.row_ctid
  )
  select coalesce(array_agg(u.step_no) filter (where u.begins), '{}') as released,
         coalesce(array_agg(u.step_no) filter (where not u.begins), '{}') as skipped
  into v_due from due u;
  perform hwqueue.advance_run(v_run, hwqueue.new_progress(p_released => v_due.released,
    p_skipped => v_due.skipped, p_reasons => array_fill('parent_completed'::text,
      array[cardinality(v_due.skipped)]), p_most => 5000), 0, true, p_now);
end
$$;
