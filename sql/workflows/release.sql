-- Releasing steps: their leases are spawned, with params that are bound to results by then.
--
-- workflows/progress calls release_steps in the transaction that ends a parent. Example: "train" has ended.
-- "publish" reads its result: {"model": {"$result": "train", "path": ["uri"]}} becomes {"model": "s3://..."},
-- and the lease of publish gets an entry in ready.
--
-- Invariant: nothing in here raises for what a run contains. A step that cannot be bound fails, with the
-- reason in its row.
--
-- Read release_steps first, then step_requests and spawn_steps.

-- Returns progress with nothing in it but what is given.
create or replace function hwqueue.new_progress(p_ended int[] default '{}', p_states text[] default '{}',
  p_released int[] default '{}', p_skipped int[] default '{}', p_reasons text[] default '{}',
  p_most int default 1000) returns hwqueue.run_progress
language sql immutable parallel safe
as $$
  select row(p_ended, p_states, p_released, p_skipped, p_reasons, p_most, 0, 0, 0)::hwqueue.run_progress
$$;

-- Releases the steps of p.released that still wait: spawns their leases, or holds them while the run is
-- paused. Steps whose condition does not hold are skipped, steps that cannot be bound fail: both are in
-- p.ended then. What another session holds, and what is more than p.most, is left as arrivals. opened counts
-- what is released, held or left.
-- Locks: the steps, skip locked; new rows; of a retry the outcomes of the leases, skip locked. Not
-- idempotent. Wakes: waiting workers.
create or replace function hwqueue.release_steps(p_run hwqueue.run, p hwqueue.run_progress, p_now timestamptz,
  p_shard int) returns hwqueue.run_progress
language plpgsql volatile
as $$
declare
  v_due hwqueue.step[];
  v_left int[];
  v_revived int[] := '{}';
  v_found record;
  v_requests hwqueue.spawn_request[];
begin
  v_due := array(
    select s from hwqueue.step s
    where s.shard_id = p_shard and s.run_id = p_run.run_id and s.step_no = any (p.released[1 : p.most])
      and s.state in ('waiting', 'held')
    order by s.step_no for no key update skip locked);
  if p_run.attempt > 1 then
    v_found := hwqueue.take_ended_leases(v_due, p_shard);
    v_due := v_found.free;
    v_revived := v_found.revived;
  end if;
  if cardinality(v_due) < cardinality(p.released) then
    v_left := array(  -- held by others
      select s.step_no from hwqueue.step s
      where s.shard_id = p_shard and s.run_id = p_run.run_id and s.step_no = any (p.released)
        and s.state in ('waiting', 'held')
        and s.step_no <> all (array(select d.step_no from unnest(v_due) d)));
  end if;
  if v_left <> '{}' then
    perform hwqueue.leave_arrivals(p_run.run_id, v_left, 'release', '{}', p_now, p_shard);
    p.opened := p.opened + cardinality(v_left);
  end if;
  p.released := '{}';
  if p_run.state = 'paused' and not p_run.is_finishing then
    update hwqueue.step s set state = 'held'
    where s.shard_id = p_shard and s.run_id = p_run.run_id
      and s.step_no = any (array(select d.step_no from unnest(v_due) d)) and s.state = 'waiting';
    p.opened := p.opened + cardinality(v_due);
    return p;
  end if;
  v_found := hwqueue.step_requests(p_run, v_due, p, p_now, p_shard);
  p := v_found.progress;
  v_requests := v_found.requests;
  if v_requests <> '{}' then
    update hwqueue.step s set state = 'running', reason = null, error = null, ended_at = null
    where s.shard_id = p_shard and s.run_id = p_run.run_id
      and s.step_no = any (array(select r.step_no from unnest(v_requests) r));
    perform hwqueue.spawn_steps(v_requests, v_due, v_revived, p_now, p_shard);
    p.opened := p.opened + cardinality(v_requests);
  end if;
  return p;
end
$$;

-- Reads what the leases of steps ask, with params that are bound. Of steps whose condition does not hold, or
-- that cannot be bound, it writes the end, and adds them to progress.
-- Locks: the caller holds the steps. Not idempotent: each request draws a position.
create or replace function hwqueue.step_requests(p_run hwqueue.run, p_due hwqueue.step[],
  p_progress hwqueue.run_progress, p_now timestamptz, p_shard int,
  out requests hwqueue.spawn_request[], out progress hwqueue.run_progress)
