-- Public: what pages and handlers read of workflows and runs beside what api/workflows and api/runs return.
--
-- An example: the list of runs shows 50 of them, each with a bar of its steps' states. summarise_runs counts
-- the steps of all 50 in one call. list_step_details returns when each step of one run was released and
-- claimed, so that a page can draw how long it waited for a node. A handler pages through step_results.
--
-- Invariant: nothing in here changes anything, and each call reads a bounded number of rows.

-- The definition that a run was submitted with; version: null for the run of a specification. spec is in
-- normal form, its steps in topological order.
-- Raises: QHF03.
create or replace function hwqueue.get_run_workflow(p_run uuid)
returns table (workflow text, version int, spec jsonb, step_count int, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$ begin
  return query
    select w.name, w.version, w.settings || jsonb_build_object('steps', w.steps),
      jsonb_array_length(w.steps), w.created_at
    from hwqueue.find_run(p_run) r join hwqueue.workflow w on w.workflow_id = r.workflow_id;
end $$;

-- When the steps of a run were released and claimed, and what their leases ask in words, in topological
-- order. words: null after the first 500 classes. released_at: when the lease was spawned, or when a step
-- of another kind than task began; available_at: when the lease could be claimed, or can, for the last time;
-- both are null before. claimed_at: of the last claim.
-- attempts: the last 20 claims that ended without completing or were run again, oldest first.
-- Raises: QHF03.
create or replace function hwqueue.list_step_details(p_run uuid)
returns table (step_no int, step text, class_id bigint, words text, released_at timestamptz,
  available_at timestamptz, claimed_at timestamptz, ended_at timestamptz, attempts jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_run hwqueue.run := hwqueue.find_run(p_run);
  v_words jsonb := (
    select coalesce(jsonb_object_agg(u.class_id, w.words), '{}')
    from (
      select distinct s.class_id from hwqueue.step s
      where s.run_id = p_run and s.class_id is not null
      order by s.class_id limit 500) u
    cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
      select hwqueue.class_words(c) as words from hwqueue.placement_class c
      where c.class_id = u.class_id offset 0) w);
begin
  return query
    select d.step_no, d.name, s.class_id, v_words ->> s.class_id::text,
      coalesce(l.created_at, case when d.kind <> 'task' and (s.state not in ('waiting', 'held', 'skipped')
        or s.reason = 'timeout') then s.began_at end), nullif(l.available_at, 'infinity'),
      coalesce(k.claimed_at, o.claimed_at), coalesce(o.finished_at, s.ended_at),
      coalesce((
        select jsonb_agg(jsonb_build_object('attempt', a.attempt, 'claim_token', a.claim_token, 'node_id',
            a.node_id, 'outcome', a.outcome, 'claimed_at', a.claimed_at, 'ended_at', a.ended_at,
            'error', a.error) order by a.claim_token)
        from (select x.* from hwqueue.attempt x where x.lease_id = l.lease_id
              order by x.claim_token desc limit 20) a), '[]')
    from hwqueue.workflow_step d
    cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
      select x.class_id, x.lease_id, x.state, x.reason, x.began_at, x.ended_at from hwqueue.step x
      where x.run_id = p_run and x.step_no = d.step_no offset 0) s
    left join hwqueue.lease l on l.lease_id = s.lease_id
    left join hwqueue.claim k on k.lease_id = l.lease_id
    left join hwqueue.outcome o on o.lease_id = l.lease_id
    where d.workflow_id = v_run.workflow_id
    order by d.step_no;
end
$$;

-- The signals that a run was sent, oldest first, p_limit of them (1 to 1,000). taken_by: the step whose
-- result the payload is; null: no step has taken it yet. bytes: of the payload as stored; null once it was
-- taken.
-- Raises: QHF03, QHA01.
create or replace function hwqueue.list_run_signals(p_run uuid, p_limit int default 1000)
returns table (signal_id bigint, name text, key text, sent_at timestamptz, taken_by text, bytes int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'a run has at most 1000 signals');
  return query
    select s.signal_id, s.name, s.key, s.sent_at, d.name, pg_column_size(s.payload)
    from hwqueue.find_run(p_run) r
    join hwqueue.run_signal s on s.run_id = r.run_id
    left join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = s.taken_by
    order by s.signal_id limit p_limit;
