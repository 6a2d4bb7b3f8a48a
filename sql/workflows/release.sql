-- Releasing steps: their leases are spawned, with params that are bound to results by then.
--
-- Steps that are no tasks begin in workflows/kinds.
--
-- Invariant: nothing in here raises for what a run contains. A step that cannot be bound fails, with the
-- reason in its row.

-- Returns progress with nothing in it but what is given.
create or replace function hwqueue.new_progress(p_ended int[] default '{}', p_states text[] default '{}',
  p_released int[] default '{}', p_skipped int[] default '{}', p_reasons text[] default '{}',
  p_most int default 1000) returns hwqueue.run_progress
language sql immutable parallel safe
as $$
  select row(p_ended, p_states, p_released, p_skipped, p_reasons, p_most, 0, 0, 0)::hwqueue.run_progress
$$;

-- Releases the steps of p.released that still wait: spawns their leases or begins them, or holds them while
-- the run is paused. Steps whose condition does not hold are skipped, steps that cannot be bound fail: both
-- are in p.ended then. What another session holds, and what is more than p.most or than a transaction binds,
-- is left as arrivals. opened counts what is released, held or left.
-- Of a retry it locks the outcomes of the leases that the steps had: they stay until these leases are put
-- back, because a step may yet be skipped, or fail. Leases of steps that have added items stay as they are.
-- Locks: the steps, skip locked; new rows; of a retry the outcomes of the leases, skip locked. Not
-- idempotent. Wakes: waiting workers.
create or replace function hwqueue.release_steps(p_run hwqueue.run, p hwqueue.run_progress,
  p_now timestamptz) returns hwqueue.run_progress
language plpgsql volatile
as $$
declare
  v_holds boolean := p_run.state = 'paused' and not p_run.is_finishing;
  v_priority jsonb := jsonb_strip_nulls(jsonb_build_object('priority', p_run.priority));
  v_due int[] := p.released[1 : p.most];
  v_steps hwqueue.step[];
  v_known uuid[];
  v_revived uuid[] := '{}';
  v_with_items int[] := '{}';
  v_done int[] := '{}';
  v_left int[] := '{}';
  v_item record;
  v_bound record;
  v_queue hwqueue.queue;
  v_requests hwqueue.spawn_request[] := '{}';
begin
  if p_run.attempt > 1 and not v_holds then  -- held ones keep their outcomes until they are released
    v_steps := array(
      select s from hwqueue.step s
      where s.run_id = p_run.run_id and s.step_no = any (v_due) and s.state in ('waiting', 'held')
      order by s.step_no for no key update skip locked);
    v_with_items := array(
      select s.step_no from unnest(v_steps) s where s.lease_id is not null and exists (
        select from hwqueue.map m where m.run_id = p_run.run_id and m.step_no = s.step_no));
    v_known := array(
      select l.lease_id from hwqueue.lease l
      where l.lease_id = any (array(select s.lease_id from unnest(v_steps) s)) and l.item_no is null);
    v_revived := hwqueue.hold_outcomes(v_known);
    -- but for those whose outcome another session holds
    v_known := array(select l from unnest(v_known) l except select l from unnest(v_revived) l);
    v_due := array(select s.step_no from unnest(v_steps) s where (s.lease_id = any (v_known)) is not true);
  end if;
  for v_item in  -- one statement takes the steps and reads all that their leases need
    update hwqueue.step s
    set state = case when v_holds then 'held' else 'running' end, reason = null, error = null,
      began_at = case when not v_holds then p_now end, ended_at = null
    from (
      select x.ctid as row_ctid, x.step_no, x.lease_id, x.class_id, x.queue_id, x.own, d.*,
             (select q from hwqueue.queue q where q.queue_id = x.queue_id and q.dropped_at is null) as queue,
             (select t.defaults from hwqueue.task t
              where t.name = d.task_name) as defaults
      from hwqueue.step x
      cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select y.name, y.kind, y.task_name, y.params, y.reads, y.run_if, y.options, y.near
        from hwqueue.workflow_step y
        where y.workflow_id = p_run.workflow_id and y.step_no = x.step_no offset 0) d
      where x.run_id = p_run.run_id and x.step_no = any (v_due) and x.state in ('waiting', 'held')
      order by x.queue_id, x.step_no for no key update of x skip locked) u
    where s.ctid = u.row_ctid
    returning u.*
  loop
    if (v_item.reads is not null or v_item.kind = 'map') and not v_holds and hwqueue.has_bound_enough() then
      v_left := v_left || v_item.step_no;
      continue;
    end if;
    v_done := v_done || v_item.step_no;
    continue when v_holds;
    if v_item.kind <> 'task' or v_item.step_no = any (v_with_items) then
      v_item.params := null;
    end if;
    v_bound := hwqueue.step_params(p_run, v_item.params, v_item.reads, v_item.run_if,
      (v_item.queue).max_params_bytes);
    if v_bound.params is not null and v_item.near is not null then
      select n.class_id, n.bad into v_item.class_id, v_bound.bad
      from hwqueue.near_class(p_run, v_item.step_no, v_item.near, p_now) n;
    end if;
    if v_bound.bad is not null or v_bound.params is null then
      p := hwqueue.begin_other(p_run, v_item.step_no, v_bound.results, v_bound.bad, p, p_now);
      continue;
    end if;
    if v_item.queue_id <> v_queue.queue_id then
      p.opened := p.opened + hwqueue.spawn_steps(v_requests, v_queue, v_revived, '{}', p_now);
      v_requests := '{}';
    end if;
    v_queue := v_item.queue;
    v_requests := v_requests || hwqueue.step_request(p_run, v_item.step_no, v_item.lease_id, v_item.class_id,
      array[v_item.task_name, v_item.name], v_bound.params, coalesce(v_item.defaults, '{}') || v_priority
        || coalesce(v_item.options, '{}') || coalesce(v_item.own, '{}'), p_now);
  end loop;
  p.opened := p.opened + case when v_holds then cardinality(v_done)
    else hwqueue.spawn_steps(v_requests, v_queue, v_revived, '{}', p_now) end;
  if cardinality(v_done) < cardinality(p.released) then
    if v_left <> '{}' then  -- taken and not bound: they wait again
      update hwqueue.step s set state = 'waiting' where s.run_id = p_run.run_id and s.step_no = any (v_left);
    end if;
    -- held ones are open work in any case, and get none: apply_state finds them again
    select coalesce(array_agg(s.step_no) filter (where s.state = 'waiting'), '{}'), p.opened + count(*)::int
    into v_left, p.opened
    from hwqueue.step s
    where s.run_id = p_run.run_id and s.step_no = any (p.released)
      and s.state in ('waiting', 'held') and s.step_no <> all (v_done);
    perform hwqueue.leave_arrivals(p_run.run_id, v_left, 'release', '{}', p_now);
  end if;
  p.released := '{}';
  return p;
