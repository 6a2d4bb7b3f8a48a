-- Public: reports and views for operators, dashboards and monitoring.
--
-- They only read, and use one processor, because claims need the others. Plans are made for each call,
-- since the arrays that class_fits reads have any length. Most functions are also views of the same name.
-- docs/run/why_pending.md says what exactly is counted.

-- Returns what monitoring reads, as Prometheus samples: name, labels, value. docs/reference/metrics.md
-- says what each one means. A histogram has a row for each bucket (label le) and one each for its sum
-- and count.
--
-- The number of rows grows with the number of queues and webhooks alone: nodes are summed up, and only the 50
-- placement classes of each reason with most unmet leases, the 50 workflows with most runs and the 50 limits
-- for which most waits are named.
-- Raises: QHA03.
create or replace function hwqueue.metrics() returns table (name text, labels jsonb, value double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off
  set plan_cache_mode = force_custom_plan
as $$
  select hwqueue.require_all_tenants();
  with mark as (
    select m.claims_from, m.terms_from, greatest(m.reaped_at, i.applied_at) as reaped_at,
           greatest(m.counted_to, i.applied_at) as counted_to
    from hwqueue.schema_info i
    left join lateral (
      select x.* from hwqueue.reap_cursor x order by x.version desc limit 1) m on true
  )
  select m.name, m.labels, m.value
  from (select hwqueue.clock() as now) t
  cross join lateral (
    select s.name, jsonb_build_object('queue', d.queue) || s.labels, s.value
    from hwqueue.queue_counts(true, null, t.now) d
    cross join lateral (values
      ('hwqueue_leases', '{"state": "pending"}'::jsonb, d.pending::double precision),
      ('hwqueue_leases', '{"state": "scheduled"}', d.scheduled),
      ('hwqueue_leases', '{"state": "claimed"}', d.running),
      ('hwqueue_oldest_pending_seconds', '{}', coalesce(hwqueue.seconds_since(d.oldest_at, t.now), 0)),
      ('hwqueue_queue_paused', '{}', case when d.paused_at is null then 0 else 1 end)
    ) s(name, labels, value)
    union all select * from hwqueue.total_metrics()
    union all select * from hwqueue.demand_metrics(t.now)
    union all select * from hwqueue.node_metrics(t.now)
    union all select * from hwqueue.going_metrics(t.now)
    union all
    -- oldest: what happened first and is not delivered, whether or not it has been routed
    select s.name, jsonb_build_object('webhook', w.name) || s.labels, s.value
    from hwqueue.webhook w
    cross join lateral (values
      ('hwqueue_webhook_deliveries_total', '{"outcome": "delivered"}'::jsonb, w.delivered::double precision),
      ('hwqueue_webhook_deliveries_total', '{"outcome": "failed"}', w.failed),
      ('hwqueue_webhook_deliveries_total', '{"outcome": "dead"}', w.dead),
      ('hwqueue_webhook_paused', '{}', case when w.paused_at is null then 0 else 1 end),
      ('hwqueue_webhook_oldest_seconds', '{}', case when w.paused_at is null
        then coalesce(hwqueue.seconds_since(hwqueue.oldest_undelivered(w), t.now), 0) else 0 end)
    ) s(name, labels, value)
    union all
    select s.name, '{}', s.value
    from (select count(*) as schedules, count(*) filter (where hwqueue.is_dry(x, t.now)) as dry,
            max(hwqueue.seconds_since(x.next_at, t.now)) filter (where x.paused_at is null) as late,
            count(*) filter (where x.paused_at is null and (
              select f.outcome from hwqueue.schedule_fire f where f.schedule_id = x.schedule_id
              order by f.fire_at desc limit 1) = 'failed') as failed
          from hwqueue.schedule x) d
    cross join lateral (values
      ('hwqueue_schedules', d.schedules::double precision),
      ('hwqueue_schedules_dry', d.dry),
      ('hwqueue_schedules_failed', d.failed),
      ('hwqueue_schedule_oldest_due_seconds', coalesce(d.late, 0))
    ) s(name, value)
    union all
    select s.name, jsonb_build_object('limit', l.name), s.value
    from (select x.* from hwqueue.list_limits() x order by x.parked desc, x.name limit 50) l
    cross join lateral (values
      ('hwqueue_limit_used', l.used::double precision),
      ('hwqueue_limit_parked', l.parked),
      ('hwqueue_limit_closed', num_nonnulls(l.closed_until))
    ) s(name, value)
    union all
    select * from hwqueue.tier_metrics(t.now)
    union all
    -- what a planner found that still counts, and in all what became of single leases that it assigned
    select s.*
    from (select p.* from hwqueue.planner p where p.room_until > t.now) p
    cross join lateral (
      select 'hwqueue_planner_gpus', jsonb_build_object('state', g.state), g.value::double precision
      from (values ('all', p.gpus), ('allocated', p.allocated), ('bound', p.bound)) g(state, value)
      union all
      select 'hwqueue_planner_round_seconds', jsonb_build_object('part', r.key), r.value::double precision
      from jsonb_each_text(p.seconds) r
      union all
      select 'hwqueue_planner_resting_nodes', '{}', p.resting where p.resting is not null) s
    union all
    select 'hwqueue_planner_leases_total', jsonb_build_object('verdict', v.verdict),
           coalesce((p.leases ->> v.verdict)::double precision, 0)
    from hwqueue.planner p cross join unnest(hwqueue.assignment_counts()) v(verdict)
    where p.leases <> '{}'
    union all
    select 'hwqueue_planner_gpu_worth', jsonb_build_object('queue', v.queue), v.device_worth[101]
    from hwqueue.valid_prices(t.now) v
    union all
    -- whether upkeep keeps up, and what is installed
    select 'hwqueue_reap_lag_seconds', '{}'::jsonb, hwqueue.seconds_since(m.reaped_at, t.now) from mark m
    union all
    select 'hwqueue_statistics_lag_seconds', '{}', hwqueue.seconds_since(m.counted_to, t.now) from mark m
    union all
    select 'hwqueue_prune_lag_seconds', '{}',
           hwqueue.seconds_since(greatest(c.pruned_at, i.applied_at), t.now)
    from hwqueue.schema_info i left join hwqueue.prune_cursor c on true
    union all
    select 'hwqueue_terms_unpublished', '{}', count(*)
    from mark m
    cross join lateral (
      select 1 from hwqueue.affinity_term t
      where t.published_at is null and t.created_at >= coalesce(m.terms_from, '-infinity')
      limit 10000) t
    union all
    select 'hwqueue_claims_overdue', '{}', count(*)
    from mark m
    cross join lateral (
      select 1 from hwqueue.claim c
      where c.check_at >= coalesce(m.claims_from, '-infinity') and c.check_at <= t.now
        and c.expires_at <= t.now
      limit 10000) c
    union all
    select 'hwqueue_schema_info', jsonb_build_object('revision', i.revision, 'version', i.package_version), 1
    from hwqueue.schema_info i
  ) m(name, labels, value)
$$;

-- Returns how full the fleet was and what waited in the last p_minutes, oldest first: of more than six hours
-- the means of hours. p_kind gpus: devices of each model (name; '': leases that want any), in use (used), of
-- nodes that live (present), and asked for by leases that are ready (waiting); parts of devices count as
-- parts. p_kind waits: how many leases wait (waiting), and why, as upkeep has seen it last (name): room, a
-- node would do; what no live node has (require, capacity, taints, served ...); limit, team, place, signal.
-- name '': all of them, beside claims that run (used) and live nodes (present). A minute without upkeep has
-- no row. Raises: QHA01, QHA03.
create or replace function hwqueue.fleet_history(p_kind text, p_minutes int default 180)
returns table (at timestamptz, name text, used double precision, present double precision,
  waiting double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants(),
    hwqueue.json_choice(to_jsonb(p_kind), 'p_kind', array['gpus', 'waits']),
    hwqueue.check_range(p_minutes, 'p_minutes', 1, 50400, 'samples are kept for 35 days');
  select s.at, s.name, s.used, s.present, s.waiting
  from hwqueue.sample s cross join hwqueue.clock() c(now)
  where s.kind = p_kind and s.is_hour = (p_minutes > 360)
    and s.at > c.now - p_minutes * interval '1 minute' and s.at <= c.now
  order by s.at, s.name
$$;

-- Returns what ended in each of the last p_minutes minutes, oldest first, of one queue or (p_queue null)
-- of all together. Minutes in which nothing ended are zeros. The last minute is not over.
--
-- claims: claims that ended in any way; failed: leases that are dead; retried: claims that did not
-- complete and whose lease went back to the queue; wait, run: of completed leases, the time in seconds
-- that half (p50) or 95 of 100 (p95) did not exceed.
-- Raises: QHQ01, QHA01, QHA03.
create or replace function hwqueue.throughput(p_queue text default null, p_minutes int default 60)
returns table (minute timestamptz, claims bigint, completed bigint, failed bigint, cancelled bigint,
  retried bigint, expired bigint, wait_p50 double precision, wait_p95 double precision,
  run_p50 double precision, run_p95 double precision)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue_id int;
  v_until timestamptz := date_trunc('minute', hwqueue.clock());
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue)).queue_id end;
  perform hwqueue.check_range(p_minutes, 'p_minutes', 1, 1440, 'minutes are kept for a day');
  return query
    with ended as (
      select m.minute, m.completed - coalesce(o.completed, 0) as completed,
             m.failed - coalesce(o.failed, 0) as failed,
             m.cancelled - coalesce(o.cancelled, 0) as cancelled,
             m.retried - coalesce(o.retried, 0) as retried,
             m.attempts_expired - coalesce(o.attempts_expired, 0) as expired,
             m.completed + m.attempts_failed + m.attempts_expired + m.attempts_superseded
               + m.attempts_released + m.attempts_cancelled
               - coalesce(o.completed + o.attempts_failed + o.attempts_expired + o.attempts_superseded
                          + o.attempts_released + o.attempts_cancelled, 0) as claims,
             hwqueue.add_histograms(m.wait_counts, o.wait_counts, -1) as wait_counts,
             hwqueue.add_histograms(m.run_counts, o.run_counts, -1) as run_counts
      from hwqueue.queue q
      join hwqueue.minute_stat m on m.queue_id = q.queue_id
      left join lateral (
        select x.* from hwqueue.minute_stat x
        where x.queue_id = m.queue_id and x.minute < m.minute
        order by x.minute desc limit 1) o on true
      where q.dropped_at is null and (v_queue_id is null or q.queue_id = v_queue_id)
        and m.minute > v_until - p_minutes * interval '1 minute'
    ), sums as (
      select e.minute, sum(e.claims) as claims, sum(e.completed) as completed, sum(e.failed) as failed,
             sum(e.cancelled) as cancelled, sum(e.retried) as retried, sum(e.expired) as expired
      from ended e group by e.minute
    ), times as (
      select b.minute, array_agg(b.waits order by b.bucket) as waits,
             array_agg(b.runs order by b.bucket) as runs
      from (
        select e.minute, h.bucket, sum(h.waits)::bigint as waits, sum(h.runs)::bigint as runs
        from ended e cross join lateral unnest(e.wait_counts, e.run_counts) with ordinality h(waits, runs,
            bucket)
        group by e.minute, h.bucket) b
      group by b.minute
    )
    select g.minute, coalesce(s.claims, 0)::bigint, coalesce(s.completed, 0)::bigint,
           coalesce(s.failed, 0)::bigint, coalesce(s.cancelled, 0)::bigint,
           coalesce(s.retried, 0)::bigint, coalesce(s.expired, 0)::bigint,
           hwqueue.histogram_quantile(t.waits, 0.5), hwqueue.histogram_quantile(t.waits, 0.95),
           hwqueue.histogram_quantile(t.runs, 0.5), hwqueue.histogram_quantile(t.runs, 0.95)
    from generate_series(v_until - (p_minutes - 1) * interval '1 minute', v_until,
        interval '1 minute') g(minute)
    left join sums s on s.minute = g.minute
    left join times t on t.minute = g.minute
    order by g.minute;
