-- The leases of steps and of items of maps: what they ask, how a retry runs them again, and how those that
-- wait are taken back.
--
-- Example: "train" had failed. A retry deletes the outcome of its lease and puts the lease back: the same id,
-- attempts from 0.
--
-- Invariant: an outcome is deleted only for a lease that is put back, or ends again, in the same transaction.
-- A lease without either would never run again.

-- Returns the lease of one step. p_what: its task, and the name of the step. p_options were checked when
-- they were given. The priority is that of the step, else of the run, else of the task. Where the submission
-- was traced, the headers name the spans of the parents, too.
create or replace function hwqueue.step_request(p_run hwqueue.run, p_step int, p_lease uuid, p_class bigint,
  p_what text[], p_params jsonb, p_options jsonb, p_now timestamptz) returns hwqueue.spawn_request
language sql volatile
as $$
  select row(p_step, p_lease, false, nextval('hwqueue.ready_position_seq'), p_class, p_what[1], p_params,
    p_run.headers || jsonb_build_object('workflow_run_id', p_run.run_id, 'workflow', p_run.name,
      'step', p_what[2], 'root_run_id', p_run.root_run_id)
      || case when p_run.headers ? 'traceparent' then hwqueue.traced_parents(p_run, p_step) else '{}' end,
    coalesce((p_options ->> 'priority')::smallint, 0), (p_options ->> 'max_attempts')::smallint,
    hwqueue.normalise_retry(p_options -> 'retry', 'options.retry'),
    hwqueue.json_interval(p_options -> 'claim_timeout', 'options.claim_timeout'), null,
    hwqueue.start_time(p_run, p_now)
      + coalesce(hwqueue.json_interval(p_options -> 'delay', 'options.delay'), '0'), null, null, true,
    null, null, null, p_run.run_id, p_step, null, null, null, null, p_run.tenant, null,
    coalesce((hwqueue.find_tenant(p_run.tenant)).tier, 0), null)::hwqueue.spawn_request
$$;

-- Returns a header that names the spans of the attempts that ended the parents of a step, 32 at most, of its
-- first 100; none where no parent has one: items of maps, and kinds without a lease, have none.
create or replace function hwqueue.traced_parents(p_run hwqueue.run, p_step int) returns jsonb
language plpgsql volatile
as $$ begin return (
  select case when count(*) = 0 then '{}'
    else jsonb_build_object('parent_traceparents', jsonb_agg(p.traceparent order by p.step_no)) end
  from (
    select s.step_no, s.traceparent
    from unnest((
      select d.parents[:100] from hwqueue.workflow_step d
      where d.workflow_id = p_run.workflow_id and d.step_no = p_step)) e(from_no)
    cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
      select x.step_no, x.traceparent from hwqueue.step x
      where x.run_id = p_run.run_id and x.step_no = e.from_no offset 0) s
    where s.traceparent is not null
    order by s.step_no limit 32) p
); end $$;

-- When what is released now may begin: its run may have been submitted for later.
create or replace function hwqueue.start_time(p_run hwqueue.run, p_now timestamptz) returns timestamptz
language sql stable
as $$
  select case when p_run.policy ? 'available_at'
    then greatest(p_now, (p_run.policy ->> 'available_at')::timestamptz) else p_now end
$$;

-- Locks the outcomes of leases that have ended, and returns the ids of those leases: not those whose outcomes
-- another session holds.
-- Locks: the outcomes, skip locked.
create or replace function hwqueue.hold_outcomes(p_leases uuid[]) returns uuid[]
language plpgsql volatile
as $$ begin return
  array(
    select x.lease_id
    from (select l from unnest(p_leases) l order by l) i(lease_id)
    cross join lateral (  -- by key, whatever the statistics say
      select o.lease_id from hwqueue.outcome o where o.lease_id = i.lease_id for update skip locked) x);
end $$;

