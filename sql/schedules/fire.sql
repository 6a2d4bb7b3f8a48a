-- Firing: what is due is spawned once.
--
-- reap calls fire_due (upkeep/teams), trigger_schedule and backfill_schedule call fire_time. Example: the
-- first reap after 02:00 writes the row of schedule_fire of that time and spawns the lease, in one
-- transaction. A second call finds the row.
--
-- Invariants: a time fires at most once, by the primary key of schedule_fire. No time up to cursor_at fires
-- any more, but by a backfill. A schedule that is dry does not fire: of times that were missed, the last that
-- is known may not be the latest.

-- Fires what is due of a schedule, whatever its tenant, 100 times at most, and moves its cursor on. What is
-- late: missed says whether the latest fires, or all do, or (skip) none that is a minute late. What a spawn
-- is refused for is the outcome of its time; a lock or a timeout undoes all of it. False: nothing is due, or
-- another session holds it.
-- Locks: its row, skip locked; then as spawns, for a tenth of a second at most.
create or replace function hwqueue.fire_due(p_schedule uuid, p_now timestamptz) returns boolean
language plpgsql volatile set lock_timeout = '100ms'
as $$
declare
  v_row hwqueue.schedule;
  v_missed text;
  v_from timestamptz;
  v_to timestamptz;
  v_due timestamptz[];
  v_fires timestamptz[];
  v_count bigint;  -- of those that are missed
  v_tenant text := coalesce(current_setting('hwqueue.tenant', true), '');
begin
  select s.* into v_row from hwqueue.schedule s
  where s.schedule_id = p_schedule and s.paused_at is null and s.next_at <= p_now
  for no key update skip locked;
  if not found then
    return false;
  end if;
  v_missed := v_row.spec ->> 'missed';
  v_from := greatest(v_row.cursor_at, p_now - (v_row.spec ->> 'missed_window')::float8 * interval '1 second');
  v_due := case when v_row.spec ? 'every' then array(select generate_series(
      hwqueue.next_time(v_row, v_from), p_now, (v_row.spec ->> 'every')::float8 * interval '1 second'))
    else array(select t from unnest(v_row.times) t where t > v_from and t <= p_now order by t) end;
  v_fires := array(
    select t from (
      select t from unnest(v_due) t where v_missed <> 'skip' or t >= p_now - interval '1 minute'
      order by t desc limit case v_missed when 'all' then 1000 else 1 end) l
    order by t);
  v_to := coalesce(v_fires[100], v_due[cardinality(v_due)], v_from);
  v_fires := v_fires[: 100];
  v_count := (select count(*) from unnest(v_due) t where t <= v_to) - cardinality(v_fires);
  update hwqueue.schedule s
  set cursor_at = v_to, missed = s.missed + v_count, next_at = hwqueue.next_time(v_row, v_to)
  where s.name = v_row.name;
  perform hwqueue.note_event('schedule_missed', format('schedule %s missed %s times', v_row.name, v_count),
    jsonb_build_object('schedule', v_row.name, 'missed', v_count, 'from', v_row.next_at, 'to', v_to),
    p_queue => v_row.spec ->> 'queue') where v_count > 0;
  perform set_config('hwqueue.tenant', '', true);
  perform hwqueue.fire_time(v_row, t, 'due', null) from unnest(v_fires) t;
  perform set_config('hwqueue.tenant', v_tenant, true);
  return true;
end
$$;

-- Fires a time of a schedule once: writes its row and spawns, or says in the row why not. Null: it has
-- fired. A backfill tries again what spawned nothing. p_at null: now, at a microsecond that is no other time.
-- p_params: instead of the schedule's params or input.
-- Locks: as spawns; the caller holds the schedule. Raises: what a retry may mend, such as timeouts, and what
-- no schedule is to blame for.
create or replace function hwqueue.fire_time(p_schedule hwqueue.schedule, p_at timestamptz, p_cause text,
  p_params jsonb) returns hwqueue.schedule_fire
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_spec jsonb := p_schedule.spec;
  v_options jsonb;
  v_fire hwqueue.schedule_fire;
  v_target hwqueue.spawn_target;
  v_spawn hwqueue.spawn_request;
  v_now timestamptz := hwqueue.clock();
begin
  p_at := coalesce(p_at, (
    select coalesce(max(f.fire_at), v_now) + interval '1 microsecond' from hwqueue.schedule_fire f
    where f.schedule_id = p_schedule.schedule_id
      and f.fire_at between v_now and v_now + interval '1 second'));
  v_options := hwqueue.fire_options(p_schedule, p_at)
    - case p_cause when 'trigger' then 'available_at' else '' end;
  insert into hwqueue.schedule_fire as f (schedule_id, fire_at, cause, outcome, fired_at, keep_until)
  values (p_schedule.schedule_id, p_at, p_cause, 'failed', v_now, v_now + interval '30 days')
  on conflict (schedule_id, fire_at) do update
  set cause = p_cause, outcome = 'failed', fired_at = v_now, lease_id = null, run_id = null, error = null
  where p_cause = 'backfill' and f.outcome <> 'spawned'
  returning f.* into v_fire;
  if not found then
    return null;
  end if;
  begin
    if v_spec ? 'workflow' then
      perform pg_current_xact_id();  -- before the clock is read, as in submit_workflow
      select w.run_id, case when w.created then 'spawned' else 'skipped_overlap' end
      into v_fire.run_id, v_fire.outcome
      from hwqueue.find_workflow(v_spec ->> 'workflow', v_options) d
      cross join lateral hwqueue.write_run(d, coalesce(p_params, v_spec -> 'input'), v_options,
        hwqueue.clock()) w;
    else
      v_target := hwqueue.find_spawn_queue(v_spec ->> 'queue', v_spec ->> 'task');
      v_now := hwqueue.clock();
      v_spawn := (hwqueue.write_spawns(array[hwqueue.read_single_spawn(v_target.queue, v_spec ->> 'task',
        coalesce(p_params, v_spec -> 'params'), hwqueue.with_defaults(v_options, v_target.defaults), v_now)],
        v_target.queue, v_now))[1];
      v_fire.lease_id := coalesce(v_spawn.stands_for, v_spawn.lease_id);
      v_fire.outcome := case when v_spawn.stands_for is null then 'spawned' else 'skipped_overlap' end;
      v_fire.keep_until := v_now + greatest((v_target.queue).retain_completed,
        (v_target.queue).retain_failed, interval '1 day');
    end if;
  exception when others then
    if left(sqlstate, 2) in ('40', '42', '53', '54', '55', '57', '58', 'XX') then
      raise;
    end if;
    v_fire.error := left(format('%s: %s', sqlstate, sqlerrm), 500);
    perform hwqueue.note_event('schedule_failed', format('schedule %s spawned nothing: %s', p_schedule.name,
        left(sqlerrm, 300)), jsonb_build_object('schedule', p_schedule.name, 'fire_at',
        p_at, 'cause', p_cause, 'sqlstate', sqlstate), p_queue => v_spec ->> 'queue');
  end;
  update hwqueue.schedule_fire f
  set outcome = v_fire.outcome, lease_id = v_fire.lease_id, run_id = v_fire.run_id, error = v_fire.error,
    keep_until = v_fire.keep_until
  where f.schedule_id = v_fire.schedule_id and f.fire_at = p_at;
  return v_fire;
end
$$;
