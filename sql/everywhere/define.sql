-- Defining everywhere tasks: their options, their rows, and which nodes they suit.
--
-- Example: {"mode": "always", "affinity_tags": {"gpu": true}} becomes one row with a placement class. No
-- lease is written yet: everywhere/nodes writes one for each node that suits the class, when upkeep gets
-- there or a new node claims.
--
-- Invariant: all leases of an everywhere task have one class. The node is not in it: it is in the row of
-- everywhere_node and in the reservation, so 10,000 nodes cost one class.

-- Returns the row of an everywhere task that options ask for, with its class. An option of its leases that is
-- not given is the default of the task. A new class is written.
-- It takes room on each node: for a caller that is limited to a tenant the policy of the queue must allow it.
-- Locks: a new class. Raises: QHA01, QHC03, QHC04, QHW01, QHA03, naming the field.
create or replace function hwqueue.read_everywhere(p_target hwqueue.spawn_target, p_task text, p_params jsonb,
  p_options jsonb, p_now timestamptz) returns hwqueue.everywhere
language plpgsql volatile
as $$
declare
  v_own text[] := hwqueue.keys_of('everywhere');
  v_queue hwqueue.queue := p_target.queue;
  v_row hwqueue.everywhere;
  v_spawn hwqueue.spawn_request;
begin
  if hwqueue.my_tenants() is not null
    and not v_queue.everywhere_tenants && (hwqueue.my_tenants() || '*'::text) then
    perform hwqueue.refuse_foreign(format('everywhere tasks of queue %s are for operators', v_queue.name),
      'p_queue', 'ask an operator to spawn it, or an admin to name the tenant in the queue''s policy'
      ' everywhere_tenants');
  end if;
  perform hwqueue.check_object(p_options, v_own || array['placement', 'affinity_tags', 'affinity_with',
    'anti_affinity_with', 'wire', 'priority', 'tenant', 'service_id', 'labels', 'headers', 'max_attempts',
    'retry', 'claim_timeout'], 'options');
  v_row := jsonb_populate_record(null::hwqueue.everywhere, hwqueue.default_values('everywhere')
    || hwqueue.read_keys(p_options, 'everywhere', 'options'));
  v_row.everywhere_id := coalesce(v_row.everywhere_id, hwqueue.new_id());
  -- what a lease that waits for one node cannot have
  v_row.options := hwqueue.with_tenant(p_target.defaults - array['patience', 'deadline', 'delay',
    'available_at', 'idempotency_key', 'unique', 'notify', 'lease_id']);
  v_row.options := hwqueue.with_defaults(p_options - v_own, v_row.options);
  v_row.options := jsonb_set(v_row.options, '{headers}', coalesce(nullif(v_row.options -> 'headers', 'null'),
    '{}') || jsonb_build_object('everywhere_id', v_row.everywhere_id));
  v_spawn := hwqueue.read_single_spawn(v_queue, p_task, p_params, v_row.options, p_now, case when exists (
    select from hwqueue.everywhere e where e.everywhere_id = v_row.everywhere_id)
    then '{classes}' else '{pending,classes,spawns}' end::text[], p_hides => false);
  perform hwqueue.refuse_lanes(v_spawn.lanes, 'a task on every node'),
    hwqueue.check_own_spawns(array[v_spawn], false);
  v_row.queue_id := v_queue.queue_id;
  v_row.class_id := v_spawn.class_id;
  select c.tenant, c.anchors into v_row.tenant, v_row.anchors
  from hwqueue.placement_class c where c.class_id = v_spawn.class_id;
  v_row.task_name := p_task;
  v_row.params := v_spawn.params;
  v_row.created_at := p_now;
  return v_row;
end
$$;

-- Writes an everywhere task. Returns whether it is new: false for one with the same id and content. A tenant
-- has at most as many as the policy of the queue allows, and all have a thousand.
-- Locks: an id that another session writes now. Raises: QHE02 for an id that is there with other content, or
-- was stopped; QHT03 for a new one of too many.
create or replace function hwqueue.write_everywhere(p_row hwqueue.everywhere) returns boolean
language plpgsql volatile
as $$
declare
  v_old hwqueue.everywhere;
  v_count record;
  v_most int := (  -- of a caller that is limited to a tenant
    select q.everywhere_limit from hwqueue.queue q where q.queue_id = p_row.queue_id
      and hwqueue.my_tenants() is not null);
