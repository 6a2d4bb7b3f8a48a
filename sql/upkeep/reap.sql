-- The reaper: upkeep that workers call, and the leader election that lets one of them do it.
--
-- api/upkeep.reap calls run_parts, which calls reap_part. A thousand workers may call reap at once. The one
-- that locks the newest row of reap_cursor is the leader; it scans from the cursor's positions and moves them
-- on.
--
-- Why scans start at a cursor: reaped entries stay in the indexes as dead tuples until vacuum may remove
-- them, and an old MVCC snapshot anywhere on the server forbids that. The invariant: no live row lies below
-- a cursor position, and none will come. A session that writes an entry takes its transaction id before it
-- reads the clock, and the entry is due no earlier than that. So only transactions that had an id at a moment
-- can still write below it.

-- Runs one part of a reap, at most p_most of each kind, and returns p_done with what it did. p_limit: what
-- the caller asked for; gangs and replacements are postponed one by one.
-- Locks and wakes: as reap.
create or replace function hwqueue.reap_part(p_part text, p_most int, p_limit int,
  p_done hwqueue.upkeep_done, p_now timestamptz) returns hwqueue.upkeep_done
language plpgsql volatile
as $$
declare
  v_from hwqueue.reap_cursor := p_done.reap_cursor;
  v_budget interval := hwqueue.upkeep_budget();
  v_until timestamptz := clock_timestamp() + v_budget;
  v_found record;
  v_counts int[] := '{}';  -- of what reaches the limit
  v_few int;
  v_ended int;
  v_queues int[];
  v_leases uuid[] := '{}';
  v_more boolean := false;