end
$$;

-- Returns the life of a lease, oldest event first.
--
-- event: spawned; scheduled (waits until at, which may lie ahead; null: not for a time); ready; claimed;
-- how an attempt ended (failed, expired, superseded, released, cancelled); how the lease ended (completed,
-- failed, cancelled). lasted: the time until the next event, or until now for the last one of an open lease.
-- detail: the error of an attempt or of the lease, or what a claim has allocated.
--
-- Built from the lease, its attempts, its outcome and where it is now, so the time at which an earlier
-- retry became claimable is not known.
-- Raises: QHL04.
create or replace function hwqueue.lease_history(p_lease uuid)
returns table (lease_id uuid, ordinal int, at timestamptz, event text, attempt int,
  claim_token bigint, node_id uuid, node_name text, lasted interval, detail jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.find_lease(p_lease);
  return query
    with step as (
      select l.created_at as at, 1 as turn, 'spawned' as event, null::int as attempt,
             null::bigint as claim_token, null::uuid as node_id, null::jsonb as detail
      from hwqueue.lease l where l.lease_id = p_lease
      union all
      select x.at, x.turn, x.event, a.attempt, a.claim_token, a.node_id, x.detail
      from hwqueue.attempt a
      cross join lateral (values (a.claimed_at, 3, 'claimed', null),
          (a.ended_at, 4, a.outcome, a.error)) x(at, turn, event, detail)
      where a.lease_id = p_lease
      union all
      select nullif(l.available_at, 'infinity'), 5, 'scheduled', null, null, null, null
      from hwqueue.lease l
      join hwqueue.scheduled d on d.queue_id = l.queue_id
        and d.available_at = l.available_at and d.lease_id = l.lease_id
      where l.lease_id = p_lease
      union all
      select r.eligible_at, 5, 'ready', null, null, null, null
      from hwqueue.lease l
      join hwqueue.ready r on r.queue_id = l.queue_id and r.tier = l.tier
        and r.rank = l.rank and r.position = l.position and r.lease_id = l.lease_id
      where l.lease_id = p_lease
      union all
      select c.claimed_at, 3, 'claimed', c.attempt, c.claim_token, c.node_id, c.assignment
      from hwqueue.claim c where c.lease_id = p_lease
      union all
      select x.at, x.turn, x.event, o.attempt, nullif(o.claim_token, 0), o.node_id, x.detail
      from hwqueue.outcome o
      cross join lateral (values (o.claimed_at, 3, 'claimed', null),
          (o.finished_at, 6, o.state, o.error)) x(at, turn, event, detail)
      where o.lease_id = p_lease and (x.turn = 6 or o.state = 'completed')
    )
    select p_lease, (row_number() over o)::int, s.at, s.event, s.attempt, s.claim_token, s.node_id, n.name,
           case when s.turn < 6 then coalesce(lead(s.at) over o, greatest(s.at, v_now)) - s.at end, s.detail
    from step s
    left join hwqueue.node n on n.node_id = s.node_id
    window o as (order by s.at, coalesce(s.claim_token, case when s.turn > 1 then 9223372036854775807
        else 0 end), s.turn)
    order by 3;
end
$$;

-- Returns what each registered node has and what of it is in use.
--
-- state: live, silent (no sign of life within its timeout), cordoned, draining; live: whether a cordoned
-- node is live, too. A total that is null is not limited. gpu_milli_used: thousandths of devices;
-- gpus_free, cores_free: unused ones, where parts of devices count as devices of their own; claims:
-- leases that run there; profile_id: the same for nodes that may run the same; tenants: whom it is for, {}:
-- for all.
--
-- Ordered by name: pass the last node_name of a page as p_after of the next.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.node_usage(p_state text default null, p_limit int default null,
  p_after text default null)
returns table (node_id uuid, node_name text, rack bigint, state text, live boolean,
  seen_at timestamptz, claims bigint, slots int, cpu_milli bigint, cpu_used bigint, memory_mib bigint,
  memory_used bigint, gpus int, gpus_free int, gpu_milli_used bigint, cores int, cores_free int,
  custom jsonb, custom_used jsonb, profile_id bigint, tenants text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_custom_plan
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.json_choice(to_jsonb(p_state), 'p_state', array['live', 'silent', 'cordoned', 'draining']),
    hwqueue.checked_limit(p_limit);
  return query select n.node_id, n.name, n.rack, w.state, w.is_live, s.seen_at, coalesce(c.claims, 0),
           coalesce(n.slots, n.concurrency), n.cpu_milli, coalesce(u.cpu_used, 0), n.memory_mib,
           coalesce(u.memory_used, 0), cardinality(n.gpu_ids), cardinality(array_positions(u.gpu_used, 0)),
           coalesce((select sum(g) from unnest(u.gpu_used) g), 0), cardinality(n.core_ids),
           cardinality(array_positions(u.core_used, 0)), n.custom, coalesce(u.custom_used, '{}'),
           n.profile_id, array(select substr(x ->> 'key', 8) from jsonb_array_elements(n.operator_taints) x
             where starts_with(x ->> 'key', 'tenant:') order by 1)
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    left join hwqueue.newest_loads() u on u.node_id = n.node_id
    left join (select k.node_id, count(*) as claims from hwqueue.claim k
        group by k.node_id) c on c.node_id = n.node_id
    cross join lateral (
      select l.is_live, case when n.drain_by is not null then 'draining'
                             when n.cordoned_at is not null then 'cordoned'
                             when l.is_live then 'live' else 'silent' end as state
      from (select hwqueue.is_live(n, s, v_now) as is_live) l) w
    where n.deregistered_at is null and (p_state is null or w.state = p_state)
      and (p_after is null or n.name > p_after)
    order by n.name limit p_limit;
end
$$;

-- Returns why leases are pending: a row for each placement class that has ready ones, with how many
-- nodes match it and could take it now, and the one thing to say about it. docs/run/why_pending.md
-- says what exactly is counted.
--
-- p_kind: no_match (nothing matches) or contended (something matches, nothing is free); p_order: oldest
-- first, or pending (most leases first); p_limit: null for all.
--
-- code: a reason code, null when the class only waits for its turn; permanent: waiting will not help,
-- something has to be changed. nodes_matching: nodes that are live and not cordoned, and that all static
-- rules and the total capacity allow; null: too many different nodes to judge, ask for the class alone.
-- nodes_free: those of them that have room now and no known conflict with other leases. nodes_near:
-- where none matches, the live nodes that only the part named in message keeps out. words: what the
-- class asks. Classes whose leases wait for a limit come last; of them no nodes are judged, and a class may
-- have two rows. words and message are written for the first 500 rows, because they take long; what was
-- probably meant by a name that no live node has for the first 10.
-- Raises: QHQ01, QHA01, QHA03.
create or replace function hwqueue.pending_reasons(
  p_queue text default null, p_kind text default null, p_class bigint default null,
  p_order text default 'oldest', p_limit int default 100)
returns table (class_id bigint, queue text, tenant text, service_id uuid, task_name text,
  words text, resources jsonb, pending bigint, oldest_at timestamptz, code text, permanent boolean,
  message text, nodes_matching int, nodes_free int, nodes_near int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  -- one core at most; each call is planned for what it asks, and joins by hash whatever the statistics say
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off
  set plan_cache_mode = force_custom_plan set enable_nestloop = off
as $$
declare
  v_queue_id int;
  v_now timestamptz := hwqueue.clock();
  v_snapshot hwqueue.fleet_snapshot;
  v_fleet hwqueue.headline;
  v_served record;
  v_count int;
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue)).queue_id end;
  perform hwqueue.json_choice(to_jsonb(p_kind), 'p_kind', array['no_match', 'contended']),
          hwqueue.json_choice(to_jsonb(p_order), 'p_order', array['oldest', 'pending']),
          hwqueue.checked_limit(p_limit);
  v_snapshot := hwqueue.scan_nodes(v_now);
  v_fleet := hwqueue.fleet_headline(v_snapshot.registered, bit_count(v_snapshot.live),
    bit_count(v_snapshot.open), v_snapshot.seen_at, v_now);
  select s.* into v_served from hwqueue.served_names(v_now) s;
  return query
    select c.class_id, q.name, c.tenant, c.service_id, c.task_name,
           case when k.turn <= 500 then hwqueue.class_words(c) end,
           coalesce(c.placement -> 'resources', '{}'), k.pending, k.oldest_at, h.code,
           h.permanent, case when k.turn <= 500 then h.message end || m.similar,
           (k.fit).nodes_matching, k.free, coalesce((k.fit).nodes_near, 0)
    from hwqueue.pending_classes(v_queue_id, p_class, p_kind, p_order, p_limit, v_snapshot, v_now) k
    join hwqueue.placement_class c on c.class_id = k.class_id
    join hwqueue.queue q on q.queue_id = c.queue_id
    left join hwqueue.node n on n.node_id = v_snapshot.node_ids[position(B'1' in (k.fit).near)]
    cross join lateral hwqueue.part_reason((k.fit).part, (k.fit).expr, c, n, k.turn <= 500, v_now) r
    cross join lateral hwqueue.class_headline(k.fit, q, v_fleet,
      case when (k.fit).nodes_serving = 0 and v_snapshot.registered > 0 then
        case when k.turn <= 500 then hwqueue.unserved_words(
          q.name, c.task_name, v_served.queues, v_served.tasks, v_served.any_queue, k.turn <= 10)
        else '' end end,
      r, k.free, case when k.with_room > 0 and k.free = 0 then row(k.conflict,
        format('what other leases do keeps it off %s with room', hwqueue.count_words(k.with_room, 'node',
          'nodes')))::hwqueue.headline end,
      case when c.preferred <> '[]' then k.oldest_at + coalesce(c.patience, q.patience) - v_now end) h
    cross join lateral (
      select case when k.turn <= 10 and h.unmatched then hwqueue.similar_words(
          case when (k.fit).part = 'require' then jsonb_build_array((k.fit).expr) end,
          case when (k.fit).part not in ('require', 'taints', 'served') then c.custom end, v_now)
        else '' end as similar offset 0) m
    order by k.turn;
  if p_kind is null then
    get diagnostics v_count = row_count;
    return query
      select c.class_id, q.name, c.tenant, c.service_id, c.task_name, hwqueue.class_words(c),
             coalesce(c.placement -> 'resources', '{}'), k.pending, k.oldest_at, k.code, false, k.message,
             null::int, 0, 0
      from hwqueue.parked_reasons(v_queue_id, p_class, p_limit - v_count, v_now) k
      join hwqueue.placement_class c on c.class_id = k.class_id
      join hwqueue.queue q on q.queue_id = c.queue_id and q.dropped_at is null
      order by k.pending desc, k.class_id;
  end if;
end
$$;

-- Returns placement classes with what waits and runs of each.
--
-- profiles: kinds of nodes that claims have found eligible so far (for a class that names nodes,
-- resources or trust domains: nodes). reach: the share of the nodes that suit it, as upkeep computed it
-- last; null before. words: what the class asks, for the first 500 rows, because they take long to write.
-- Ordered by id: pass the last class_id of a page as p_after of the next.
-- Raises: QHQ01, QHA01, QHA03.
create or replace function hwqueue.placement_class_stats(p_queue text default null, p_after bigint default 0,
  p_limit int default 100)
returns table (class_id bigint, queue text, tenant text, service_id uuid, task_name text,
  words text, labels jsonb, placement jsonb, anchors text[], patience interval, pending bigint,
  oldest_at timestamptz, running bigint, profiles bigint, reach double precision, created_at timestamptz,
  retired_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_queue_id int;
  v_ids bigint[];
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue)).queue_id end;
  perform hwqueue.checked_limit(p_limit);
  v_ids := array(
    select c.class_id from hwqueue.placement_class c
    where c.class_id > p_after and (v_queue_id is null or c.queue_id = v_queue_id)
    order by c.class_id limit p_limit);
  return query
    select c.class_id, q.name, c.tenant, c.service_id, c.task_name,
           case when row_number() over (order by c.class_id) <= 500 then hwqueue.class_words(c) end,
           jsonb_strip_nulls(c.labels), c.placement, c.anchors, c.patience, coalesce(w.leases, 0),
           w.oldest_at,
           coalesce(r.leases, 0), coalesce(e.profiles, 0), h.reach, c.created_at, c.retired_at
    from hwqueue.placement_class c
    join hwqueue.queue q on q.queue_id = c.queue_id and q.dropped_at is null
    left join (select x.class_id, count(*) as leases, min(x.eligible_at) as oldest_at from hwqueue.ready x
               where x.class_id = any (v_ids) group by 1) w on w.class_id = c.class_id
    left join (select x.class_id, count(*) as leases from hwqueue.claim x
               where x.class_id = any (v_ids) group by 1) r on r.class_id = c.class_id
    left join (select x.class_id, count(*) as profiles from hwqueue.eligibility x
               where x.class_id = any (v_ids) group by 1) e on e.class_id = c.class_id
    left join hwqueue.class_fleet h on h.class_id = c.class_id
    where c.class_id = any (v_ids)
    order by c.class_id;
