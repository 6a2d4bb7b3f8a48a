-- Maps: steps that run their task once for each item of a list.
--
-- Example: "score" maps over 10,000 shards with max_parallel 1000. Its release spawns the leases of the first
-- 500, the next sweep 500 more. After that an end that finds 62 places free spawns the next 62. A task that
-- has added items (api/children) has what a map has, and is called one in here. So has a gang step: its
-- release spawns the members and their gang, and upkeep reserves room for all (gangs/assemble). Members are
-- items by their ranks. One that is lost waits again with its gang: it has not ended, so no tally counts it.
--
-- Invariant: items are spawned in the order of their numbers, by the session that holds the tally of the map
-- (hold_items). Its need is the number of the next item, need - arrived is what is open: the window. Items
-- that are not spawned are no rows, but in their list. What one call reads and spawns is bounded in items and
-- in bytes: it may be part of a stranger's settlement. A gang step has all its leases or none: they are
-- spawned in one transaction, and a retry puts all of them back, under the same ids, or none.

-- Whether more items of a step have failed or were cancelled than may. Of a gang none may fail, and as many
-- be cancelled as it may lack. One that goes on without members that are lost needs min_size of them, or one.
create or replace function hwqueue.has_failed_items(p_defined hwqueue.workflow_step, p_items int,
  p_failed int, p_cancelled int) returns boolean
language sql immutable
as $$
  select case
    when p_defined.kind = 'gang' and p_defined.settings ->> 'on_lost' = 'continue'
      then p_items - p_failed - p_cancelled < coalesce((p_defined.settings ->> 'min_size')::int, 1)
    when p_defined.kind = 'gang' then p_failed > 0
      or p_cancelled > p_items - coalesce((p_defined.settings ->> 'min_size')::int, p_items)
    else p_failed + p_cancelled > hwqueue.tolerated(p_defined.settings -> 'tolerate', p_items) end
$$;