begin
  insert into hwqueue.everywhere (everywhere_id, queue_id, class_id, tenant, task_name, params,
    options, mode, on_unmatched, on_cordoned, created_at, anchors)
  values (p_row.everywhere_id, p_row.queue_id, p_row.class_id, p_row.tenant, p_row.task_name,
    p_row.params, p_row.options, p_row.mode, p_row.on_unmatched, p_row.on_cordoned, p_row.created_at,
    p_row.anchors)
  on conflict do nothing;
  if found then
    -- without those of other sessions that are not committed yet
    select count(*) - 1 as of_all, count(*) filter (where e.tenant = p_row.tenant) - 1 as of_tenant
    into v_count from hwqueue.everywhere e where e.finished_at is null;
    if v_count.of_tenant >= v_most then
      perform hwqueue.refuse_more('everywhere tasks', v_count.of_tenant, v_most, p_row.tenant,
        'stop one first (stop_everywhere), or let an admin raise the queue''s policy everywhere_limit');
    elsif v_count.of_all >= 1000 then
      perform hwqueue.refuse_more('everywhere tasks', v_count.of_all, 1000, null,
        'stop one first (stop_everywhere): each node is asked about each of them');
    end if;
    return true;
  end if;
  select e.* into v_old from hwqueue.everywhere e where e.everywhere_id = p_row.everywhere_id;
  if v_old.stopped_at is not null or (v_old.queue_id, v_old.class_id, v_old.task_name, v_old.params,
      v_old.options, v_old.mode, v_old.on_unmatched, v_old.on_cordoned)
    is distinct from (p_row.queue_id, p_row.class_id, p_row.task_name, p_row.params,
      p_row.options, p_row.mode, p_row.on_unmatched, p_row.on_cordoned) then
    perform hwqueue.refuse('QHE02', format('everywhere task %s exists, %s', p_row.everywhere_id,
        case when v_old.stopped_at is null or v_old.tenant <> p_row.tenant then 'with other content'
          else 'and was stopped' end),
      jsonb_build_object('field', 'options.everywhere_id', 'everywhere_id', p_row.everywhere_id),
      'stop that one and use a fresh id: an id stands for one task, params and options');
  end if;
  return false;
end
$$;

-- Whether a node is to have a lease of an everywhere task. now: yes. later: it suits, but is silent or
-- cordoned, or the queue is paused. never: it does not suit, could not hold it if it were empty, its worker
-- serves neither queue nor task, or the everywhere task was stopped.
create or replace function hwqueue.everywhere_fit(p_everywhere hwqueue.everywhere, p_node uuid,
  p_now timestamptz) returns text
language plpgsql stable  -- its plan is kept: it is asked for each node
as $$ begin
  return case when p_everywhere.stopped_at is not null then 'never' else coalesce((
    select case
      when n.deregistered_at is not null or q.dropped_at is not null
        or hwqueue.unserved_part(n.queues, n.tasks, q.name, p_everywhere.task_name) is not null
        or not hwqueue.node_suits(p_everywhere.class_id, n, p_now)
        or hwqueue.class_shortage(c, n, hwqueue.idle_load(n)) > 0 then 'never'
      when n.cordoned_at is not null and (n.drain_by is not null or not p_everywhere.on_cordoned)
        or not hwqueue.is_live(n, s, p_now) or q.paused_at is not null then 'later'
      else 'now' end
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = p_node
    join hwqueue.queue q on q.queue_id = p_everywhere.queue_id
    join hwqueue.placement_class c on c.class_id = p_everywhere.class_id
    where n.node_id = p_node), 'never') end;
end $$;

-- Returns an everywhere task. For a caller limited to other tenants it does not exist.
-- Raises: QHE01.
create or replace function hwqueue.find_everywhere(p_everywhere uuid) returns hwqueue.everywhere
language plpgsql volatile
as $$
declare
  v_row hwqueue.everywhere;
begin
  select e.* into v_row from hwqueue.everywhere e where e.everywhere_id = p_everywhere;
  if not found or hwqueue.my_tenants() is not null and v_row.tenant <> all (hwqueue.my_tenants()) then
    perform hwqueue.refuse('QHE01', format('everywhere task %s does not exist',
        coalesce(p_everywhere::text, 'null')), jsonb_build_object('everywhere_id', p_everywhere),
      'check the id; one that was stopped goes when the last of its leases has gone');
  end if;
  return v_row;
end
$$;

-- Says what an everywhere task does: active, stopping or stopped.
create or replace function hwqueue.everywhere_state(p_everywhere hwqueue.everywhere) returns text
language sql immutable parallel safe
as $$
  select case when p_everywhere.finished_at is not null then 'stopped'
    when p_everywhere.stopped_at is not null then 'stopping' else 'active' end
$$;

-- Writes an event of an everywhere task. p_said: what it does.
create or replace function hwqueue.note_everywhere(p_code text, p_everywhere hwqueue.everywhere, p_said text)
returns void
language sql volatile
as $$
  select hwqueue.note_event(p_code, format('everywhere task %s (%s) %s', p_everywhere.everywhere_id,
      to_json(p_everywhere.task_name), p_said),
    jsonb_build_object('everywhere_id', p_everywhere.everywhere_id, 'mode', p_everywhere.mode),
    p_queue => hwqueue.queue_name(p_everywhere.queue_id))
$$;

-- Returns how many nodes have a lease of an everywhere task, or had one, and how these stand.
create or replace function hwqueue.everywhere_totals(p_everywhere uuid)
returns table (nodes int, waiting int, reserved int, running int, completed int, failed int, cancelled int)
language sql stable
as $$
  select count(*)::int,
         (count(*) filter (where r.ended_as is null and (c.lease_id is null or c.is_earmark)))::int,
         (count(*) filter (where r.ended_as is null and c.is_reserved and c.is_earmark is not true))::int,
         (count(*) filter (where r.ended_as is null and c.lease_id is not null
           and c.is_reserved is not true and c.is_earmark is not true))::int,
         (count(*) filter (where r.ended_as = 'completed'))::int,
         (count(*) filter (where r.ended_as = 'failed'))::int,
         (count(*) filter (where r.ended_as = 'cancelled'))::int
  from hwqueue.everywhere_node r
  left join hwqueue.claim c on c.lease_id = r.lease_id
  where r.everywhere_id = p_everywhere
$$;
