-- The fast path of a claim: leases from the queue head, one of them in three statements
-- after the one that locks the node.
--
-- claim_task and settle_and_claim (api/claims) call claim_at_head before anything else. An example: a
-- CPU node asks for one lease of `mail`, where all of its classes score the same. The first entry after
-- the queue's low-water mark is the best one, so the claim reads the head, deletes that entry and writes
-- the claim. A worker with 16 free slots asks for 16: their entries are locked here, and claim_general
-- (claim/claim) grants them. It also goes on when any condition fails.
--
-- Invariant: it never passes over a better entry, except one that another session has locked.

-- Grants one lease at the head of a node's queues, or locks the entries of several there. No lease_id and
-- no ctids: the fast path does not apply, or found nothing. It applies to a node without limits, where the
-- first entry after the low-water mark is the best one and no class of the node must be checked
-- (must_be_checked).
-- queue_head: what it has read of the queues. Where that is_tried, other sessions hold what else is there
-- near the mark; is_over: in all of these queues nothing else waits. p_qty: null if the node may not claim.
-- p_moves, p_drawn: as in claim_general.
-- Locks: the caller holds node_state; scheduled and ready entries, skip locked; now and then the
-- low-water marks, skip locked. Not idempotent.
create or replace function hwqueue.claim_at_head(p_state hwqueue.node_state, p_queues text[], p_qty int,
  p_tasks text[], p_claim_timeout interval, p_moves boolean, p_drawn bigint,
  out queue_head hwqueue.queue_head, out lease_id uuid, out claim_token bigint, out attempt smallint,
  out queue text, out task_name text, out params jsonb, out headers jsonb, out expires_at timestamptz)
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_head hwqueue.queue_head;
  v_is_tried boolean;
  v_class_id bigint;
  v_position bigint;
  v_timeout interval;
  v_since timestamptz;
  v_is_step boolean;