-- How many of p_items items of a map may fail: a number, or "10 %" of them, rounded down.
create or replace function hwqueue.tolerated(p_tolerate jsonb, p_items int) returns int
language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_tolerate) when 'number' then p_tolerate::int
    when 'string' then floor(p_items * rtrim(p_tolerate #>> '{}', ' %')::numeric / 100)::int else 0 end
$$;

-- How many items a map could spawn now.
create or replace function hwqueue.map_room(p_map hwqueue.map, p_defined hwqueue.workflow_step,
  p_tally hwqueue.tally) returns int
language sql immutable
as $$
  select case when hwqueue.has_failed_items(p_defined, p_map.items, p_tally.failed, p_tally.skipped) then 0
    else least(p_map.items - p_tally.need, coalesce((p_defined.settings ->> 'max_parallel')::int, 1000)
      - (p_tally.need - p_tally.arrived)) end
$$;

-- The gang that the leases of a step are, by the first of them; null for a step that has none yet.
create or replace function hwqueue.gang_of_step(p_run uuid, p_step int) returns uuid
language plpgsql stable
as $$ begin return (
  select l.team_id from hwqueue.lease l
  where l.run_id = p_run and l.step_no = p_step and l.item_no = 0 limit 1
); end $$;

-- How a map ends whose open items have ended. A gang step ends as its gang does: a failed member fails it,
-- unless the gang goes on without members that are lost and enough others have completed. Members that were
-- cancelled cancel it, unless the gang may lack as many and was not cancelled itself: then they never joined
-- the others, or were lost when these had completed. The gang is read and not locked. A cancellation at the
-- same time may come too late: then the members that it needs have completed.
create or replace function hwqueue.map_verdict(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_tally hwqueue.tally) returns hwqueue.step_verdict
language plpgsql stable
as $$
declare
  v_verdict hwqueue.step_verdict;
  v_too_many boolean := hwqueue.has_failed_items(p_defined, p_map.items, p_tally.failed, p_tally.skipped);
  v_stops boolean := p_run.state in ('failing', 'cancelling') and (not p_run.is_finishing or p_run.stops);
  v_found jsonb := jsonb_build_object('items', p_map.items, 'failed', p_tally.failed + p_tally.skipped);
  v_gang hwqueue.gang;
  v_most int;
  v_own text;
begin
  if p_defined.kind = 'gang' then
    select g.* into v_gang from hwqueue.gang g
    where g.gang_id = (select hwqueue.gang_of_step(p_run.run_id, p_map.step_no));
    v_verdict.state := case when p_tally.failed > 0 and v_too_many then 'failed'
      when p_tally.need < p_map.items then 'cancelled'  -- its run has stopped before it was spawned
      when v_too_many or p_tally.skipped > 0 and v_gang.state = 'cancelling' then 'cancelled'
      else 'completed' end;
    v_verdict.reason := case when v_verdict.state = 'failed' then 'gang_failed'
      when v_verdict.state = 'completed' then null when v_stops then 'run_stopped' else 'gang_cancelled' end;
    v_found := v_found || hwqueue.present('gang_id', to_jsonb(v_gang.gang_id));
  else
    v_most := hwqueue.tolerated(p_defined.settings -> 'tolerate', p_map.items);
    v_verdict.state := case when v_too_many then case when v_stops and p_tally.failed <= v_most
        then 'cancelled' else 'failed' end
      when p_tally.need < p_map.items then 'cancelled' else 'completed' end;
    v_verdict.reason := case v_verdict.state when 'failed' then 'items_failed'
      when 'cancelled' then 'run_stopped' end;
  end if;
  if v_verdict.state = 'completed' then
    v_verdict.result := v_found - 'gang_id';
  elsif v_verdict.state = 'failed' or p_defined.kind = 'gang' then
    v_verdict.error := v_found || case when p_defined.kind = 'gang' then '{}'
      else jsonb_build_object('tolerated', v_most) end || coalesce((
        select jsonb_build_object('first_error', format('item %s: %s', r.item, hwqueue.error_words(r.error)))
        from hwqueue.item_results(p_run, p_map.step_no, -1, 1, 'failed') r where r.error is not null), '{}');
  end if;
  if p_defined.kind = 'task' then  -- it has added items, and ends as its own lease has, if that has failed
    v_own := (
      select o.state from hwqueue.lease l
      join hwqueue.outcome o on o.lease_id = l.lease_id
      where l.run_id = p_run.run_id and l.step_no = p_defined.step_no and l.item_no = -1);
    v_verdict.result := null;  -- its result, and then its error, are those of that lease
    if v_own <> 'completed' then
      v_verdict := row(v_own, null, null, null, null);
    end if;
  end if;
  return v_verdict;
end
$$;

-- Spawns the next items of a map while its window has room, p_most at most, and counts them; none once the
-- transaction has bound enough. Of a retry it passes items that have completed. Those that cannot be bound
-- have failed at once. It stops at an item whose outcome of an earlier attempt another session holds, and
-- where those before it are many bytes. Returns the tally as it is then.
-- Of a gang step it spawns the gang with all its members; none if they are more than p_most, or if another
-- session holds what an earlier attempt of the run has left of it. A gang that is there begins as if nothing
-- had happened to it.
-- Locks: the caller holds the tally; new rows; of a retry the gang and the outcomes of the leases, skip
-- locked. Not idempotent. Wakes: waiting workers.
create or replace function hwqueue.fill_map(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_tally hwqueue.tally, p_most int, p_now timestamptz) returns hwqueue.tally
language plpgsql volatile
as $$
declare
  v_is_gang boolean := p_defined.kind = 'gang';
  v_count int := least(p_most, hwqueue.map_room(p_map, p_defined, p_tally));
  v_below int := least(p_map.items, p_tally.need + case when p_tally.need < p_map.kept_below
    then 2000 else v_count end);  -- of a retry: further on looks the next call
  v_numbers int[];
  v_end int;
  v_window int := coalesce((p_defined.settings ->> 'max_parallel')::int, 1000);
  v_queue hwqueue.queue;
  v_known jsonb := '{}';  -- {item: lease}
  v_ended uuid[];
  v_held int;
  v_found record;
  v_gang hwqueue.gang;
  v_near record;
  v_bad record;
  v_spawned int := 0;
  v_failed int;
begin
  if v_count <= 0 or v_is_gang and v_count < p_map.items or hwqueue.has_bound_enough() then
    return p_tally;
  end if;
  v_numbers := array(
    select n from generate_series(p_tally.need, v_below - 1) n
    where v_is_gang or n >= p_map.kept_below or not exists (
      select from (  -- fences (offset 0): item by item and by key, whatever the statistics say
        select x.lease_id from hwqueue.lease x
        where x.run_id = p_run.run_id and x.step_no = p_map.step_no and x.item_no = n offset 0) l
      cross join lateral (
        select from hwqueue.outcome o
        where o.lease_id = l.lease_id and (o.state = 'completed') is true offset 0) e offset 0)
    limit v_count);
  v_failed := cardinality(v_numbers);
  select q.* into v_queue
  from hwqueue.step s join hwqueue.queue q on q.queue_id = s.queue_id
  where s.run_id = p_run.run_id and s.step_no = p_map.step_no and q.dropped_at is null;
  if found then  -- else they have failed, and leave nothing
    if p_run.attempt > 1 then  -- the leases that items had before, up to the first that another session holds
      v_known := (
        select coalesce(jsonb_object_agg(n, l.lease_id), '{}')
        from unnest(v_numbers) n
        cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
          select x.lease_id from hwqueue.lease x
          where x.run_id = p_run.run_id and x.step_no = p_map.step_no and x.item_no = n offset 0) l);
      v_ended := hwqueue.hold_outcomes(array(select e.value::uuid from jsonb_each_text(v_known) e));
      v_held := (
        select min(e.key::int) from jsonb_each_text(v_known) e where e.value::uuid <> all (v_ended));
      v_known := v_known - array(select k from jsonb_object_keys(v_known) k where k::int >= v_held);
    end if;
    if v_is_gang then
      select g.* into v_gang from hwqueue.gang g
      where v_known <> '{}' and g.gang_id = (select hwqueue.gang_of_step(p_run.run_id, p_map.step_no))
      for no key update skip locked;
      if v_held is not null or not found and v_known <> '{}' then
        return p_tally;
      elsif not found then
        v_gang := jsonb_populate_record(null::hwqueue.gang,
          '{"together": []}' || hwqueue.default_values('gang') || p_defined.settings);
        v_gang.gang_id := hwqueue.new_id();
        v_gang.tenant := p_run.tenant;
        v_gang.size := p_map.items;
        v_gang.run_id := p_run.run_id;
        v_gang.step_no := p_map.step_no;
      end if;
      v_gang.next_try_at := (hwqueue.item_request(p_run, p_defined, p_defined.task_name, p_now)).available_at;
    end if;
    v_found := hwqueue.item_requests(p_run, p_map, p_defined, case when v_held is null then v_numbers
      else array(select n from unnest(v_numbers) n where n < v_held) end, v_known, v_queue, p_now,
      v_gang.gang_id);
    v_held := coalesce(v_found.stopped, v_held);
    if p_defined.near ? 'match' then
      v_near := hwqueue.near_items(p_run, p_map, p_defined, v_found.requests, v_found.bad, p_now);
      v_found.requests := v_near.requests;
      v_found.bad := v_found.bad || v_near.bad;
      v_found.reasons := v_found.reasons || v_near.reasons;
    end if;
    if v_is_gang and v_known = '{}' then
      perform hwqueue.insert_gang(v_gang, array(select r.lease_id from unnest(v_found.requests) r
        order by r.item_no), v_queue, (v_found.requests)[1].tier, (v_found.requests)[1].priority, p_now);
    elsif v_is_gang then
      update hwqueue.gang g
      set state = 'waiting', reason = null, tries = 0, losses = 0, next_try_at = v_gang.next_try_at,
        place = null, started_at = null, finished_at = null, missing = 0
      where g.gang_id = v_gang.gang_id;
    end if;
    v_spawned := hwqueue.spawn_steps(v_found.requests, v_queue, array(
      select e.value::uuid from jsonb_each_text(v_known) e), v_found.bad, p_now) - cardinality(v_found.bad);
    for v_bad in
      select b.reason, array_agg(b.lease_id) as leases
      from unnest(v_found.bad, v_found.reasons) b(lease_id, reason)
      group by b.reason order by b.reason
    loop
      perform hwqueue.take_free_entries(v_bad.leases);
      perform hwqueue.lease_ended(v_bad.leases, 'failed', jsonb_build_object('reason', v_bad.reason), null,
        p_follows => true);
    end loop;
    v_failed := cardinality(v_found.bad);
  end if;
  v_end := coalesce(v_held,
    case when cardinality(v_numbers) < v_count then v_below else v_numbers[v_count] + 1 end);
  -- while more items than `low` are open the window is left alone: it is filled again when a sixteenth of it
  -- is free, not for each end, because that reads the run, the map and its list
  update hwqueue.tally t
  set need = v_end, arrived = t.arrived + v_end - t.need - v_spawned, unmet = 0, failed = t.failed + v_failed,
    low = case when v_end < p_map.items then v_window - greatest(1, least(v_window / 16, 250)) else 0 end
  where t.run_id = p_run.run_id and t.step_no = p_map.step_no and t.part = p_tally.part
  returning t.* into p_tally;
  return p_tally;
end
$$;

-- Reads what the leases of items ask. p_known: the leases that they have already. bad, reasons: those that
-- cannot be bound, and why. stopped: the first one that is not read, because those before it have 8 MiB; none
-- of a gang, p_gang.
-- Not idempotent: each request draws a position.
create or replace function hwqueue.item_requests(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_numbers int[], p_known jsonb, p_queue hwqueue.queue, p_now timestamptz,
  p_gang uuid, out requests hwqueue.spawn_request[], out bad uuid[], out reasons text[], out stopped int)
language plpgsql volatile
as $$
declare
  v_ids uuid[] := hwqueue.new_ids(cardinality(p_numbers));
  v_request hwqueue.spawn_request := hwqueue.item_request(p_run, p_defined, p_defined.task_name, p_now);
  v_headers jsonb := v_request.headers;
  v_most int := p_queue.max_params_bytes;
  v_list jsonb;
  v_value jsonb;
  v_first int;
  v_no int;
  v_template jsonb := p_map.params #> '{}';  -- read and unpacked once
  -- of the only member that is to be bound, where that is the item or a part of it, without a default
  v_key text := (
    select case when count(*) = 1 and bool_and(e.value ? '$item' and not e.value ? 'default')
      then max(e.key) end
    from jsonb_each(v_template) e where jsonb_typeof(e.value) in ('object', 'array'));
  v_path text[] := hwqueue.binding_path(v_template -> v_key -> '$item', '');
  v_part jsonb;
  v_begun int := hwqueue.items_begun(p_map.run_id, p_map.over_step);
  v_bound record;
  v_task text;
  v_reason text;
  v_bytes bigint := 0;
begin
  requests := '{}';
  bad := '{}';
  reasons := '{}';
  if p_gang is not null then
    v_request.team_id := p_gang;
    v_request.available_at := 'infinity';
    v_headers := v_headers || jsonb_build_object('gang_id', p_gang, 'gang_size', p_map.items);
  end if;
  for v_place in 1 .. cardinality(p_numbers) loop
    v_no := p_numbers[v_place];
    if v_bytes > 8388608 and p_gang is null then
      stopped := v_no;
      exit;
    end if;
    v_reason := null;
    if v_no < 0 or v_no >= p_map.items - p_map.added then
      if v_no < 0 then  -- a step's own lease that runs again
        select l.task_name, l.params into v_task, v_value from hwqueue.lease l
        where l.run_id = p_map.run_id and l.step_no = p_map.step_no and l.item_no = v_no;
      else
        select a.task_name, a.params into v_task, v_value from hwqueue.added a
        where a.run_id = p_map.run_id and a.step_no = p_map.step_no and a.item_no = v_no;
      end if;
      if v_task <> v_request.task_name then
        v_request := hwqueue.item_request(p_run, p_defined, v_task, p_now);
      end if;
      v_request.available_at := case when v_no < 0 then v_request.available_at else p_now end;
    else
      if p_gang is not null then
        v_value := to_jsonb(v_no);
      elsif p_map.over_step is not null then  -- what the item with its number returned, or null
        v_value := coalesce((
          select o.result #> hwqueue.binding_path(p_defined.settings #> '{over,path}', '')
          from hwqueue.lease l
          cross join lateral (  -- a fence (offset 0), as in fill_map
            select x.result from hwqueue.outcome x
            where v_no < v_begun and x.lease_id = l.lease_id and (x.state = 'completed') is true offset 0) o
          where l.run_id = p_map.run_id and l.step_no = p_map.over_step and l.item_no = v_no),
            p_defined.settings #> '{over,default}', 'null');
      else
        if v_no / 100 * 100 is distinct from v_first then
          v_first := v_no / 100 * 100;
          v_list := (  -- the path makes a value of its own of it, read and unpacked once
            select c.items #> '{}' from hwqueue.map_list c
            where c.run_id = p_map.run_id and c.step_no = p_map.step_no and c.first_item = v_first);
        end if;
        v_value := v_list -> (v_no - v_first);
      end if;
      v_part := case when v_key is not null then v_value #> v_path end;
      if v_part is not null then  -- mostly, and without a call
        v_value := v_template || jsonb_build_object(v_key, v_part);
      else
        -- no value has 8 times as many bytes as its text
        v_bound := hwqueue.bind_value(v_template, null, null, false, v_value, v_no,
          least(8 * v_most::bigint, 67108864));
        v_value := v_bound.value;
        v_reason := case when v_bound.too_large then 'params_too_large'
          when v_bound.missing is not null then 'binding_missing' end;
      end if;
    end if;
    if (case when hwqueue.may_be_long(v_value) then hwqueue.text_bytes(v_value, v_most)
        else octet_length(v_value::text) end) > v_most then
      v_reason := coalesce(v_reason, 'params_too_large');
    end if;
    v_bytes := v_bytes + coalesce(pg_column_size(v_value),
      case v_reason when 'params_too_large' then least(8 * v_most::bigint, 67108864) else 0 end);
    v_request.lease_id := coalesce((p_known ->> v_no::text)::uuid, v_ids[v_place]);
    v_request.position := nextval('hwqueue.ready_position_seq');
    v_request.item_no := v_no;
    v_request.params := case when v_reason is null then v_value else '{}' end;
    v_request.headers := case when v_no < 0 then v_headers
      when p_gang is null then v_headers || jsonb_build_object('item', v_no)
      else v_headers || jsonb_build_object('item', v_no, 'gang_rank', v_no) end;
    requests := requests || v_request;
    if v_reason is not null then
      bad := bad || v_request.lease_id;
      reasons := reasons || v_reason;
    end if;
  end loop;
  perform hwqueue.note_bound(v_bytes);
end
$$;

-- The lease that all items of a map have in common that run this task, without id, params and number.
create or replace function hwqueue.item_request(p_run hwqueue.run, p_defined hwqueue.workflow_step,
  p_task text, p_now timestamptz) returns hwqueue.spawn_request
language plpgsql volatile
as $$ begin return (
  select hwqueue.step_request(p_run, p_defined.step_no, null, s.class_id,
    array[p_task, p_defined.name], null,
    coalesce(t.defaults, '{}') || hwqueue.present('priority', to_jsonb(p_run.priority))
      || coalesce(p_defined.options, '{}') || coalesce(s.own, '{}'), p_now)
  from hwqueue.step s
  left join hwqueue.task t on t.name = p_task
  where s.run_id = p_run.run_id and s.step_no = p_defined.step_no
); end $$;

-- Lets the step of a lease have items, and returns its row in map, locked: its own lease is one of them from
-- now on.
-- Locks: the caller holds the claim, for no key update; the lease row; new rows; the step's row in map.
create or replace function hwqueue.begin_adding(p_lease hwqueue.lease) returns hwqueue.map
language plpgsql volatile
as $$
declare
  v_map hwqueue.map;
begin
  if p_lease.item_no is null then
    update hwqueue.claim c set is_step = false where c.lease_id = p_lease.lease_id;
    update hwqueue.lease l set item_no = -1 where l.lease_id = p_lease.lease_id;
    insert into hwqueue.map (run_id, step_no, items, params)
    values (p_lease.run_id, p_lease.step_no, 0, '{}');
    delete from hwqueue.tally t  -- from before a retry
    where t.run_id = p_lease.run_id and t.step_no = p_lease.step_no and t.part > 0;
    insert into hwqueue.tally (run_id, step_no, part, arrived, low)
    values (p_lease.run_id, p_lease.step_no, 1, -1, 0);
  end if;
  select m.* into v_map from hwqueue.map m
  where m.run_id = p_lease.run_id and m.step_no = p_lease.step_no for no key update;
  return v_map;
end
$$;

-- The runs that were added to a step, in this attempt of its run: how many of them are open, or are to be
-- retried, and how many of the others have failed or were cancelled.
create or replace function hwqueue.count_added_runs(p_map hwqueue.map, p_attempt int, out open int,
  out failed int, out cancelled int)
language plpgsql stable
as $$ begin
  select (count(*) filter (where n.state <> 'completed'
           and (n.finished_at is null or n.parent_attempt < p_attempt)))::int,
         (count(*) filter (where n.state = 'failed' and n.parent_attempt = p_attempt))::int,
         (count(*) filter (where n.state = 'cancelled' and n.parent_attempt = p_attempt))::int
  into open, failed, cancelled
  from hwqueue.run n
  where n.parent_run_id = p_map.run_id and n.parent_step_no = p_map.step_no
    and n.parent_attempt >= p_map.runs_since;
end $$;
