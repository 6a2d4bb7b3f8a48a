-- The claim at the head of a node's queues: one lease, without a decision.

-- Grants one lease at the head of a node's queues, in three statements: what is known of the queues, the
-- entry with its lease, the claim. No lease_id: the way is not open, or nothing was there, and
-- claim_general must look. The way is open for one lease (p_qty 1) on a node without capacity limits, where
-- the first entry after the low-water mark is the best one and no term has to be checked.
-- queue_head: what is known of the queues; is_tried: their head was tried, and others held what is there.
-- p_moves, p_drawn: as the caller drew them, before this transaction had an id.
-- Locks: the caller holds node_state; scheduled and ready entries, skip locked; now and then the low-water
-- marks, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.claim_at_head(p_state hwqueue.node_state, p_queues text[], p_qty int,
  p_tasks text[], p_claim_timeout interval, p_moves boolean, p_drawn bigint, p_shard int,
  out queue_head hwqueue.queue_head, out is_tried boolean, out lease_id uuid, out claim_token bigint,
  out attempt smallint, out task_name text, out params jsonb, out headers jsonb, out expires_at timestamptz)
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_head hwqueue.queue_head;
  v_class_id bigint;
  v_position bigint;
  v_timeout interval;
  v_eligible_at timestamptz;
begin
  is_tried := false;
  if (p_qty = 1 and p_state.login = session_user and p_state.on_fast_path and not p_state.has_limits
      and not p_state.awaits_terms and p_state.server_started_at = pg_postmaster_start_time()
      and p_state.storage_path = pg_relation_filepath('hwqueue.shard'::regclass)
      and cardinality(p_queues) <= 16) is not true then
    return;
  end if;
  v_now := hwqueue.clock();
  if cardinality(p_queues) = 1 then
    select q.* into v_head
    from hwqueue.read_queue_head(p_queues[1], p_state.profile_id, p_state.classes_seen,
      p_state.classes_unseen, p_shard) q;
    if p_state.met_blocked and v_head.is_front and not v_head.is_first then
      v_head := hwqueue.read_past_blocked(p_state, v_head, v_now, p_shard);
    end if;
  else
    select q.* into v_head
    from hwqueue.read_queue_heads(p_queues, p_state.profile_id, p_state.classes_seen,
      p_state.classes_unseen, p_state.pinned_queues, p_shard) q;
  end if;
  is_tried := v_head.is_first and v_head.queue_id <> all (p_state.pinned_queues)
    and (p_tasks is null or cardinality(v_head.task_names) <= 50 and v_head.task_names <@ p_tasks);
  if is_tried
     and current_setting('hwqueue.recent_due_scan', true) is distinct from hwqueue.recent_due_scan(p_queues,
         v_now, p_shard)
     and hwqueue.promote_if_due(p_queues, v_head.queue_ids, 20, v_now, p_shard) > 0 then
    is_tried := false;
    return;
  end if;
  queue_head := v_head;
  if is_tried is not true then
    return;
  end if;
  delete from hwqueue.ready r using hwqueue.lease l
  where r.ctid = case
      when cardinality(v_head.classes) = 1 then (
        select x.ctid from hwqueue.ready x
        where x.shard_id = p_shard and x.class_id = v_head.classes[1] and x.tier = 0 and x.rank = v_head.rank
          and x.position between v_head.position and v_head.last
          and (x.deadline is null or x.deadline > v_now)
        order by x.position limit 1 for update skip locked)
      else (
        select x.ctid from hwqueue.ready x
        where x.shard_id = p_shard and x.queue_id = v_head.queue_id and x.tier = 0 and x.rank = v_head.rank
          and x.position between v_head.position and v_head.last
          and x.class_id = any (v_head.classes) and (x.deadline is null or x.deadline > v_now)
        order by x.position limit 1 for update skip locked) end
    and l.shard_id = r.shard_id and l.lease_id = r.lease_id
  returning r.lease_id, r.class_id, (p_state.generation << 40) + r.claim_count + 1, r.attempt_count + 1,
    r.position, l.task_name, l.params, l.headers,
    coalesce(l.claim_timeout, p_claim_timeout, v_head.claim_timeout),
    case when v_head.drops_completed and l.idempotency_key is null
      then greatest(l.available_at, l.created_at) end
  into lease_id, v_class_id, claim_token, attempt, v_position, task_name, params, headers, v_timeout,
    v_eligible_at;
  if lease_id is null then
    return;
  end if;
  expires_at := v_now + v_timeout;
  insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
      attempt,
    claim_timeout, claimed_at, expires_at, check_at, login, eligible_at)
  values (p_shard, lease_id, v_head.queue_id, v_class_id, p_state.node_id, p_state.node_epoch, claim_token,
    attempt, v_timeout, v_now, expires_at, expires_at, p_state.login, v_eligible_at);
  if p_moves or v_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    perform hwqueue.after_head(p_state, v_head.queue_id, v_class_id, v_head.rank, v_position, lease_id,
      p_moves, p_drawn, v_now, p_shard);
  end if;