language plpgsql volatile
as $$
declare
  v_item record;
  v_results jsonb;
  v_bound record;
  v_bad jsonb;
  v_priority jsonb := hwqueue.present('priority', to_jsonb(p_run.priority));
begin
  requests := '{}';
  progress := p_progress;
  for v_item in
    select u.step_no, u.lease_id, u.class_id, u.own, (d.d).*, q.max_params_bytes, t.defaults
    from unnest(p_due) u
    cross join lateral (
      select x as d from hwqueue.workflow_step x
      where x.shard_id = p_shard and x.workflow_id = p_run.workflow_id and x.step_no = u.step_no offset 0) d
    left join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = u.queue_id and q.dropped_at is null
    left join hwqueue.task t on t.shard_id = p_shard and t.name = (d.d).task_name
    order by u.step_no
  loop
    v_bad := null;
    v_bound := null;
    if v_item.max_params_bytes is null then
      v_bad := '{"reason": "queue_dropped"}';
    elsif v_item.reads is null then
      select v_item.params as value into v_bound;
    else
      v_results := hwqueue.results_of(p_run, v_item.reads, p_shard);
      if not hwqueue.conditions_hold(v_item.run_if, p_run, v_results) then
        v_bad := '{"reason": "condition"}';
      else
        v_bound := hwqueue.bind_value(v_item.params, p_run, v_results);
        if v_bound.missing is not null then
          v_bad := jsonb_build_object('reason', 'binding_missing', 'binding', v_bound.missing);
        end if;
      end if;
    end if;
    if v_bad is null and hwqueue.text_bytes(v_bound.value, v_item.max_params_bytes)
      > v_item.max_params_bytes then
      v_bad := jsonb_build_object('reason', 'params_too_large', 'limit', v_item.max_params_bytes);
    end if;
    if v_bad is not null then
      progress.ended := progress.ended || v_item.step_no;
      progress.states := progress.states
        || case v_bad ->> 'reason' when 'condition' then 'skipped' else 'failed' end;
      update hwqueue.step s
      set state = progress.states[cardinality(progress.states)], reason = v_bad ->> 'reason',
        error = nullif(v_bad - 'reason', '{}'), ended_at = p_now
      where s.shard_id = p_shard and s.run_id = p_run.run_id and s.step_no = v_item.step_no;
    else
      requests := requests || hwqueue.step_request(p_run, v_item.step_no, v_item.lease_id, v_item.class_id,
        jsonb_build_array(v_item.task_name, v_item.name, v_bound.value),
        coalesce(v_item.defaults, '{}') || v_priority || coalesce(v_item.options, '{}')
          || coalesce(v_item.own, '{}'), p_now);
    end if;
  end loop;
end
$$;

-- Returns the lease of one step. p_what: its task, the name of the step, and its params. p_options were
-- checked when they were given. The priority is that of the step, else of the run, else of the task.
create or replace function hwqueue.step_request(p_run hwqueue.run, p_step int, p_lease uuid, p_class bigint,
  p_what jsonb, p_options jsonb, p_now timestamptz) returns hwqueue.spawn_request
language sql volatile
as $$
  select row(p_step, p_lease, false, nextval('hwqueue.ready_position_seq'), p_class, p_what ->> 0,
    p_what -> 2,
    p_run.headers || jsonb_build_object('workflow_run_id', p_run.run_id, 'workflow', p_run.name,
      'step', p_what ->> 1, 'root_run_id', p_run.root_run_id),
    coalesce((p_options ->> 'priority')::smallint, 0), (p_options ->> 'max_attempts')::smallint,
    hwqueue.normalise_retry(p_options -> 'retry', 'options.retry'),
    hwqueue.json_interval(p_options -> 'claim_timeout', 'options.claim_timeout'), null,
    p_now + coalesce(hwqueue.json_interval(p_options -> 'delay', 'options.delay'), '0'), null, null, true,
    null, null, null, p_run.run_id, p_step)::hwqueue.spawn_request
$$;

