-- Public: reading and changing runs of workflows.
--
-- An example: a run of "training" has failed at the step train. list_workflow_steps shows the error,
-- retry_workflow_run releases train again under the same lease id; what had completed stays.
--
-- Invariant: a change of a run locks its row, and settlements never wait for that. What a settlement did at
-- the same time is caught up with by advance_workflows.

-- One run. step_counts: {state: number of steps}. reason and detail: why it does not run, or did not
-- complete. attempt: from 1; each retry adds one. parent_run_id: the run whose step this is, null for one
-- that was submitted; root_run_id: the submitted run above it, or itself. idempotency_key: or its unique
-- key, which goes when it ends.
-- Raises: QHF03.
create or replace function hwqueue.get_workflow_run(p_run uuid)
returns table (run_id uuid, workflow text, version int, state text, reason text, detail jsonb,
  tenant text, labels jsonb, headers jsonb, priority smallint, input jsonb, result jsonb, attempt int,
  deadline timestamptz, submitted_at timestamptz, finished_at timestamptz, step_counts jsonb,
  parent_run_id uuid, root_run_id uuid, idempotency_key text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$ begin
  return query
    select r.run_id, r.name, w.version, r.state, r.reason, r.detail, r.tenant, r.labels,
      r.headers, r.priority, r.input, r.result, r.attempt, r.deadline, r.submitted_at, r.finished_at,
      hwqueue.count_steps(r), r.parent_run_id, r.root_run_id,
      (select k.idempotency_key from hwqueue.run_key k
       where k.run_id = p_run limit 1)
    from hwqueue.find_run(p_run) r
    join hwqueue.workflow w on w.workflow_id = r.workflow_id;
end $$;

-- Lists runs, newest first by id, a page at a time: pass the last run_id of a page as p_before of the next.
-- p_filter: {"workflow", "state", "tenant", "labels", "submitted_from", "submitted_before", "parent_run_id",
-- "root_run_id", "is_nested"}, all of them optional. "tenant": "" means those without one. parent_run_id: the
-- runs that are steps of this one; root_run_id: and those below them. p_limit: from 1 to 10,000. A filter
-- that few of many runs meet reads the many.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_workflow_runs(p_filter jsonb default '{}', p_limit int default 50,
  p_before uuid default null)
returns table (run_id uuid, workflow text, version int, state text, reason text, tenant text,
  labels jsonb, attempt int, submitted_at timestamptz, finished_at timestamptz, parent_run_id uuid,
  root_run_id uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  -- planned each time: a filter that is not given must not be in the plan
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_filter record;
  v_tenants text[] := hwqueue.my_tenants();
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_before');
  select f.* into v_filter
  from jsonb_to_record(hwqueue.read_object(p_filter, 'runs', 'filter', p_now => hwqueue.clock()))
    f(workflow text, state text, tenant text, labels jsonb, submitted_from timestamptz,
      submitted_before timestamptz, parent_run_id uuid, root_run_id uuid, is_nested boolean);
  if v_filter.tenant <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('filter.tenant is %s', to_json(v_filter.tenant)), 'filter.tenant',
      'leave out filter.tenant');
  end if;
  return query
    select r.run_id, r.name, w.version, r.state, r.reason, r.tenant, r.labels, r.attempt,
      r.submitted_at, r.finished_at, r.parent_run_id, r.root_run_id
    from hwqueue.run r
    join hwqueue.workflow w on w.workflow_id = r.workflow_id
    where (p_before is null or r.run_id < p_before)
      and (v_filter.workflow is null or r.name = v_filter.workflow)
      and (v_filter.state is null or r.state = v_filter.state)
      and (v_filter.tenant is null or r.tenant = v_filter.tenant)
      and (v_tenants is null or r.tenant = any (v_tenants))
      and (coalesce(v_filter.labels, '{}') = '{}' or r.labels @> v_filter.labels)
      and (v_filter.submitted_from is null or r.submitted_at >= v_filter.submitted_from)
      and (v_filter.submitted_before is null or r.submitted_at < v_filter.submitted_before)
      and (v_filter.parent_run_id is null or r.parent_run_id = v_filter.parent_run_id)
      and (v_filter.root_run_id is null
        or r.root_run_id = v_filter.root_run_id and r.parent_run_id is not null)
      and (v_filter.is_nested is null or (r.parent_run_id is not null) = v_filter.is_nested)
    order by r.run_id desc limit p_limit;
end
$$;

-- The steps of a run in topological order. state: waiting (with the reason run_paused: due, and held while
-- its run is paused), running (its lease waits or runs), completed, failed, cancelled or skipped (its run
-- goes past it; after skip_step a step is completed instead). lease_id: null until the step is released.
-- lease_state, node_id, result and error: of its lease; an operator's skip_step may have set the result.
-- waits_for: parents that have not ended. placement: what its lease asks. came_from: the same keys, with the
-- levels that ask for each part, as in check_workflow, or "near train -> rack 7"; a part that none of them
-- asks any more came from its task. kind: task, map, gang, sleep, wait or workflow; due_at: when a sleep
-- ends or a wait times out; headline: what it waits for, in words, where it is no task. items: the length of
-- a map's list, the size of a gang, or how many items a step has added to itself (add_items); items_done,
-- items_failed: how many have ended, and how many of these failed. nested_run_id: the run that a step of
-- kind workflow is, null until it begins, and when it is pruned. gang_id: the gang that a step of kind gang
-- is, likewise; explain_gang says why it waits.
-- Raises: QHF03.
create or replace function hwqueue.list_workflow_steps(p_run uuid)
returns table (step_no int, step text, state text, reason text, task_name text, queue text, placement jsonb,
  lease_id uuid, lease_state text, node_id uuid, attempt smallint, result jsonb, error jsonb,
  ended_at timestamptz, waits_for text[], came_from jsonb, kind text, due_at timestamptz,
  headline text, items int, items_done int, items_failed int, nested_run_id uuid,
  gang_id uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_run hwqueue.run := hwqueue.find_run(p_run);
  v_origins jsonb := hwqueue.listed_origins(v_run);
begin
  return query
    select d.step_no, d.name, hwqueue.shown_state(s.state, v_run),
      case when s.state = 'held' then 'run_paused'
        when s.state = 'waiting' and v_run.finished_at is not null then
          case v_run.state when 'cancelled' then 'cancelled' when 'failed' then 'run_failed'
            else 'not_needed' end
        else s.reason end, d.task_name, q.name, c.placement, l.lease_id, hwqueue.lease_state(l.lease_id),
      coalesce(k.node_id, o.node_id, l.node_id), coalesce(k.attempt, o.attempt, l.attempt_count),
      hwqueue.step_result(s, o.result), hwqueue.step_error(s, o.error), s.ended_at,
      case when s.state = 'waiting' then array(  -- fences (offset 0): as below
          select f.name
          from unnest(d.parents) p(step_no)
          cross join lateral (
            select from hwqueue.step x
            where x.run_id = p_run and x.step_no = p.step_no
              and x.state in ('waiting', 'held', 'running') offset 0) o
          cross join lateral (
            select x.name from hwqueue.workflow_step x
            where x.workflow_id = v_run.workflow_id and x.step_no = p.step_no offset 0) f
          order by p.step_no) else '{}' end,
      v_origins -> d.step_no::text, d.kind, s.due_at,
      case when s.state <> 'running' then null
        when d.kind = 'sleep' then 'sleeps until ' || u.due
        when d.kind = 'wait' then concat('waits for signal ', d.settings ->> 'signal', ' until ' || u.due)
        when d.kind = 'workflow' then
          case when n.run_id is null then 'is about to submit a run'
            when n.parent_attempt < v_run.attempt then 'is about to retry its run'
            else 'waits for a run' end || ' of workflow ' || (d.settings ->> 'workflow')
        when d.kind = 'gang' and g.gang_id is null then 'is about to spawn its gang'
        else coalesce((
          select case when w.state = 'reserved'
              then format('its nodes have yet to fetch the members of gang %s', w.gang_id)
            when w.state <> 'running' then hwqueue.team_words(null, w.gang_id, hwqueue.clock()) end
          from hwqueue.gang w
          where w.gang_id = g.gang_id and w.finished_at is null), case when i.items > 0 then
          concat(i.items_done, ' of ', i.items, case d.kind when 'gang' then ' members' else ' items' end,
            ' have ended', case when i.items_failed > 0
              then concat(', ', i.items_failed, ' of them failed') end) end) end,
      i.items, i.items_done, i.items_failed, n.run_id, g.gang_id
    from hwqueue.workflow_step d
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.* from hwqueue.step x
      where x.run_id = p_run and x.step_no = d.step_no offset 0) s
    left join hwqueue.queue q on q.queue_id = s.queue_id
    left join lateral (
      select x.placement from hwqueue.placement_class x
      where x.class_id = s.class_id offset 0) c on true
    left join hwqueue.lease l on l.lease_id = s.lease_id
    left join hwqueue.claim k on k.lease_id = l.lease_id
    left join hwqueue.outcome o on o.lease_id = l.lease_id
    left join lateral (  -- the own lease of a task that has items is none of them, but counted with them
      select m.items, (t.arrived + coalesce(a.arrived, 0))::int
               + case when d.kind = 'task' and o.state is null then 1 else 0 end as items_done,
             (t.failed + t.skipped + coalesce(a.failed, 0))::int
               - case when d.kind = 'task' and o.state <> 'completed' then 1 else 0 end as items_failed
      from (
        select x.items from hwqueue.map x
        where x.run_id = p_run and x.step_no = d.step_no offset 0) m
      cross join lateral (
        select x.arrived, x.failed, x.skipped from hwqueue.tally x
        where x.run_id = p_run and x.step_no = d.step_no and x.part > 0 offset 0) t
      cross join lateral (
        select sum(x.arrived) as arrived, sum(x.failed + x.skipped) as failed from hwqueue.arrival x
        where x.run_id = p_run and x.step_no = d.step_no and x.kind = 'item') a) i
      on d.kind in ('map', 'gang') or l.item_no is not null
    cross join lateral (
      select to_char(s.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as due) u
    left join lateral (select hwqueue.gang_of_step(p_run, d.step_no) as gang_id) g
      on d.kind = 'gang'
    left join lateral (
      select x.run_id, x.parent_attempt from hwqueue.nested_run(p_run, d.step_no) x
      where d.kind = 'workflow' offset 0) n on true
    where d.workflow_id = v_run.workflow_id
    order by d.step_no;
end
$$;

-- Cancels a run, and returns its state: steps that wait for others are never released, leases that wait are
-- cancelled, running ones are asked to stop. It is cancelled when they have ended and the finally steps for
-- that case have run. Cancelling a cancelled run changes nothing.
-- Locks: the run; steps, entries and claims, skip locked. Raises: QHF03, QHF04, QHA01, QHA02. Idempotent.
create or replace function hwqueue.cancel_workflow_run(p_run uuid, p_reason text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run;
begin
  perform hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  v_run := hwqueue.lock_run(p_run);
  if v_run.state in ('cancelling', 'cancelled') then
    return v_run.state;
  elsif v_run.finished_at is not null then
    perform hwqueue.refuse_run_state(v_run, 'a run that has ended cannot be cancelled');
  end if;
  perform hwqueue.cancel_run(v_run, p_reason);
  return (hwqueue.find_run(p_run)).state;
end
$$;

-- Pauses a run, and returns its state: steps that become due are held, those that run go on. So do those
-- whose leases wait, also for the time from which the run was submitted (available_at). A nested run that is
-- paused because its parent is stays so, from then on, when that goes on.
-- Locks: the run. Raises: QHF03, QHF04, QHA02. Idempotent.
create or replace function hwqueue.pause_workflow_run(p_run uuid) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run := hwqueue.lock_run(p_run);
begin
  if v_run.state = 'running' or v_run.state = 'paused' and v_run.reason = 'parent_paused' then
    perform hwqueue.set_run_state(p_run, 'paused', 'paused',
      jsonb_build_object('by', hwqueue.current_actor()));
    perform hwqueue.note_event('workflow_run_paused', format('run of workflow %s is paused', v_run.name),
      jsonb_build_object('run_id', p_run, 'workflow', v_run.name));
  elsif v_run.state <> 'paused' then
    perform hwqueue.refuse_run_state(v_run, 'only a running run can be paused');
  end if;
  return 'paused';
end
$$;

-- Lets a paused run go on, and returns its state. Steps that were held are released.
-- Locks: the run; as advance_workflows. Raises: QHF03, QHF04, QHA02. Idempotent. Wakes: waiting workers.
create or replace function hwqueue.resume_workflow_run(p_run uuid) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run := hwqueue.lock_run(p_run);
begin
  if v_run.state = 'paused' then
    perform hwqueue.set_run_state(p_run, 'running');
    perform hwqueue.note_event('workflow_run_resumed', format('run of workflow %s goes on', v_run.name),
      jsonb_build_object('run_id', p_run, 'workflow', v_run.name));
    perform hwqueue.apply_state(p_run, hwqueue.clock());
  elsif v_run.state <> 'running' then
    perform hwqueue.refuse_run_state(v_run, 'only a paused run can be resumed');
  end if;
  return 'running';
end
$$;

-- Hands over runs that have ended and whose submission was traced: a worker with a tracer provider sends a
-- span of each. One end is handed over once. state: completed, failed, cancelled; attempt: a retried run has
-- ended more than once; traceparent: W3C trace context of the submission.
-- Locks: what it takes, skip locked. Raises: QHA01, QHA02. Not idempotent.
create or replace function hwqueue.take_ended_runs(p_limit int default 100)
returns table (run_id uuid, workflow text, attempt int, state text, reason text,
  traceparent text, submitted_at timestamptz, finished_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again for more'),
    hwqueue.require_read_committed();
  return query
    delete from hwqueue.traced_run t where t.ctid = any (array(
      select x.ctid from hwqueue.traced_run x limit p_limit
      for update skip locked))
    returning t.run_id, t.workflow, t.attempt, t.state, t.reason, t.traceparent, t.submitted_at,
      t.finished_at;
end
$$;

-- Runs steps of a run that has ended again, and returns its state. Their leases keep their ids, with
-- attempts counted from 0; results of other steps stay. A deadline of the run is over, and so is the time
-- from which it was submitted.
-- p_options: {"mode", "steps", "input"}. mode: failed_and_downstream: steps that have not completed, and all
-- that come after them, completed or not; failed, the default: the same, but a join `any` that has completed
-- stays; all: every step. Finally steps run again in each mode. steps: names, instead of a mode: these, those
-- that have not completed, and all that come after them. input: only with mode all.
-- Locks: the run; its unique key; a row of tenant_work and outcomes, skip locked. Raises: QHF03, QHF04,
-- QHF06, QHT02 if another run has its unique key, QHT03 if the tenant's open runs have too many steps,
-- QHA01, QHA02. Not idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.retry_workflow_run(p_run uuid, p_options jsonb default '{}') returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run := hwqueue.lock_run(p_run);
  v_steps int[] := hwqueue.read_retry(v_run, p_options);
  v_count int := (select count(*) from hwqueue.step s where s.run_id = p_run);
begin
  if v_run.policy ? 'unique' then
    perform hwqueue.take_run_key(v_run, v_run.policy ->> 'unique', null, 'raise');
  end if;
  perform hwqueue.admit_work(v_run.tenant, v_count, 0);
  perform hwqueue.note_event('workflow_run_retried',
    format('run of workflow %s is retried: %s steps', v_run.name, cardinality(v_steps)),
    jsonb_build_object('run_id', p_run, 'workflow', v_run.name, 'from', v_run.state,
      'steps', cardinality(v_steps)));
  perform hwqueue.reset_run(v_run, v_steps, case when p_options ->> 'mode' = 'all' then v_steps
      else hwqueue.named_steps(v_run, p_options -> 'steps', 'options.steps') end,
    case p_options ->> 'mode' when 'all' then 'all' else 'failed' end,
    hwqueue.check_payload(p_options -> 'input', 'options.input', 1048576), hwqueue.clock());
  return (hwqueue.find_run(p_run)).state;
end
$$;

-- Changes where steps of a run may run that were not released, and returns them as list_workflow_steps shows
-- them. A step that was released keeps its placement, and so does an item that was spawned: of a map that has
-- begun the items that are not spawned yet get another one. Nested runs that are submitted are updated by
-- themselves; one that is not submitted yet begins with the update. changed: this call changed what it asks.
--
-- p_changes: {"affinity_tags", "placement", "wire", "affinity": and|override|replace, "app_version"}. The
-- first four are one more level of the step's placement, which affinity compares with all that the step asked
-- at submission, as it does for a submission. They take the place of those of a former update, whichever of
-- them is given; {"affinity": "and"} alone takes these away. app_version: the version of the code that the
-- steps are pinned to; null: none. p_steps: names; null: all that were not released.
--
-- Locks: the run; tallies of items; the steps; new classes. It waits up to five seconds (or lock_timeout) for
-- a settlement that has released one of the steps and is still open. Raises: QHF03, QHF04 for a run that has
-- ended, or a step that is named and was released, QHF06, QHL09, QHC03, QHC04 naming both sides, QHW01,
-- QHF02, QHQ01, QHT03 of new classes, QHA01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.update_steps(p_run uuid, p_changes jsonb, p_steps text[] default null)
returns table (step_no int, step text, kind text, state text, changed boolean, placement jsonb,
  came_from jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run := hwqueue.lock_run(p_run);
  v_call record := hwqueue.read_update_call(v_run, p_changes, p_steps);
  v_workflow hwqueue.workflow := (select w from hwqueue.workflow w where w.workflow_id = v_run.workflow_id);
  v_specs jsonb[] := array(select jsonb_array_elements(v_workflow.steps));
  v_due int[] := hwqueue.hold_updatable(v_run, v_call.named);
  v_changed int[] := '{}';
  v_group record;
  v_class bigint;
  v_near record;
  v_bad jsonb;
begin
  for v_group in select g.* from hwqueue.update_groups(v_run, v_due, v_call.changes) g loop
    v_class := ((hwqueue.step_class(v_workflow.settings, v_run, v_specs[v_group.steps[1]], v_group.content,
      false)).class).class_id;
    continue when (v_class, v_group.own) is not distinct from (v_group.class_id, v_group.former);
    perform hwqueue.admit_tenant(v_run.tenant, v_class, hwqueue.clock(), '{classes}');
    v_changed := v_changed || v_group.steps;
    update hwqueue.step s set class_id = v_class, own = v_group.own
    where s.run_id = p_run and s.step_no = any (v_group.steps);
    -- the items that maps have left are near the steps again that they were near, after their class was
    -- changed; a step that waits is near others when it is released
    for v_near in
      select d.step_no, d.name, d.near
      from hwqueue.step s
      join hwqueue.workflow_step d on d.workflow_id = v_run.workflow_id and d.step_no = s.step_no
      where s.run_id = p_run and s.step_no = any (v_group.steps)
        and s.state = 'running' and d.near is not null and not d.near ? 'match'
      order by s.step_no
    loop
      v_bad := (hwqueue.near_class(v_run, v_near.step_no, v_near.near, hwqueue.clock())).bad;
      if v_bad is not null then
        perform hwqueue.refuse('QHC04', format('the items of step %s are near other steps, which the update '
            'does not allow: %s', to_json(v_near.name), coalesce(v_bad ->> 'message', v_bad ->> 'reason')),
          jsonb_build_object('step', v_near.name, 'field', 'changes', 'level', '["near", "update"]'::jsonb,
            'left', v_bad -> 'places'),
          'ask for something that the place has, or leave the step out');
      end if;
    end loop;
    insert into hwqueue.run_class (class_id, run_id)
    select distinct s.class_id, p_run from hwqueue.step s
    where s.run_id = p_run and s.step_no = any (v_group.steps) and s.class_id is not null
    on conflict do nothing;
  end loop;
  if v_changed <> '{}' then
    perform hwqueue.note_event('workflow_run_updated',
      format('run of workflow %s is updated: %s steps', v_run.name, cardinality(v_changed)),
      jsonb_build_object('run_id', p_run, 'workflow', v_run.name, 'steps', cardinality(v_changed),
        'changes', (select jsonb_agg(k order by k) from jsonb_object_keys(p_changes) k)));
  end if;
  return query
    select l.step_no, l.step, l.kind, l.state, l.step_no = any (v_changed), l.placement, l.came_from
    from hwqueue.list_workflow_steps(p_run) l
    where l.step_no = any (v_due) order by l.step_no;
end
$$;

-- Declares a step completed that waits or sleeps, with a result that others may bind, and returns the run's
-- state. The step's state is completed, its reason operator; the state skipped, of steps that their run goes
-- past by itself, is another thing. Its lease is cancelled if it
-- waits for a node; a claimed one is refused. A nested run is cancelled. Parents that have not ended are
-- counted as before, and what they decide finds a step that has ended. So the step's own tally is left alone:
-- an open settlement may hold it.
-- Locks: the run, the step, the entry; then as advance_workflows. It waits up to five seconds (or
-- lock_timeout) for a settlement that has released the step and is still open. Raises: QHF03, QHF04, QHF06,
-- QHL07, QHL09, QHA01, QHA02. Not idempotent. Wakes: waiting workers.
create or replace function hwqueue.skip_step(p_run uuid, p_step text, p_result jsonb default null,
  p_reason text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run;
  v_no int;
  v_step hwqueue.step;
  v_open uuid[];
  v_taken uuid[] := '{}';
  v_now timestamptz;
begin
  perform hwqueue.check_payload(p_result, 'p_result', 1048576),
    hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  v_run := hwqueue.lock_run(p_run);
  if v_run.finished_at is not null or v_run.is_finishing then
    perform hwqueue.refuse_run_state(v_run, 'a step can be skipped while its run goes on');
  end if;
  v_no := (hwqueue.named_steps(v_run, jsonb_build_array(p_step), 'p_step'))[1];
  v_step := (hwqueue.hold_steps(p_run, array[v_no], p_step))[1];
  if v_step.state not in ('waiting', 'held', 'running') then
    perform hwqueue.refuse('QHF04', format('step %s is %s', to_json(p_step), v_step.state),
      jsonb_build_object('run_id', p_run, 'step', p_step, 'state', v_step.state),
      'only a step that has not ended can be skipped');
  elsif v_step.state = 'running' then
    v_open := array(  -- its lease, or those of its items
      select l.lease_id from hwqueue.lease l
      where l.run_id = p_run and l.step_no = v_no and l.item_no is not null
        and not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id)
      union all
      select l.lease_id from hwqueue.lease l where l.lease_id = v_step.lease_id and l.item_no is null);
    if v_open <> '{}' then
      v_taken := hwqueue.cancel_waiting(v_open, '{"reason": "cancelled", "detail": "its step was declared '
        'completed"}', 'cancelled: its step was declared completed', p_follows => true);
    end if;
    if cardinality(v_taken) < cardinality(v_open) then
      perform hwqueue.refuse('QHL07', format('step %s is claimed, or has just ended', to_json(p_step)),
        jsonb_build_object('step', p_step, 'lease_id', (
          select o from unnest(v_open) o where o <> all (v_taken) limit 1)),
        'cancel the lease, and skip the step when it has ended');
    end if;
  end if;
  v_now := hwqueue.clock();
  update hwqueue.step s
  set state = 'completed', reason = 'operator', result = nullif(p_result, 'null'), due_at = null,
    ended_at = v_now
  where s.run_id = p_run and s.step_no = v_no;
  perform hwqueue.note_event('workflow_step_skipped', concat_ws(': ', format('step %s of workflow %s is '
      'declared completed', p_step, v_run.name), p_reason),
    jsonb_build_object('run_id', p_run, 'workflow', v_run.name, 'step', p_step));
  perform hwqueue.advance_run(v_run, hwqueue.new_progress(array[v_no], array['completed']),
    case when v_step.state = 'waiting' then 0 else 1 end, false, v_now);
  perform hwqueue.leave_arrivals(n.run_id, array[0], 'nested', '{}', v_now)  -- they are cancelled
  from hwqueue.run n where n.parent_run_id = p_run and n.parent_step_no = v_no;
  return (hwqueue.find_run(p_run)).state;
end
$$;

-- Sends a run a signal, normally inside the caller's own transaction. The step that waits for this name takes
-- it, and its result is the payload. It may come before the wait begins: it is kept until a step takes it,
-- the oldest first, or the run goes. p_payload: at most 1 MiB. p_key: the same name and key reach a run once;
-- created is false for the second. state is the state of the run. A run may be sent at most 1,000 signals.
-- Locks: its key; the run, for key share; the steps that wait for it, skip locked. Raises: QHF03, QHF04 for a
-- run that has ended, QHF06 for a name that no step waits for, QHA01, QHA02. Idempotent: with a p_key. Wakes:
-- waiting workers.
create or replace function hwqueue.signal_workflow_run(p_run uuid, p_name text,
  p_payload jsonb default 'null', p_key text default null) returns table (created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_run hwqueue.run;
  v_names text[];
  v_id bigint;
  v_step record;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate'),
    hwqueue.check_step_name(p_name, 'p_name'), hwqueue.json_text(to_jsonb(p_key), 'p_key', 255),
    hwqueue.check_payload(p_payload, 'p_payload', 1048576), hwqueue.find_run(p_run);
  perform pg_current_xact_id();  -- before the clock is read: reap_cursor relies on it
  perform 1 from hwqueue.run r where r.run_id = p_run for key share;
  v_run := hwqueue.find_run(p_run);
  created := not exists (
    select from hwqueue.run_signal s where s.run_id = p_run and s.name = p_name and s.key = p_key);
  if created then
    v_names := array(
      select distinct d.settings ->> 'signal' from hwqueue.workflow_step d
      where d.workflow_id = v_run.workflow_id and d.kind = 'wait' order by 1);
    if v_run.finished_at is not null then
      perform hwqueue.refuse_run_state(v_run, 'a run that has ended takes no signals');
    elsif p_name <> all (v_names) then
      perform hwqueue.refuse('QHF06', format('no step of workflow %s waits for signal %s',
          to_json(v_run.name), to_json(p_name)),
        jsonb_build_object('field', 'p_name', 'workflow', v_run.name), 'its signals are: '
          || left(coalesce(nullif(array_to_string(v_names, ', '), ''), 'none'), 200));
    end if;
    insert into hwqueue.run_signal as s (run_id, name, key, sent_at, payload)
    values (p_run, p_name, p_key, hwqueue.clock(), coalesce(p_payload, 'null'))
    on conflict do nothing returning s.signal_id into v_id;
    created := v_id is not null;
  end if;
  if created then
    -- about as many: sessions that send at once do not count each other's
    if (select count(*) from (
        select from hwqueue.run_signal s
        where s.run_id = p_run limit 1001) x) > 1000 then
      perform hwqueue.refuse('QHA01', format('run %s was sent 1000 signals, no more are kept', p_run),
        jsonb_build_object('field', 'p_name', 'run_id', p_run), 'submit a run for each of them instead');
    end if;
    for v_step in  -- open ones first
      select s.step_no, s.state
      from hwqueue.workflow_step d
      cross join lateral (
        select x.step_no, x.state from hwqueue.step x
        where x.run_id = p_run and x.step_no = d.step_no offset 0) s
      where d.workflow_id = v_run.workflow_id and d.kind = 'wait' and d.settings ->> 'signal' = p_name
      order by s.state <> 'running', s.step_no
    loop
      -- one that is not open may begin before this transaction commits, of a retry one that has ended, too
      if v_step.state <> 'running'
        or hwqueue.deliver_signal(p_run, v_step.step_no, false) is null then
        perform hwqueue.leave_arrivals(p_run, array[v_step.step_no], 'signal', '{}', hwqueue.clock());
      end if;
      exit when not exists (
        select from hwqueue.run_signal s
        where s.run_id = p_run and s.signal_id = v_id and s.taken_by is null);
    end loop;
  end if;
  state := (hwqueue.find_run(p_run)).state;
  return next;
end
$$;

-- Does what settlements of steps had to leave, because another session held a row: releases steps whose last
-- parents ended at the same moment, carries a change of a run's state to its steps. Ends sleeps that are
-- over, opens nested runs, and compares them with their parents. Part of reap; workers that settle steps
-- call it often.
-- folded: tallies, steps and runs it has looked at, p_limit at most (1 to 10,000) and as many steps that were
-- due; released: steps that came after others, items of maps, and nested runs that began or ended; more:
-- call again.
-- Locks: arrivals, tallies, steps and runs, skip locked. Raises: QHA01, QHA02. Wakes: waiting workers.
create or replace function hwqueue.advance_workflows(p_limit int default 200)
returns table (folded int, released int, more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_cursor hwqueue.reap_cursor;
  v_swept record;
  v_due int;
begin
  perform hwqueue.require_read_committed(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'call again for more'),
    set_config('hwqueue.bound_bytes', '', true);  -- each call binds as much
  select m.* into v_cursor from hwqueue.reap_cursor m order by m.version desc limit 1;
  v_swept := hwqueue.sweep_arrivals(p_limit, coalesce(v_cursor.arrivals_from, '-infinity'));
  v_due := hwqueue.end_due_steps(p_limit, coalesce(v_cursor.steps_from, '-infinity'));
  return query
    select v_swept.folded + v_due, v_swept.released,
      v_swept.more or v_due = p_limit or hwqueue.has_bound_enough();
end
$$;
