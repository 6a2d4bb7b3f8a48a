-- Public: what the handler of a step adds to its step.
--
-- Example: "crawl" reads a site and adds an item for each page that it finds. What comes after crawl is
-- released when all these have ended, and its result is what the handler returned. If the worker is killed
-- the next attempt adds the same names again, which changes nothing.
--
-- A task that adds for the first time gets what a map has: a row in map, and a tally of its items. Its own
-- lease becomes item -1, so whatever ends that counts it (workflows/items.begin_adding). From then on
-- workflows/items and workflows/ending do the rest: the window, failures, retries, stops. Added runs are
-- nested (workflows/nested).
--
-- Invariant: what a claim adds is added while it holds the lease, and belongs to the step of that lease. The
-- claim is held until that commits, so its end is counted when what it has added is visible, and the step
-- cannot end between the two. No tally is locked, because a handler's transaction may stay open: an arrival
-- says that the window is to be filled.

-- Adds items to the step whose lease the caller has claimed, and returns them with their numbers: the step
-- ends when its own lease and all its items have ended. p_items: [{"name", "task", "params"}], at most 10,000
-- a call. name: 1 to 200 characters, unique within the step; one that is there already is not added again.
-- task: that of the lease, unless it is given. They have the queue, placement and options of the step. A
-- step has 100,000 items at most. advance_workflows spawns them, within about a second.
-- In the caller's transaction it commits with what the caller has done there. It waits up to five seconds
-- (or lock_timeout) for another session that holds the claim, and for one that adds to the same step.
-- Locks: the claim; the step's row in map. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHF06 for
-- a lease of no run, QHF02 for a member of a gang, QHT01 for a name that has another content, QHF07, QHA01,
-- QHA02. Idempotent.
create or replace function hwqueue.add_items(p_lease uuid, p_token bigint, p_items jsonb)
returns table (name text, item int, created boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_lease hwqueue.lease := hwqueue.hold_step(p_lease, p_token);
  v_most int := (
    select q.max_params_bytes from hwqueue.queue q where q.queue_id = v_lease.queue_id);
  v_given record;
  v_item hwqueue.added := row(v_lease.run_id, v_lease.step_no, null, null, null, null);
  v_items jsonb := hwqueue.json_list(p_items, 'p_items', 10000, 'a list of at most 10000 items',
    'for example [{"name": "page-1", "params": {"url": "..."}}]');
  v_known hwqueue.added;
  v_first int;
  v_next int;
begin
  if v_items = '[]' then
    return;
  end if;
  v_first := (hwqueue.begin_adding(v_lease)).items;
  v_next := v_first;
  for v_given in
    select e.value, format('p_items[%s]', e.ordinality - 1) as field
    from jsonb_array_elements(v_items) with ordinality e
  loop
    perform hwqueue.check_object(v_given.value, array['name', 'task', 'params'], v_given.field);
    v_item.name := hwqueue.json_text(v_given.value -> 'name', v_given.field || '.name', 200);
    if v_item.name is null then
      perform hwqueue.refuse('QHA01', format('%s has no name', v_given.field),
        jsonb_build_object('field', v_given.field || '.name'),
        'name it: a handler that runs again adds each name once');
    end if;
    v_item.task_name := coalesce(hwqueue.json_text(v_given.value -> 'task', v_given.field || '.task', 200),
      v_lease.task_name);
    perform hwqueue.check_name(v_item.task_name, v_given.field || '.task', 200),
      hwqueue.check_payload(v_given.value -> 'params', v_given.field || '.params', v_most);
    v_item.params := coalesce(v_given.value -> 'params', '{}');
    v_item.item_no := v_next;
    select a.* into v_known from hwqueue.added a
    where a.run_id = v_lease.run_id and a.step_no = v_lease.step_no and a.name = v_item.name;
    created := not found;
    if created then
      v_next := v_next + 1;
      insert into hwqueue.added select v_item.*;
    elsif (v_known.task_name, v_known.params) <> (v_item.task_name, v_item.params) then
      perform hwqueue.refuse('QHT01', format('item %s was added with another task or other params',
          to_json(v_item.name)),
        jsonb_build_object('name', v_item.name, 'item', v_known.item_no, 'task', v_known.task_name),
        'use a name for one content only');
    end if;
    name := v_item.name;
    item := coalesce(v_known.item_no, v_item.item_no);
    return next;
  end loop;
  if v_next > 100000 then
    perform hwqueue.refuse('QHF07', format('the step would have %s items', v_next),
      '{"field": "p_items", "limit": 100000}', 'let each item do more');
  elsif v_next > v_first then
    update hwqueue.map m set items = v_next, added = m.added + v_next - v_first
    where m.run_id = v_lease.run_id and m.step_no = v_lease.step_no;
    insert into hwqueue.arrival (run_id, step_no, kind, unmet, at, tenant)
    values (v_lease.run_id, v_lease.step_no, 'item', 1, hwqueue.clock(),
      coalesce(v_lease.tenant, hwqueue.run_tenant(v_lease.run_id)));
  end if;
end
$$;

-- Adds steps to the step whose lease the caller has claimed, and returns the run that they are: the step ends
-- when its own lease and all that was added to it have ended. p_spec: a specification, as for submit_spec.
-- Its name is unique within the step; one that is there already is not added again. The run is nested in that
-- of the lease: it has its input, tenant, headers, priority and deadline, and its steps must meet its
-- placement, too. queue: that of the lease, unless it is given. A step has 1,000 such runs at most.
-- In the caller's transaction it commits with what the caller has done there. It waits as add_items does.
-- Locks: as add_items; new rows. Raises: as add_items and submit_spec; QHF04 when the run of the lease stops.
-- Idempotent. Wakes: waiting workers.
create or replace function hwqueue.add_steps(p_lease uuid, p_token bigint, p_spec jsonb)
returns table (run_id uuid, created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_lease hwqueue.lease := hwqueue.hold_step(p_lease, p_token);
  -- after the claim is held: a change of its state waits for this transaction (apply_state)
  v_run hwqueue.run := (
    select hwqueue.updated_run(r, s.own -> 'update') from hwqueue.run r
    join hwqueue.step s on s.run_id = r.run_id and s.step_no = v_lease.step_no
    where r.run_id = v_lease.run_id);
  v_spec jsonb := hwqueue.read_workflow(case jsonb_typeof(p_spec) when 'object' then jsonb_build_object(
    'queue', (select q.name from hwqueue.queue q
              where q.queue_id = v_lease.queue_id)) || p_spec else p_spec end);
  v_digest bytea := sha256(convert_to(v_spec::text, 'UTF8'));
  v_known record;
  v_since int := (hwqueue.begin_adding(v_lease)).runs_since;
  v_workflow hwqueue.workflow;
begin
  select r.run_id, r.state, w.digest into v_known
  from hwqueue.run r
  join hwqueue.workflow w on w.workflow_id = r.workflow_id
  where r.parent_run_id = v_lease.run_id and r.parent_step_no = v_lease.step_no
    and r.parent_attempt >= v_since and r.name = v_spec ->> 'name';
  created := not found;
  run_id := v_known.run_id;
  state := v_known.state;
  if v_known.digest <> v_digest then
    perform hwqueue.refuse('QHT01', format('steps of the name %s were added with another content',
        v_spec -> 'name'),
      jsonb_build_object('name', v_spec -> 'name', 'run_id', run_id), 'use a name for one content only');
  elsif not created then
    return next;
    return;
  end if;
  if v_run.state in ('failing', 'cancelling') and (not v_run.is_finishing or v_run.stops) then
    perform hwqueue.refuse_run_state(v_run, 'it stops, and adds no steps; a retry runs this one again');
  elsif v_run.depth >= 8 then
    perform hwqueue.refuse('QHF07', format('run %s is eight runs below the one that was submitted',
        v_run.run_id),
      jsonb_build_object('run_id', v_run.run_id, 'limit', 8), 'add items, or steps to a run further up');
  elsif exists (
    select from hwqueue.run r
    where r.parent_run_id is not null and r.root_run_id = v_run.root_run_id offset 9999) then
    perform hwqueue.refuse('QHF07', format('there are 10000 runs below run %s', v_run.root_run_id),
      jsonb_build_object('run_id', v_run.root_run_id, 'limit', 10000), 'add items instead');
  elsif exists (
    select from hwqueue.run r
    where r.parent_run_id = v_lease.run_id and r.parent_step_no = v_lease.step_no
      and r.parent_attempt >= v_since offset 999) then
    perform hwqueue.refuse('QHF07', 'the step has 1000 added runs', '{"field": "p_spec", "limit": 1000}',
      'add items, or more steps in one specification');
  end if;
  v_workflow := hwqueue.find_adhoc(v_spec, hwqueue.clock());
  if v_workflow.settings ->> 'tenant' <> v_run.tenant then
    perform hwqueue.refuse('QHA03', format('spec.tenant is %s, and that of run %s is %s',
        v_workflow.settings -> 'tenant', v_run.run_id, to_json(v_run.tenant)),
      '{"field": "spec.tenant"}', 'leave out spec.tenant: added steps have the tenant of the run');
  end if;
  if v_since is null then
    update hwqueue.map m set runs_since = v_run.attempt
    where m.run_id = v_lease.run_id and m.step_no = v_lease.step_no;
  end if;
  run_id := hwqueue.begin_nested(v_run, v_workflow, v_run.input, v_lease.step_no);
  state := (select r.state from hwqueue.run r where r.run_id = add_steps.run_id);
  return next;
end
$$;
