-- Public: schedules, which spawn a lease or submit a run at given times.
--
-- Admins declare schedules; operators pause, trigger and backfill them; workers plan the times of those with
-- a cron expression, which this database cannot read. reap fires what is due (schedules/fire).
--
-- Read create_schedule first, then due_plans and plan_schedule.

-- Creates a schedule, and returns true; false if it is there with the same specification. p_spec: when, one
-- of {"cron": five fields, "zone"}, {"every": span, "starts_at"} and {"times": list}; what, {"queue", "task",
-- "params", "options"} or {"workflow", "input", "options"}, options as spawn_lease or submit_workflow takes
-- them; "missed": of times that upkeep comes late for, at most "missed_window", the latest fires (latest),
-- all do (all), or none (skip); "overlap": skip, while what the schedule spawned before is open; "jitter".
-- What it spawns has the headers schedule and fire_at.
-- Locks: as put_schedule. Raises: QHD02, QHD03, QHA01, QHA03, and as spawn_lease or submit_workflow.
create or replace function hwqueue.create_schedule(p_name text, p_spec jsonb) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select hwqueue.put_schedule(p_name, p_spec, null, false) = 'created'
$$;

-- Changes the keys of a specification that p_changes has, null: resets them, and returns all of it. When its
-- times change, what was due before is not made up for.
-- Locks: the schedule's row. Raises: QHD01, and as create_schedule.
create or replace function hwqueue.set_schedule(p_name text, p_changes jsonb) returns jsonb
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.put_schedule(p_name, s.spec || hwqueue.json_object(p_changes, 'changes'), s.origin, true)
  from hwqueue.find_schedule(p_name) s;
  select s.spec from hwqueue.find_schedule(p_name) s
$$;

-- Makes the schedules of an origin, such as an app, those of p_schedules, {name: specification}: creates,
-- changes and drops its own, never another's. One that is paused stays so. Returns what became of each:
-- created, changed, same or dropped.
-- Locks: the rows, by name. Raises: QHD02 if another origin has the name, and as create_schedule.
create or replace function hwqueue.sync_schedules(p_origin text, p_schedules jsonb)
returns table (name text, change text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_origin, 'p_origin');
  if jsonb_typeof(p_schedules) is distinct from 'object' then
    perform hwqueue.refuse_object(p_schedules, '{}', 'schedules', 'QHA01');
  end if;
  return query
    select k.name, case when p_schedules ? k.name
      then hwqueue.put_schedule(k.name, p_schedules -> k.name, p_origin, true)
      when hwqueue.drop_schedule(k.name) is not null then 'dropped' end
    from (select jsonb_object_keys(p_schedules)
          union select s.name from hwqueue.schedule s where s.origin = p_origin order by 1) k(name);
end
$$;

