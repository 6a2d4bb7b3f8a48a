-- What a schedule says: reading it, writing it, and what comes next.
--
-- api/schedules calls find_schedule and put_schedule. Example: {"cron": "0 2 * * *", "zone": "Europe/Berlin",
-- "queue": "mail", "task": "report"}. Nothing here can read the expression: a worker gets it from due_plans,
-- computes its next 64 times and hands them to plan_schedule. Times of the other two kinds need no plan.
--
-- Invariant: times holds all times from cursor_at up to its last, and next_at is the first after cursor_at.
-- What a time would be refused for is refused when the schedule is written.
--
-- Read put_schedule, then read_schedule.

-- Returns a schedule, with p_locks locked. Every function about one schedule begins with it.
-- Locks: the schedule's row, if it is to. Raises: QHD01, QHA03.
create or replace function hwqueue.find_schedule(p_name text, p_locks boolean default true)
returns hwqueue.schedule
language plpgsql volatile
as $$
declare
  v_row hwqueue.schedule;
begin
  perform hwqueue.require_all_tenants();
  if p_locks then  -- a statement of its own: lists are read in read-only transactions
    perform 1 from hwqueue.schedule s where s.name = p_name for no key update;
  end if;
  select s.* into v_row from hwqueue.schedule s where s.name = p_name;
  if not found then
    perform hwqueue.refuse('QHD01', format('no schedule is named %s',
        coalesce(to_json(left(p_name, 100))::text, 'null')),
      jsonb_build_object('field', 'p_name'), 'list them: hwqueue schedule list');
  end if;
  return v_row;
end
$$;

-- Reads a specification: returns a schedule that begins now, with it in normal form, the same in every zone.
-- What a time would be refused for is refused here.
-- Locks: as find_spawn_queue; a new class. Raises: QHD03, QHA01, and as spawn_lease or submit_workflow.
create or replace function hwqueue.read_schedule(p_name text, p_spec jsonb, p_now timestamptz)
returns hwqueue.schedule
language plpgsql volatile set timezone = 'UTC'
as $$
declare
  v_row hwqueue.schedule;
  v_spec jsonb;
  v_options jsonb;
  v_target hwqueue.spawn_target;
begin
  perform hwqueue.check_name(p_name, 'p_name');
  v_spec := hwqueue.default_values('schedule')
    || hwqueue.read_object(p_spec, 'schedule', 'spec', 'QHD03', p_now)
    || hwqueue.without_nulls(jsonb_build_object('params', p_spec -> 'params', 'input', p_spec -> 'input'));
  v_spec := v_spec || hwqueue.without_nulls(jsonb_build_object('times', (
    select jsonb_agg(distinct hwqueue.json_time(t, 'spec.times', 'QHD03'))
    from jsonb_array_elements(v_spec -> 'times') t)));
  perform hwqueue.refuse_field('QHD03', r.field, r.words, r.hint)
  from (values
    (num_nonnulls(v_spec -> 'cron', v_spec -> 'every', v_spec -> 'times') <> 1, 'spec',
      'must have one of cron, every and times',
      'for example {"cron": "0 2 * * *", "zone": "Europe/Berlin"}, or {"every": "5 minutes"}'),
    (v_spec ? 'starts_at' and not v_spec ? 'every', 'spec.starts_at', 'is from when every is counted',
      'leave it out'),
    (v_spec ->> 'cron' !~* '^[0-9a-z*,/#()-]+( +[0-9a-z*,/#()-]+){4}$', 'spec.cron',
      'must have five fields: minute, hour, day of month, month, day of week',
      'for example "30 4 * * mon-fri", or "H 2 * * *" for a minute that the name decides'),
    (v_spec ->> 'zone' not in ('UTC', coalesce(current_setting('hwqueue.zone', true), '')) and not exists (
      select from pg_timezone_names z where z.name = v_spec ->> 'zone'), 'spec.zone',
      'is no time zone that the server knows', 'give a name such as "Europe/Berlin"'),
    (case when v_spec ? 'workflow' then v_spec ?| array['task', 'queue', 'params']
       else not v_spec ?& array['task', 'queue'] or v_spec ? 'input' end, 'spec',
      'must have a task, its queue and params, or a workflow and its input',
      'for example {"queue": "mail", "task": "report"}, or {"workflow": "nightly"}'),
    (v_spec -> 'options' ?| array['lease_id', 'run_id', 'idempotency_key', 'unique', 'one_of', 'replaces',
       'available_at', 'delay', 'deadline'], 'spec.options', 'has an option that one lease alone can have',
      'leave out ids, keys and times: overlap and jitter say these for each time')
  ) r(is_bad, field, words, hint)
  where r.is_bad;
  perform set_config('hwqueue.zone', v_spec ->> 'zone', true);  -- the list of all takes long to read
  v_row := jsonb_populate_record(null::hwqueue.schedule, jsonb_build_object('name', p_name,
    'schedule_id', hwqueue.new_id(), 'spec', v_spec, 'revision', 1, 'missed', 0, 'cursor_at', p_now,
    'times', coalesce(v_spec -> 'times', '[]'), 'plan_at', case when v_spec ? 'cron' then p_now end,
    'created_at', p_now, 'created_by', hwqueue.current_actor()));
  v_row.next_at := hwqueue.next_time(v_row, p_now);
  v_options := hwqueue.fire_options(v_row, p_now);
  if v_spec ? 'workflow' then
    v_row.tenant := (hwqueue.read_run(hwqueue.find_workflow(v_spec ->> 'workflow', v_options),
      v_spec -> 'input', v_options, p_now)).tenant;
  else
    v_target := hwqueue.find_spawn_queue(v_spec ->> 'queue', v_spec ->> 'task');
    perform hwqueue.read_single_spawn(v_target.queue, v_spec ->> 'task', v_spec -> 'params',
      hwqueue.with_defaults(v_options, v_target.defaults), p_now, '{}');
    v_row.tenant := coalesce(v_options ->> 'tenant', '');
  end if;
  return v_row;
