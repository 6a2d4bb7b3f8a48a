-- Locking entries of `ready`, and turning entries into claims.
--
-- An example: lock_in_window finds five entries of one class after the low-water mark, skips two that
-- another session holds and locks three; grant_entries turns these into claims in one statement. Of a class
-- that must be checked, choose_seen decides first (decide_class, under lock stripes), then deletes the
-- oldest entry that no other session holds, then counts the lease (add_counts).
--
-- Invariant: all locks are taken with `skip locked`, so no claim waits for another one's entries. An
-- entry is checked for its class again under its lock, because assign_target_class may have changed it.

-- Turns ready entries of one score, which the caller has locked, into claims, in one statement and in the
-- order of claim_task. p_queue_head: that of their queue; null: they may be of several. p_assignment: what is
-- allocated for each of them. Not idempotent.
create or replace function hwqueue.grant_entries(p_request hwqueue.claim_request,
  p_picked hwqueue.picked_entries, p_state hwqueue.node_state, p_queue_head hwqueue.queue_head,
  p_generation bigint, p_assignment jsonb)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
begin
  if current_setting('hwqueue.lines_left', true) <> '' then
    perform set_config('hwqueue.lines_left', '', true);
  end if;
  return query
    with taken as (
      delete from hwqueue.ready r where r.ctid = any (p_picked.ctids)
      returning r.lease_id, r.queue_id, r.class_id, r.tier, r.rank, r.position, r.claim_count, r.attempt_count
    ), detail as materialized (
      select t.lease_id, t.queue_id, t.class_id, t.tier, t.rank, t.position,
             hwqueue.next_token(p_generation, t.claim_count) as claim_token,
             (t.attempt_count + 1)::smallint as attempt, coalesce(p_queue_head.name, q.name) as name,
             l.task_name, l.params, l.headers, coalesce(l.claim_timeout, p_request.claim_timeout,
               p_queue_head.claim_timeout, q.claim_timeout) as claim_timeout,
             case when coalesce(p_queue_head.drops_completed, q.retain_completed = '0')
               and l.idempotency_key is null and l.run_id is null
               then greatest(l.available_at, l.created_at) end as eligible_at,
             case when l.run_id is not null then l.item_no is null end as is_step, l.lanes
      from taken t
      -- offset 0 fences: lease for lease, by key. The number taken is in no statistics, and the planner
      -- might read all leases
      cross join lateral (
        select * from hwqueue.lease x where x.lease_id = t.lease_id offset 0) l
      left join lateral (
        select * from hwqueue.queue x
        where p_queue_head.queue_id is null and x.queue_id = t.queue_id offset 0) q on true
    ), granted as (
      insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
        attempt, claim_timeout, claimed_at, expires_at, check_at, assignment, term_deltas, login, eligible_at,
        is_step, lanes)
      select d.lease_id, d.queue_id, d.class_id, p_state.node_id, p_state.node_epoch,
             d.claim_token, d.attempt, d.claim_timeout, v_now, v_now + d.claim_timeout,
             v_now + d.claim_timeout, p_assignment, p_picked.term_deltas, p_state.login, d.eligible_at,
             d.is_step, hwqueue.slot_lanes(d.lanes)
      from detail d
    )
    select d.lease_id, d.claim_token, d.attempt, d.name, d.task_name, d.params, d.headers,
           coalesce(p_picked.score, 0), v_now + d.claim_timeout, p_assignment
    from detail d
    where d.lanes is null or (  -- once, in a setting, because the statement returns claims
      select set_config('hwqueue.lines_left', coalesce(string_agg(r.lane_id::text, ' '), ''), true)
      from detail x cross join lateral (select (x.lanes[cardinality(x.lanes)]).lane_id) r
      where r.lane_id & 3 > 0) is not null
    order by d.tier, d.rank, d.position;
  if current_setting('hwqueue.lines_left', true) <> '' then
    perform hwqueue.hand_over(string_to_array(current_setting('hwqueue.lines_left'), ' ')::bigint[], v_now,
      true);
  end if;
end
$$;

-- Locks the oldest entries of a tier and rank whose classes are among p_eligible's, from position p_from
-- on, and returns their ctids. It scans p_window positions, or more for a larger batch.
-- A list of 201 classes is truncated: then each entry's class is read from eligibility. Of up to
-- 64 classes it scans a short stretch only (a low-water mark lags by up to 32 claims). When that has
-- nothing, it locks the heads of the classes, wherever they are. The scan for a single class is longer,
-- because it crosses no other entries.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.lock_in_window(p_request hwqueue.claim_request,
  p_eligible hwqueue.profile_queue, p_room hwqueue.headroom, p_tier smallint, p_rank bigint, p_from bigint,
  p_window int, p_limit int) returns tid[]
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_queue_id int := p_eligible.queue_id;
  v_classes bigint[] := p_eligible.classes;
  v_to bigint := p_from + greatest(p_window, 8 * p_limit) - 1;
  v_ctids tid[];