-- Returns the results of steps by their names: {"step": result}. A step without one is not in it.
create or replace function hwqueue.results_of(p_run hwqueue.run, p_steps int[], p_shard int) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_object_agg(d.name, r.result) filter (where r.result is not null), '{}')
  from unnest(p_steps) n(step_no)
  cross join lateral (
    select x.name from hwqueue.workflow_step x
    where x.shard_id = p_shard and x.workflow_id = p_run.workflow_id and x.step_no = n.step_no offset 0) d
  cross join lateral (
    select coalesce(s.result, (
      select o.result from hwqueue.outcome o
      where o.shard_id = p_shard and o.lease_id = s.lease_id and o.state = 'completed')) as result
    from hwqueue.step s
    where s.shard_id = p_shard and s.run_id = p_run.run_id and s.step_no = n.step_no
      and s.state = 'completed' offset 0) r
$$;

-- Writes the leases of steps: new ones, and of a retry those that are there (p_revived).
-- Locks: new rows; the caller has deleted the outcomes of the others. Not idempotent. Wakes: waiting
-- workers.
create or replace function hwqueue.spawn_steps(p_requests hwqueue.spawn_request[], p_steps hwqueue.step[],
  p_revived int[], p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_item record;
  v_queues int[];  -- by number of step: a join of two arrays may run as a nested loop
begin
  for v_item in select s.step_no, s.queue_id from unnest(p_steps) s loop
    v_queues[v_item.step_no] := v_item.queue_id;
  end loop;
  for v_item in
    select q as queue, n.requests
    from (
      select v_queues[r.step_no] as queue_id, array_agg(r order by r.ordinal) as requests
      from unnest(p_requests) r where r.step_no <> all (p_revived) group by 1) n
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = n.queue_id
  loop
    perform hwqueue.insert_spawns(v_item.requests, v_item.queue, p_now, p_shard);
    if exists (select from unnest(v_item.requests) r where r.available_at <= p_now) then
      perform hwqueue.wake_workers(v_item.queue, p_shard);
    end if;
  end loop;
  for v_item in
    select r as request, l.attempt_count, l.claim_token
    from unnest(p_requests) r
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = r.lease_id
    where r.step_no = any (p_revived) order by r.lease_id
  loop
    update hwqueue.lease l
    set params = (v_item.request).params, headers = (v_item.request).headers, deadline = null
    where l.shard_id = p_shard and l.lease_id = (v_item.request).lease_id;
    perform hwqueue.put_back((v_item.request).lease_id, 0,
      (v_item.claim_token & ((1::bigint << 40) - 1))::int, (v_item.request).available_at, p_now, p_shard);
  end loop;
end
$$;

-- Deletes the outcomes of leases that steps had in an earlier attempt of their run, so that they can be
-- claimed again under the same ids. free: the steps that may be released; revived: those of them that have
-- a lease already. A step whose outcome another session holds is in neither.
-- Locks: the outcomes, skip locked; the lease rows. Not idempotent.
create or replace function hwqueue.take_ended_leases(p_steps hwqueue.step[], p_shard int,
  out free hwqueue.step[], out revived int[])
language plpgsql volatile
as $$
declare
  v_ended hwqueue.outcome[];
  v_known uuid[];
  v_is_free jsonb;  -- by lease: a join of thousands of them may run as a nested loop
begin
  v_known := array(
    select l.lease_id from unnest(p_steps) s
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = s.lease_id);
  v_ended := array(
    select o from hwqueue.outcome o
    where o.shard_id = p_shard and o.lease_id = any (v_known) order by o.lease_id for update skip locked);
  delete from hwqueue.outcome o where o.shard_id = p_shard
    and o.lease_id = any (array(select e.lease_id from unnest(v_ended) e));
  -- roll_up may not have counted them yet
  insert into hwqueue.requeued (shard_id, queue_id, state, finished_at, lease_id)
  select p_shard, e.queue_id, e.state, e.finished_at, e.lease_id from unnest(v_ended) e;
  update hwqueue.lease l
  set claim_token = e.claim_token, node_id = e.node_id, claimed_at = e.claimed_at
  from unnest(v_ended) e where l.shard_id = p_shard and l.lease_id = e.lease_id;
  v_is_free := (
    select jsonb_object_agg(k.lease_id, false) from unnest(v_known) k(lease_id)) || coalesce((
    select jsonb_object_agg(e.lease_id, true) from unnest(v_ended) e), '{}');
  free := array(
    select s from unnest(p_steps) s where coalesce((v_is_free -> s.lease_id::text)::boolean, true));
  revived := array(
    select s.step_no from unnest(p_steps) s where (v_is_free -> s.lease_id::text)::boolean);
end
$$;
