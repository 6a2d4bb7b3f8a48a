-- Samples for Prometheus: name, labels, value. docs/reference/metrics.md says what each one means.
--
-- api/reports.metrics puts these functions together. The number of rows grows with queues alone, never
-- with nodes, classes or workflows, and the cost of a scrape is bounded: demand_metrics judges at most
-- 400 classes. seconds_since is never negative, so a clock that was set back shows 0.

-- Returns demand that cannot run now: for each reason of pending_reasons the 50 largest placement classes,
-- and the others together. Judges the 200 classes with most ready leases and the 200 whose oldest lease has
-- waited longest, because what no node can run gets old; hwqueue_unmet_unjudged_leases is what is left out.
create or replace function hwqueue.demand_metrics(p_now timestamptz)
returns table (name text, labels jsonb, value double precision)
language plpgsql stable set enable_nestloop = off  -- all nodes: by hash, whatever the statistics say
as $$
declare
  v_snapshot hwqueue.fleet_snapshot := hwqueue.scan_nodes(p_now);
begin
  return query
    with waiting as materialized (
      select w.*, row_number() over (order by w.pending desc, w.class_id) <= 200
                  or row_number() over (order by w.oldest_at, w.class_id) <= 200 as is_judged
      from (select r.class_id, count(*) as pending, min(r.eligible_at) as oldest_at from hwqueue.ready r
          group by r.class_id) w
    ), ids as materialized (
      select coalesce(array_agg(w.class_id), '{}') as class_ids from waiting w where w.is_judged
    ), judged as materialized (
      select f.class_id, case
          when f.nodes_matching = 0 then 'no_match'
          when bit_count(f.nodes & r.mask & coalesce(r.untaken, r.mask)) = 0 then 'contended' end as reason
      from ids
      cross join lateral hwqueue.class_fleets(ids.class_ids, v_snapshot, p_now) f
      join lateral hwqueue.room_masks(ids.class_ids, v_snapshot, p_now) r on r.class_id = f.class_id
    ), unmet as materialized (
      select q.name as queue, c.class_id, c.task_name, j.reason, w.pending, w.oldest_at,
             w.pending * c.cpu_milli / 1000.0 as cpu_cores,
             w.pending * c.memory_mib * 1048576 as memory_bytes,
             w.pending * case when c.gpu_milli > 0 then c.gpu_milli / 1000.0 else c.gpu_count end as gpus,
             row_number() over (partition by j.reason order by w.pending desc, w.class_id) as place
      from judged j
      join waiting w on w.class_id = j.class_id
      join hwqueue.placement_class c on c.class_id = j.class_id
      join hwqueue.queue q on q.queue_id = c.queue_id and q.dropped_at is null
      where j.reason is not null
    ), shown as (
      select u.queue, u.class_id::text as class, u.reason, u.pending, u.oldest_at, u.cpu_cores,
             u.memory_bytes, u.gpus
      from unmet u where u.place <= 50
      union all
      select '', 'other', u.reason, sum(u.pending), min(u.oldest_at), sum(u.cpu_cores), sum(u.memory_bytes),
             sum(u.gpus)
      from unmet u where u.place > 50 group by u.reason
    )
    select s.name, jsonb_build_object('queue', d.queue, 'class', d.class, 'reason', d.reason), s.value
    from shown d
    cross join lateral (values
      ('hwqueue_unmet_leases', d.pending::double precision),
      ('hwqueue_unmet_oldest_seconds', hwqueue.seconds_since(d.oldest_at, p_now)),
      ('hwqueue_unmet_cpu_cores', d.cpu_cores),
      ('hwqueue_unmet_memory_bytes', d.memory_bytes),
      ('hwqueue_unmet_gpus', d.gpus)
    ) s(name, value)
    union all
    select 'hwqueue_unmet_class_info',
           jsonb_build_object('class', u.class_id::text, 'queue', u.queue, 'task', u.task_name, 'placement',
               left(hwqueue.class_words(c), 200)), 1
    from unmet u
    join hwqueue.placement_class c on c.class_id = u.class_id
    where u.place <= 50
    union all
    select 'hwqueue_unmet_unjudged_leases', '{}', coalesce(sum(w.pending), 0) from waiting w
    where not w.is_judged
    union all
    select 'highway_tasks_pending_no_affinity_match', jsonb_build_object('queue', q.name),
           coalesce(sum(u.pending), 0)
    from hwqueue.queue q
    left join unmet u on u.queue = q.name and u.reason = 'no_match'
    where q.dropped_at is null
    group by q.name;