begin
  case p_part
  when 'figures' then
    select r.* into v_found from hwqueue.roll_up(10 * p_most, v_from, p_now) r;
    v_from := v_found.reap_cursor;
    v_more := v_found.more;
    perform hwqueue.reap_positions(p_done.sweeps);
  when 'fleets' then
    select e.* into v_found from hwqueue.reap_fleets(v_from.class_id, p_most, p_done.again, p_now) e;
    p_done.reaches := v_found.fleets;
    v_counts := array[v_found.fleets];
    v_from.class_id := v_found.next_after;
    if p_done.again then
      perform hwqueue.wake_missed_classes(10 * p_most), hwqueue.count_tenant_work();
      v_from.estimated_at := p_now;
      v_from.watched_class := hwqueue.watch_classes(v_from.watched_class, p_most, v_found.look, p_now);
    end if;
  when 'samples' then
    perform hwqueue.take_samples(p_now);
  when 'usage' then
    perform hwqueue.count_usage(p_now);
  when 'terms' then
    perform hwqueue.publish_terms(least(p_most, 100), true, p_now);
  when 'due' then
    p_done.promoted := hwqueue.promote_due(array(select q.queue_id from hwqueue.queue q), p_most, false,
      p_now, v_from.scheduled_from);
    p_done.deadlines := hwqueue.reap_deadlines(p_most, p_now, v_from.deadlines_from);
    v_counts := array[p_done.promoted, p_done.deadlines];
  when 'lanes' then
    select r.* into v_found from hwqueue.reap_lanes(p_most, v_until, v_from.folded_tenant, p_now) r;
    v_from.folded_tenant := v_found.next_after;
    v_more := v_found.more;
  when 'schedules' then
    v_more := hwqueue.reap_schedules(p_most, v_from, p_done.sweeps, p_done.holds, p_now);
  when 'runs' then
    v_more := hwqueue.reap_workflows(p_most, v_from, p_now);
  when 'classes' then
    perform hwqueue.split_profiles(p_most);
    select c.* into v_found from hwqueue.reap_classes(v_from.judged_profile, p_most, v_until) c;
    v_from.judged_profile := v_found.next_after;
    update hwqueue.placement_class c set created_xid = pg_current_xact_id()  -- those of another server
    where c.class_id = any (array(
      select x.class_id from hwqueue.placement_class x
      where x.created_xid > pg_snapshot_xmax(pg_current_snapshot())
        and x.created_xid is distinct from pg_current_xact_id_if_assigned()
      order by x.created_xid limit p_most for no key update skip locked));
    v_more := v_found.more or found;
  when 'clock' then
    v_more := case when v_from.reaped_at > p_now + interval '5 seconds'
      then hwqueue.move_times_back(p_most, v_from.reaped_at, p_now) else false end;
    v_from.reaped_at := case when v_more then v_from.reaped_at else p_now end;
  when 'claims' then
    v_counts := array[hwqueue.check_claims(p_most, p_now, v_from.claims_from), 0];
    loop  -- a few, and what follows in their runs: that takes longer than their ends, and has the same time
      v_few := least(20, p_most - v_counts[2]);
      v_ended := hwqueue.expire_claims(v_few, p_now, v_from.claims_from, v_until);
      v_counts[2] := v_counts[2] + v_ended;
      perform hwqueue.follow_ended(true);
      exit when v_ended < v_few or v_counts[2] = p_most or clock_timestamp() >= v_until;
    end loop;
    p_done.expired := v_counts[2];
    v_more := v_counts[2] > 0 and clock_timestamp() >= v_until;
  when 'stops' then
    -- now and then also long after: a claim may have been granted in a transaction that was still open
    v_queues := array(
      select q.queue_id from hwqueue.queue q
      where q.dropped_at is not null and (p_done.again or q.dropped_at > p_now - interval '1 minute'));
    if v_queues <> '{}' then
      v_leases := array(
        select c.lease_id from hwqueue.claim c
        where c.queue_id = any (v_queues) and c.stop_reason is distinct from 'cancelled'
        limit p_most for update skip locked);
      perform hwqueue.cancel_claims(v_leases, 'the queue was dropped', 'the queue was dropped');
    end if;
    v_counts := array[cardinality(v_leases)];
    select r.next_after, r.more into v_from.checked_lease, v_more
    from hwqueue.reap_stops(v_from.checked_lease, p_most, p_now) r;
  when 'everywhere' then
    if exists (select from hwqueue.everywhere e) then
      v_more := hwqueue.reap_teams('{everywhere node,everywhere}', p_limit, v_budget / 8, v_from, p_now);
      v_more := hwqueue.sweep_everywhere(clock_timestamp() + v_budget / 8, p_now) or v_more;
    end if;
  when 'choices' then
    perform hwqueue.reap_teams('{choice}', least(p_most, 100), v_budget, v_from, p_now);
  when 'gangs' then
    perform hwqueue.reap_teams('{gang change,gang earmark,gang}', least(p_limit, 20), v_budget / 4, v_from,
      p_now);
  when 'replacements' then
    if exists (select from hwqueue.queue q where q.preempt is not null) then
      perform hwqueue.find_preemptors(v_from.class_id, p_limit, p_now);
    end if;
    perform hwqueue.reap_teams('{replacement}', least(p_limit, 100), v_budget / 4, v_from, p_now);
    if p_done.again then  -- at the end: a node that comes back waits for its row
      v_from.watched_node := hwqueue.watch_nodes(v_from.watched_node, 5 * p_most, p_now);
    end if;
  end case;
  p_done.reap_cursor := v_from;
  p_done.more := p_done.more or v_more or p_most = any (v_counts);
  return p_done;
end
$$;