end
$$;

-- Returns the results that a step reads, {"step": result}, and its params, bound to them by now. p_params
-- null: it has none, or binds them later. bad: why it cannot run, {"reason", ...}; then params is null.
-- p_most: the limit of its queue in bytes; null: the queue is dropped. A value that is missing meets the
-- conditions not_in and does_not_exist only.
create or replace function hwqueue.step_params(p_run hwqueue.run, p_params jsonb, p_reads int[],
  p_run_if jsonb, p_most int, out params jsonb, out results jsonb, out bad jsonb)
language plpgsql volatile
as $$
declare
  v_bound record;
begin
  if p_params is not null and p_most is null then
    bad := '{"reason": "queue_dropped"}';
    return;
  elsif p_reads is null then
    params := p_params;
  else
    results := hwqueue.results_of(p_run, p_reads);
    perform hwqueue.note_bound(coalesce(pg_column_size(results), 134217728));
    if results is null then
      bad := '{"reason": "params_too_large", "limit": 134217728}';
    elsif p_run_if is not null and exists (
      select from jsonb_array_elements(p_run_if) c
      where not hwqueue.label_holds(c.value ->> 'op', case when c.value ? 'input'
          then p_run.input #> hwqueue.binding_path(c.value -> 'input', '')
          else results -> (c.value ->> 'step') #> hwqueue.binding_path(c.value -> 'path', '') end,
        c.value -> 'values')) then
      bad := '{"reason": "condition"}';
    elsif p_params is not null then
      v_bound := hwqueue.bind_value(p_params, p_run, results);
      perform hwqueue.note_bound(coalesce(pg_column_size(v_bound.value), case when v_bound.too_large
        then 67108865 else 0 end));
      bad := case
        when v_bound.too_large then jsonb_build_object('reason', 'params_too_large', 'limit', p_most)
        when v_bound.missing is not null
          then jsonb_build_object('reason', 'binding_missing', 'binding', v_bound.missing) end;
      params := case when bad is null then v_bound.value end;
    end if;
  end if;
  if params <> '{}' then
    if hwqueue.may_be_long(params) then
      if hwqueue.text_bytes(params, p_most) <= p_most then
        return;
      end if;
    elsif octet_length(params::text) <= p_most then
      return;
    end if;
    bad := jsonb_build_object('reason', 'params_too_large', 'limit', p_most);
    params := null;
  end if;
end
$$;
