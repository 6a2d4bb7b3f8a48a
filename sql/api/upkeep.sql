-- Public: reap, prune, checks and events.
--
-- Every worker calls reap about every 5 seconds and prune about once a minute with p_unless_within, and
-- one of them leads: there is no daemon. Both work in bounded steps and skip what other sessions have
-- locked, so a call is safe at any time. Operators call verify_invariants and list_events.
--
-- Invariant: what a call has done is whole after each part of it, so one that is cut short, or never
-- comes, delays what is due and loses nothing.

-- Ends what no worker settled and keeps the caches of the queue up to date. Any session may call it at
-- any time.
--
-- It ends expired claims, makes due leases pending, and fails leases past their deadline. It asks claims
-- to stop that have to leave a tainted node, whose queue was dropped, or whose requirement during execution
-- does not hold any more. It fires schedules that are due, as long as a quarter of its budget lasts. It does
-- what settlements of steps had to leave (advance_workflows), and lets runs
-- fail past their deadline. It reserves room for gangs that wait and for leases that replace others, starts
-- and ends the leases of everywhere tasks, and cancels alternatives of which another was taken. It also
-- publishes affinity terms, counts what ended for the statistics, computes which nodes suit a class, judges
-- new classes ahead of claims, and reports silent nodes and classes that no node may run. When the clock was
-- set back, it moves back what was to be soon.
--
-- Every part takes at most p_limit rows and skips what other sessions have locked. Judging and ending
-- claims, which may take long, stop after one second or a quarter of statement_timeout. A part, a gang or a
-- replacement that statement_timeout ends, or that fails, is undone alone and tried again later (event
-- upkeep_postponed); the call returns, and what it did otherwise is committed. p_unless_within: do nothing if
-- another session reaped less than that ago, so that any number of workers can call it.
--
-- expired, promoted, deadlines: claims ended, leases made pending, leases failed by their deadline;
-- reaches: classes for which it computed which nodes suit them; more: a part reached its limit or used
-- up its time, so call again.
-- Locks: the reap cursor, entries, schedules, claims, node_state, deliveries, all skip locked; then lease
-- rows.
-- Raises: QHA01, QHA02. Wakes: waiting workers.
create or replace function hwqueue.reap(p_limit int default 1000, p_unless_within interval default '0')
returns table (expired int, promoted int, deadlines int, reaches int, more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz;
  v_cursor hwqueue.reap_cursor;
  v_drawn bigint;
  v_held bigint;
  v_goes boolean;
  v_done hwqueue.upkeep_done;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 100000, 'call again for more');
  perform hwqueue.check_span(p_unless_within, 'p_unless_within', '0', '1 day', 'from 0 to one day',
    'give a span such as interval ''1 second''');
  v_now := hwqueue.clock();
  select m.* into v_cursor from hwqueue.reap_cursor m order by m.version desc limit 1;
  -- a time in the future: the clock was set back
  v_goes := v_now >= v_cursor.reaped_at + p_unless_within or v_now < v_cursor.reaped_at;
  -- who locks the newest cursor leads, and may move it on. A transaction that already has an id does not: its
  -- id was taken before v_now, so advance_reap_cursor could not rely on it
  if v_goes and pg_current_xact_id_if_assigned() is null then
    v_drawn := hwqueue.last_drawn_position();
    perform hwqueue.stamp_changes(1000, v_cursor.arrivals_from);
    select m.version into v_held from hwqueue.reap_cursor m
    order by m.version desc limit 1 for update skip locked;
    if v_held is null then  -- unless that session has been at it for very long
      v_goes := p_unless_within = '0' or v_now > v_cursor.reaped_at + greatest(10 * p_unless_within,
        interval '1 minute');
    elsif v_held <> v_cursor.version then  -- another session has just reaped
      v_goes := p_unless_within = '0';
      select m.* into v_cursor from hwqueue.reap_cursor m where m.version = v_held;
    end if;
  end if;
  v_done := hwqueue.nothing_done(v_held is not null);
  if v_goes then
    perform hwqueue.current_generation();
    v_done.reap_cursor := v_cursor;
    -- every five minutes scans start at the very start, in case a clock was set back and an entry lies below
    -- the cursor; low-water marks are checked then for the same reason
    v_done.sweeps := v_done.holds and (v_now < v_cursor.reaped_at
      or v_now not between v_cursor.full_scan_at and v_cursor.full_scan_at + interval '5 minutes');
    v_done.again := not v_done.holds
      or v_now not between v_cursor.estimated_at and v_cursor.estimated_at + interval '10 seconds';
    if v_done.sweeps then
      v_done.reap_cursor := jsonb_populate_record(v_cursor, '{"claims_from": "-infinity", "deadlines_from":
        "-infinity", "scheduled_from": "-infinity", "arrivals_from": "-infinity", "steps_from": "-infinity",
        "gangs_from": "-infinity", "replacements_from": "-infinity", "deliveries_from": "-infinity",
        "terms_from": "-infinity", "changes_from": 0, "kept_from": 0, "lanes_from": 0}'::jsonb
        || jsonb_build_object('full_scan_at', v_now));
    end if;
    -- the first only reads: what the others lock is held to the end; those that lock nodes hold up claims
    v_done := hwqueue.run_parts('reap', (case when v_done.holds then
        '{figures,samples,usage,fleets,terms,due,schedules,runs,classes,clock,claims,lanes,stops,everywhere,'
        'choices,gangs,replacements}'
      else '{terms,due,schedules,runs,claims,lanes,stops}' end)::text[], p_limit, v_done, v_now);
    if v_done.holds then
      perform hwqueue.advance_reap_cursor(v_cursor, v_done.reap_cursor, v_now);
      perform hwqueue.advance_horizon(v_drawn) from hwqueue.position_horizon h  -- for reap_positions
      having v_drawn > max(h.drawn_position);
    end if;
  end if;
  return query select v_done.expired, v_done.promoted, v_done.deadlines, v_done.reaches, v_done.more;