end
$$;

-- What a claim must know of a queue that it names, and of what a node's profile may run there; no row:
-- it is unknown or paused.
-- tier, rank, position: the queue's low-water mark, if it has one (marks: how many it has; most queues
-- have one tier and rank).
-- is_front: the profile likes all its classes alike, it has seen all there are, and nothing comes before
-- the mark: then the next lease is the first of those classes from the mark on. last: how far to look
-- for it: others stand there as well, or, where the front of the queue stands still, what has been
-- claimed since. is_first: and none of them must be checked against others.
-- drops_completed: its leases go when they complete.
-- Locks: none. Raises: nothing. Idempotent: yes. A SQL function of one select: the planner puts it in
-- place of its call; the looks are ordered, so that each has its index.
create or replace function hwqueue.read_queue_head(p_queue text, p_profile_id bigint, p_classes_seen xid8,
  p_classes_unseen xid8[], p_shard int)
returns setof hwqueue.queue_head
language sql stable
as $$
  select q.queue_id, q.name, q.claim_timeout, q.window_size, e.classes, e.task_names, e.most_cpu_milli,
         e.most_memory_mib,
         cardinality(w.tiers), w.tiers[1], w.ranks[1], w.positions[1],
         case when cardinality(e.classes) > 1 then (
                select r.position from hwqueue.ready r
                where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = 0 and r.rank = w.ranks[1]
                  and r.position >= w.positions[1]
                order by r.position limit 1) + case when cardinality(e.classes) <= 64
                  then least(q.window_size, 40) else q.window_size end - 1
              when w.stands then w.positions[1] + 1031
              else 9223372036854775807 end,
         f.is_front, f.is_front and e.checked = '{}' and cardinality(e.classes) <= 200, e.checked,
           array[q.queue_id],
         q.retain_completed = '0'
  from hwqueue.queue q
  left join lateral (  -- limit: as a plain join it may read all queues of the profile
    select x.* from hwqueue.profile_queue x
    where x.shard_id = p_shard and x.profile_id = p_profile_id and x.queue_id = q.queue_id limit 1) e on true
  left join lateral (
    select m.tiers, m.ranks, m.positions, m.version < m.blocked_until as stands from hwqueue.low_water m
    where m.shard_id = p_shard and m.queue_id = q.queue_id and m.class_id = 0
    order by m.version desc limit 1) w on true
  cross join lateral (
    select coalesce(e.scores_equal and e.classes <> '{}' and cardinality(w.tiers) = 1 and w.tiers[1] = 0
           and (
             select c.class_id from hwqueue.placement_class c
             where c.shard_id = p_shard and c.created_xid >= least(e.classes_seen, p_classes_seen)
             order by c.created_xid limit 1) is null
           -- mostly there is none unseen, and the look costs more than all the others
           and (e.classes_unseen || p_classes_unseen = '{}' or (
             select x.class_id from unnest(e.classes_unseen || p_classes_unseen) u(xid)
             cross join lateral (
               select c.class_id from hwqueue.placement_class c
               where c.shard_id = p_shard and c.created_xid >= u.xid and c.created_xid <= u.xid
               order by c.created_xid limit 1) x
             limit 1) is null)
           and (
             select r.position from hwqueue.ready r
             where r.shard_id = p_shard and r.queue_id = q.queue_id and r.tier = 0 and r.rank < w.ranks[1]
             order by r.rank, r.position limit 1) is null, false) as is_front offset 0) f
  where q.shard_id = p_shard and q.name = p_queue and q.dropped_at is null and q.paused_at is null
$$;

-- The same of several queues: the one whose first entry comes first of all, from there on (rank,
-- position) to the first entry of the next (last), and the ids of all. is_first: each of the queues is
-- open and is as read_queue_head says, without leases of this node alone (p_pinned), which may be liked
-- better, or is empty; else what comes first is not known here. No row: none of them is open.
-- Locks: none. Raises: nothing. Idempotent: yes. Inlined like the other.
create or replace function hwqueue.read_queue_heads(p_queues text[], p_profile_id bigint,
  p_classes_seen xid8, p_classes_unseen xid8[],
                                                  p_pinned int[], p_shard int)