-- The clock was set back since p_was, the last reap: moves what hwqueue had computed from it back by as much,
-- when claims expire, nodes fall silent, retries, tries on nodes and deliveries are due. Times that somebody
-- named stay, and what was due later than the step is long. At most p_limit of each; true: there may be more.
-- Locks: claims, node_state, entries, deliveries, all skip locked; then lease rows. Not idempotent.
create or replace function hwqueue.move_times_back(p_limit int, p_was timestamptz, p_now timestamptz)
returns boolean
language plpgsql volatile
as $$
declare
  v_step interval := p_was - p_now;
  v_to timestamptz := p_was + v_step;
  v_claims uuid[] := array(
    select c.lease_id from hwqueue.claim c
    where c.expires_at > greatest(p_was, p_now + c.claim_timeout) and c.expires_at <= v_to
    limit p_limit for update skip locked);
  v_nodes uuid[] := array(
    select s.node_id from hwqueue.node_state s
    where s.seen_at > p_now or s.expands_until > p_was or s.node_id = any (array(
        select r.node_id from hwqueue.everywhere_node r where r.due_at > p_was and r.due_at <= v_to))
      or s.node_id = (select x.node_id from hwqueue.node_state x limit 1)  -- so that caches of the fleet end
    limit p_limit + 1 for no key update skip locked);
  v_entries hwqueue.scheduled[] := array(
    select s from hwqueue.queue q join hwqueue.scheduled s on s.queue_id = q.queue_id
    where s.available_at > p_now and s.available_at <= v_to and (
      -- by a rate: it goes to its lane again
      select true from hwqueue.lease l where l.lease_id = s.lease_id and l.lanes_passed > 0)
      or s.available_at > p_was and s.available_at <= v_to and s.attempt_count > 0 and (
      select a.outcome = 'failed' and a.ended_at > p_now and s.available_at  -- nobody named another time
        between case when a.ended_at > p_was + interval '5 seconds' then p_was  -- an earlier step moved it
          else a.ended_at + (1 - (r.retry ->> 'jitter')::float8) * r.longest end and a.ended_at + r.longest
      from hwqueue.lease l
      join hwqueue.attempt a on a.lease_id = l.lease_id and a.claim_token = l.claim_token
      cross join lateral (select coalesce(l.retry, q.retry) as retry, hwqueue.retry_delay(
          coalesce(l.retry, q.retry) || '{"jitter": 0}', a.attempt) as longest offset 0) r
      where l.lease_id = s.lease_id)
    limit p_limit for update of s skip locked);
  v_deliveries int;
begin
  update hwqueue.claim c
  set expires_at = greatest(c.expires_at - v_step, p_now + c.claim_timeout), check_at = p_now,
    claimed_at = c.claimed_at - v_step, stop_requested_at = case
      when c.stop_requested_at between p_now and p_was then p_now else c.stop_requested_at end,
    stop_by = case when c.stop_reason = 'run_time_exceeded' then least(c.stop_by, p_now + c.claim_timeout)
      when c.stop_reason = 'tier_preempted' then c.stop_by - v_step
      else c.stop_by end
  where c.lease_id = any (v_claims);
  update hwqueue.node_state s
  set seen_at = least(s.seen_at, p_now), moved_xid = pg_current_xact_id(),
    expands_until = least(s.expands_until, p_now + interval '5 seconds')
  where s.node_id = any (v_nodes);
  update hwqueue.everywhere_node r set due_at = r.due_at - v_step
  where r.node_id = any (v_nodes) and r.due_at > p_was and r.due_at <= v_to;
  delete from hwqueue.scheduled s using unnest(v_entries) e
  where s.queue_id = e.queue_id and s.available_at = e.available_at and s.lease_id = e.lease_id;
  perform hwqueue.put_back(e.lease_id, e.attempt_count, e.claim_count, e.available_at - v_step, p_now)
  from unnest(v_entries) e;
  update hwqueue.webhook_delivery d
  set available_at = d.available_at - v_step, claimed_until = d.claimed_until - v_step
  where d.delivery_id = any (array(
    select x.delivery_id from hwqueue.webhook_delivery x
    where x.state = 'waiting' and x.available_at > p_now and x.available_at <= v_to
    limit p_limit for update skip locked));
  get diagnostics v_deliveries = row_count;
  return p_limit in (cardinality(v_claims), cardinality(v_nodes) - 1, cardinality(v_entries), v_deliveries);
end
$$;

