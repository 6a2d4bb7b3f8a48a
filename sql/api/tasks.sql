-- Public: tasks, and the options that their leases have by default.
--
-- Operators call these functions, by hand or with hwqueue task sync; a worker calls compare_tasks when it
-- starts. Spawns read what is committed: one
-- beside an open set_task waits for nobody and gets the old defaults. Leases keep what they got.
--
-- Read set_task first. The options are read by spawn/defaults.

-- Sets the defaults of a task, all of them, and returns them: {"placement", "affinity_tags", "labels",
-- "patience", "priority", "max_attempts", "retry", "claim_timeout", "max_run"}, each as in the options of
-- spawn_lease; null: no default. They hold for every later spawn of the task, into whatever queue and
-- however it is spawned. An option of the spawn replaces the default of that name as a whole.
--
-- A task need not have leases or workers yet. Leases already spawned keep what they have.
--
-- Locks: the task's row. Raises: QHA01, QHC03, QHC04, QHA03.
create or replace function hwqueue.set_task(p_task text, p_defaults jsonb default '{}',
  p_shard int default 0) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_before jsonb;
  v_defaults jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_task, 'task', 200), hwqueue.check_shard(p_shard);
  v_defaults := hwqueue.check_defaults(p_task, p_defaults, p_shard);
  select t.defaults into v_before from hwqueue.task t
  where t.shard_id = p_shard and t.name = p_task for no key update;
  insert into hwqueue.task as t (shard_id, name, defaults, set_at, set_by)
  values (p_shard, p_task, v_defaults, hwqueue.clock(), hwqueue.current_actor())
  on conflict (shard_id, name) do update
  set defaults = excluded.defaults, set_at = excluded.set_at, set_by = excluded.set_by
  where t.defaults <> excluded.defaults;
  if found then
    perform hwqueue.note_event('task_set', format('defaults of task %s are set', p_task), p_shard,
      jsonb_build_object('task', p_task, 'from', v_before, 'to', v_defaults));
  end if;
  return v_defaults;
end
$$;

-- Returns the tasks that have been set, by name. served: a live node's worker has a handler for it, or did
-- not say which tasks it has handlers for.
--
-- Raises: QHA03.
create or replace function hwqueue.list_tasks(p_shard int default 0)
returns table (task text, defaults jsonb, served boolean, set_at timestamptz, set_by text, shard_id int)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  with live as materialized (
    select distinct v.tasks
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join hwqueue.served v on v.shard_id = p_shard and v.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, hwqueue.clock())
  )
  select t.name, t.defaults,
         exists (select from live l where hwqueue.unserved_part(null, l.tasks, null, t.name) is null),
         t.set_at, t.set_by, t.shard_id
  from hwqueue.task t
  where t.shard_id = p_shard
  order by t.name
$$;

-- Drops the defaults of a task, and returns whether it was set. Its leases stay, and it can be spawned as
-- before.
--
-- Locks: the task's row. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_task(p_task text, p_shard int default 0) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_defaults jsonb;
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.task t where t.shard_id = p_shard and t.name = p_task
  returning t.defaults into v_defaults;
  if found then
    perform hwqueue.note_event('task_dropped', format('defaults of task %s are dropped', p_task), p_shard,
      jsonb_build_object('task', p_task, 'from', v_defaults));
    return true;
  end if;
  return false;
end
$$;

-- Returns, for a worker's log, which options that its app declares differ from the defaults that were set:
-- a row for each, by task and option. stored: null where the task has no default of that name.
--
-- p_defaults: {"TASK": defaults as set_task takes them, ...}, at most 1,000. Values are compared in their
-- normal form: 300 is "5 min". A task that was never set has no row, nor an option that is not declared.
--
-- Raises: QHA01, QHC03, QHC04.
create or replace function hwqueue.compare_tasks(p_defaults jsonb, p_shard int default 0)
returns table (task text, option text, declared jsonb, stored jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.check_shard(p_shard);
  if jsonb_typeof(p_defaults) is distinct from 'object'
    or (select count(*) from jsonb_object_keys(p_defaults)) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_defaults must be an object of at most 1000 tasks',
      jsonb_build_object('field', 'p_defaults'), 'pass {"TASK": {"max_attempts": 3}}, in several calls');
  end if;
  return query
    select t.name, o.key, d.value -> o.key, t.defaults -> o.key
    from jsonb_each(p_defaults) d
    cross join lateral (
      select hwqueue.normal_defaults(d.value, 'p_defaults.' || left(d.key, 200)) as options offset 0) n
    join hwqueue.task t on t.shard_id = p_shard and t.name = d.key
    cross join lateral (select hwqueue.normal_defaults(t.defaults, 'defaults') as options offset 0) s
    cross join lateral jsonb_each(n.options) o
    where o.value is distinct from s.options -> o.key
    order by 1, 2;
end
$$;