-- Drops a schedule and returns whether it was there. What it spawned stays; its history is not shown any
-- more.
-- Locks: its row. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_schedule(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.schedule s where s.name = p_name;
  perform hwqueue.note_event('schedule_dropped', format('schedule %s', p_name),
    jsonb_build_object('schedule', p_name)) where found;
  return found;
end
$$;

-- Pauses a schedule and returns true; false if it was paused. Nothing fires until resume_schedule, but by
-- trigger and backfill.
-- Locks: its row. Raises: QHD01, QHA01, QHA03.
create or replace function hwqueue.pause_schedule(p_name text, p_reason text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.find_schedule(p_name), hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  update hwqueue.schedule s
  set paused_at = hwqueue.clock(), paused_by = hwqueue.current_actor(), paused_reason = p_reason
  where s.name = p_name and s.paused_at is null;
  perform hwqueue.note_event('schedule_paused', format('schedule %s', p_name),
    jsonb_build_object('schedule', p_name, 'reason', p_reason)) where found;
  return found;
end
$$;

-- Resumes a schedule and returns true; false if it was not paused. The times of the pause do not fire:
-- backfill_schedule does that.
-- Locks: its row. Raises: QHD01, QHA03.
create or replace function hwqueue.resume_schedule(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.schedule := hwqueue.find_schedule(p_name);
  v_now timestamptz := greatest(v_row.cursor_at, hwqueue.clock());
begin
  update hwqueue.schedule s
  set paused_at = null, paused_by = null, paused_reason = null, cursor_at = v_now,
    next_at = hwqueue.next_time(v_row, v_now)
  where s.name = p_name and s.paused_at is not null;
  perform hwqueue.note_event('schedule_resumed', format('schedule %s', p_name),
    jsonb_build_object('schedule', p_name)) where found;
  return found;
end
$$;

-- Fires a schedule now, paused or not, and returns its row of schedule_history. p_params: instead of its
-- params or input. Not idempotent.
-- Locks: its row; then as spawn_lease or submit_workflow. Raises: QHD01, QHA03.
create or replace function hwqueue.trigger_schedule(p_name text, p_params jsonb default null)
returns table (fire_at timestamptz, outcome text, lease_id uuid, run_id uuid, error text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select f.fire_at, f.outcome, f.lease_id, f.run_id, f.error
  from hwqueue.fire_time(hwqueue.find_schedule(p_name), null, 'trigger', p_params) f
$$;

-- Fires times of a schedule that have passed, each once: not those that have spawned something, but those
-- that failed or were skipped. p_times: at most 1,000, as its expression has them. p_dry_run: only says which
-- would fire. outcome: would_spawn, fired_before, or as in schedule_history.
-- Locks: its row; then as spawn_lease or submit_workflow. Raises: QHD01, QHA01, QHA03.
create or replace function hwqueue.backfill_schedule(p_name text, p_times timestamptz[],
  p_dry_run boolean default true)
returns table (fire_at timestamptz, outcome text, lease_id uuid, run_id uuid, error text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.schedule := hwqueue.find_schedule(p_name, p_dry_run is false);
begin
  if (cardinality(p_times) <= 1000 and hwqueue.clock() >= all (p_times)
      and 'epoch' <= all (p_times)) is not true then
    perform hwqueue.refuse_field('QHA01', 'p_times', 'must be at most 1000 times since 1970 that have passed',
      'backfill in several calls; what is to come fires by itself');
  end if;
  return query
    select f.at, coalesce((f.fire).outcome, case when p_dry_run is not false and not exists (
        select from hwqueue.schedule_fire x
        where x.schedule_id = v_row.schedule_id and x.fire_at = f.at and x.outcome = 'spawned')
      then 'would_spawn' else 'fired_before' end), (f.fire).lease_id, (f.fire).run_id, (f.fire).error
    from (select d.at, case when p_dry_run is false
            then hwqueue.fire_time(v_row, d.at, 'backfill', null) end as fire
          from (select distinct t as at from unnest(p_times) t order by 1) d offset 0) f;
end
$$;

-- Returns the schedules by name, or the one that p_name names. next_at: null if it is paused, over, or not
-- planned yet. missed: times that did not fire because upkeep came too late. plan_error: why its times cannot
-- be planned. is_dry: it is not paused and nobody has planned its next time: no worker runs upkeep. p_after:
-- the last name of the page before.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_schedules(p_after text default null, p_limit int default 100,
  p_name text default null)
returns table (name text, kind text, spec jsonb, tenant text, origin text, revision bigint,
  next_at timestamptz, last_at timestamptz, last_outcome text, last_error text, missed bigint,
  plan_error text, is_dry boolean, paused_at timestamptz, paused_by text, paused_reason text,
  created_at timestamptz, created_by text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after');
  select s.name, k.kind, s.spec, s.tenant, s.origin, s.revision,
    case when s.paused_at is null then s.next_at end, f.fire_at, f.outcome, f.error, s.missed, s.plan_error,
    hwqueue.is_dry(s, hwqueue.clock()), s.paused_at, s.paused_by, s.paused_reason, s.created_at, s.created_by
  from hwqueue.schedule s
  join unnest(array['cron', 'every', 'times']) k(kind) on s.spec ? k.kind
  left join lateral (
    select x.* from hwqueue.schedule_fire x
    where x.schedule_id = s.schedule_id order by x.fire_at desc limit 1) f on true
  where (p_after is null or s.name > p_after) and (p_name is null or s.name = p_name)
  order by s.name limit p_limit
$$;

-- Returns which times of a schedule fired, newest first, as long as its queue keeps what has ended. cause:
-- due, trigger or backfill. outcome: spawned; skipped_overlap, then the lease or run is the one that was
-- open; failed. p_before: the last fire_at of the page before.
-- Raises: QHD01, QHA01, QHA03.
create or replace function hwqueue.schedule_history(p_name text, p_limit int default 100,
  p_before timestamptz default null)
returns table (fire_at timestamptz, fired_at timestamptz, cause text, outcome text, lease_id uuid,
  run_id uuid, error text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_before'),
    hwqueue.find_schedule(p_name, false);  -- also where nothing has fired
  select f.fire_at, f.fired_at, f.cause, f.outcome, f.lease_id, f.run_id, f.error
  from hwqueue.schedule_fire f
  where f.schedule_id = (select s.schedule_id from hwqueue.schedule s where s.name = p_name)
    and f.fire_at < coalesce(p_before, 'infinity')
  order by f.fire_at desc limit p_limit
$$;

-- Returns schedules whose times are to be planned, for any process that can read cron expressions: cron, in
-- its zone, with H for a value that the name decides. Hand plan_schedule all times after from_at up to now,
-- and those to come: 64 of the next 400 days, two at least.
-- Locks: the rows, skip locked. Raises: QHA01, QHA03.
create or replace function hwqueue.due_plans(p_limit int default 100)
returns table (name text, revision bigint, cron text, zone text, from_at timestamptz,
  now timestamptz)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants(), hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again');
  select s.name, s.revision, s.spec ->> 'cron', s.spec ->> 'zone',
    greatest(s.cursor_at, c.now - (s.spec ->> 'missed_window')::float8 * interval '1 second'), c.now
  from (select hwqueue.clock() as now) c
  join hwqueue.schedule s on s.paused_at is null and s.plan_at <= c.now
  order by s.plan_at limit p_limit for share of s skip locked  -- plan_schedule would wait
$$;

-- Replaces the times of a schedule after those that have fired, and returns true; false if it was changed
-- since due_plans named p_revision, or if none of p_times is to come. p_problem: why it has none, for people;
-- it is tried again in a day.
-- Locks: its row. Raises: QHD01, QHA01, QHA03. Idempotent.
create or replace function hwqueue.plan_schedule(p_name text, p_revision bigint, p_times timestamptz[],
  p_problem text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.schedule := hwqueue.find_schedule(p_name);
  v_now timestamptz := hwqueue.clock();
  v_coming timestamptz[];
begin
  if cardinality(p_times) > 50000 or '10000-01-01' <= any (p_times)
    or exists (select from unnest(p_times) t where t <> date_trunc('minute', t)) then
    perform hwqueue.refuse_field('QHA01', 'p_times',
      'must be at most 50000 whole minutes before the year 10000',
      'give those that are due, and the next 64');
  end if;
  v_row.times := array(select distinct t from unnest(p_times) t where t > v_row.cursor_at order by t);
  v_coming := array(select t from unnest(v_row.times) t where t > v_now order by t);
  if not v_row.spec ? 'cron' or v_row.revision is distinct from p_revision
      or p_problem is null and v_coming = '{}' then
    return false;
  end if;
  update hwqueue.schedule s
  set times = v_row.times, next_at = hwqueue.next_time(v_row, v_row.cursor_at),
    plan_error = left(p_problem, 200),
    -- when half of them have passed; now and then, since time zones change
    plan_at = case when p_problem is null then least(v_coming[(cardinality(v_coming) + 1) / 2],
      v_now + interval '30 days') else v_now + interval '1 day' end
  where s.name = p_name;
  return true;
end
$$;