returns setof hwqueue.queue_head
language sql stable
as $$
  select k.queue_id, k.name, k.claim_timeout, k.window_size, k.classes, k.task_names, k.most_cpu_milli,
         k.most_memory_mib,
         k.marks, k.tier, k.rank, k.position,
         least(coalesce(k.last, k.position + least(k.window_size, 40) - 1), case
             when lead(k.tier) over o = 0 and lead(k.rank) over o = k.rank
           then lead(k.position) over o - 1 end),
         null::boolean, bool_and(k.is_known) over () and count(*) over () = cardinality(p_queues)
           and k.tier = 0, null::bigint[], array_agg(k.queue_id) over (),
         k.drops_completed
  from (
    select l.queue_id, l.name, l.claim_timeout, l.window_size, l.classes, l.task_names, l.most_cpu_milli,
           l.most_memory_mib, l.marks, l.drops_completed,
           f.tier, f.rank, f.position, l.last,
           coalesce(l.marks = 1 and l.tier = 0
             and (l.is_first and l.queue_id <> all (p_pinned)
                  or f.tier is null and (
                    select r.position from hwqueue.ready r
                    where r.shard_id = p_shard and r.queue_id = l.queue_id and r.tier = 0 and r.rank < l.rank
                    order by r.rank, r.position limit 1) is null), false) as is_known
    from unnest(p_queues) n(name)
    cross join lateral hwqueue.read_queue_head(n.name, p_profile_id, p_classes_seen, p_classes_unseen,
        p_shard) l
    left join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = l.queue_id
        and (r.tier, r.rank, r.position) >= (0, l.rank, l.position)
      order by r.tier, r.rank, r.position limit 1) f on true
  ) k
  window o as (order by k.tier, k.rank, k.position)
  order by k.tier, k.rank, k.position limit 1
$$;

-- Taking leases some of whose classes must be checked at the claim (p_checked). The class is decided
-- first and an entry locked last, so a class that may not run here leaves nothing behind: no lock, no
-- subtransaction, no transaction id of its own.

-- after_claim of one lease from the head of a queue.
-- Locks, raises: as after_claim. Idempotent: yes.
create or replace function hwqueue.after_head(p_state hwqueue.node_state, p_queue_id int, p_class_id bigint,
  p_rank bigint, p_position bigint,
  p_lease uuid, p_moves boolean, p_drawn bigint, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
begin
  v_entry.shard_id := p_shard;
  v_entry.queue_id := p_queue_id;
  v_entry.tier := 0;
  v_entry.rank := p_rank;
  v_entry.position := p_position;
  v_entry.class_id := p_class_id;
  v_entry.lease_id := p_lease;
  perform hwqueue.after_claim(p_state, array[p_queue_id], v_entry, true, p_moves, p_drawn, p_now, p_shard);
end
$$;

-- What a claim does when it has granted what it could, now and then: notes that the node lives; moves
-- the low-water marks on (p_moves) past one of the entries that it granted (p_entry); when it granted
-- nothing, looks after what nobody settled, should no one call reap.
-- Locks: the caller holds node_state; claims, ready entries and marks, skip locked. Raises: nothing.
-- Idempotent: yes.
create or replace function hwqueue.after_claim(p_state hwqueue.node_state, p_queue_ids int[],
  p_entry hwqueue.ready, p_granted boolean, p_moves boolean, p_drawn bigint,
                                               p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if p_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    update hwqueue.node_state s
    set seen_at = p_now, classes_unseen = hwqueue.prune_unseen_xids(s.classes_unseen, p_shard),
        moved_xid = case when s.seen_at + s.heartbeat_timeout > p_now then s.moved_xid
          else pg_current_xact_id() end
    where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
  if not p_granted then
    perform hwqueue.reap_claims(5, p_state.node_id, p_now, p_shard),
      hwqueue.reap_deadlines(20, p_now, p_shard);
    perform hwqueue.flag_waiting(p_queue_ids, p_now, p_shard);
  elsif p_moves then
    perform hwqueue.advance_horizon(p_drawn, p_shard);
    if p_entry.lease_id is not null then
      perform hwqueue.advance_low_water(p_entry, p_shard);
    end if;
  end if;
end
$$;