-- Judges new classes ahead of claims, profile by profile, so that a claim seldom has to judge and holds
-- its node for less time.
-- Left to the claims of a node: classes that name nodes, resources or trust domains, because only such a
-- claim holds the node, and classes that cost more than judge_budget. Profiles without a registered node
-- are skipped.
-- Looks at p_limit profiles after p_after, in turn over the calls, and judges up to p_limit classes,
-- each for one profile. Stops after p_until (real clock), but judges something first.
-- Also drops from each profile the transaction ids that were open when it judged last and have ended
-- since: each costs every claim an index probe.
-- Returns how many classes it judged, whether there may be more, and the profile to start after next
-- time. That is the same profile again if the limit or the time ended the call inside it.
-- Locks: profile rows, skip locked; the installation's row, skip locked.
create or replace function hwqueue.reap_classes(
  p_after bigint, p_limit int, p_until timestamptz, out judged int, out more boolean, out next_after bigint)
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select p.profile_id from hwqueue.profile p
    where p.profile_id > p_after order by p.profile_id offset p_limit - 1 limit 1);
  v_profile_id bigint;
  v_profile hwqueue.profile;
  v_wanted int;
  v_count int;
begin
  judged := 0;
  more := true;
  for v_profile_id in
    select p.profile_id from hwqueue.profile p
    where p.profile_id > p_after and p.profile_id <= coalesce(v_last, 9223372036854775807)
      and (hwqueue.has_new_classes(hwqueue.valid_next_xid(p.classes_seen), p.classes_unseen)
           or p.classes_unseen <> '{}' and exists (select 1 from unnest(p.classes_unseen) u
               where hwqueue.has_ended(u)))
      and p.judged_as is null and exists (
        select 1 from hwqueue.node n where n.profile_id = any (hwqueue.profiles_judged_as(p.profile_id))
          and n.deregistered_at is null)
    order by p.profile_id
  loop
    loop
      v_wanted := least(500, p_limit - judged);
      if v_wanted = 0 or judged > 0 and clock_timestamp() >= p_until then
        next_after := v_profile_id - 1;
        return;
      end if;
      select p.* into v_profile from hwqueue.profile p
      where p.profile_id = v_profile_id for no key update skip locked;
      exit when not found;
      if not hwqueue.has_new_classes(hwqueue.valid_next_xid(v_profile.classes_seen),
          v_profile.classes_unseen) then
        -- the time of judging stays as it was: a new one would add the transactions that are open now
        v_profile.classes_unseen := hwqueue.prune_unseen_xids(v_profile.classes_unseen);
        update hwqueue.profile p set classes_unseen = v_profile.classes_unseen
        where p.profile_id = v_profile_id;
        update hwqueue.profile_queue s set classes_unseen = v_profile.classes_unseen
        where s.profile_id = v_profile_id;
        exit;
      end if;
      v_count := hwqueue.judge_next(v_profile, null, null, v_wanted, true);
      judged := judged + v_count;
      exit when v_count < v_wanted;
    end loop;
  end loop;
  more := judged = p_limit;
  next_after := coalesce(v_last, 0);
end
$$;

-- Keeps class_fleet, the cache of which nodes suit a class, up to date, at most p_limit classes a call.
-- Classes that cost more than judge_budget are computed only when a report asks.
-- Always: classes without a row, searched among p_limit classes after p_after, in turn over the calls.
-- With p_again also classes whose cached answer may not hold any more: first those whose last suitable
-- node fell silent or was cordoned, then up to half a p_limit of unmatched or reported classes with
-- another digest, then the rows that are out of date the longest.
-- Returns how many it computed, the class to start after next time, and with p_again the nodes as
-- scan_nodes read them.
-- Locks: as cache_class_fleets.
create or replace function hwqueue.reap_fleets(
  p_after bigint, p_limit int, p_again boolean, p_now timestamptz,
  out fleets int, out next_after bigint, out look hwqueue.fleet_snapshot)
language plpgsql volatile
as $$
declare
  v_new bigint[];
  v_old bigint[] := '{}';