begin
  if (p_qty > 0 and p_state.login = session_user and p_state.on_fast_path and not p_state.has_limits
      and not p_state.awaits_terms and cardinality(p_queues) <= 16
      and hwqueue.is_this_life(p_state.server_started_at, p_state.recovered_to, p_state.storage_path)
      ) is not true then
    return;
  end if;
  v_now := hwqueue.clock();
  if cardinality(p_queues) = 1 then
    select q.* into v_head from hwqueue.read_queue_head(p_queues[1], p_state.profile_id,
      p_state.classes_seen, p_state.classes_unseen) q;
    if p_state.met_blocked and p_qty = 1 and v_head.first_is_best and not v_head.takes_first then
      v_head := hwqueue.read_past_blocked(p_state, v_head, v_now);
    elsif v_head.last = v_head.position + 1031 and cardinality(v_head.classes) = 1 then  -- at its own mark
      v_head.position := greatest(v_head.position, (
        select case when m.tiers = '{0}' and m.ranks = array[v_head.rank] then m.positions[1] end
        from hwqueue.low_water m where m.class_id = v_head.classes[1] and m.queue_id = v_head.queue_id
        order by m.version desc limit 1));
      v_head.last := v_head.position + 1031;
    end if;
  else
    select q.* into v_head from hwqueue.read_queue_heads(p_queues, p_state.profile_id,
      p_state.classes_seen, p_state.classes_unseen, p_state.pinned_queues) q;
  end if;
  v_is_tried := coalesce(v_head.takes_first and v_head.queue_id <> all (p_state.pinned_queues)
    and (p_tasks is null or cardinality(v_head.task_names) <= 50 and v_head.task_names <@ p_tasks), false);
  if v_is_tried and current_setting('hwqueue.recent_due_scan', true)
      is distinct from hwqueue.recent_due_scan(p_queues, v_now)
    and hwqueue.promote_if_due(p_queues, v_head.queue_ids, 20, v_now) > 0 then
    return;
  end if;
  if v_is_tried and p_qty = 1 then
    delete from hwqueue.ready r using hwqueue.lease l
    where r.ctid = case when cardinality(v_head.classes) = 1 then (
        select x.ctid from hwqueue.ready x
        where x.class_id = v_head.classes[1] and x.tier = 0 and x.rank = v_head.rank
          and x.position between v_head.position and v_head.last
          and (x.deadline is null or x.deadline > v_now)
        order by x.position limit 1 for update skip locked)
      else (
        select x.ctid from hwqueue.ready x
        where x.queue_id = v_head.queue_id and x.tier = 0 and x.rank = v_head.rank
          and x.position between v_head.position and v_head.last
          and x.class_id = any (v_head.classes) and (x.deadline is null or x.deadline > v_now)
        order by x.position limit 1 for update skip locked) end and l.lease_id = r.lease_id
    returning r.lease_id, r.class_id, hwqueue.next_token(p_state.generation, r.claim_count),
      r.attempt_count + 1, r.position, l.task_name, l.params, l.headers,
      coalesce(l.claim_timeout, p_claim_timeout, v_head.claim_timeout),
      case when v_head.drops_completed and l.idempotency_key is null and l.run_id is null
        then greatest(l.available_at, l.created_at) end,
      case when l.run_id is not null then l.item_no is null end
    into lease_id, v_class_id, claim_token, attempt, v_position, task_name, params, headers, v_timeout,
      v_since, v_is_step;
  end if;
  if lease_id is null then
    if v_is_tried and p_qty > 1 then
      v_head.ctids := case when cardinality(v_head.classes) = 1 then array(
          select x.ctid from hwqueue.ready x
          where x.class_id = v_head.classes[1] and x.tier = 0 and x.rank = v_head.rank
            and x.position between v_head.position and v_head.last
            and (x.deadline is null or x.deadline > v_now)
          order by x.position limit p_qty for update skip locked)
        else array(
          select x.ctid from hwqueue.ready x
          where x.queue_id = v_head.queue_id and x.tier = 0 and x.rank = v_head.rank
            and x.position between v_head.position
              and v_head.last + case when cardinality(p_queues) = 1 then 8 * p_qty else 0 end
            and x.class_id = any (v_head.classes) and (x.deadline is null or x.deadline > v_now)
          order by x.position limit p_qty for update skip locked) end;
    end if;
    v_head.is_over := v_head.is_over and (v_is_tried or v_head.tier is null) and not p_state.met_blocked
      and coalesce(cardinality(v_head.ctids), 0) < p_qty;
    if v_head.is_over then  -- by itself: any other claim has no statement for it
      v_head.is_over := (
        select r.position from hwqueue.ready r
        where r.queue_id = v_head.queue_id
          and (r.tier, r.rank, r.position) >= (0, v_head.rank, v_head.position)
          and (v_head.ctids is null or r.ctid <> all (v_head.ctids))
        order by r.tier, r.rank, r.position limit 1) is null;
    end if;
    queue_head := v_head;
    queue_head.is_tried := v_is_tried;
    return;
  end if;
  queue := v_head.name;
  expires_at := v_now + v_timeout;
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
    attempt, claim_timeout, claimed_at, expires_at, check_at, login, eligible_at, is_step)
  values (lease_id, v_head.queue_id, v_class_id, p_state.node_id, p_state.node_epoch, claim_token,
    attempt, v_timeout, v_now, expires_at, expires_at, p_state.login, v_since, v_is_step);
  if p_moves or v_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    perform hwqueue.after_claim(p_state, array[v_head.queue_id], row(v_head.queue_id, 0, null, null,
        v_head.rank, v_position, v_class_id, lease_id, null, null)::hwqueue.ready, true, p_moves, p_drawn,
      v_now);
  end if;
end
$$;

-- What a claim reads of a queue that it names, and of what a node's profile may run there. No row: the
-- queue is unknown or paused.
-- tier, rank, position: the queue's low-water mark. marks: how many it has; most queues have one tier
-- and rank. drops_completed: the queue keeps no completed leases.
-- is_over: no other queue has an entry.
-- first_is_best: all classes of the profile there score the same, it has judged all that exist, and no entry
-- is before the low-water mark. So the next lease is the first one of those classes from there on. Classes of
-- another server count as not judged, until reap has stamped them (reap_part): no claim pays for a bound.
-- takes_first: also, none of them must be checked (must_be_checked), and they are 200 at most.
-- last: where the scan for it ends, because it crosses entries of other classes and, where the queue is
-- head-of-line blocked, dead tuples.
-- A SQL function of one select, so the planner inlines it. The subselects are ordered, each for its
-- index.
create or replace function hwqueue.read_queue_head(p_queue text, p_profile_id bigint, p_classes_seen xid8,
  p_classes_unseen xid8[])
