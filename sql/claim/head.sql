-- The fast path of a claim: leases from the queue head, one of them in three statements
-- after the one that locks the node.
--
-- claim_task and settle_and_claim (api/claims) call claim_at_head before anything else. An example: a
-- CPU node asks for one lease of `mail`, where all of its classes score the same. The first entry after
-- the queue's low-water mark is the best one, so the claim reads the head, deletes that entry and writes
-- the claim. A worker with 16 free slots asks for 16, or a node counts its CPUs: then claim_general
-- (claim/claim) has these locked by lock_at_head, and grants them. It also goes on when any condition
-- fails. Of one lease of several classes lock_at_head finds the entry, too: a statement more.
--
-- Invariant: it never passes over a better entry, except one that another session has locked.

-- Grants one lease at the head of a node's queues: the first entry after the low-water mark, where that is
-- the best one and no class of the node must be checked (must_be_checked). No lease_id: claim_general goes
-- on, from what this claim has read of the queues (queue_head). is_tried: these conditions hold.
-- p_qty: null if the node may not claim. p_moves, p_drawn: as in claim_general.
-- Locks: the caller holds node_state; scheduled and ready entries, skip locked; now and then the
-- low-water marks, skip locked. Not idempotent.
create or replace function hwqueue.claim_at_head(p_state hwqueue.node_state, p_queues text[], p_qty int,
  p_tasks text[], p_claim_timeout interval, p_moves boolean, p_drawn bigint,
  out queue_head hwqueue.queue_head, out lease_id uuid, out claim_token bigint, out attempt smallint,
  out queue text, out task_name text, out params jsonb, out headers jsonb, out score double precision,
  out expires_at timestamptz, out assignment jsonb)
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_head hwqueue.queue_head;
  v_fit record;
  v_fits boolean := case when not p_state.has_limits then p_qty = 1 when p_qty > 1 then false end;
  v_ctid tid;
  v_class_id bigint;
  v_position bigint;
  v_timeout interval;
  v_since timestamptz;
  v_is_step boolean;
  v_lanes hwqueue.lane_ref[];