end
$$;

-- Deletes what is no longer needed: finished leases past their queue's retention, runs of workflows past
-- theirs with the leases of their steps, classes that no lease or run refers to, nodes deregistered more
-- than 30 days ago, profiles that no node has, what dropped queues left, statistics older than a day,
-- unused caches, fires of schedules past the retention of their queue, and events and finished deliveries of
-- webhooks that are older than set_event_retention allows. Deregisters nodes that have been silent for longer
-- than set_node_expiry allows.
--
-- Deletes about p_limit of each in a call; what statement_timeout ends is undone alone, as in reap. Classes
-- and profiles are scanned p_limit a call, so it takes several calls to reach all of them. p_unless_within:
-- do nothing if another session pruned less than that ago, so that any number of workers can call it.
--
-- more: there may be more to delete now, so call again.
-- Locks: the prune cursor; lease, class, node, node_state, profile, queue, term, delivery and fire rows and
-- the installation's, all skip locked; last, once a day, the oldest partition of event, for which it waits at
-- most a tenth of a second. Raises: QHA01, QHA02.
create or replace function hwqueue.prune(p_limit int default 10000, p_unless_within interval default '0')
returns table (leases int, classes int, nodes int, more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz;
  v_pruned_at timestamptz;
  v_done hwqueue.upkeep_done := hwqueue.nothing_done(false);
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000000, 'call again for more');
  perform hwqueue.check_span(p_unless_within, 'p_unless_within', '0', '1 day', 'from 0 to one day',
    'give a span such as interval ''1 minute''');
  v_now := hwqueue.clock();
  select m.pruned_at into v_pruned_at from hwqueue.prune_cursor m;
  -- a time in the future: the clock was set back
  if v_pruned_at > v_now or v_pruned_at <= v_now - p_unless_within then
    -- step 2 of 3 (upkeep/prune): what is retired or dropped is stamped with a transaction id later than its
    -- mark, so it is read in one statement that assigns the id, before anything is locked or written
    if pg_current_xact_id_if_assigned() is null then
      with classes as (
        update hwqueue.placement_class c set retired_before = pg_current_xact_id()
        where c.class_id = any (array(
          select o.class_id from hwqueue.placement_class o
          where o.retired_at is not null and coalesce(hwqueue.valid_next_xid(o.retired_before), '0') = '0'
          limit p_limit for update skip locked))
      ), queues as (
        update hwqueue.queue q set dropped_before = pg_current_xact_id()
        where q.queue_id = any (array(
          select o.queue_id from hwqueue.queue o
          where o.dropped_at is not null and coalesce(hwqueue.valid_next_xid(o.dropped_before), '0') = '0'
          limit p_limit for update skip locked))
      )
      update hwqueue.workflow w set retired_before = pg_current_xact_id()
      where w.workflow_id = any (array(
        select o.workflow_id from hwqueue.workflow o
        where o.retired_at is not null and coalesce(hwqueue.valid_next_xid(o.retired_before), '0') = '0'
        limit p_limit for update skip locked));
    end if;
    v_now := hwqueue.clock();
    -- who locks the one row leads; others go on only when that session has been at it for very long
    select m into v_done.prune_cursor from hwqueue.prune_cursor m for update skip locked;
    v_done.holds := found;
    select m.pruned_at into v_pruned_at from hwqueue.prune_cursor m;
    if p_unless_within = '0' or v_pruned_at > v_now or v_pruned_at <= v_now - (case when v_done.holds
        then p_unless_within else greatest(10 * p_unless_within, interval '1 minute') end) then
      -- events last, because readers of them wait for its lock
      v_done := hwqueue.run_parts('prune', '{leases,old_runs,workflows,old_teams,old_classes,nodes,silent,'
        'unused,queues,old_terms,idle_lanes,caches,deaths,deliveries,fires,old_figures,events}', p_limit,
        v_done, v_now);
      update hwqueue.prune_cursor m set pruned_at = v_now where v_done.holds;
    end if;
  end if;
  return query select v_done.leases, v_done.classes, v_done.nodes, v_done.more;