begin
  select coalesce(case when count(*) = p_limit then max(w.class_id) end, 0),
         coalesce(array_agg(w.class_id) filter (where w.is_wanted and f.class_id is null), '{}')
  into next_after, v_new
  from (
    select c.class_id, c.retired_at is null and c.cost <= hwqueue.judge_budget() as is_wanted
    from hwqueue.placement_class c
    where c.class_id > p_after order by c.class_id limit p_limit) w
  left join hwqueue.class_fleet f on f.class_id = w.class_id;
  fleets := 0;
  if v_new = '{}' and not p_again then
    return;
  end if;
  if p_again then
    look := hwqueue.scan_nodes(p_now);
    v_old := array(
      select o.class_id from (
        (select f.class_id, 0 as turn, f.looked_at from hwqueue.class_fleet f
         where f.digest = look.digest and not hwqueue.is_cache_valid(f, look.open)
         order by f.looked_at limit p_limit)
        union all
        (select f.class_id, 1, f.looked_at from hwqueue.class_fleet f
         where (f.unmatched or f.reported_at is not null) and f.digest <> look.digest
         order by f.looked_at limit p_limit / 2)
        union all
        (select f.class_id, 2, f.looked_at from hwqueue.class_fleet f
         where f.digest <> look.digest
         order by f.looked_at limit p_limit)) o
      group by o.class_id order by min(o.turn), min(o.looked_at) limit p_limit - cardinality(v_new));
  end if;
  if v_new || v_old <> '{}' then
    fleets := hwqueue.cache_class_fleets(v_new || v_old, p_now);
    if fleets is null then  -- another session computes it now
      fleets := 0;
      next_after := p_after;
    end if;
  end if;
end
$$;