begin
  if cardinality(v_classes) = 1 then
    v_ctids := array(
      select r.ctid from hwqueue.ready r
      where r.class_id = v_classes[1] and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and p_from + 1023 + 8 * p_limit
        and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit
      for update skip locked);
  elsif cardinality(v_classes) <= 200 then
    v_ctids := array(
      select r.ctid from hwqueue.ready r
      where r.queue_id = v_queue_id and r.tier = p_tier and r.rank = p_rank and r.position between p_from
          and case when cardinality(v_classes) <= 64 then least(v_to, p_from + 31 + 8 * p_limit) else v_to end
        and r.class_id = any (v_classes) and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit
      for update skip locked);
  else
    v_ctids := array(
      select r.ctid from hwqueue.ready r
      where r.queue_id = v_queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to
        and exists (select 1 from hwqueue.eligibility e
                    where e.profile_id = p_eligible.profile_id
                      and e.queue_id = v_queue_id and e.class_id = r.class_id
                      and e.gpu_count = 0 and e.custom is null
                      and (p_request.tasks is null or e.task_name = any (p_request.tasks))
                      and hwqueue.shortage(e.cpu_milli, e.memory_mib, p_room) = 0)
        and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit
      for update skip locked);
  end if;
  if v_ctids = '{}' and cardinality(v_classes) <= 64 then
    v_ctids := hwqueue.lock_class_heads(v_classes, v_queue_id, p_tier, p_rank, p_from, p_limit, v_now);
  end if;
  return v_ctids;
end
$$;

-- Locks the oldest entries of these classes of a queue by tier, rank and position, and returns their
-- ctids. It reads further back while other sessions hold all that it has read. No entry of the queue is
-- before p_from_*.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.lock_class_heads(p_classes bigint[], p_queue_id int, p_from_tier smallint,
  p_from_rank bigint, p_from_position bigint, p_limit int, p_now timestamptz) returns tid[]
language plpgsql volatile
as $$
declare
  v_is_blocked boolean := (  -- as the last claims that advanced the queue's marks found it
    select w.version < w.blocked_to_version from hwqueue.low_water w
    where w.queue_id = p_queue_id and w.class_id = 0 order by w.version desc limit 1);
  v_from hwqueue.scan_starts := (array[p_queue_id], array[p_from_tier], array[p_from_rank],
    array[p_from_position], array[coalesce(v_is_blocked, false)], v_is_blocked);
  v_depth int := p_limit;
  v_seen tid[];
  v_ctids tid[];
begin
  if cardinality(p_classes) = 1 then
    if v_is_blocked then
      select s.* into p_from_tier, p_from_rank, p_from_position
      from hwqueue.class_start(p_classes[1], v_from) s;
    end if;
    return array(
      select r.ctid from hwqueue.ready r
      where r.class_id = p_classes[1] and (r.deadline is null or r.deadline > p_now)
        and (r.tier, r.rank, r.position) >= (p_from_tier, p_from_rank, p_from_position)
      order by r.tier, r.rank, r.position limit p_limit
      for update skip locked);
  end if;
  loop
    v_seen := array(
      select h.row_ctid
      from unnest(p_classes) k(class_id)
      cross join lateral hwqueue.class_start(k.class_id, v_from) s
      cross join lateral (
        select x.ctid as row_ctid, x.tier, x.rank, x.position from hwqueue.ready x
        where x.class_id = k.class_id and (x.deadline is null or x.deadline > p_now)
          and (x.tier, x.rank, x.position) >= (s.tier, s.rank, s.position)
        order by x.tier, x.rank, x.position limit v_depth
      ) h
      order by h.tier, h.rank, h.position limit v_depth);
    v_ctids := array(
      select r.ctid from hwqueue.ready r
      -- the class again: the entry may be gone and another one have its ctid
      where r.ctid = any (v_seen) and r.class_id = any (p_classes)
        and (r.deadline is null or r.deadline > p_now)
      order by r.tier, r.rank, r.position limit p_limit
      for update skip locked);
    exit when v_ctids <> '{}' or cardinality(v_seen) < v_depth or v_depth >= 16384;
    v_depth := least(8 * v_depth, 16384);
  end loop;
  return v_ctids;
end
$$;