-- Writes the leases of steps, or of items, of one queue: new ones, and of a retry those that are there
-- (p_known): with their outcomes deleted, the params that their requests have, and attempts from 0. Claims
-- that completed are kept as attempts; those that ended otherwise are there already. A handler goes on behind
-- what it has saved, unless it had completed, or its params are others now. Leases of p_bad are not put back:
-- they end again, and how they did before says nothing of now. Returns how many leases were asked for.
-- Locks: new rows; the outcomes of the others, skip locked; the lease rows; checkpoints. Not idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.spawn_steps(p_requests hwqueue.spawn_request[], p_queue hwqueue.queue,
  p_known uuid[], p_bad uuid[], p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_fresh hwqueue.spawn_request[] := p_requests;
  v_found record;
  v_one hwqueue.spawn_request;
  v_end hwqueue.outcome;
  v_limits text[];
  v_lanes hwqueue.lane_ref[];
begin
  if p_known <> '{}' then
    v_fresh := array(
      select r from unnest(p_requests) r where r.lease_id <> all (p_known) order by r.ordinal, r.item_no);
    for v_found in
      select k.one, o.ended, o.xid
      from (select r as one from unnest(p_requests) r where r.lease_id = any (p_known) order by r.lease_id) k
      cross join lateral (  -- by key, whatever the statistics say
        select x as ended, x.xmin as xid from hwqueue.outcome x
        where x.lease_id = (k.one).lease_id for update skip locked) o
    loop
      v_one := v_found.one;
      v_end := v_found.ended;
      -- roll_up may not have counted it yet
      insert into hwqueue.undone_end (queue_id, state, finished_at, lease_id, xid)
      values (v_end.queue_id, v_end.state, v_end.finished_at, v_end.lease_id, v_found.xid);
      if v_end.state = 'completed' then
        insert into hwqueue.attempt (lease_id, claim_token, attempt, node_id, outcome, claimed_at,
          ended_at, assignment)
        values (v_end.lease_id, v_end.claim_token, v_end.attempt, v_end.node_id, 'completed',
          v_end.claimed_at, v_end.finished_at, v_end.assignment);
      end if;
      delete from hwqueue.outcome o where o.lease_id = v_end.lease_id;
      delete from hwqueue.checkpoint c
      where c.lease_id = v_end.lease_id and (v_end.state = 'completed'
        or v_end.lease_id <> all (p_bad) and v_one.params <> (
          select l.params from hwqueue.lease l where l.lease_id = v_end.lease_id));
      update hwqueue.lease l
      set claim_token = v_end.claim_token, node_id = v_end.node_id, claimed_at = v_end.claimed_at,
          lanes_passed = null
      where l.lease_id = v_end.lease_id;
      continue when v_end.lease_id = any (p_bad);
      update hwqueue.lease l
      set task_name = v_one.task_name, params = v_one.params, headers = v_one.headers, deadline = null,
        class_id = v_one.class_id,  -- of a step near another one, where that ran this time
        near_node = null
      where l.lease_id = v_end.lease_id;
      perform hwqueue.put_back(v_end.lease_id, 0, hwqueue.claims_until(v_end.claim_token), v_one.available_at,
        p_now);
    end loop;
  end if;
  if v_fresh <> '{}' then
    v_limits := hwqueue.limits_of(p_queue.limits,
      (hwqueue.find_tenant(v_fresh[1].tenant)).spec ? 'slots');
    if v_limits <> '{}' and v_fresh[1].team_id is null then
      v_lanes := (select l.lanes from hwqueue.read_limits(null, v_limits, v_fresh[1].tenant) l);
      for v_index in 1 .. cardinality(v_fresh) loop
        v_fresh[v_index].lanes := v_lanes;
      end loop;
    end if;
    perform hwqueue.insert_spawns(v_fresh, p_queue, p_now, v_lanes is not null);
    if v_fresh[1].available_at <= p_now then  -- mostly, and without a statement for it
      perform hwqueue.wake_workers(p_queue);
    elsif cardinality(v_fresh) > 1 then
      perform hwqueue.wake_workers(p_queue)
      where exists (select from unnest(v_fresh) r where r.available_at <= p_now);
    end if;
  end if;
  return cardinality(p_requests);
end
$$;