begin
  if (p_qty > 0 and p_state.login = session_user and not p_state.awaits_terms and not p_state.has_reserved
      and not (p_state.has_limits and p_state.met_blocked) and cardinality(p_queues) <= 16
      and (p_state.on_fast_path or p_state.has_limits and p_qty = 1 and cardinality(p_queues) = 1)
      and hwqueue.is_this_life(p_state.server_started_at, p_state.recovered_to, p_state.storage_path)
      ) is not true then
    return;
  end if;
  v_now := hwqueue.clock();
  if cardinality(p_queues) = 1 then
    select q.* into v_head from hwqueue.read_queue_head(p_queues[1], p_state.profile_id,
      p_state.classes_seen, p_state.classes_unseen, not p_state.on_fast_path) q;
    if v_head.tier > 0 and v_head.first_is_best then  -- here: nobody pays for it in the first tier
      perform 1 from hwqueue.ready r
      where r.queue_id = v_head.queue_id and r.tier < v_head.tier
      order by r.tier, r.rank, r.position limit 1;
      v_head.first_is_best := not found;
    end if;
    if v_head.is_blocked and cardinality(v_head.classes) = 1
      or p_state.met_blocked and p_qty = 1 and v_head.first_is_best and not v_head.takes_first then
      v_head := hwqueue.read_past_blocked(p_state, v_head, v_now);
    end if;
  else
    select q.* into v_head from hwqueue.read_queue_heads(p_queues, p_state.profile_id,
      p_state.classes_seen, p_state.classes_unseen, p_state.pinned_queues) q;
  end if;
  v_head.is_tried := coalesce(coalesce(v_head.first_is_best, true) and v_head.takes_first
    and v_head.queue_id <> all (p_state.pinned_queues) and (p_tasks is null or not p_state.on_fast_path
      or cardinality(v_head.task_names) <= 50 and v_head.task_names <@ p_tasks), false);
  if v_head.is_tried and current_setting('hwqueue.recent_due_scan', true)
      is distinct from hwqueue.recent_due_scan(p_queues, v_now) then
    v_head.promoted := hwqueue.promote_if_due(p_queues, v_head.queue_ids, 20, v_head.has_lanes, v_now);
    if v_head.promoted > 0 then
      return;
    end if;
  end if;
  score := 0;
  if v_fits is null and v_head.is_tried and cardinality(v_head.classes) = 1 then
    v_fit := hwqueue.fit_at_head(p_state.node_id, v_head.classes[1], 1, case when not p_state.on_fast_path
      then p_state.profile_id end, v_head.queue_id, p_tasks);
    v_fits := v_fit.fitting = 1;
    assignment := v_fit.assignment;
    score := v_fit.score;
  end if;
  if v_head.is_tried and v_fits then
    if cardinality(v_head.classes) > 1 then
      v_ctid := (hwqueue.lock_at_head(v_head, 1, v_now))[1];
    end if;
    delete from hwqueue.ready r using hwqueue.lease l
    where r.ctid = case when cardinality(v_head.classes) > 1 then v_ctid else (
        select x.ctid from hwqueue.ready x
        where x.class_id = v_head.classes[1] and x.tier = v_head.tier and x.rank = v_head.rank
          and x.position between v_head.position and v_head.last
          and (x.deadline is null or x.deadline > v_now)
        order by x.position limit 1 for update skip locked) end and l.lease_id = r.lease_id
    returning r.lease_id, r.class_id, hwqueue.next_token(p_state.generation, r.claim_count),
      r.attempt_count + 1, r.position, l.task_name, l.params, l.headers,
      coalesce(l.claim_timeout, p_claim_timeout, v_head.claim_timeout),
      case when v_head.drops_completed and l.idempotency_key is null and l.run_id is null
        then greatest(l.available_at, l.created_at) end,
      case when l.run_id is not null then l.item_no is null end, l.lanes
    into lease_id, v_class_id, claim_token, attempt, v_position, task_name, params, headers, v_timeout,
      v_since, v_is_step, v_lanes;
  end if;
  if lease_id is null then
    queue_head := case when p_state.on_fast_path or v_fits is not null then v_head end;
    return;
  end if;
  queue := v_head.name;
  expires_at := v_now + v_timeout;
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
    attempt, claim_timeout, claimed_at, expires_at, check_at, assignment, login, eligible_at, is_step, lanes)
  values (lease_id, v_head.queue_id, v_class_id, p_state.node_id, p_state.node_epoch, claim_token,
    attempt, v_timeout, v_now, expires_at, expires_at, assignment, p_state.login, v_since, v_is_step,
    hwqueue.slot_lanes(v_lanes));
  if assignment is not null then
    v_fits := hwqueue.book_room(p_state.node_id, assignment, 1, v_fit.gpu_used);  -- perform is a statement
  end if;
  if (v_lanes[cardinality(v_lanes)]).lane_id & 3 > 0 then
    v_fits := hwqueue.hand_over(array[(v_lanes[cardinality(v_lanes)]).lane_id], v_now, true) >= 0;
  end if;
  if p_moves or v_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    perform hwqueue.after_claim(p_state, array[v_head.queue_id], row(v_head.queue_id, v_head.tier, null, null,
        v_head.rank, v_position, v_class_id, lease_id, null, null, null)::hwqueue.ready, true, p_moves,
      p_drawn, v_now);
  end if;
end
$$;

-- How many leases of the only class at the head, p_limit at most, a node has room for, and what each of them
-- allocates there. p_profile_id null: it has no devices. Else it has whole GPUs, and is asked for one lease:
-- what of each is in use then, and its score. Null then where the node is cordoned or gone, and for
-- claim_general: cores, parts, shares, countables, prices, checks.
-- Locks: the caller holds node_state.
create or replace function hwqueue.fit_at_head(p_node uuid, p_class_id bigint, p_limit int,
  p_profile_id bigint default null, p_queue_id int default null, p_tasks text[] default null,
  out fitting int, out assignment jsonb, out gpu_used int[], out score double precision)
language plpgsql volatile
as $$
declare
  v_devices int[];
  v_device int;