end
$$;

-- Checks what must hold at every instant by counting leases and claims again. Returns a row for each
-- broken rule, and none when all is well.
--
-- Rules: one_entry, node_load, capacity, term_count, away, max_per_domain, claim_login, run_work, run_join,
-- run_items, run_stuck, run_over, run_nested, step_lease, step_due, step_gang, step_nested, wait_signal,
-- lane_used, lane_head, lane_entry, gang_entry, gang_members, gang_reserved, gang_earmark, placement_check,
-- everywhere_lease, everywhere_node, reservation_expired, choice_taken, choice_class, held_lease,
-- upkeep_failed. detail names what is broken, what was found and what was expected.
--
-- It reads everything, and is for operators and tests. It runs several statements, so call it in a
-- repeatable read transaction while others work. Adopted leases, and nodes that were registered with
-- less than is in use, may exceed capacity. Earmarks do not count for capacity.
-- Raises: QHA03.
create or replace function hwqueue.verify_invariants() returns table (rule text, subject text, detail jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  return query
    -- an outcome may stay alone when its lease was deleted at completion (eligible_at is set)
    with entry as (
      select r.lease_id, 'ready' as place, false as is_alone from hwqueue.ready r
      union all
      select s.lease_id, 'scheduled', false from hwqueue.scheduled s
      union all
      select c.lease_id, 'claim', false from hwqueue.claim c
      union all
      select o.lease_id, 'outcome', o.eligible_at is not null from hwqueue.outcome o
    )
    select 'one_entry', coalesce(l.lease_id, e.lease_id)::text,
           jsonb_build_object('is_known', l.lease_id is not null, 'places',
             coalesce(jsonb_agg(e.place) filter (where e.place is not null), '[]'))
    from (select l.lease_id from hwqueue.lease l) l full join entry e on e.lease_id = l.lease_id
    group by l.lease_id, e.lease_id
    having count(e.place) <> 1 or (l.lease_id is null) <> coalesce(bool_or(e.is_alone), false);
  return query
    select b.rule, n.node_id::text, b.detail
    from hwqueue.node n
    cross join lateral (
      select hwqueue.read_load(n.node_id) as load,
             to_jsonb(hwqueue.node_usage_of_claims(n)) - array['version', 'updates'] as counted offset 0) w
    cross join lateral (
      select 'node_load' as rule, jsonb_build_object('written',
             to_jsonb(w.load) - array['node_id', 'version', 'updates'], 'counted', w.counted) as detail
      where not to_jsonb(w.load) @> w.counted and (w.load).version > 0
         or (w.load).version = 0 and (w.counted ->> 'claim_count')::int > 0
      union all
      select 'capacity', jsonb_build_object('cpu_milli', n.cpu_milli, 'memory_mib', n.memory_mib, 'slots',
             n.slots, 'custom', n.custom, 'used', to_jsonb(u) - array['node_id', 'version', 'updates'])
      from hwqueue.node_usage_of_claims(n, false) u  -- without earmarks
      where u.cpu_used > n.cpu_milli or u.memory_used > n.memory_mib or u.claim_count > n.slots
        or not 1000 >= all (u.gpu_used)
        or exists (select 1 from jsonb_each(u.custom_used) c
             where c.value::bigint > coalesce((n.custom ->> c.key)::bigint, 0))) b
    where n.deregistered_at is null;
  return query select v.rule, v.subject, v.detail from hwqueue.broken_terms() v;
  return query
    select 'claim_login', c.lease_id::text, jsonb_build_object('node_id', c.node_id, 'found', c.login,
           'expected', s.login)
    from hwqueue.claim c join hwqueue.node_state s on s.node_id = c.node_id
    where c.login is distinct from s.login;
  return query select v.rule, v.run_id::text, v.detail from hwqueue.broken_runs() v;
  return query select v.rule, v.lease_id::text, v.detail from hwqueue.broken_checkpoints() v;
  return query select v.rule, v.subject::text, v.detail from hwqueue.broken_teams() v;
  return query select v.rule, v.subject, v.detail from hwqueue.broken_lanes() v;
  return query
    select 'placement_check', c.lease_id::text,
      jsonb_build_object('node_id', c.node_id, 'claim_token', c.claim_token)
    from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    where hwqueue.binds_during_execution(k) and not exists (
      select 1 from hwqueue.placement_check x where x.lease_id = c.lease_id
        and x.claim_no = hwqueue.claim_no(c.claim_token));
  return query  -- not by a timeout, nor because others held what it needs
    select 'upkeep_failed', d.part, to_jsonb(d) from hwqueue.postponed d
    where d.sqlstate not in ('57014', '55P03', '40P01');
end
$$;

-- Returns what is installed. Workers and the command line refuse a schema that is older or newer than
-- they can serve.
create or replace function hwqueue.schema_version()
returns table (revision text, bundle_sha256 text, package_version text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select i.revision, i.bundle_sha256, i.package_version from hwqueue.schema_info i $$;

-- Returns who did what: without p_after the newest events first, with it the events after that id,
-- oldest first. A follower passes the highest id it has seen (0 at the very start) and misses nothing,
-- even if transactions overlap. For that it gets only final events: those of transactions that began
-- before the oldest one that is open anywhere on the server.
--
-- p_filter: {"code": text or list, "queue", "node", "lease", "class", "actor", "since", "until",
-- "before", "final"}. before: an event's id, for the next page of the newest; final: true leaves out
-- what a follower would not get yet, so that following can start after the first row.
--
-- A filter by subject, code or actor reads only what it finds. since and until read the days between
-- them, 15 at most, because events are ordered by id.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_events(p_after bigint default null, p_filter jsonb default '{}',
  p_limit int default 100)
returns table (event_id bigint, at timestamptz, code text, lease_id uuid, node_id uuid, queue text,
  class_id bigint, actor text, message text, detail jsonb, login text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_filter hwqueue.event;
  v_codes text[];
  v_since timestamptz;
  v_until timestamptz;
  v_below bigint;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_object(p_filter, array['code', 'queue', 'node', 'lease', 'class', 'actor', 'since',
      'until', 'before', 'final'], 'filter');
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after, or "before"');
  v_codes := case jsonb_typeof(p_filter -> 'code') when 'array' then array(  -- one null: any
      select jsonb_array_elements_text(
        hwqueue.json_texts(p_filter -> 'code', 'filter.code', 100, 100, 'QHA01')))
    else array[hwqueue.json_text(p_filter -> 'code', 'filter.code', 100)] end;
  if v_codes = '{}' then
    perform hwqueue.refuse_value(p_filter -> 'code', 'filter.code', 'text, or a list of 1 to 100 texts',
      'leave it out for all codes', 'QHA01');
  end if;
  v_filter.queue := hwqueue.json_text(p_filter -> 'queue', 'filter.queue', 100);
  v_filter.node_id := hwqueue.json_uuid(p_filter -> 'node', 'filter.node');
  v_filter.lease_id := hwqueue.json_uuid(p_filter -> 'lease', 'filter.lease');
  v_filter.class_id := hwqueue.json_integer(p_filter -> 'class', 'filter.class', 0, 9223372036854775807);
  v_filter.actor := hwqueue.json_text(p_filter -> 'actor', 'filter.actor', 200);
  v_since := hwqueue.json_moment(p_filter -> 'since', 'filter.since', hwqueue.clock());
  v_until := hwqueue.json_moment(p_filter -> 'until', 'filter.until', hwqueue.clock());
  v_below := hwqueue.json_integer(p_filter -> 'before', 'filter.before', 0, 9223372036854775807);
  if p_after is not null or coalesce(hwqueue.json_boolean(p_filter -> 'final', 'filter.final'), false) then
    v_below := least(v_below, hwqueue.final_below());  -- least ignores a null
  end if;
  -- followers ask often and mostly find nothing: the plan of this scan is cached
  if p_after is not null then
    perform 1 from hwqueue.event e where e.event_id > p_after order by e.event_id limit 1;
    if not found then
      return;
    end if;
  end if;
  return query
    select e.event_id, e.at, e.code, e.lease_id, e.node_id, e.queue, e.class_id, e.actor, e.message,
           e.detail, e.login
    from unnest(v_codes) c(code)
    cross join lateral hwqueue.event_page(p_after, v_below, c.code, v_filter, v_since, v_until, p_limit) e
    order by case when p_after is null then -e.event_id else e.event_id end limit p_limit;
end
$$;

-- Sets for how many whole days events are kept, 1 to 14, and returns the value before. The next prune
-- deletes older ones.
-- Locks: the installation's row. Raises: QHA01, QHA03.
create or replace function hwqueue.set_event_retention(p_days int) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_was int;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_range(p_days, 'p_days', 1, 14,
    'events go round a ring of 16 days; copy to an archive what is to be kept for longer');
  select s.event_days into v_was from hwqueue.installation s for no key update;
  if v_was <> p_days then
    update hwqueue.installation s set event_days = p_days;
    perform hwqueue.note_event('event_retention_set', format('events are kept for %s days', p_days),
      jsonb_build_object('from', v_was, 'to', p_days));
  end if;
  return v_was;
end
$$;