end
$$;

-- Returns leases that run, those claimed first at the top, each with what its handler reported last.
-- progress: {"fraction", "done", "total", "message", "reported_at"}; null: nothing reported. p_limit: from 1
-- to 10,000. The claims are read once; leases, nodes and progress by key, for p_limit rows.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.running_leases(p_limit int default 100)
returns table (lease_id uuid, queue text, task_name text, tenant text, attempt int,
  node_name text, claimed_at timestamptz, expires_at timestamptz, stop_reason text, progress jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set enable_hashjoin = off set enable_mergejoin = off  -- by key
as $$
  select hwqueue.require_all_tenants(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer');
  select r.lease_id, q.name, l.task_name, c.tenant, r.attempt::int, n.name, r.claimed_at,
    nullif(r.expires_at, 'infinity'), r.stop_reason, hwqueue.progress_of(r.lease_id, r.claim_token)
  from (select o.* from hwqueue.claim o order by o.claimed_at, o.lease_id limit p_limit) r
  cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
    select x.task_name from hwqueue.lease x where x.lease_id = r.lease_id offset 0) l
  join hwqueue.queue q on q.queue_id = r.queue_id
  join hwqueue.placement_class c on c.class_id = r.class_id
  left join hwqueue.node n on n.node_id = r.node_id
  order by r.claimed_at, r.lease_id
$$;

-- Returns what waits and runs in each queue, or in p_queue.
-- oldest_at: since when the oldest ready lease has been claimable; next_at: when the next scheduled
-- lease becomes claimable; stopping: running leases that were asked to stop; expired: claims whose time
-- is over and that reap has not ended yet.
-- Raises: QHQ01, QHA03.
create or replace function hwqueue.queue_depth(p_queue text default null)
returns table (queue text, pending bigint, scheduled bigint, running bigint,
  stopping bigint, expired bigint, oldest_at timestamptz, next_at timestamptz, paused_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_custom_plan
  set enable_indexscan = off set enable_nestloop = off set enable_sort = off set enable_seqscan = on
as $$
declare
  v_queue_id int;  -- a variable: an expression as argument would keep Postgres from inlining queue_counts
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  -- Plans that are kept: all is read and hashed, one queue by its index, whatever the statistics say.
  -- Where much waits, planning costs little, and who has most of it is counted faster without the index.
  if p_queue is null
    or (select c.reltuples <= 10000 from pg_class c where c.oid = 'hwqueue.ready'::regclass) then
    perform set_config('plan_cache_mode', 'force_generic_plan', true),
      set_config('enable_seqscan', case when p_queue is null then 'on' else 'off' end, true);
  end if;
  if p_queue is null then
    return query select d.* from hwqueue.queue_counts(true, null, v_now) d order by d.queue;
  else
    v_queue_id := (hwqueue.find_queue(p_queue)).queue_id;
    return query select d.* from hwqueue.queue_counts(false, v_queue_id, v_now) d;
  end if;
end
$$;

-- Returns how many nodes have each value of each label, how many of them are live and not cordoned, and
-- how many leases run on them. The values that most nodes share come first, since a label that names
-- single nodes would fill the list. p_label: this label only.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.tag_distribution(p_label text default null, p_limit int default 100)
returns table (label text, value jsonb, nodes bigint, live bigint, claims bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off
as $$
  select hwqueue.require_all_tenants();
  select hwqueue.checked_limit(p_limit);
  select t.key, t.value, sum(k.nodes)::bigint, sum(k.live)::bigint, sum(k.claims)::bigint
  from (
    select (n.node).profile_id, count(*) as nodes,
           count(*) filter (where n.is_live and (n.node).cordoned_at is null) as live,
           coalesce(sum(c.claims), 0) as claims
    from hwqueue.numbered_nodes(hwqueue.clock()) n
    left join (select r.node_id, count(*) as claims from hwqueue.claim r
        group by r.node_id) c on c.node_id = (n.node).node_id
    group by 1
  ) k
  join hwqueue.profile p on p.profile_id = k.profile_id
  cross join lateral jsonb_each(p.labels) t
  where p_label is null or t.key = p_label
  group by t.key, t.value
  order by sum(k.nodes) desc, t.key, t.value limit p_limit
$$;

-- The lives of all leases; ask for one by its lease_id. A session of one tenant sees that tenant's
-- leases. The view leaves out the others, because the function would raise an error that names them. A bound
-- login sees nothing here, and asks the function: who reads a view may call no function that it would need.
create or replace view hwqueue.lease_history as
select l.lease_id, h.ordinal, h.at, h.event, h.attempt, h.claim_token, h.node_id, h.node_name, h.lasted,
       h.detail
from hwqueue.lease l
cross join lateral hwqueue.lease_history(l.lease_id) h
where not exists (  -- is_bound
    select from pg_catalog.pg_namespace n
    where n.nspname = 'hwqueue' and pg_has_role(session_user, to_regrole('hwqueue_tenants'), 'member')
      and not pg_has_role(session_user, n.nspowner, 'member'))
  and (coalesce(current_setting('hwqueue.tenant', true), '') = '' or exists (
    select from hwqueue.placement_class c
    where c.class_id = l.class_id and c.tenant = current_setting('hwqueue.tenant', true)));

-- node_usage of all nodes.
create or replace view hwqueue.node_usage as select u.* from hwqueue.node_usage() u;

-- pending_reasons of the classes that some node matches, but that none could take now: they wait for
-- other leases to end.
create or replace view hwqueue.pending_contended as
select r.* from hwqueue.pending_reasons(p_kind => 'contended', p_limit => null) r;

-- pending_reasons of the classes that no live, uncordoned node could ever run, whatever else runs:
-- something has to be changed.
create or replace view hwqueue.pending_no_match as
select r.* from hwqueue.pending_reasons(p_kind => 'no_match', p_limit => null) r;

-- pending_reasons of all classes.
create or replace view hwqueue.pending_reasons as
select r.* from hwqueue.pending_reasons(p_limit => null) r;

-- placement_class_stats of all classes.
create or replace view hwqueue.placement_class_stats as
select c.* from hwqueue.placement_class_stats(p_limit => null) c;

-- queue_depth of all queues.
create or replace view hwqueue.queue_depth as select d.* from hwqueue.queue_depth() d;

-- tag_distribution of all labels and values.
create or replace view hwqueue.tag_distribution as
select t.* from hwqueue.tag_distribution(p_limit => null) t;