end
$$;

-- Returns the fleet in sums. A node counts once: as silent before draining, before cordoned, before
-- live.
create or replace function hwqueue.node_metrics(p_now timestamptz)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with fleet as materialized (
    select case when not hwqueue.is_live(n, s, p_now) then 'silent' when n.drain_by is not null
           then 'draining'
                when n.cordoned_at is not null then 'cordoned' else 'live' end as state,
           s.seen_at, n.cpu_milli, n.memory_mib, l.cpu_used, l.memory_used,
           -- whole devices: one that has parts in use is in use
           cardinality(n.gpu_ids) - cardinality(array_remove(n.gpu_parents, null)) as gpus,
           (select coalesce(sum(d.used), 0)
            from unnest(case when n.gpu_parents = '{}' then l.gpu_used
                else hwqueue.use_of_devices(n, l.gpu_used) end, n.gpu_parents) d(used, parent)
            where d.parent is null) as gpu_used
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    left join hwqueue.newest_loads() l on l.node_id = n.node_id
    where n.deregistered_at is null
  ), sums as (
    select k.state, count(f.state) as nodes, sum(f.cpu_milli) / 1000.0 as cpu_cores,
           sum(f.memory_mib) * 1048576 as memory_bytes,
           sum(f.gpus) as gpus, sum(f.cpu_used) / 1000.0 as cpu_used,
             sum(f.memory_used) * 1048576 as memory_used,
           sum(f.gpu_used) / 1000.0 as gpu_used
    from unnest(array['live', 'cordoned', 'draining', 'silent']) k(state)
    left join fleet f on f.state = k.state
    group by k.state
  )
  select v.name, jsonb_build_object('state', s.state), coalesce(v.value, 0)
  from sums s
  cross join lateral (values
    ('hwqueue_nodes', s.nodes::double precision),
    ('hwqueue_node_cpu_cores', s.cpu_cores),
    ('hwqueue_node_cpu_cores_used', s.cpu_used),
    ('hwqueue_node_memory_bytes', s.memory_bytes),
    ('hwqueue_node_memory_bytes_used', s.memory_used),
    ('hwqueue_node_gpus', s.gpus),
    ('hwqueue_node_gpus_used', s.gpu_used)
  ) v(name, value)
  union all
  select 'hwqueue_node_oldest_heartbeat_seconds', '{}',
         coalesce(hwqueue.seconds_since(min(f.seen_at), p_now), 0) from fleet f
$$;

-- Returns what waits and runs in each queue (p_all, a constant), or in one: the columns of queue_depth. Of a
-- range of one id, unknown yet, the planner expects few rows whatever the statistics say: it takes the index.
create or replace function hwqueue.queue_counts(p_all boolean, p_id int, p_now timestamptz)
returns table (queue text, pending bigint, scheduled bigint, running bigint, stopping bigint, expired bigint,
               oldest_at timestamptz, next_at timestamptz, paused_at timestamptz)
language sql stable
as $$
  select q.name, coalesce(r.leases, 0), coalesce(d.leases, 0), coalesce(c.leases, 0),
         coalesce(c.stopping, 0), coalesce(c.expired, 0),
         r.oldest_at, d.next_at, q.paused_at
  from hwqueue.queue q
  left join (
    select e.queue_id, count(*) as leases, min(e.eligible_at) as oldest_at from hwqueue.ready e
    where (p_all or e.queue_id between p_id and p_id) group by e.queue_id) r on r.queue_id = q.queue_id
  left join (
    select e.queue_id, count(*) as leases, nullif(min(e.available_at), 'infinity') as next_at
    from hwqueue.scheduled e
    where (p_all or e.queue_id between p_id and p_id) group by e.queue_id) d on d.queue_id = q.queue_id
  left join (
    select e.queue_id, count(*) as leases, count(*) filter (where e.stop_requested_at <= p_now) as stopping,
           count(*) filter (where e.expires_at <= p_now) as expired
    from hwqueue.claim e
    where (p_all or e.queue_id between p_id and p_id) group by e.queue_id) c on c.queue_id = q.queue_id
  where q.dropped_at is null and (p_all or q.queue_id = p_id)