begin
  if p_profile_id is null then
    select least(p_limit, n.slots - u.claim_count, (n.cpu_milli - u.cpu_used) / nullif(c.cpu_milli, 0),
             (n.memory_mib - u.memory_used) / nullif(c.memory_mib, 0)),
           hwqueue.claim_assignment(c, n, null, null), 0
    into fitting, assignment, score
    from hwqueue.node n
    join hwqueue.placement_class c on c.class_id = p_class_id
    cross join lateral (  -- as read_load
      select * from hwqueue.node_load x where x.node_id = n.node_id order by x.version desc limit 1) u
    where n.node_id = p_node;
    return;
  end if;
  select (hwqueue.shortage(e.cpu_milli, e.memory_mib, r.room)
           + hwqueue.gpu_shortage(e.gpu_count, 0, '{}', r.room, null) = 0)::int,
         hwqueue.claim_assignment(c, n, d.gpus, case when e.gpu_count > 0 and e.gpu_exclusivity is not null
           then jsonb_build_object('gpu_exclusivity', e.gpu_exclusivity) end),
         d.devices, u.gpu_used,
         hwqueue.lease_score((q.tuning).weight_affinity, (q.tuning).weight_fit, 0, e.affinity,
           hwqueue.fit_score(e.cpu_milli, e.memory_mib, e.gpu_count, 0, f.reach, r.room), 0)
  into fitting, assignment, v_devices, gpu_used, score
  from hwqueue.node n
  cross join lateral (
    select * from hwqueue.node_load x where x.node_id = n.node_id order by x.version desc limit 1) u
  cross join lateral (select cardinality(array_positions(u.gpu_used, 0)) as free) w
  join hwqueue.queue q on q.queue_id = p_queue_id
  join hwqueue.eligibility e on e.profile_id = p_profile_id and e.queue_id = p_queue_id
    and e.class_id = p_class_id
  join hwqueue.placement_class c on c.class_id = e.class_id
  left join hwqueue.class_fleet f on f.class_id = e.class_id
  cross join lateral (
    select row(n.cpu_milli - u.cpu_used, n.memory_mib - u.memory_used, null, n.slots - u.claim_count, null,
      null, null, 1000 * w.free, 1000, w.free, null, null, null, null, 0)::hwqueue.headroom as room) r
  cross join lateral (
    select array_agg(i) as devices, jsonb_agg(jsonb_build_object(
        'index', i - 1, 'resource_id', n.gpu_ids[i], 'model', n.gpu_models[i])) as gpus
    from unnest((array_positions(u.gpu_used, 0))[1 : e.gpu_count]) i) d
  where n.node_id = p_node and n.cordoned_at is null and n.deregistered_at is null and n.core_ids = '{}'
    and n.gpu_parents = '{}' and w.free + cardinality(array_positions(u.gpu_used, 1000))
      = cardinality(u.gpu_used)
    and e.gpu_milli = 0 and e.gpu_wanted = '{}' and e.custom is null
    and e.gpu_exclusivity is distinct from 'partition_exclusive'
    and not e.is_checked and e.affinity is not null and not q.has_prices
    and (p_tasks is null or e.task_name = any (p_tasks));
  foreach v_device in array coalesce(v_devices, '{}') loop
    gpu_used[v_device] := 1000;
  end loop;
end
$$;

-- Locks up to p_limit leases at the head. Of several classes within a window from the first entry on, because
-- the scan crosses entries of other classes.
-- Locks: the entries, skip locked.
create or replace function hwqueue.lock_at_head(p_head hwqueue.queue_head, p_limit int, p_now timestamptz)
returns tid[]
language plpgsql volatile
as $$
begin
  if p_limit < 1 then
    return '{}';
  elsif cardinality(p_head.classes) = 1 then
    return array(
      select r.ctid from hwqueue.ready r
      where r.class_id = p_head.classes[1] and r.tier = p_head.tier and r.rank = p_head.rank
        and r.position between p_head.position and p_head.last
        and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit for update skip locked);
  end if;
  return array(
    select r.ctid from hwqueue.ready r
    where r.queue_id = p_head.queue_id and r.tier = p_head.tier and r.rank = p_head.rank
      and r.position between p_head.position and coalesce(p_head.last, 8 * p_limit - 1
        + least(p_head.window_size, case when cardinality(p_head.classes) <= 64 then 40 end) + (
          select x.position from hwqueue.ready x
          where x.queue_id = p_head.queue_id and x.tier = p_head.tier and x.rank = p_head.rank
            and x.position >= p_head.position
          order by x.position limit 1))
      and r.class_id = any (p_head.classes) and (r.deadline is null or r.deadline > p_now)
    order by r.position limit p_limit for update skip locked);
end
$$;

-- Makes up to p_limit leases ready that fall due, where nothing else waits in the queues of a claim, and
-- returns their number; null: something may wait.
-- Locks as promote_due.
create or replace function hwqueue.promote_last(p_state hwqueue.node_state, p_head hwqueue.queue_head,
  p_limit int, p_now timestamptz) returns int