-- Locks the oldest of these entries that can be had: of a class that must be checked one, of other classes
-- up to p_limit that follow each other. It passes over an
-- entry that another session holds: whether that one has waited its patience says nothing about younger
-- ones.
-- blocked: the class that may not run here now, with its reason; nothing is taken then. The reason
-- 'later': of this class only an entry that has waited for a better node may run. That one is at
-- later_tier and later_rank, so other classes come first.
-- Locks: the caller holds node_state; lock stripes, the entries and term_counter, skip locked; those of
-- lock_alternative; class rows that a start wakes, skip locked. Not idempotent.
create or replace function hwqueue.choose_seen(p_request hwqueue.claim_request,
  p_seen hwqueue.seen_entries, p_limit int, p_node hwqueue.node,
  out ctids tid[], out term_deltas jsonb, out blocked bigint, out reason text, out later_tier smallint,
  out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_positions bigint[] := p_seen.positions;
  v_classes bigint[] := p_seen.classes;
  v_is_checked boolean[] := case
    when p_seen.checked = '{}' then array_fill(false, array[cardinality(v_classes)])
    when v_classes <@ p_seen.checked then array_fill(true, array[cardinality(v_classes)]) end;
  v_count int := cardinality(v_positions);
  v_first int := 1;
  v_last int;
  v_head hwqueue.entry_ref;
  v_after timestamptz;
  v_verdict record;
  v_entry record;
begin
  ctids := '{}';
  if v_is_checked is null then  -- by itself: mostly no statement is needed
    v_is_checked := array(select c in (select unnest(p_seen.checked)) from unnest(v_classes) c);
  end if;
  while v_first <= v_count loop
    -- a run of entries: of one class that must be checked, or of any classes that need not be
    v_last := case when p_seen.checked = '{}' then v_count else v_first end;
    while v_last < v_count and v_is_checked[v_last + 1] = v_is_checked[v_first]
          and (v_classes[v_last + 1] = v_classes[v_first] or not v_is_checked[v_first]) loop
      v_last := v_last + 1;
    end loop;
    if not v_is_checked[v_first] then
      ctids := array(
        select r.ctid
        from unnest(v_positions[v_first : v_last], v_classes[v_first : v_last])
             with ordinality f(position, class_id, ordinal)
        cross join lateral (  -- limit: one by one; a range and an order, which only the index by class has
          select x.ctid as row_ctid from hwqueue.ready x
          where x.class_id = f.class_id and x.tier = p_seen.tier and x.rank = p_seen.rank
            and x.position between f.position and f.position
          order by x.position limit 1) h
        join hwqueue.ready r on r.ctid = h.row_ctid
        where (r.class_id = f.class_id) is true  -- in a form that no index serves: read by ctid
        order by f.ordinal limit p_limit
        for update of r skip locked);
      exit when ctids <> '{}';
    else
      v_head := p_seen.head;
      v_after := '-infinity';
      for v_pass in 1 .. 2 loop
        if v_pass = 2 or v_first > 1 or v_head.lease_id is null then
          select r.lease_id, r.eligible_at into v_head.lease_id, v_head.eligible_at from hwqueue.ready r
          where r.class_id = v_classes[v_first] and r.tier = p_seen.tier
            and r.rank = p_seen.rank and r.position between v_positions[v_first] and v_positions[v_last]
            and (r.deadline is null or r.deadline > v_now) and r.eligible_at > v_after
          order by r.position limit 1;
        end if;
        exit when v_head.lease_id is null;
        v_verdict := hwqueue.decide_class(v_classes[v_first], v_head.lease_id, v_head.eligible_at,
            p_seen.tier, p_seen.rank, p_node, v_now);
        if v_verdict.reason is not null then
          exit when v_pass = 2;  -- no reason against those that other sessions hold
          blocked := v_classes[v_first];
          reason := v_verdict.reason;
          later_tier := v_verdict.tier;
          later_rank := v_verdict.rank;
          return;
        end if;
        if v_verdict.is_choice then
          v_entry := hwqueue.lock_alternative(p_request, v_classes[v_first], p_seen, v_positions[v_first],
            v_positions[v_last], v_verdict.since, v_verdict.only_lease);
        else
          select x.ctid as row_ctid, x.lease_id, x.claim_count into v_entry from hwqueue.ready x
          where x.class_id = v_classes[v_first] and x.tier = p_seen.tier and x.rank = p_seen.rank
            and x.position between v_positions[v_first] and v_positions[v_last]
            and (x.deadline is null or x.deadline > v_now)
            and (v_verdict.since is null or x.eligible_at <= v_verdict.since)
            and (v_verdict.only_lease is null or x.lease_id = v_verdict.only_lease)
          order by x.position limit 1 for update skip locked;
        end if;
        if v_entry.row_ctid is not null then
          ctids := array[v_entry.row_ctid];
          term_deltas := hwqueue.add_counts(v_verdict.term_deltas, 1);
          if v_verdict.is_named then
            perform hwqueue.wake_classes_of_lease(v_entry.lease_id);
          end if;
          if v_verdict.during_execution then  -- for reap
            perform hwqueue.note_placement_check(v_entry.lease_id, v_entry.claim_count);
          end if;
          return;
        end if;
        exit when v_verdict.since is null;
        -- other sessions hold those that have waited their patience; younger ones need not wait where no
        -- better node is live
        v_after := v_verdict.since;
      end loop;
    end if;
    v_first := v_last + 1;
  end loop;
end
$$;
