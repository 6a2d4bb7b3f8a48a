-- Public: tasks, and the options that their leases have by default.
--
-- Operators call these functions, by hand or with hwqueue task sync; a worker calls compare_tasks when it
-- starts, and sync_tasks if its login may. Spawns read what is committed: one
-- beside an open set_task waits for nobody and gets the old defaults. Leases keep what they got.

-- Sets the defaults of a task, all of them, and returns them: {"placement", "affinity_tags", "labels",
-- "patience", "priority", "max_attempts", "retry", "claim_timeout", "max_run"}, each as in the options of
-- spawn_lease; null: no default. They hold for every later spawn of the task, into whatever queue and
-- however it is spawned. An option of the spawn replaces the default of that name as a whole.
--
-- A task need not have leases or workers yet. Leases already spawned keep what they have. No worker replaces
-- what was set so (sync_tasks).
-- Locks: the task's row. Raises: QHA01, QHC03, QHC04, QHA03.
create or replace function hwqueue.set_task(p_task text, p_defaults jsonb default '{}') returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_defaults jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_task, 'task', 200);
  v_defaults := hwqueue.check_defaults(p_task, p_defaults);
  perform hwqueue.sync_tasks(jsonb_build_object(p_task, v_defaults), null, true);
  update hwqueue.task t set by_hand = true where t.name = p_task and not t.by_hand;
  return v_defaults;
end
$$;

-- Sets the defaults that an app declares: {"TASK": defaults as set_task takes them}, at most 1,000. Returns
-- a row for each task that had others: whether the app's are set now. Not those of a task that set_task has
-- set, and not older ones: p_version, the app's, such as 1.4.2, is lower than that of the app that set them,
-- or, where one of both has not said any, the task had them before. p_forces: set them all the same.
-- Locks: the tasks' rows, by name. Raises: QHA01, QHC03, QHC04, QHA03. Idempotent.
create or replace function hwqueue.sync_tasks(p_defaults jsonb, p_version text default null,
  p_forces boolean default false)
returns table (task text, is_set boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_version text := case when hwqueue.version_in_range(p_version, p_version, 'version') then p_version end;
  v_defaults jsonb;
  v_digest bytea;
  v_before jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.compare_tasks(p_defaults);
  for task in select d.key from jsonb_object_keys(p_defaults) d(key) order by d.key collate "C" loop
    perform hwqueue.check_name(task, 'task', 200);
    v_defaults := hwqueue.check_defaults(task, p_defaults -> task);
    v_digest := hwqueue.defaults_digest(v_defaults);
    v_before := (select t.defaults from hwqueue.task t where t.name = task for update);
    insert into hwqueue.task as t (name, defaults, set_at, set_by, by_hand, version)
    values (task, v_defaults, hwqueue.clock(), hwqueue.current_actor(), false, v_version)
    on conflict (name) do update
    set defaults = excluded.defaults, set_at = excluded.set_at, set_by = excluded.set_by, by_hand = false,
      version = coalesce(excluded.version, t.version),
      earlier = t.earlier[greatest(1, cardinality(t.earlier) - 98):]
        || array_remove(array[hwqueue.defaults_digest(t.defaults)], v_digest)
    where case when p_forces then t.defaults <> excluded.defaults or t.by_hand when t.by_hand then false
      else case when hwqueue.version_in_range(v_version, '>' || t.version, 'order') then true
        when hwqueue.version_in_range(v_version, '<' || t.version, 'order') then false
        else case when v_digest = hwqueue.defaults_digest(t.defaults)
          then t.version is null and v_version is not null else v_digest <> all (t.earlier) end end end;
    is_set := found;
    if v_before is null or v_digest <> hwqueue.defaults_digest(v_before) then
      return next;
      perform hwqueue.note_event('task_set', format('defaults of task %s are set', task),
        jsonb_build_object('task', task, 'from', v_before, 'to', v_defaults)) where is_set;
    end if;
  end loop;
end
$$;

-- Returns the tasks that have been set, or for which live workers declare defaults (set_at null: nobody has
-- set them), by name. served: a live node's worker has a handler for it, or did not say which tasks it has
-- handlers for.
-- Raises: QHA03.
create or replace function hwqueue.list_tasks()
returns table (task text, defaults jsonb, served boolean, set_at timestamptz, set_by text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select n.name, coalesce(t.defaults, '{}'), v.any_task or n.name = any (v.tasks), t.set_at, t.set_by
  from hwqueue.served_names(hwqueue.clock()) v
  cross join lateral (
    select s.name from hwqueue.task s union select unnest(v.declared)) n
  left join hwqueue.task t on t.name = n.name
  order by n.name
$$;

-- Drops the defaults of a task, and returns whether it was set. Its leases stay, and it can be spawned as
-- before.
-- Locks: the task's row. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_task(p_task text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_defaults jsonb;
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.task t where t.name = p_task returning t.defaults into v_defaults;
  if found then
    perform hwqueue.note_event('task_dropped', format('defaults of task %s are dropped', p_task),
      jsonb_build_object('task', p_task, 'from', v_defaults));
  end if;
  return v_defaults is not null;
end
$$;

-- Returns, for a worker's log, which options that its app declares differ from the defaults that were set:
-- a row for each, by task and option. stored: null where the task has no default of that name.
--
-- p_defaults: {"TASK": defaults as set_task takes them, ...}, at most 1,000. Values are compared in their
-- normal form: 300 is "5 min". An option that is not declared has no row.
-- Raises: QHA01, QHC03, QHC04.
create or replace function hwqueue.compare_tasks(p_defaults jsonb)
returns table (task text, option text, declared jsonb, stored jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(p_defaults) is distinct from 'object'
    or (select count(*) from jsonb_object_keys(p_defaults)) > 1000 then
    perform hwqueue.refuse_field('QHA01', 'p_defaults', 'must be an object of at most 1000 tasks',
      'pass {"TASK": {"max_attempts": 3}}, in several calls');
  end if;
  return query
    select d.key, o.key, d.value -> o.key, t.defaults -> o.key
    from jsonb_each(p_defaults) d
    cross join lateral (
      select hwqueue.normal_defaults(d.value, 'p_defaults.' || left(d.key, 200)) as options offset 0) n
    left join hwqueue.task t on t.name = d.key
    cross join lateral (select hwqueue.normal_defaults(coalesce(t.defaults, '{}'), '') as options offset 0) s
    cross join lateral jsonb_each(n.options) o
    where o.value is distinct from s.options -> o.key
    order by 1, 2;
end
$$;
