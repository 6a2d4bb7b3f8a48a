-- Gang steps: steps whose leases start together or not at all.
--
-- workflows/kinds calls fill_gang when such a step is released, workflows/ending when that was left to a
-- sweep. Example: "train" has size 4 and together "rack". Its release spawns four leases and the gang that
-- they are; upkeep reserves room for all four (gangs/assemble). Members are the items of the step, by their
-- ranks: they are counted, listed, stopped and retried as the items of a map are (workflows/items).
--
-- Invariant: a gang step has all its leases or none, as its gang has. They are spawned in one transaction, by
-- the session that holds the tally of the step; a retry puts all of them back, under the same ids, or none. A
-- member that is lost waits again with its gang: it has not ended, so no tally counts it.

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

-- Spawns the gang of a step, with all its members by their ranks, and counts them; nothing if they are more
-- than p_most, if they are there, or if another session holds what an earlier attempt of the run has left of
-- it. Of a retry it puts back the leases and the gang that are there, which begins as if nothing had happened
-- to it. Returns the tally as it is then.
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
  v_known jsonb := '{}';  -- {rank: lease_id}
  v_old uuid;
  v_gang hwqueue.gang;
  v_ids uuid[];
  v_request hwqueue.spawn_request;
  v_requests hwqueue.spawn_request[] := '{}';
  v_headers jsonb;
  v_template jsonb := p_map.params #> '{}';  -- read and unpacked once
  v_bytes bigint := 0;
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
        select g.gang_id into v_old from hwqueue.gang g
        where g.gang_id = (select hwqueue.gang_of_step(p_run.run_id, p_map.step_no))
        for no key update skip locked;
      end if;
      if v_found.held is not null or v_known <> '{}' and v_old is null then
        return v_tally;
      end if;
    end if;
    v_gang := hwqueue.gang_asked(p_defined.settings, 'step');
    v_request := hwqueue.item_request(p_run, p_defined, p_defined.task_name, p_now);
    v_gang.gang_id := coalesce(v_old, hwqueue.new_id());
    v_gang.tenant := p_run.tenant;
    v_gang.size := p_map.items;
    v_gang.run_id := p_run.run_id;
    v_gang.step_no := p_map.step_no;
    v_gang.next_try_at := v_request.available_at;
    v_ids := hwqueue.new_ids(p_map.items);
    v_headers := v_request.headers
      || jsonb_build_object('gang_id', v_gang.gang_id, 'gang_size', p_map.items);
    v_request.available_at := 'infinity';
    v_request.gang_id := v_gang.gang_id;
    for v_rank in 0 .. p_map.items - 1 loop
      v_request.lease_id := coalesce((v_known ->> v_rank::text)::uuid, v_ids[v_rank + 1]);
      v_request.item_no := v_rank;
      v_request.params := (hwqueue.bind_value(v_template, null, null, false, to_jsonb(v_rank), v_rank)).value;
      v_request.headers := v_headers || jsonb_build_object('item', v_rank, 'gang_rank', v_rank);
      v_bytes := v_bytes + pg_column_size(v_request.params);
      v_requests := v_requests || v_request;
    end loop;
    perform hwqueue.note_bound(v_bytes);
    if v_old is null then
      perform hwqueue.insert_gang(v_gang, array(
        select r.lease_id from unnest(v_requests) r order by r.item_no), v_queue, v_request.priority, p_now);
      perform hwqueue.insert_spawns(v_requests, v_queue, p_now);
    else
      update hwqueue.gang g
      set state = 'waiting', reason = null, tries = 0, losses = 0, next_try_at = v_gang.next_try_at,
        place = null, started_at = null, finished_at = null, starts_by = null, missing = 0
      where g.gang_id = v_old;
      perform hwqueue.spawn_again(v_requests, '{}', v_known, v_queue, p_now);
    end if;
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
