-- Gang steps: steps whose leases start together or not at all.
--
-- workflows/kinds calls fill_gang when such a step is released, workflows/ending when that was left to a
-- sweep, and gang_verdict when all members have ended. Example: "train" has size 4 and together "rack". Its
-- release spawns four leases and the gang that they are; upkeep reserves room for all four (gangs/assemble).
-- Members are the items of the step, by their ranks: they are counted, listed, stopped and retried as the
-- items of a map are (workflows/items).
--
-- Invariant: a gang step has all its leases or none, as its gang has. They are spawned in one transaction, by
-- the session that holds the tally of the step; a retry puts all of them back, under the same ids, or none. A
-- member that is lost waits again with its gang: it has not ended, so no tally counts it.

-- The keys of a gang beside those of its task: size, and what spawn_gang has as options.
-- Raises: QHF02, QHA01, naming the field.
create or replace function hwqueue.read_gang_step(p_step jsonb, p_name text, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_size bigint := hwqueue.json_integer(p_step -> 'size', p_field || '.size', 2, 1000, 'QHF02');
  v_gang hwqueue.gang := hwqueue.gang_asked(p_step, p_field);
begin
  if v_size is null then
    perform hwqueue.refuse('QHF02', format('%s is a gang and says no size', p_field),
      jsonb_build_object('field', p_field || '.size', 'step', p_name),
      'say how many members it has, 2 to 1000: "size": 4');
  elsif v_gang.min_size > v_size then
    perform hwqueue.refuse('QHF02', format('%s.min_size is more than its size, %s', p_field, v_size),
      jsonb_build_object('field', p_field || '.min_size', 'step', p_name),
      'give at most the size, or leave min_size out: then all start together');
  end if;
  perform hwqueue.check_gang_options(p_step -> 'options', p_field || '.options');
  return jsonb_build_object('size', v_size)
    || hwqueue.present('min_size', to_jsonb(nullif(v_gang.min_size, v_size)))
    || hwqueue.present('together', nullif(to_jsonb(v_gang.together), '[]'))
    || hwqueue.present('same', nullif(to_jsonb(v_gang.same), '[]'))
    || hwqueue.present('on_lost', to_jsonb(nullif(v_gang.on_lost, 'stop')))
    || hwqueue.present('hold', to_jsonb(nullif(extract(epoch from v_gang.hold), 30)));
end
$$;

-- Refuses options of a step that members of a gang cannot have.
-- Raises: QHF02.
create or replace function hwqueue.check_gang_options(p_options jsonb, p_field text) returns void
language plpgsql immutable
as $$
begin
  if coalesce(p_options -> 'patience', 'null') <> 'null' then
    perform hwqueue.refuse('QHF02', format('%s.patience is not for a gang', p_field),
      jsonb_build_object('field', p_field || '.patience'),
      'a gang starts where all its members have room: leave patience out, and ask with placement.require');
  end if;
end
$$;

-- Spawns the gang of a step, with all its members, and counts them; nothing if they are more than p_most, if
-- they are there, or if another session holds what an earlier attempt of the run has left of it. Returns the
-- tally as it is then.
-- Locks: the caller holds the tally; new rows; of a retry the gang and the outcomes of its leases, skip
-- locked. Not idempotent.
create or replace function hwqueue.fill_gang(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_tally hwqueue.tally, p_most int, p_now timestamptz) returns hwqueue.tally
language plpgsql volatile
as $$
declare
  v_tally hwqueue.tally := p_tally;
  v_queue hwqueue.queue;
  v_found record;
  v_known jsonb := '{}';
  v_old hwqueue.gang;
begin
  if p_map.items > p_most or p_tally.need > 0 or hwqueue.has_bound_enough() then
    return v_tally;
  end if;
  select q.* into v_queue
  from hwqueue.step s join hwqueue.queue q on q.queue_id = s.queue_id
  where s.run_id = p_run.run_id and s.step_no = p_map.step_no and q.dropped_at is null;
  if found then
    if p_run.attempt > 1 then
      v_found := hwqueue.ended_items(p_run, p_map.step_no, array(select generate_series(0, p_map.items - 1)));
      v_known := v_found.leases;
      if v_found.held is null and v_known <> '{}' then
        select g.* into v_old from hwqueue.gang g
        where g.gang_id = (select hwqueue.gang_of_step(p_run.run_id, p_map.step_no))
        for no key update skip locked;
      end if;
      if v_found.held is not null or v_known <> '{}' and v_old.gang_id is null then
        return v_tally;
      end if;
    end if;
    perform hwqueue.spawn_gang_step(p_run, p_map, p_defined, v_known, v_old, v_queue, p_now);
  end if;
  update hwqueue.tally t
  set need = p_map.items, unmet = 0, low = 0,
    -- without its queue: they have failed, and leave nothing
    arrived = case when v_queue.queue_id is null then p_map.items else 0 end,
    failed = case when v_queue.queue_id is null then p_map.items else 0 end
  where t.run_id = p_run.run_id and t.step_no = p_map.step_no and t.part = p_tally.part
  returning t.* into v_tally;
  return v_tally;
end
$$;

-- Writes the gang of a step and its members by their ranks, or puts back those of an earlier attempt of the
-- run: p_known are its leases, {rank: lease_id}, p_old is the gang that they were. It begins as if nothing
-- had happened to it.
-- Locks: new rows; what the caller holds; as spawn_again. Not idempotent.
create or replace function hwqueue.spawn_gang_step(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_known jsonb, p_old hwqueue.gang, p_queue hwqueue.queue,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_gang hwqueue.gang := hwqueue.gang_asked(p_defined.settings, 'step');
  v_ids uuid[] := hwqueue.new_ids(p_map.items);
  v_request hwqueue.spawn_request := hwqueue.item_request(p_run, p_defined, p_defined.task_name, p_now);
  v_requests hwqueue.spawn_request[] := '{}';
  v_headers jsonb;
  v_template jsonb := p_map.params #> '{}';  -- read and unpacked once
  v_bytes bigint := 0;
begin
  v_gang.gang_id := coalesce(p_old.gang_id, hwqueue.new_id());
  v_gang.tenant := p_run.tenant;
  v_gang.size := p_map.items;
  v_gang.run_id := p_run.run_id;
  v_gang.step_no := p_map.step_no;
  v_gang.next_try_at := v_request.available_at;
  v_headers := v_request.headers
    || jsonb_build_object('gang_id', v_gang.gang_id, 'gang_size', p_map.items);
  v_request.available_at := hwqueue.never_due();
  v_request.gang_id := v_gang.gang_id;
  for v_rank in 0 .. p_map.items - 1 loop
    v_request.lease_id := coalesce((p_known ->> v_rank::text)::uuid, v_ids[v_rank + 1]);
    v_request.item_no := v_rank;
    v_request.params := (hwqueue.bind_value(v_template, null, null, false, to_jsonb(v_rank), v_rank)).value;
    v_request.headers := v_headers || jsonb_build_object('item', v_rank, 'gang_rank', v_rank);
    v_bytes := v_bytes + pg_column_size(v_request.params);
    v_requests := v_requests || v_request;
  end loop;
  perform hwqueue.note_bound(v_bytes);
  if p_old.gang_id is null then
    perform hwqueue.insert_gang(v_gang, array(
        select r.lease_id from unnest(v_requests) r order by r.item_no), p_queue, v_request.priority, p_now);
    perform hwqueue.insert_spawns(v_requests, p_queue, p_now);
  else
    update hwqueue.gang g
    set state = 'waiting', reason = null, tries = 0, losses = 0, next_try_at = v_gang.next_try_at,
      place = null, started_at = null, finished_at = null, starts_by = null, missing = 0
    where g.gang_id = p_old.gang_id;
    perform hwqueue.spawn_again(v_requests, '{}', p_known, p_queue, p_now);
  end if;
end
$$;

-- The gang that the leases of a step are, by the first of them; null for a step that has none yet.
create or replace function hwqueue.gang_of_step(p_run uuid, p_step int) returns uuid
language sql stable
as $$
  select l.gang_id from hwqueue.lease l
  where l.run_id = p_run and l.step_no = p_step and l.item_no = 0
$$;

-- How a gang step ends whose members have ended: as its gang does. A failed member fails it, unless the gang
-- goes on without members that are lost and enough others have completed. Members that were cancelled cancel
-- it, unless the gang may lack as many and was not cancelled itself: then they never joined the others, or
-- were lost when these had completed.
-- The gang is read and not locked. A cancellation at the same time may come too late: then the members that
-- it needs have completed.
create or replace function hwqueue.gang_verdict(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_tally hwqueue.tally) returns hwqueue.step_verdict
language plpgsql stable
as $$
declare
  v_verdict hwqueue.step_verdict;
  v_gang hwqueue.gang;
  v_found jsonb;
  v_too_few boolean := hwqueue.has_failed_items(p_defined, p_map.items, p_tally.failed, p_tally.skipped);
begin
  select g.* into v_gang from hwqueue.gang g
  where g.gang_id = (select hwqueue.gang_of_step(p_run.run_id, p_map.step_no));
  v_verdict.state := case when p_tally.failed > 0 and v_too_few then 'failed'
    when p_tally.need < p_map.items then 'cancelled'  -- its run has stopped before it was spawned
    when v_too_few or p_tally.skipped > 0 and v_gang.state = 'cancelling' then 'cancelled'
    else 'completed' end;
  v_verdict.reason := case when v_verdict.state = 'failed' then 'gang_failed'
    when v_verdict.state = 'completed' then null
    when p_run.state in ('failing', 'cancelling') and (not p_run.is_finishing or p_run.stops)
      then 'run_stopped'
    else 'gang_cancelled' end;
  v_found := jsonb_build_object('items', p_map.items, 'failed', p_tally.failed + p_tally.skipped);
  if v_verdict.state = 'completed' then
    v_verdict.result := v_found;
  else
    v_verdict.error := v_found || hwqueue.present('gang_id', to_jsonb(v_gang.gang_id))
      || hwqueue.first_item_error(p_run, p_map.step_no);
  end if;
  return v_verdict;
end
$$;