-- Fires schedules that are due, up to p_limit, for a quarter of upkeep_budget. With p_sweeps those whose
-- place is a time to come, since the clock was set back, begin again. Returns whether there may be more.
-- p_leads: see reap_teams.
-- Locks: schedules, skip locked; as reap_teams.
create or replace function hwqueue.reap_schedules(p_limit int, p_from hwqueue.reap_cursor, p_sweeps boolean,
  p_leads boolean, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_more boolean;
begin
  update hwqueue.schedule s
  set cursor_at = p_now, times = case when s.spec ? 'cron' then '{}' else s.times end,
    next_at = case when not s.spec ? 'cron' then hwqueue.next_time(s, p_now) end,
    plan_at = case when s.spec ? 'cron' then p_now end
  where p_sweeps and s.name = any (array(
    select x.name from hwqueue.schedule x where x.cursor_at > p_now for no key update skip locked));
  v_more := hwqueue.reap_teams('{schedule}', p_limit, hwqueue.upkeep_budget() / 4, p_from, p_now, p_leads);
  perform 1 from hwqueue.schedule s  -- who does not lead puts nothing off: it would call again at once
  where p_leads and s.schedule_id in (
    select hwqueue.due_teams('schedule', 'schedule', p_limit, p_from, p_now))
  limit 1 for no key update skip locked;
  return v_more or found;
end
$$;

-- Sets when claims have to stop of which no call could tell: those beside a no_execute taint, tolerated for a
-- time, that were granted while it came, or adopted later; and those with requirements during execution, of
-- up to 500 leases after p_after, in turn over the calls: an attestation has expired, the leases to be with
-- have ended or moved, a claim was granted while another node was edited, or a requirement holds again.
-- Deletes the checks of claims that have ended. Judges without locks first, and what has changed again under
-- them. Stops after upkeep_budget, but does one node at least: what is left has its turn again. Returns the
-- lease to start after next time, and whether it has set p_limit of the first kind, or had no more time.
-- Locks: placement_check, node_state, then the claims, all skip locked.
create or replace function hwqueue.reap_stops(p_after uuid, p_limit int, p_now timestamptz,
  out next_after uuid, out more boolean)
language plpgsql volatile
as $$
declare
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget();
  v_ids uuid[] := array(
    select k.lease_id from hwqueue.placement_check k
    where k.lease_id > p_after order by k.lease_id limit least(p_limit, 500));
  v_due record;
  v_leases uuid[];
begin
  more := false;
  delete from hwqueue.placement_check k where v_ids <> '{}' and k.ctid = any (array(
    select x.ctid from hwqueue.placement_check x
    where x.lease_id = any (v_ids) and not exists (
      select 1 from hwqueue.claim c
      where c.lease_id = x.lease_id and hwqueue.claim_no(c.claim_token) = x.claim_no)
    for update skip locked));
  for v_due in
    with beside as materialized (  -- a node that is locked keeps no other one back
      select c.node_id, c.lease_id
      from hwqueue.node n
      join hwqueue.node_state s on s.node_id = n.node_id
      join hwqueue.claim c on c.node_id = n.node_id and c.stop_requested_at is null
      join hwqueue.placement_class k on k.class_id = c.class_id
      where (n.taints || n.operator_taints) @> '[{"effect": "no_execute"}]' and n.deregistered_at is null
        and (hwqueue.first_stop_at(hwqueue.taints_for(n.taints || n.operator_taints, k.tenant), k.tolerate,
          c.claimed_at)).stop_at is not null
      limit p_limit for no key update of s skip locked
    )
    select d.node_id, array_agg(d.lease_id) as leases, (select count(*) from beside b) >= p_limit as are_many
    from (
      select b.node_id, b.lease_id from beside b
      union all
      select c.node_id, c.lease_id
      from hwqueue.placement_check x
      join hwqueue.claim c on c.lease_id = x.lease_id and hwqueue.claim_no(c.claim_token) = x.claim_no
      join hwqueue.placement_class k on k.class_id = c.class_id
      join hwqueue.node n on n.node_id = c.node_id and n.deregistered_at is null
      where x.lease_id = any (v_ids) and c.expires_at > p_now
        and (c.stop_requested_at is null or c.stop_requested_at > p_now)
        and hwqueue.broken_requirements(k, c, n, x.broken, p_now) <> x.broken) d
    group by d.node_id
  loop
    continue when not hwqueue.lock_free_node(v_due.node_id);
    v_leases := array(
      select c.lease_id from hwqueue.claim c
      where c.lease_id = any (v_due.leases) and c.node_id = v_due.node_id
      order by c.lease_id for update skip locked);
    if v_leases <> '{}' then
      perform hwqueue.set_stops(hwqueue.read_node(v_due.node_id), v_leases, p_now),
        hwqueue.recheck_claims(v_due.node_id, v_leases, p_now);
    end if;
    more := v_due.are_many or clock_timestamp() >= v_until;
    exit when clock_timestamp() >= v_until;
  end loop;
  next_after := coalesce(v_ids[least(p_limit, 500)], '00000000-0000-0000-0000-000000000000');
end
$$;

-- Records that the caller has reaped, and moves the positions on. A position advances to the moment
-- noted at an earlier call once all transactions of that time have ended, but never beyond a row that is
-- still there, nor beyond the clock, which may have been set back. p_from: the cursor as this call used it.
-- Locks: the caller holds p_cursor, and took its transaction id after p_now. Not idempotent.
create or replace function hwqueue.advance_reap_cursor(p_cursor hwqueue.reap_cursor,
  p_from hwqueue.reap_cursor, p_now timestamptz)
returns void
language plpgsql volatile
as $$
declare
  v_next hwqueue.reap_cursor := p_from;
  -- an earlier statement than the rows are read in: these see what the ended transactions wrote
  v_ended boolean := pg_snapshot_xmin(pg_current_snapshot()) >= p_cursor.next_after_xid;
  v_is_foreign boolean := pg_snapshot_xmax(pg_current_snapshot()) < p_cursor.next_after_xid;
  v_mark timestamptz := case when v_ended then p_cursor.next_from end;
begin
  select least(p_now, coalesce(v_mark, p_cursor.claims_from), (
      select c.check_at from hwqueue.claim c where c.check_at >= p_from.claims_from
        and c.check_at < p_cursor.next_from order by c.check_at limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.deadlines_from), (
      select greatest(r.deadline, r.eligible_at) from hwqueue.ready r
      where r.deadline is not null and greatest(r.deadline, r.eligible_at) >= p_from.deadlines_from
        and greatest(r.deadline, r.eligible_at) < p_cursor.next_from
      order by greatest(r.deadline, r.eligible_at) limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.scheduled_from), (
      select min(f.available_at) from hwqueue.queue q
      cross join lateral (
        select e.available_at from hwqueue.scheduled e
        where e.queue_id = q.queue_id and e.available_at >= p_from.scheduled_from
          and e.available_at < p_cursor.next_from order by e.available_at limit 1) f)),
    least(p_now, coalesce(v_mark, p_cursor.arrivals_from), (
      select a.at from hwqueue.arrival a where a.at >= p_from.arrivals_from
        and a.at < p_cursor.next_from and a.after_xid is null order by a.at limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.steps_from), (
      select t.due_at from hwqueue.step t where t.due_at >= p_from.steps_from
        and t.due_at < p_cursor.next_from order by t.due_at limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.deliveries_from), (
      select min(f.available_at) from hwqueue.webhook w
      cross join lateral (
        select d.available_at from hwqueue.webhook_delivery d
        where d.webhook_id = w.webhook_id and d.state = 'waiting' and d.available_at >= p_from.deliveries_from
          and d.available_at < p_cursor.next_from order by d.available_at limit 1) f)),
    least(p_now, coalesce(v_mark, p_cursor.gangs_from), (
      select g.next_try_at from hwqueue.gang g
      where (g.state = 'waiting' or g.state = 'running' and g.missing > 0)
        and g.next_try_at >= p_from.gangs_from and g.next_try_at < p_cursor.next_from
      order by g.next_try_at limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.replacements_from), (
      select e.next_try_at from hwqueue.replacement e where e.next_try_at >= p_from.replacements_from
        and e.next_try_at < p_cursor.next_from order by e.next_try_at limit 1)),
    least(p_now, coalesce(v_mark, p_cursor.terms_from), (
      select c.created_at from hwqueue.placement_class c
      where c.terms <> '[]' and not c.terms_written and c.created_at >= p_from.terms_from
        and c.created_at < p_cursor.next_from order by c.created_at limit 1), (
      select t.created_at from hwqueue.affinity_term t
      where t.published_at is null and t.created_at >= p_from.terms_from
        and t.created_at < p_cursor.next_from order by t.created_at limit 1)),
    least(case when v_ended then p_cursor.next_change else p_cursor.changes_from end, (
      select min(f.change_id) from unnest('{gang,choice,everywhere}'::text[]) k
      cross join lateral (
        select g.change_id from hwqueue.team_change g where g.kind = k and g.change_id >= p_from.changes_from
          and g.change_id < p_cursor.next_change order by g.change_id limit 1) f)),
    least(case when v_ended then p_cursor.next_arrival else p_cursor.kept_from end, (
      select a.arrival_id from hwqueue.arrival a where a.arrival_id >= p_from.kept_from
        and a.arrival_id < p_cursor.next_arrival order by a.arrival_id limit 1)),
    least(case when v_ended then p_cursor.next_lane else p_cursor.lanes_from end, (
      select c.change_id from hwqueue.lane_change c where c.change_id >= p_from.lanes_from
        and c.change_id < p_cursor.next_lane order by c.change_id limit 1))
  into v_next.claims_from, v_next.deadlines_from, v_next.scheduled_from, v_next.arrivals_from,
    v_next.steps_from, v_next.deliveries_from, v_next.gangs_from, v_next.replacements_from,
    v_next.terms_from, v_next.changes_from, v_next.kept_from, v_next.lanes_from;
  v_next.version := p_cursor.version + 1;
  if p_from.reaped_at <= p_now then  -- else the clock was set back, and not all times have been moved yet
    v_next.reaped_at := p_now;
  end if;
  if v_ended or v_is_foreign then
    v_next.next_from := p_now;
    v_next.next_change := (select s.last_value from hwqueue.team_change_change_id_seq s);
    v_next.next_arrival := (select s.last_value from hwqueue.arrival_arrival_id_seq s);
    v_next.next_lane := (select s.last_value from hwqueue.lane_change_change_id_seq s);
    v_next.next_after_xid := pg_current_xact_id();
  end if;
  delete from hwqueue.reap_cursor m where m.version = p_cursor.version;
  insert into hwqueue.reap_cursor select v_next.*;
end
$$;