language plpgsql volatile
as $$
begin
  if (p_head.is_over and (p_head.is_tried or p_head.tier is null) and not p_state.met_blocked
      and (not p_state.has_limits or cardinality(p_head.classes) = 1)) is not true then
    return null;
  end if;
  perform 1 from hwqueue.ready r
  where r.queue_id = p_head.queue_id
    and (r.tier, r.rank, r.position) >= (p_head.tier, p_head.rank, p_head.position)
  order by r.tier, r.rank, r.position limit 1;
  return case when not found then
    coalesce(p_head.promoted, hwqueue.promote_due(p_head.queue_ids, p_limit, p_head.has_lanes, p_now)) end;
end
$$;

-- What a claim reads of a queue that it names, and of what a node's profile may run there. No row: the
-- queue is unknown or paused.
-- tier, rank, position: the queue's low-water mark, the first one if it has several. drops_completed: the
-- queue keeps no completed leases. is_over: no other queue has an entry.
-- first_is_best: all classes of the profile there score the same, it has judged all that exist, and no entry
-- of its tier is before the low-water mark. So the next lease is the first one of those classes from there
-- on, unless an earlier tier has one, for which claim_at_head looks. Classes of another server count as not
-- judged, until reap has stamped them (reap_part): no claim pays for a bound.
-- With p_has_devices that is so only where the profile may run one class there, devices or not.
-- takes_first: none of them must be checked (must_be_checked), and they are 200 at most.
-- last: where the scan for it ends, because it crosses dead tuples where the queue is head-of-line blocked;
-- null: it crosses entries of other classes (lock_at_head).
-- A SQL function of one select, so the planner inlines it. The subselects are ordered, each for its
-- index. What can be known when a row is written is a column of it: each expression costs every claim.
create or replace function hwqueue.read_queue_head(p_queue text, p_profile_id bigint, p_classes_seen xid8,
  p_classes_unseen xid8[], p_has_devices boolean)
returns setof hwqueue.queue_head
language sql stable
as $$
  select q.queue_id, q.name, q.claim_timeout, (q.tuning).window_size, e.classes, e.task_names,
         e.most_cpu_milli, e.most_memory_mib, w.tier, w.rank, w.position,
         case when cardinality(e.classes) > 1 then null
              when w.is_blocked then w.position + 1000 else 9223372036854775807 end,
         w.is_blocked,
         coalesce(e.scores_equal and e.classes <> '{}' and w.is_single
           and not exists (
             select from hwqueue.placement_class c
             where c.created_xid >= least(e.classes_seen, p_classes_seen))
           and (e.classes_unseen || p_classes_unseen = '{}' or not exists (  -- mostly there is none unseen
             select from hwqueue.placement_class c
             where c.created_xid = any (e.classes_unseen || p_classes_unseen)))
           and (
             select r.position from hwqueue.ready r
             where r.queue_id = q.queue_id and r.tier = w.tier and r.rank < w.rank
             order by r.rank, r.position limit 1) is null, false),
         e.needs_no_check, e.checked, array[q.queue_id], q.retain_completed = '0', false, null::int, true,
         q.has_lanes
  from hwqueue.queue q
  left join lateral (  -- limit: as a plain join it may read all queues of the profile
    select case when p_has_devices then x.only_class else x.classes end as classes, x.task_names,
           x.scores_equal or p_has_devices as scores_equal, x.needs_no_check, x.checked,
           x.most_cpu_milli, x.most_memory_mib, x.classes_seen, x.classes_unseen
    from hwqueue.profile_queue x
    where x.profile_id = p_profile_id and x.queue_id = q.queue_id limit 1) e on true
  left join lateral (
    select m.is_single, m.tier, m.rank, m.position, m.version < m.blocked_to_version as is_blocked
    from hwqueue.low_water m
    where m.queue_id = q.queue_id and m.class_id = 0
    order by m.version desc limit 1) w on true
  where q.name = p_queue and q.dropped_at is null and q.paused_at is null
$$;

-- Like read_queue_head, for several queues: the queue whose first entry comes first of all, from that
-- entry (rank, position) to the first one of the next queue (last), and the ids of all. No row: none is
-- open. takes_first: each named queue is open, and is either empty or would take its first entry, with
-- nothing pinned to this node (p_pinned), which may score higher. Otherwise claim_general has to compare.
-- Inlined like read_queue_head.
create or replace function hwqueue.read_queue_heads(p_queues text[], p_profile_id bigint,
  p_classes_seen xid8, p_classes_unseen xid8[], p_pinned int[])