$$;

-- Returns what each tenant has: those with placement classes, a row or a login, and '', leases of none.
-- started: claims that began since then, of the last 20,000 leases that each queue has completed; null: 0.
create or replace function hwqueue.tenant_counts(p_since timestamptz)
returns table (tenant text, tier text, spec jsonb, pending bigint, parked bigint, running bigint,
  classes bigint, started bigint)
language sql stable
as $$
  select n.tenant, hwqueue.tier_name(coalesce(t.tier, d.tier, 0)), coalesce(t.spec, d.spec, '{}'), n.pending,
         n.parked, n.running, n.classes, n.started
  from (
    select c.tenant, coalesce(sum(w.pending), 0)::bigint as pending,
           coalesce(sum(w.parked), 0)::bigint as parked, coalesce(sum(w.running), 0)::bigint as running,
           coalesce(sum(w.started), 0)::bigint as started, count(distinct c.class_id) as classes
    from (
      select x.class_id, x.tenant from hwqueue.placement_class x where x.retired_at is null
      union all select null, r.name from hwqueue.tenant r
      union all select null, g.tenant from hwqueue.tenant_login g) c
    left join (
      select r.class_id, count(*) as pending, 0 as parked, 0 as running, 0 as started
      from hwqueue.ready r group by 1
      union all
      select s.class_id, count(*), count(k.lane_id), 0, 0
      from hwqueue.scheduled s
      left join (hwqueue.lane k join hwqueue.limit_rule r on r.limit_id = k.limit_id
        and r.spec ->> 'by' = 'quota') on k.lane_id = s.lane_id group by 1
      union all
      select y.class_id, 0, 0, count(*), count(*) filter (where y.claimed_at >= p_since)
      from hwqueue.claim y group by 1
      union all
      select l.class_id, 0, 0, 0, count(*)
      from (
        select a.lease_id, a.claimed_at from hwqueue.attempt a where a.ended_at >= p_since
        union all
        select o.lease_id, o.claimed_at
        from hwqueue.queue q
        cross join lateral (
          select * from hwqueue.outcome z
          where z.queue_id = q.queue_id and z.state = 'completed' and z.finished_at >= p_since
          order by z.finished_at desc limit 20000) o) e
      join hwqueue.lease l on l.lease_id = e.lease_id
      where e.claimed_at >= p_since group by 1) w on w.class_id = c.class_id
    group by 1) n
  left join hwqueue.tenant t on t.name = n.tenant
  left join hwqueue.tenant d on d.name = '*' and n.tenant <> ''
$$;

-- Returns what waits and what runs by tier, as tenants have it now, where any has a row; and claims that were
-- asked to stop for leases of earlier tiers, within their time or beyond it.
create or replace function hwqueue.tier_metrics(p_now timestamptz)
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  select 'hwqueue_tier_leases', jsonb_build_object('tier', c.tier, 'state', s.state), sum(s.leases)
  from hwqueue.tenant_counts(null) c
  cross join lateral (values ('waiting', c.pending), ('claimed', c.running)) s(state, leases)
  where exists (select from hwqueue.tenant)  -- else nothing is read
  group by c.tier, s.state
  union all
  select 'hwqueue_preempted_claims', jsonb_build_object('state', s.state),
         count(*) filter (where (c.stop_by <= p_now) = (s.state = 'overdue'))
  from unnest(array['asked', 'overdue']) s(state)
  left join hwqueue.claim c on c.stop_requested_at is not null and c.stop_reason = 'tier_preempted'
  group by s.state
$$;

-- The name of a tier.
create or replace function hwqueue.tier_name(p_tier int) returns text
language sql immutable
as $$ select (array['guaranteed', 'best_effort', 'scavenger'])[p_tier + 1] $$;