end
$$;

-- The options of what a time of a schedule spawns. jitter: by the name and the time, so that a backfill has
-- the same.
create or replace function hwqueue.fire_options(p_schedule hwqueue.schedule, p_at timestamptz) returns jsonb
language plpgsql stable set timezone = 'UTC'
as $$ begin return
  (p_schedule.spec -> 'options') || jsonb_build_object('headers',
      coalesce(nullif(p_schedule.spec #> '{options,headers}', 'null'), '{}')
      || jsonb_build_object('schedule', p_schedule.name, 'fire_at', p_at))
    || case when p_schedule.spec ->> 'overlap' = 'skip' then jsonb_build_object('unique',
         jsonb_build_object('key', 'schedule:' || p_schedule.schedule_id, 'on_conflict', 'keep'))
       else '{}' end
    || case when p_schedule.spec -> 'jitter' <> '0' then jsonb_build_object('available_at',
         p_at + make_interval(secs => (p_schedule.spec ->> 'jitter')::float8 * ('x' || left(encode(sha256(
           convert_to(p_schedule.name || extract(epoch from p_at), 'UTF8')), 'hex'), 8))::bit(32)::bigint
           / 4294967296)) else '{}' end;
end $$;

-- The first time of a schedule after p_after; null: none is planned.
create or replace function hwqueue.next_time(p_schedule hwqueue.schedule, p_after timestamptz)
returns timestamptz
language plpgsql stable
as $$ begin return (
  select case when a.span is null then (select min(t) from unnest(p_schedule.times) t where t > p_after)
    else a.anchor + make_interval(secs => (a.span
      * greatest(floor(extract(epoch from p_after - a.anchor) / a.span) + 1, 0))::float8) end
  from (select coalesce((p_schedule.spec ->> 'starts_at')::timestamptz, 'epoch') as anchor,
               (p_schedule.spec ->> 'every')::numeric as span) a
); end $$;

-- Whether nobody has planned a schedule up to now.
create or replace function hwqueue.is_dry(p_schedule hwqueue.schedule, p_now timestamptz) returns boolean
language sql stable
as $$
  select p_schedule.paused_at is null and p_schedule.spec ? 'cron' and p_now >= greatest(
    p_schedule.times[cardinality(p_schedule.times)], p_schedule.cursor_at + interval '1 minute')
$$;

-- Writes a schedule as p_spec has it, and returns what that was: created, changed or same. Another
-- specification is written over that of the same origin alone, and only with p_may_change. When its times
-- change, those before now are not missed.
-- Locks: its row. Raises: QHD02, and as read_schedule.
create or replace function hwqueue.put_schedule(p_name text, p_spec jsonb, p_origin text,
  p_may_change boolean) returns text
language plpgsql volatile
as $$
declare
  v_new hwqueue.schedule := hwqueue.read_schedule(p_name, p_spec, hwqueue.clock());
  v_row hwqueue.schedule;
  v_change text;
begin
  v_new.origin := p_origin;
  insert into hwqueue.schedule as s select v_new.* on conflict (name) do update set name = s.name  -- locks it
  returning s.* into v_row;
  v_change := case when v_row.schedule_id = v_new.schedule_id then 'created'
    when v_row.spec = v_new.spec then 'same' else 'changed' end;
  if v_row.origin is distinct from p_origin or v_change = 'changed' and not p_may_change then
    perform hwqueue.refuse('QHD02', format('schedule %s exists%s', p_name, coalesce(
        ' and is declared by ' || to_json(v_row.origin), ' with another specification')),
      jsonb_build_object('schedule', p_name, 'origin', v_row.origin),
      'change it with set_schedule, drop it, or choose another name');
  elsif v_change = 'same' then
    return v_change;
  elsif v_new.spec ? 'times' and v_new.next_at is null then
    perform hwqueue.refuse_field('QHD03', 'spec.times', 'has no time to come', 'leave out what has passed');
  end if;
  update hwqueue.schedule s set spec = v_new.spec, tenant = v_new.tenant, revision = s.revision + 1
  where s.name = p_name and v_change = 'changed';
  update hwqueue.schedule s
  set times = v_new.times, next_at = v_new.next_at, cursor_at = v_new.cursor_at, plan_at = v_new.plan_at,
    plan_error = null
  where s.name = p_name and exists (
    select from unnest(array['cron', 'every', 'times', 'zone', 'starts_at']) k
    where v_new.spec -> k is distinct from v_row.spec -> k);
  perform hwqueue.note_event('schedule_set', format('schedule %s is %s', p_name, v_change),
    -- who reads events reads no payloads
    jsonb_build_object('schedule', p_name, 'spec', v_new.spec - '{params,input,options}'::text[]),
    p_queue => v_new.spec ->> 'queue');
  return v_change;
end
$$;
