-- Public: changing many leases by a filter, a page at a time.
--
-- Operators call these after an incident. An example: a bad release has left 40,000 failed leases of the
-- task "draw". requeue_leases('{"queue": "renders", "state": "failed", "task": "draw"}') requeues the
-- oldest 1,000 and returns a cursor; the caller passes it to the next call until it is null.
--
-- Invariant: each lease is changed by the function for one lease (api/leases), under its lock, with an
-- event of its own. A lease that another session holds is skipped and named, never waited for.

-- Counts the leases that a filter means, reading p_limit rows of its queue. p_filter: as list_leases has it,
-- queue required. p_states: only in these states. Pass next_cursor as p_cursor of the next call, and add up,
-- until it is null.
-- Raises: QHQ01, QHA01, QHA03.
create or replace function hwqueue.count_leases(p_filter jsonb, p_states text[] default null,
  p_limit int default 10000, p_cursor jsonb default null) returns table (lease_count int, next_cursor jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_all text[] := array['scheduled', 'pending', 'claimed', 'completed', 'failed', 'cancelled'];
  v_page hwqueue.lease_page;
begin
  if not coalesce(p_states, v_all) <@ v_all or p_states = '{}' then
    perform hwqueue.refuse_field('QHA01', 'p_states', 'has no states, or unknown ones',
      'give some of ' || array_to_string(v_all, ', '));
  end if;
  v_page := hwqueue.read_page(p_filter,
    array(select s from unnest(v_all) s where p_states is null or s = any (p_states)),  -- each once
    p_limit, p_cursor);
  return query select cardinality(v_page.lease_ids), v_page.next_cursor;
end
$$;

-- Cancels leases that a filter means, as cancel_lease, and returns those it cancelled or asked to stop.
-- p_filter: as count_leases; its state is scheduled, pending or claimed, or left out for all of these. A
-- call reads p_limit rows, up to 10,000: pass next_cursor as p_cursor of the next call until it is null.
-- skipped: another session holds them, or has changed them.
-- Locks: as cancel_lease, skip locked, in the order of lease ids. Raises: QHQ01, QHA01, QHA02, QHA03.
create or replace function hwqueue.cancel_leases(p_filter jsonb, p_reason text default null,
  p_limit int default 1000, p_cursor jsonb default null)
returns table (changed uuid[], skipped uuid[], next_cursor jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  perform hwqueue.require_read_committed(), hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  select p.changed, p.skipped, p.next_cursor into changed, skipped, next_cursor
  from hwqueue.lock_page(p_filter, array['scheduled', 'pending', 'claimed'], p_limit, p_cursor) p;
  perform hwqueue.cancel_lease(i, p_reason) from unnest(changed) i;
  return next;
end
$$;

-- Requeues failed or cancelled leases that a filter means, as requeue_lease, those that ended first
-- before the others. p_filter: as count_leases; its state is failed or cancelled; failed when it is left
-- out. The rest is as with cancel_leases; skipped are also leases whose unique key another lease has,
-- alternatives of which another was taken, and steps of runs (see retry_workflow_run). One that fails again
-- is not met a second time.
-- Locks: as requeue_lease, skip locked, in the order of lease ids. Raises: QHQ01, QHA01, QHA02, QHA03.
-- Wakes: waiting workers.
create or replace function hwqueue.requeue_leases(p_filter jsonb, p_limit int default 1000,
  p_cursor jsonb default null) returns table (changed uuid[], skipped uuid[], next_cursor jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_left uuid[];
begin
  perform hwqueue.require_read_committed();
  select p.changed, p.skipped, p.next_cursor into changed, skipped, next_cursor
  from hwqueue.lock_page(p_filter,
    case when p_filter ->> 'state' is null then array['failed'] else array['failed', 'cancelled'] end,
    p_limit, p_cursor) p;
  v_left := array(
    select o.lease_id from unnest(changed) i
    cross join lateral (  -- fences (offset 0): by key, whatever the statistics say
      select * from hwqueue.outcome x where x.lease_id = i offset 0) o
    cross join lateral (
      select * from hwqueue.lease x where x.lease_id = i offset 0) l
    where (o.is_step or l.choice_id is not null and hwqueue.taken_instead(l) is not null));
  changed := array(select i from unnest(changed) i where i <> all (v_left));
  v_left := v_left || array(select k.lease_id from hwqueue.regain_keys(changed, false, hwqueue.clock()) k);
  changed := array(select i from unnest(changed) i where i <> all (v_left));
  skipped := skipped || v_left;
  perform hwqueue.requeue_lease(i) from unnest(changed) i;
  return next;
end
$$;

-- Requeues the failed leases of a queue, oldest first, but for steps of runs, and returns their number:
-- {"task", "since", "until", "limit"}. At most 1,000 unless limit says more, up to 1,000,000. Leases whose
-- unique key another lease has, and alternatives of which another was taken, stay as they are, and are not
-- counted.
-- Locks: their outcomes and keys, skip locked; the lease rows. Raises: QHQ01, QHA01, QHA02, QHA03.
-- Idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.requeue_failed(p_queue text, p_filter jsonb default '{}') returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_left int;
  v_count int := 0;
  v_filter jsonb;
  v_changed uuid[];
  v_cursor jsonb;
begin
  perform hwqueue.require_all_tenants(), hwqueue.find_queue(p_queue),
    hwqueue.check_object(p_filter, array['task', 'since', 'until', 'limit'], 'filter');
  v_filter := jsonb_strip_nulls(jsonb_build_object('queue', p_queue, 'state', 'failed',
    'task', hwqueue.json_text(p_filter -> 'task', 'filter.task', 200),
    'finished_from', hwqueue.json_moment(p_filter -> 'since', 'filter.since', hwqueue.clock()),
    'finished_before', hwqueue.json_moment(p_filter -> 'until', 'filter.until', hwqueue.clock())
      + interval '1 microsecond'));
  v_left := coalesce(hwqueue.json_integer(p_filter -> 'limit', 'filter.limit', 1, 1000000), 1000);
  loop
    select r.changed, r.next_cursor into v_changed, v_cursor
    from hwqueue.requeue_leases(v_filter, least(v_left - v_count, 10000), v_cursor) r;
    v_count := v_count + cardinality(v_changed);
    exit when v_count = v_left or v_cursor is null;
  end loop;
  return v_count;
end
$$;

-- Changes waiting leases that a filter means, as update_lease does with p_changes. p_filter: as
-- count_leases; its state is scheduled or pending, or left out for both. The rest is as with
-- cancel_leases. With queue in p_changes, skipped names also the leases that cannot move: their params
-- are too large for that queue, or their key is taken there; update_lease says which. With placement,
-- wire, labels or queue it names the steps of runs (see update_lease).
-- Locks: as update_lease, skip locked, in the order of lease ids. Raises: as update_lease, and QHQ01.
-- Wakes: waiting workers.
create or replace function hwqueue.update_leases(p_filter jsonb, p_changes jsonb, p_limit int default 1000,
  p_cursor jsonb default null) returns table (changed uuid[], skipped uuid[], next_cursor jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_queue hwqueue.queue;
  v_at timestamptz;
  v_page record;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_changes(p_changes);
  if p_changes ->> 'queue' is not null then  -- takes a transaction id, as update_lease does
    v_queue := (hwqueue.find_spawn_queue(hwqueue.json_text(p_changes -> 'queue', 'changes.queue', 100),
      null)).queue;
  end if;
  v_at := hwqueue.json_time(p_changes -> 'available_at', 'changes.available_at');
  -- leases that a call makes claimable come last: it would meet them among the pending ones
  v_page := hwqueue.lock_page(p_filter,
    case when v_at <= coalesce(hwqueue.json_time(p_cursor -> 'until', 'cursor.until'), hwqueue.clock())
      then array['pending', 'scheduled'] else array['scheduled', 'pending'] end,
    p_limit, coalesce(nullif(p_cursor, 'null'), jsonb_build_object('only_at', v_at)));
  changed := v_page.changed;
  if hwqueue.class_changes(p_changes) <> '{}' then
    changed := array(
      select i from unnest(changed) i
      cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select x.run_id from hwqueue.lease x where x.lease_id = i offset 0) l where l.run_id is null);
  end if;
  if v_queue.queue_id is not null then
    changed := hwqueue.move_keys(array(
      select l.lease_id from unnest(changed) i
      cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select * from hwqueue.lease x where x.lease_id = i offset 0) l
      where l.team_id is null
        and case when hwqueue.may_be_long(l.params)
          then hwqueue.text_bytes(l.params, v_queue.max_params_bytes)
          else octet_length(l.params::text) end <= v_queue.max_params_bytes
      order by l.lease_id), v_queue);
  end if;
  skipped := v_page.skipped || array(select i from unnest(v_page.changed) i where i <> all (changed));
  next_cursor := v_page.next_cursor;
  perform hwqueue.update_lease(i, p_changes) from unnest(changed) i;
  return next;
end
$$;

-- Deletes finished leases that a filter means, before their retention is over, with their keys, results
-- and attempts. p_filter: as count_leases; its state is completed, failed or cancelled, or left out for
-- all of these. The rest is as with cancel_leases.
-- Locks: their outcomes, skip locked, in the order of lease ids; the lease rows. Raises: QHQ01, QHA01,
-- QHA02, QHA03.
create or replace function hwqueue.delete_leases(p_filter jsonb, p_limit int default 1000,
  p_cursor jsonb default null) returns table (changed uuid[], skipped uuid[], next_cursor jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_state text;
begin
  perform hwqueue.require_read_committed();
  select p.* into v_state, changed, skipped, next_cursor
  from hwqueue.lock_page(p_filter, array['completed', 'failed', 'cancelled'], p_limit, p_cursor) p;
  if changed <> '{}' then
    -- roll_up may not have counted their outcomes yet
    insert into hwqueue.undone_end (queue_id, state, finished_at, lease_id, xid)
    select o.queue_id, o.state, o.finished_at, o.lease_id, o.xmin
    from unnest(changed) i
    cross join lateral (select x.*, x.xmin from hwqueue.outcome x where x.lease_id = i offset 0) o;
    perform hwqueue.note_leases('lease_deleted', changed, format('deleted, it was %s', v_state),
      jsonb_build_object('from', v_state));
    perform hwqueue.remove_leases(changed);
  end if;
  return next;
end
$$;