returns setof hwqueue.queue_head
language sql stable
as $$
  select k.queue_id, k.name, k.claim_timeout, k.window_size, k.classes, k.task_names, k.most_cpu_milli,
         k.most_memory_mib, k.tier, k.rank, k.position,
         least(coalesce(k.last, k.position - 1 + least(k.window_size,
             case when cardinality(k.classes) <= 64 then 40 end)), case
             when lead(k.tier) over o = 0 and lead(k.rank) over o = k.rank
           then lead(k.position) over o - 1 end),
         null::boolean, null::boolean,
         bool_and(k.is_known) over () and count(*) over () = cardinality(p_queues) and k.tier = 0,
         null::bigint[], array_agg(k.queue_id) over (),
         k.drops_completed, false, null::int, bool_and(k.is_known) over ()
           and count(*) over () = cardinality(p_queues) and lead(k.tier) over o is null,
         bool_or(k.has_lanes) over ()
  from (
    select l.queue_id, l.name, l.claim_timeout, l.window_size, l.classes, l.task_names, l.most_cpu_milli,
           l.most_memory_mib, l.drops_completed, l.has_lanes,
           f.tier, f.rank, f.position, l.last,
           coalesce(l.tier = 0
             and (l.first_is_best and l.takes_first and l.queue_id <> all (p_pinned)
                  or f.tier is null and (
                    select r.position from hwqueue.ready r
                    where r.queue_id = l.queue_id and r.tier = 0 and r.rank < l.rank
                    order by r.rank, r.position limit 1) is null), false) as is_known
    from unnest(p_queues) n(name)
    cross join lateral hwqueue.read_queue_head(n.name, p_profile_id, p_classes_seen, p_classes_unseen,
      false) l
    left join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.queue_id = l.queue_id and (r.tier, r.rank, r.position) >= (0, l.rank, l.position)
      order by r.tier, r.rank, r.position limit 1) f on true
  ) k
  window o as (order by k.tier, k.rank, k.position)
  order by k.tier, k.rank, k.position limit 1
$$;

-- The upkeep that both ways of claiming do now and then, after their grants. It records that the node is
-- alive. With p_moves it advances the low-water marks past one of the entries that were granted (p_entry:
-- its place and class are read). When nothing was, it ends expired claims and fails late leases, in case
-- no session calls reap.
-- Locks: the caller holds node_state; claims, ready entries and low-water marks, skip locked.
create or replace function hwqueue.after_claim(p_state hwqueue.node_state, p_queue_ids int[],
  p_entry hwqueue.ready, p_granted boolean, p_moves boolean, p_drawn bigint, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_oldest uuid[];
  v_claim hwqueue.claim;
begin
  if p_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    update hwqueue.node_state s
    set seen_at = p_now, classes_unseen = hwqueue.prune_unseen_xids(s.classes_unseen),
        moved_xid = case when s.seen_at + s.heartbeat_timeout > p_now then s.moved_xid
          else pg_current_xact_id() end
    where s.node_id = p_state.node_id;
  end if;
  if not p_granted then
    -- claims of other nodes that have been expired for as long as their timeout, of the 20 oldest, and only
    -- those without an assignment: this transaction may stay open, so it must not lock their nodes
    -- not claims_scan_start: a function with a subselect is planned in each transaction
    v_oldest := array(
      select c.lease_id from hwqueue.claim c
      where c.check_at between coalesce((
          select m.claims_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity')
        and p_now
      order by c.check_at limit 20);
    if v_oldest <> '{}' then
      for v_claim in
        select c.*
        from hwqueue.claim c
        where c.lease_id = any (v_oldest) and c.assignment is null and c.node_id <> p_state.node_id
          and c.check_at + c.claim_timeout <= p_now and c.expires_at <= p_now
        limit 5
        for update of c skip locked
      loop
        perform hwqueue.expire_claim(v_claim, hwqueue.clock());
      end loop;
    end if;
    perform hwqueue.reap_deadlines(20, p_now), hwqueue.flag_waiting(p_queue_ids, p_now);
  elsif p_moves then
    -- only where it holds the marks back, or its record of what was drawn is old (reap_positions)
    if (select p_entry.position <= h.safe_position and p_drawn < h.drawn_position + 1000
        from hwqueue.position_horizon h order by h.version desc limit 1) is not true then
      perform hwqueue.advance_horizon(p_drawn);
    end if;
    perform hwqueue.advance_low_water(p_entry);
  end if;
end
$$;