returns setof hwqueue.queue_head
language sql stable
as $$
  select q.queue_id, q.name, q.claim_timeout, (q.tuning).window_size, e.classes, e.task_names,
         e.most_cpu_milli, e.most_memory_mib, cardinality(w.tiers), w.tiers[1], w.ranks[1], w.positions[1],
         case when cardinality(e.classes) > 1 then (
                select r.position from hwqueue.ready r
                where r.queue_id = q.queue_id and r.tier = 0 and r.rank = w.ranks[1]
                  and r.position >= w.positions[1]
                order by r.position limit 1) + case when cardinality(e.classes) <= 64
                  then least((q.tuning).window_size, 40) else (q.tuning).window_size end - 1
              when w.is_blocked then w.positions[1] + 1031
              else 9223372036854775807 end,
         f.first_is_best, f.first_is_best and e.checked = '{}' and cardinality(e.classes) <= 200, e.checked,
         array[q.queue_id], q.retain_completed = '0', false, null::tid[], true
  from hwqueue.queue q
  left join lateral (  -- limit: as a plain join it may read all queues of the profile
    select x.* from hwqueue.profile_queue x
    where x.profile_id = p_profile_id and x.queue_id = q.queue_id limit 1) e on true
  left join lateral (
    select m.tiers, m.ranks, m.positions, m.version < m.blocked_to_version as is_blocked
    from hwqueue.low_water m
    where m.queue_id = q.queue_id and m.class_id = 0
    order by m.version desc limit 1) w on true
  cross join lateral (
    select coalesce(e.scores_equal and e.classes <> '{}' and cardinality(w.tiers) = 1 and w.tiers[1] = 0
           and (
             select c.class_id from hwqueue.placement_class c
             where c.created_xid >= least(e.classes_seen, p_classes_seen)
             order by c.created_xid limit 1) is null
           -- mostly there is none unseen, and this subselect costs more than all the others
           and (e.classes_unseen || p_classes_unseen = '{}' or (
             select x.class_id from unnest(e.classes_unseen || p_classes_unseen) u(xid)
             cross join lateral (
               select c.class_id from hwqueue.placement_class c
               where c.created_xid >= u.xid and c.created_xid <= u.xid
               order by c.created_xid limit 1) x
             limit 1) is null)
           and (
             select r.position from hwqueue.ready r
             where r.queue_id = q.queue_id and r.tier = 0 and r.rank < w.ranks[1]
             order by r.rank, r.position limit 1) is null, false) as first_is_best offset 0) f
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
         k.most_memory_mib, k.marks, k.tier, k.rank, k.position,
         least(coalesce(k.last, k.position + least(k.window_size, 40) - 1), case
             when lead(k.tier) over o = 0 and lead(k.rank) over o = k.rank
           then lead(k.position) over o - 1 end),
         null::boolean, bool_and(k.is_known) over () and count(*) over () = cardinality(p_queues)
           and k.tier = 0, null::bigint[], array_agg(k.queue_id) over (),
         k.drops_completed, false, null::tid[], bool_and(k.is_known) over ()
           and count(*) over () = cardinality(p_queues) and lead(k.tier) over o is null
  from (
    select l.queue_id, l.name, l.claim_timeout, l.window_size, l.classes, l.task_names, l.most_cpu_milli,
           l.most_memory_mib, l.marks, l.drops_completed,
           f.tier, f.rank, f.position, l.last,
           coalesce(l.marks = 1 and l.tier = 0
             and (l.takes_first and l.queue_id <> all (p_pinned)
                  or f.tier is null and (
                    select r.position from hwqueue.ready r
                    where r.queue_id = l.queue_id and r.tier = 0 and r.rank < l.rank
                    order by r.rank, r.position limit 1) is null), false) as is_known
    from unnest(p_queues) n(name)
    cross join lateral hwqueue.read_queue_head(n.name, p_profile_id, p_classes_seen, p_classes_unseen) l
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
  v_from timestamptz;
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
    v_from := (select m.claims_from from hwqueue.reap_cursor m order by m.version desc limit 1);
    v_oldest := array(
      select c.lease_id from hwqueue.claim c
      where c.check_at between coalesce(v_from, '-infinity') and p_now order by c.check_at limit 20);
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
    perform hwqueue.advance_horizon(p_drawn);
    if p_entry.lease_id is not null then
      perform hwqueue.advance_low_water(p_entry);
    end if;
  end if;
end
$$;