-- Returns all that has ever ended in each queue, and all runs by workflow, as far as roll_up has counted.
create or replace function hwqueue.total_metrics()
returns table (name text, labels jsonb, value double precision)
language sql stable
as $$
  with total as (
    select q.name as queue, m.*
    from hwqueue.queue q
    left join lateral (
      select x.* from hwqueue.minute_stat x where x.queue_id = q.queue_id
      order by x.minute desc limit 1) m on true
    where q.dropped_at is null
  ), run as materialized (
    select r.workflow, r.outcome, r.seconds, r.counts from hwqueue.run_total r
  ), histogram as (
    select h.name, jsonb_build_object('queue', t.queue) as labels, h.seconds, h.counts
    from total t
    cross join lateral (values
      ('hwqueue_wait_seconds', t.wait_seconds, t.wait_counts),
      ('hwqueue_run_seconds', t.run_seconds, t.run_counts)) h(name, seconds, counts)
    union all
    select 'hwqueue_workflow_run_seconds',
           jsonb_build_object('workflow', r.workflow, 'outcome', r.outcome), r.seconds, r.counts
    from run r
  )
  select s.name, jsonb_build_object('queue', t.queue) || s.labels, coalesce(s.value, 0)
  from total t
  cross join lateral (values
    ('hwqueue_leases_finished_total', '{"outcome": "completed"}'::jsonb, t.completed::double precision),
    ('hwqueue_leases_finished_total', '{"outcome": "failed"}', t.failed),
    ('hwqueue_leases_finished_total', '{"outcome": "cancelled"}', t.cancelled),
    ('hwqueue_claims_ended_total', '{"outcome": "completed"}', t.completed),
    ('hwqueue_claims_ended_total', '{"outcome": "failed"}', t.attempts_failed),
    ('hwqueue_claims_ended_total', '{"outcome": "expired"}', t.attempts_expired),
    ('hwqueue_claims_ended_total', '{"outcome": "superseded"}', t.attempts_superseded),
    ('hwqueue_claims_ended_total', '{"outcome": "released"}', t.attempts_released),
    ('hwqueue_claims_ended_total', '{"outcome": "cancelled"}', t.attempts_cancelled),
    ('hwqueue_retries_total', '{}', t.retried)
  ) s(name, labels, value)
  union all
  select h.name || '_sum', h.labels, coalesce(h.seconds, 0) from histogram h
  union all
  select h.name || '_count', h.labels, coalesce((select sum(c.count) from unnest(h.counts) c(count)), 0)
  from histogram h
  union all
  select h.name || '_bucket', h.labels
           || jsonb_build_object('le', coalesce((hwqueue.histogram_bounds())[b.bucket]::text, '+Inf')),
         coalesce(sum(h.counts[b.bucket]) over (partition by h.name, h.labels order by b.bucket), 0)
  from histogram h
  cross join generate_series(1, 15) b(bucket)
  union all
  select 'hwqueue_workflow_runs_finished_total',
         jsonb_build_object('workflow', w.workflow, 'outcome', o.outcome),
         coalesce((select sum(c.count) from unnest(r.counts) c(count)), 0)::double precision
  from (select distinct x.workflow from run x) w
  cross join unnest(array['completed', 'failed', 'cancelled']) o(outcome)
  left join run r on r.workflow = w.workflow and r.outcome = o.outcome
$$;

-- Seconds from p_at to p_now, never less than 0; null if p_at is null.
create or replace function hwqueue.seconds_since(p_at timestamptz, p_now timestamptz) returns double precision
language sql immutable parallel safe
as $$ select greatest(extract(epoch from p_now - p_at), 0)::double precision $$;