end
$$;

-- What a list shows of runs, in the order of their ids: how many of their steps are in each state, the first
-- three steps that failed, and what the run asks of every step's node. Runs that are gone, or of other
-- tenants, are left out. p_run_ids: 200 at most.
-- Raises: QHA01.
create or replace function hwqueue.summarise_runs(p_run_ids uuid[])
returns table (run_id uuid, step_counts jsonb, failed_steps text[], affinity_tags jsonb, placement jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
begin
  perform hwqueue.check_range(cardinality(p_run_ids), 'p_run_ids', 0, 200, 'ask for a page at a time');
  return query
    select r.run_id, hwqueue.count_steps(r),
      array(select d.name
            from hwqueue.step s
            join hwqueue.workflow_step d on d.workflow_id = r.workflow_id and d.step_no = s.step_no
            where s.run_id = r.run_id and s.state = 'failed'
            order by s.step_no limit 3),
      coalesce(r.level -> 'affinity_tags', '{}'), coalesce(r.level -> 'placement', '{}')
    from hwqueue.run r
    where r.run_id = any (p_run_ids) and (v_tenants is null or r.tenant = any (v_tenants))
    order by r.run_id;
end
$$;

-- Returns the steps that retry_workflow_run would run again with these options, in topological order, and
-- changes nothing.
-- Raises: QHF03, QHF04, QHF06, QHA01.
create or replace function hwqueue.preview_retry(p_run uuid, p_options jsonb default '{}')
returns table (step_no int, step text, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_run hwqueue.run := hwqueue.find_run(p_run);
  v_steps int[] := hwqueue.read_retry(v_run, p_options);
begin
  return query
    select d.step_no, d.name, hwqueue.shown_state(s.state, v_run)
    from hwqueue.workflow_step d
    cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
      select x.state from hwqueue.step x
      where x.run_id = p_run and x.step_no = d.step_no offset 0) s
    where d.workflow_id = v_run.workflow_id and d.step_no = any (v_steps)
    order by d.step_no;
end
$$;

-- Returns what update_steps would make of the steps of a run with these arguments, and where each could run
-- then; changes nothing. headline to reasons: as in check_workflow, of a step with `near` without the place
-- that it will be near.
-- Raises: as update_steps, but QHL09 and QHA02.
create or replace function hwqueue.preview_update(p_run uuid, p_changes jsonb, p_steps text[] default null)
returns table (step_no int, step text, kind text, state text, changed boolean, placement jsonb,
  came_from jsonb, headline text, code text, permanent boolean, nodes_matching bigint, nodes_free bigint,
  reasons jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_run hwqueue.run := hwqueue.find_run(p_run);
  v_call record := hwqueue.read_update_call(v_run, p_changes, p_steps);
begin
  return query
    with planned as materialized (
      select u.* from hwqueue.planned_updates(v_run, v_call.changes, v_call.named) u)
    select p.step_no, d.name, d.kind, hwqueue.shown_state(s.state, v_run), p.changed, (p.class).placement,
      p.came_from, coalesce(v.headline, n.headline),
      coalesce(v.code, case n.is_refused when true then 'nested_refused' when false then 'ready' end),
      coalesce(v.permanent, n.is_refused), v.nodes_matching, v.nodes_free, coalesce(v.sole_blockers, '[]')
    from planned p
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.name, x.kind from hwqueue.workflow_step x
      where x.workflow_id = v_run.workflow_id and x.step_no = p.step_no offset 0) d
    cross join lateral (
      select x.state from hwqueue.step x
      where x.run_id = p_run and x.step_no = p.step_no offset 0) s
    left join hwqueue.class_verdicts(array(select i.class from planned i where i.run is null),
      v_now) v on v.digest = (p.class).digest
    left join lateral (
      select x.headline, x.is_refused
      from hwqueue.workflow w
      cross join lateral hwqueue.planned_nested(w, p.run, p.step_no, v_now) x
      where w.workflow_id = (p.run).workflow_id) n on d.kind = 'workflow'
    order by p.step_no;
end
$$;

-- The versions of workflows, newest first, 20 of each name at most, by name: how many runs of each are in
-- each state, of the newest 1,000 runs of that name. A row without a version counts the runs of
-- specifications of that name. p_workflows: 100 names at most.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_workflow_versions(p_workflows text[])
returns table (workflow text, version int, step_count int, created_at timestamptz, run_counts jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_range(cardinality(p_workflows), 'p_workflows', 0, 100, 'ask for a page at a time');
  return query
    with names as (
      select distinct n.name from unnest(p_workflows) n(name)),
    runs as (
      select n.name, w.version, r.state, count(*) as runs
      from names n
      cross join lateral (
        select x.workflow_id, x.state from hwqueue.run x
        where x.name = n.name order by x.run_id desc limit 1000) r
      join hwqueue.workflow w on w.workflow_id = r.workflow_id
      group by n.name, w.version, r.state),
    counts as (
      select c.name, c.version, jsonb_object_agg(c.state, c.runs) as states from runs c group by 1, 2),
    versions as (
      select n.name, v.version, jsonb_array_length(v.steps) as steps, v.created_at
      from names n
      cross join lateral (
        select w.version, w.steps, w.created_at from hwqueue.workflow w
        where w.name = n.name and w.version is not null
        order by w.version desc limit 20) v
      union all
      select c.name, null, null, null from counts c where c.version is null)
    select v.name, v.version, v.steps, v.created_at, coalesce(c.states, '{}')
    from versions v
    left join counts c on c.name = v.name and c.version is not distinct from v.version
    order by v.name, v.version desc nulls last;
end
$$;

-- The results of a step, a page at a time: pass the last item of a page as p_after of the next. A map has the
-- items that are spawned, in the order of its list, and so has a task that has added items; a gang has its
-- members by their ranks; a step with one lease has the item 0. p_after -2: the step itself, of one with
-- items as item -1. name: of an item that was added. state, result and error: as in list_workflow_steps.
-- lease_id to finished_at: of its lease, where that is or how it ended; node_name: null when the node is
-- gone. p_state: only those in this state; running: also those that wait for a node. p_lease: of a worker,
-- the lease whose handler asks; others need none. p_limit: from 1 to 10,000.
-- Raises: QHF03, QHF06, QHA01; of a worker QHL01, QHN04.
create or replace function hwqueue.step_results(p_run uuid, p_step text, p_after int default -1,
  p_limit int default 1000, p_lease uuid default null, p_state text default null)
returns table (item int, state text, result jsonb, error jsonb, name text, lease_id uuid,
  lease_state text, node_id uuid, node_name text, attempt smallint, claimed_at timestamptz,
  finished_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_run hwqueue.run;
  v_no int;
  v_has_items boolean;
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after'),
    hwqueue.json_choice(to_jsonb(p_state), 'p_state', array['waiting', 'running', 'completed', 'failed',
      'cancelled', 'skipped']);
  v_run := hwqueue.readable_run(p_run, p_lease);
  v_no := (hwqueue.named_steps(v_run, jsonb_build_array(p_step), 'p_step'))[1];
  v_has_items := (
    select d.kind in ('map', 'gang') or exists (
      select from hwqueue.map m where m.run_id = p_run and m.step_no = v_no)
    from hwqueue.workflow_step d
    where d.workflow_id = v_run.workflow_id and d.step_no = v_no);
  if v_has_items and p_after >= -1 then
    return query
      select i.* from hwqueue.item_results(v_run, v_no, p_after, p_limit, p_state) i order by i.item;
    return;
  end if;
  return query
    select case when v_has_items then -1 else 0 end, hwqueue.shown_state(s.state, v_run),
      hwqueue.step_result(s, f.result), hwqueue.step_error(s, f.error), null::text,
      case when f.lease_state is not null then s.lease_id end, f.lease_state, f.node_id, f.node_name,
      f.attempt, f.claimed_at, coalesce(f.finished_at, s.ended_at)
    from hwqueue.step s
    left join lateral hwqueue.lease_place(s.lease_id) f on true
    where s.run_id = p_run and s.step_no = v_no and p_after < 0
      and (p_state is null or hwqueue.shown_state(s.state, v_run) = p_state);
end
$$;

-- The input of a run. p_lease: as in step_results.
-- Raises: QHF03; of a worker QHL01, QHN04.
create or replace function hwqueue.run_input(p_run uuid, p_lease uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$ begin return (hwqueue.readable_run(p_run, p_lease)).input; end $$;
