-- Public: everywhere tasks, which have one lease on each node that suits them.
--
-- Operators spawn them, producers and operators read and stop them. An example: spawn_everywhere('ops',
-- 'agent', '{}', '{"affinity_tags": {"gpu": true}}') runs the task agent on every node with the label
-- gpu=true. Nodes that register later get theirs before any other work. The same is a DaemonSet in
-- Kubernetes, a system or sysbatch job in Nomad, a Global unit in Fleet.
--
-- Invariant: a node has at most one open lease of an everywhere task, and no other node gets that lease.

-- Spawns an everywhere task: a lease on each node that suits it, now and later. For operators; for a caller
-- that is limited to a tenant the policy everywhere_tenants of the queue must name that. p_options:
-- everywhere_id, an own id, which makes the call idempotent; mode, "always" (default: when a lease ends, the
-- node gets another one, after failures with the delays of its retry policy) or "once" (one lease a node,
-- until it ends); on_unmatched, "keep" (default) or "stop": what becomes of a running lease whose node does
-- not suit any more; on_cordoned, true: on cordoned nodes, too; and options of spawn_lease, but for keys,
-- times and patience. Their headers have everywhere_id.
-- The call writes one row and waits for nobody. Within about a second nodes get their leases from upkeep,
-- each reserved, so that its room is booked; a node that registers later gets its own before other work,
-- unless that takes more than five seconds. On a node without room the lease is earmarked: what becomes free
-- there goes to it, or to leases that come before it by priority, and to nobody else. nodes: how many suit it
-- now.
-- Locks: an id that another session writes now. Raises: QHQ01, QHA01, QHC03, QHC04, QHW01, QHE02, QHA03,
-- QHT03.
-- Idempotent: with an own everywhere_id.
create or replace function hwqueue.spawn_everywhere(p_queue text, p_task text, p_params jsonb default '{}',
  p_options jsonb default '{}') returns table (everywhere_id uuid, created boolean, nodes int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  -- also assigns the transaction its id, as in spawn_lease
  v_target hwqueue.spawn_target := hwqueue.find_spawn_queue(p_queue, p_task);
  v_now timestamptz := hwqueue.clock();
  v_row hwqueue.everywhere := hwqueue.read_everywhere(v_target, p_task, p_params,
    coalesce(nullif(p_options, 'null'), '{}'), v_now);
begin
  created := hwqueue.write_everywhere(v_row);
  if created then
    perform hwqueue.note_everywhere('everywhere_spawned', v_row, 'is spawned');
  end if;
  everywhere_id := v_row.everywhere_id;
  select count(*) into nodes from hwqueue.node n
  where n.deregistered_at is null and hwqueue.everywhere_fit(v_row, n.node_id, v_now) = 'now';
  return next;
end
$$;

-- Returns an everywhere task. state is active, stopping (it was stopped, and leases are open) or stopped.
-- nodes: how many have a lease, or had one; of these wait for room or a retry (waiting, those that are
-- earmarked among them), are booked (reserved), run (running), have ended (completed, failed, cancelled).
-- leases: [{"node_id", "node", "lease_id", "state", "reason", "starts", "failures", "due_at"}] by node_id,
-- p_limit of them after p_after.
-- Raises: QHE01, QHA01.
create or replace function hwqueue.get_everywhere(p_everywhere uuid, p_limit int default 100,
  p_after uuid default null)
returns table (everywhere_id uuid, queue text, task_name text, params jsonb, tenant text,
  mode text, on_unmatched text, on_cordoned boolean, state text, nodes int, waiting int, reserved int,
  running int, completed int, failed int, cancelled int, created_at timestamptz, stopped_at timestamptz,
  finished_at timestamptz, leases jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.everywhere := hwqueue.find_everywhere(p_everywhere);
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 0, 10000, 'call again with p_after for more');
  return query
    select v_row.everywhere_id, hwqueue.queue_name(v_row.queue_id), v_row.task_name, v_row.params,
           v_row.tenant, v_row.mode, v_row.on_unmatched, v_row.on_cordoned, hwqueue.everywhere_state(v_row),
           t.nodes, t.waiting, t.reserved, t.running, t.completed, t.failed, t.cancelled, v_row.created_at,
           v_row.stopped_at, v_row.finished_at,
           (select coalesce(jsonb_agg(jsonb_build_object('node_id', r.node_id, 'node', n.name,
               'lease_id', r.lease_id, 'state', case when r.ended_as is not null then r.ended_as
                 when c.is_earmark then 'earmarked' when c.is_reserved then 'reserved'
                 when c.lease_id is not null then 'running' else 'waiting' end, 'reason', r.reason,
               'starts', r.starts, 'failures', r.failures, 'due_at',
               case when c.lease_id is null then nullif(r.due_at, 'infinity') end) order by r.node_id), '[]')
            from (select x.* from hwqueue.everywhere_node x
                  where x.everywhere_id = v_row.everywhere_id and (p_after is null or x.node_id > p_after)
                  order by x.node_id limit p_limit) r
            left join hwqueue.node n on n.node_id = r.node_id
            left join hwqueue.claim c on c.lease_id = r.lease_id)
    from hwqueue.everywhere_totals(v_row.everywhere_id) t;
end
$$;

-- Returns everywhere tasks, the newest first, at most p_limit; p_state: only of this state.
-- Raises: QHA01.
create or replace function hwqueue.list_everywhere(p_state text default null, p_limit int default 50,
  p_before timestamptz default null)
returns table (everywhere_id uuid, queue text, task_name text, tenant text, mode text,
  state text, nodes int, waiting int, reserved int, running int, created_at timestamptz,
  stopped_at timestamptz, finished_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again with p_before for more'),
    hwqueue.json_choice(to_jsonb(p_state), 'p_state', array['active', 'stopping', 'stopped']);
  return query
    select e.everywhere_id, hwqueue.queue_name(e.queue_id), e.task_name, e.tenant, e.mode,
           hwqueue.everywhere_state(e), t.nodes, t.waiting, t.reserved, t.running, e.created_at,
           e.stopped_at, e.finished_at
    from (
      select o.everywhere_id from hwqueue.everywhere o
      where (p_state is null or hwqueue.everywhere_state(o) = p_state)
        and (p_before is null or o.created_at < p_before)
        and (v_tenants is null or o.tenant = any (v_tenants))
      order by o.created_at desc, o.everywhere_id limit p_limit) p
    join hwqueue.everywhere e on e.everywhere_id = p.everywhere_id
    cross join lateral hwqueue.everywhere_totals(e.everywhere_id) t
    order by e.created_at desc, e.everywhere_id;
end
$$;

-- Stops an everywhere task, and returns its state: nodes get no lease of it any more. Leases that wait or are
-- reserved are cancelled within about a second. Those that run go on until they end (p_running "keep"), or
-- are asked to stop ("stop"; also in a second call). When none is open, it is stopped.
-- Locks: the everywhere task; it waits for first claims of nodes, and a reap, that look at it. Raises: QHE01,
-- QHA01, QHA02. Idempotent.
create or replace function hwqueue.stop_everywhere(p_everywhere uuid, p_running text default 'keep')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.everywhere;
  v_stops boolean;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate'),
    hwqueue.find_everywhere(p_everywhere);
  v_stops := coalesce(hwqueue.json_choice(to_jsonb(p_running), 'p_running', array['keep', 'stop']),
    'keep') = 'stop';
  select e.* into v_row from hwqueue.everywhere e where e.everywhere_id = p_everywhere for update;
  if v_row.finished_at is null and (v_row.stopped_at is null or v_stops and not v_row.stops_running) then
    v_row := hwqueue.mark_stopped(v_row, v_stops, hwqueue.clock());
  end if;
  return hwqueue.everywhere_state(v_row);
end
$$;