-- Returns runs that go on, what settlements of steps have left for advance_workflows, gangs that have not
-- ended, and on how many nodes everywhere tasks stand how that were not stopped. The 50 workflows with most
-- runs, the 50 pairs of queue and task with most nodes are named, the others "(other)", which is no name.
-- Arrivals of kind state are left out: that of a cancelled run stays until its last step has stopped.
-- failing: the last lease has failed, or two in a row and the next one has not run for the ten minutes that
-- look_at_node takes for a good start.
create or replace function hwqueue.going_metrics(p_now timestamptz)
returns table (name text, labels jsonb, value double precision)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off
as $$ begin return query
  with counted as materialized (
    select r.name as workflow, r.state, count(*) as runs
    from hwqueue.run r where r.finished_at is null group by r.name, r.state
  ), named as (
    select c.workflow, row_number() over (order by sum(c.runs) desc, c.workflow) <= 50 as is_shown
    from counted c group by c.workflow
  ), mark as (
    select coalesce((select m.arrivals_from from hwqueue.reap_cursor m
                     order by m.version desc limit 1), '-infinity') as arrivals_from
  ), active as materialized (
    select e.everywhere_id, q.name as queue, e.task_name
    from hwqueue.everywhere e
    join hwqueue.queue q on q.queue_id = e.queue_id and q.dropped_at is null
    where e.finished_at is null and e.stopped_at is null
  ), seen as materialized (
    select a.queue, a.task_name, r.lease_id, case
        when r.ended_as = 'gone' then 'cancelled' when r.ended_as is not null then r.ended_as
        when c.is_earmark then 'waiting' when c.is_reserved then 'reserved'
        when c.lease_id is not null then 'running' when r.reason = 'node_unavailable' then 'unavailable'
        else 'waiting' end as state,
      r.ended_as = 'failed' or r.ended_as is null and r.failures > 1
        and coalesce(c.claimed_at, p_now) > p_now - interval '10 minutes' as is_failing
    from active a
    -- fences (offset 0): by key, whatever the statistics say
    left join lateral (
      select x.lease_id, x.ended_as, x.reason, x.failures from hwqueue.everywhere_node x
      where x.everywhere_id = a.everywhere_id offset 0) r on true
    left join lateral (
      select y.lease_id, y.is_earmark, y.is_reserved, y.claimed_at from hwqueue.claim y
      where y.lease_id = r.lease_id offset 0) c on true
    limit 100000
  ), stands as materialized (
    select s.queue, s.task_name, s.state, count(s.lease_id) as nodes,
           count(*) filter (where s.is_failing) as failing
    from seen s group by s.queue, s.task_name, s.state
  ), shown as materialized (
    select case when n.place <= 50 then n.queue else '' end as queue,
      case when n.place <= 50 then n.task_name else '(other)' end as task, n.state, n.nodes, n.failing
    from (
      select t.*, dense_rank() over (order by t.of_task desc, t.queue, t.task_name) as place
      from (select s.*, sum(s.nodes) over (partition by s.queue, s.task_name) as of_task from stands s) t) n
  )
  select 'hwqueue_workflow_runs', jsonb_build_object('workflow', s.workflow, 'state', c.state), sum(c.runs)
  from counted c
  join named n on n.workflow = c.workflow
  cross join lateral (select case when n.is_shown then c.workflow else '(other)' end) s(workflow)
  group by c.state, s.workflow
  union all
  select 'hwqueue_workflow_arrivals', '{}', count(*)
  from mark m
  cross join lateral (
    select 1 from hwqueue.arrival a
    where a.at >= m.arrivals_from and a.after_xid is null and a.kind <> 'state'
    limit 10000) a
  union all
  select 'hwqueue_workflow_oldest_arrival_seconds', '{}', coalesce(hwqueue.seconds_since((
    select a.at from hwqueue.arrival a
    where a.at >= m.arrivals_from and a.after_xid is null and a.kind <> 'state'
    order by a.at limit 1), p_now), 0)
  from mark m
  union all
  select 'hwqueue_gangs', jsonb_build_object('state', s.state), (
    select count(*) from hwqueue.gang g
    where g.finished_at is null and g.state = s.state)::double precision
  from unnest(hwqueue.gang_states()) s(state)
  where s.state not in ('completed', 'failed', 'cancelled')
  union all
  select 'hwqueue_gang_oldest_waiting_seconds', '{}', coalesce(hwqueue.seconds_since(min(g.created_at),
    p_now), 0)
  from hwqueue.gang g
  join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
  where g.finished_at is null and g.state in ('waiting', 'earmarked')
  union all
  select 'hwqueue_gang_reserved_members', '{}', count(*)
  from (
    select 1 from hwqueue.gang g
    join hwqueue.claim c on c.lease_id = any (g.members) and c.is_reserved
    where g.finished_at is null
      and (g.state = 'reserved' or g.state = 'running' and g.min_size is not null) limit 10000) r
  union all
  select 'hwqueue_everywhere_nodes', jsonb_build_object('queue', o.queue, 'task', o.task, 'state', s.state),
         coalesce(sum(o.nodes) filter (where o.state = s.state), 0)::double precision
  from shown o
  cross join unnest(array['waiting', 'unavailable', 'reserved', 'running', 'completed', 'failed',
    'cancelled']) s(state)
  group by o.queue, o.task, s.state
  union all
  select 'hwqueue_everywhere_failing_nodes', jsonb_build_object('queue', o.queue, 'task', o.task),
         coalesce(sum(o.failing), 0)
  from shown o group by o.queue, o.task;
end $$;
