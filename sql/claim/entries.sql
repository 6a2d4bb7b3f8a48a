-- Locking entries of `ready`, and turning entries into claims.
--
-- claim/claim, claim/score_groups and claim/single_queue call this module. An example: lock_window finds
-- five entries of one class after the low-water mark, skips two that another session holds and locks
-- three; grant_batch turns these into claims in one statement.
--
-- Of a class that must be checked, take_entries decides first (decide_class, under lock stripes), then
-- deletes the oldest entry that no other session holds (delete_granted), then counts the lease
-- (add_counts).
--
-- Invariant: all locks are taken with `skip locked`, so no claim waits for another one's entries. An
-- entry is checked for its class again under its lock, because assign_target_class may have changed it.
--
-- Read grant_single and grant_batch first; then lock_window and lock_class_heads (entries after the
-- low-water mark), take_entries (classes that must be checked), lock_score_group and
-- score_group_entries.

-- Deletes an entry, if it is the only one that the claim has chosen, and returns it. A step of publishing
-- that follows may move entries to another class, and this one is out of its way then.
-- Locks: the caller holds the entry.
create or replace function hwqueue.delete_single_entry(p_ctids tid[]) returns hwqueue.ready
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
begin
  if cardinality(p_ctids) = 1 then
    delete from hwqueue.ready r where r.ctid = p_ctids[1] returning r.* into v_entry;
  end if;
  return v_entry;
end
$$;

-- Drops from the ctids of locked entries everything from the first one that holds no entry any more,
-- because assign_target_class has moved it.
-- Locks: the caller holds the entries.
create or replace function hwqueue.still_same_entries(inout ctids tid[], out some_moved boolean)
language plpgsql volatile
as $$
declare
  v_first_moved bigint;
begin
  select p.n into v_first_moved from unnest(ctids) with ordinality p(place, n)
  where not exists (select from hwqueue.ready r where r.ctid = p.place) order by p.n limit 1;
  some_moved := found;
  if found then
    ctids := ctids[1 : v_first_moved - 1];
  end if;
end
$$;

-- Turns one entry, locked or deleted already, into a claim, and allocates what its class asks for. The
-- caller writes load back once, after its last grant. entry: the row of `ready` that is gone.
-- Not idempotent.
create or replace function hwqueue.grant_single(p_request hwqueue.claim_request,
  p_picked hwqueue.picked_entries, p_state hwqueue.node_state, p_queue_head hwqueue.queue_head,
  p_node hwqueue.node, p_load hwqueue.node_load, p_generation bigint, out entry hwqueue.ready,
  out claim_token bigint, out attempt smallint, out queue text, out task_name text, out params jsonb,
  out headers jsonb, out expires_at timestamptz, out assignment jsonb, out load hwqueue.node_load)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_timeout interval;
  v_eligible_at timestamptz;
  v_is_step boolean;
  v_taken record;
begin
  entry := p_picked.entry;
  if entry.lease_id is null then
    delete from hwqueue.ready r where r.ctid = p_picked.ctids[1] returning r.* into entry;
  end if;
  select l.task_name, l.params, l.headers,
         coalesce(l.claim_timeout, p_request.claim_timeout, p_queue_head.claim_timeout),
         case when p_queue_head.drops_completed is distinct from false and l.idempotency_key is null
           and l.run_id is null then greatest(l.available_at, l.created_at) end,
         case when l.run_id is not null then l.item_no is null end
  into task_name, params, headers, v_timeout, v_eligible_at, v_is_step
  from hwqueue.lease l where l.lease_id = entry.lease_id;
  load := p_load;
  if p_state.has_limits then
    v_taken := hwqueue.allocate_for_class(entry.class_id, p_node, p_load);
    load := v_taken.p_load;
    assignment := v_taken.assignment;
  end if;
  queue := p_queue_head.name;
  if p_queue_head.queue_id is null then
    select q.name, coalesce(v_timeout, q.claim_timeout),
           case when q.retain_completed = '0' then v_eligible_at end
    into queue, v_timeout, v_eligible_at
    from hwqueue.queue q where q.queue_id = entry.queue_id;
  end if;
  claim_token := hwqueue.next_token(p_generation, entry.claim_count);
  attempt := entry.attempt_count + 1;
  expires_at := v_now + v_timeout;
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
    attempt, claim_timeout, claimed_at, expires_at, check_at, assignment, term_deltas, login, eligible_at,
    is_step)
  values (entry.lease_id, entry.queue_id, entry.class_id, p_state.node_id, p_state.node_epoch,
    claim_token, attempt, v_timeout, v_now, expires_at, expires_at, assignment, p_picked.term_deltas,
    p_state.login, v_eligible_at, v_is_step);
end
$$;

-- Turns ready entries of one score, which the caller has locked, into claims, in one statement and in
-- the order of claim_task. For nodes without limits only, as it allocates nothing. Not idempotent.
create or replace function hwqueue.grant_batch(p_request hwqueue.claim_request, p_ctids tid[],
  p_state hwqueue.node_state, p_generation bigint)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, expires_at timestamptz)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
begin
  return query
    with taken as (
      delete from hwqueue.ready r where r.ctid = any (p_ctids) returning r.*
    ), detail as materialized (
      select t.lease_id, t.queue_id, t.class_id, t.tier, t.rank, t.position,
             hwqueue.next_token(p_generation, t.claim_count) as claim_token,
             (t.attempt_count + 1)::smallint as attempt, q.name, l.task_name, l.params, l.headers,
             coalesce(l.claim_timeout, p_request.claim_timeout, q.claim_timeout) as claim_timeout,
             case when q.retain_completed = '0' and l.idempotency_key is null and l.run_id is null
               then greatest(l.available_at, l.created_at) end as eligible_at,
             case when l.run_id is not null then l.item_no is null end as is_step
      from taken t
      -- offset 0 fences: lease for lease, by key. The number taken is in no statistics, and the planner
      -- might read all leases
      cross join lateral (
        select * from hwqueue.lease x where x.lease_id = t.lease_id offset 0) l
      cross join lateral (
        select * from hwqueue.queue x where x.queue_id = t.queue_id offset 0) q
    ), granted as (
      insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
        attempt, claim_timeout, claimed_at, expires_at, check_at, login, eligible_at, is_step)
      select d.lease_id, d.queue_id, d.class_id, p_state.node_id, p_state.node_epoch,
             d.claim_token, d.attempt, d.claim_timeout, v_now, v_now + d.claim_timeout,
             v_now + d.claim_timeout, p_state.login, d.eligible_at, d.is_step
      from detail d
    )
    select d.lease_id, d.claim_token, d.attempt, d.name, d.task_name, d.params, d.headers,
           v_now + d.claim_timeout
    from detail d order by d.tier, d.rank, d.position;
end
$$;

-- Locks the oldest entries of a tier and rank whose classes are among p_eligible's, from position p_from
-- on, and returns their ctids. It scans p_window positions, or more for a larger batch.
-- A list of 201 classes is truncated: then each entry's class is read from profile_eligibility. Of up to
-- 64 classes it scans a short stretch only (a low-water mark lags by up to 32 claims). When that has
-- nothing, it locks the heads of the classes, wherever they are. The scan for a single class is longer,
-- because it crosses no other entries.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.lock_window(p_request hwqueue.claim_request,
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
        and exists (select 1 from hwqueue.profile_eligibility e
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
  v_from hwqueue.scan_starts;
  v_depth int := p_limit;
  v_seen tid[];
  v_ctids tid[];
begin
  if hwqueue.is_head_blocked(p_queue_id) then
    v_from := hwqueue.class_scan_starts(p_classes, (array[p_queue_id], array[p_from_tier],
      array[p_from_rank], array[p_from_position], array[true], true, null, null, null));
  end if;
  if cardinality(p_classes) = 1 then
    return array(
      select r.ctid from hwqueue.ready r
      where r.class_id = p_classes[1] and (r.deadline is null or r.deadline > p_now)
        and (r.tier, r.rank, r.position)
            >= (coalesce(v_from.class_tiers[1], p_from_tier), coalesce(v_from.class_ranks[1], p_from_rank),
                coalesce(v_from.class_positions[1], p_from_position))
      order by r.tier, r.rank, r.position limit p_limit
      for update skip locked);
  end if;
  loop
    v_seen := array(
      select h.place
      from unnest(p_classes, v_from.class_tiers, v_from.class_ranks, v_from.class_positions)
           k(class_id, tier, rank, position)
      cross join lateral (
        select x.ctid as place, x.tier, x.rank, x.position from hwqueue.ready x
        where x.class_id = k.class_id and (x.deadline is null or x.deadline > p_now)
          and (x.tier, x.rank, x.position)
              >= (coalesce(k.tier, p_from_tier), coalesce(k.rank, p_from_rank),
                  coalesce(k.position, p_from_position))
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

-- Takes the oldest of these entries that can be had. Of a class that must be checked it takes one and
-- deletes it (entry). Of other classes it locks up to p_limit that follow each other. It passes over an
-- entry that another session holds: whether that one has waited its patience says nothing about younger
-- ones.
-- blocked: the class that may not run here now, with its reason; nothing is taken then. The reason
-- 'later': of this class only an entry that has waited for a better node may run. That one is at
-- later_tier and later_rank, so other classes come first.
-- Locks: the caller holds node_state; lock stripes, the entries and term_counter, skip locked. Not
-- idempotent.
create or replace function hwqueue.take_entries(p_request hwqueue.claim_request,
  p_seen hwqueue.seen_entries, p_limit int, p_node hwqueue.node,
  out ctids tid[], out term_deltas jsonb, out entry hwqueue.ready, out blocked bigint, out reason text,
  out later_tier smallint, out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_positions bigint[] := p_seen.positions;
  v_classes bigint[] := p_seen.classes;
  v_is_checked boolean[] := case
    when p_seen.checked = '{}' then array_fill(false, array[cardinality(v_classes)])
    when v_classes <@ p_seen.checked then array_fill(true, array[cardinality(v_classes)])
    else hwqueue.membership(v_classes, p_seen.checked) end;
  v_count int := cardinality(v_positions);
  v_first int := 1;
  v_last int;
  v_head hwqueue.entry_ref;
  v_verdict record;
  v_taken record;
begin
  ctids := '{}';
  while v_first <= v_count loop
    -- a run of entries: of one class that must be checked, or of any classes that need not be
    v_last := case when p_seen.checked = '{}' then v_count else v_first end;
    while v_last < v_count and v_is_checked[v_last + 1] = v_is_checked[v_first]
          and (v_classes[v_last + 1] = v_classes[v_first] or not v_is_checked[v_first]) loop
      v_last := v_last + 1;
    end loop;
    if not v_is_checked[v_first] then
      ctids := hwqueue.lock_seen(v_positions[v_first : v_last], v_classes[v_first : v_last], p_seen.tier,
        p_seen.rank, p_limit);
      exit when ctids <> '{}';
    else
      v_head := p_seen.head;
      if v_first > 1 or v_head.lease_id is null then
        select r.lease_id, r.eligible_at into v_head.lease_id, v_head.eligible_at from hwqueue.ready r
        where r.class_id = v_classes[v_first] and r.tier = p_seen.tier
          and r.rank = p_seen.rank and r.position between v_positions[v_first] and v_positions[v_last]
          and (r.deadline is null or r.deadline > v_now)
        order by r.position limit 1;
      end if;
      for v_pass in 1 .. 2 loop
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
        v_taken := hwqueue.delete_granted(p_request, v_classes[v_first], p_seen, v_positions[v_first],
          v_positions[v_last], v_verdict.since, v_verdict.only_lease, v_verdict.is_choice);
        if v_taken.place is not null then
          term_deltas := hwqueue.add_counts(v_verdict.term_deltas, 1);
          if v_verdict.is_named or v_verdict.is_lasting then
            perform hwqueue.note_taken(v_taken.entry, v_verdict.is_named, v_verdict.is_lasting);
          end if;
          ctids := array[v_taken.place];
          entry := v_taken.entry;
          return;
        end if;
        exit when v_verdict.since is null;
        -- other sessions hold those that have waited their patience; younger ones need not wait where no
        -- better node is live
        select r.lease_id, r.eligible_at into v_head.lease_id, v_head.eligible_at from hwqueue.ready r
        where r.class_id = v_classes[v_first] and r.tier = p_seen.tier
          and r.rank = p_seen.rank and r.position between v_positions[v_first] and v_positions[v_last]
          and (r.deadline is null or r.deadline > v_now) and r.eligible_at > v_verdict.since
        order by r.position limit 1;
      end loop;
    end if;
    v_first := v_last + 1;
  end loop;
end
$$;

-- Does what others need to know of a lease that starts: classes that wait for it are woken (p_is_named), and
-- reap checks its lasting requirements (p_is_lasting).
-- Locks: class rows, skip locked. Not idempotent.
create or replace function hwqueue.note_taken(p_entry hwqueue.ready, p_is_named boolean,
  p_is_lasting boolean) returns void
language plpgsql volatile
as $$
begin
  if p_is_named then
    perform hwqueue.wake_classes_of_lease(p_entry.lease_id);
  end if;
  if p_is_lasting then
    perform hwqueue.note_lasting(p_entry.lease_id, p_entry.claim_count);
  end if;
end
$$;

-- Deletes the oldest entry of a class in a tier and rank, between two positions, that has been claimable
-- since p_since (null: any) and is of that lease (null: of any). place: its ctid; null: other sessions
-- hold all of them, or assign_target_class has given them another class. p_is_choice: the leases of the
-- class are alternatives: of one whose choice is still to be made.
-- Locks: the entry, skip locked; as lock_alternative. Not idempotent.
create or replace function hwqueue.delete_granted(p_request hwqueue.claim_request, p_class_id bigint,
  p_seen hwqueue.seen_entries, p_from bigint, p_to bigint, p_since timestamptz, p_lease uuid,
  p_is_choice boolean, out place tid, out entry hwqueue.ready)
language plpgsql volatile
as $$
declare
  v_gone record;
begin
  if p_is_choice then
    place := hwqueue.lock_alternative(p_request, p_class_id, p_seen, p_from, p_to, p_since, p_lease);
    delete from hwqueue.ready r where r.ctid = place returning r.* into entry;
    return;
  end if;
  delete from hwqueue.ready r where r.ctid = (
    select x.ctid from hwqueue.ready x
    where x.class_id = p_class_id and x.tier = p_seen.tier
      and x.rank = p_seen.rank and x.position between p_from and p_to
      and (x.deadline is null or x.deadline > p_request.now)
      and (p_since is null or x.eligible_at <= p_since) and (p_lease is null or x.lease_id = p_lease)
    order by x.position limit 1 for update skip locked)
  returning r.ctid as place, r as entry into v_gone;
  if found then
    place := v_gone.place;
    entry := v_gone.entry;
  end if;
end
$$;

-- Which of these classes are among p_others, element by element.
create or replace function hwqueue.membership(p_classes bigint[], p_others bigint[]) returns boolean[]
language sql immutable
as $$ select array(select c in (select unnest(p_others)) from unnest(p_classes) c) $$;

-- Locks entries that were read at these positions, of these classes, up to p_limit of them. It checks
-- the class again under the lock, because assign_target_class may have changed it.
-- Locks: the entries, skip locked.
create or replace function hwqueue.lock_seen(p_positions bigint[], p_seen_classes bigint[], p_tier smallint,
  p_rank bigint, p_limit int) returns tid[]
language plpgsql volatile
as $$
begin
  return array(
    select r.ctid
    from unnest(p_positions, p_seen_classes) with ordinality f(position, class_id, ordinal)
    cross join lateral (  -- limit: one by one; a range and an order, which only the index by class has
      select x.ctid as place from hwqueue.ready x
      where x.class_id = f.class_id and x.tier = p_tier and x.rank = p_rank
        and x.position between f.position and f.position
      order by x.position limit 1) h
    join hwqueue.ready r on r.ctid = h.place
    where (r.class_id = f.class_id) is true  -- in a form that no index serves: read by ctid
    order by f.ordinal limit p_limit
    for update of r skip locked);
end
$$;

-- Locks up to p_limit of the first p_depth entries of a score group, oldest first, and returns their
-- ctids.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.lock_score_group(p_classes bigint[], p_from hwqueue.scan_starts,
  p_tier smallint, p_rank bigint, p_depth int, p_limit int, p_now timestamptz) returns tid[]
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_starts := hwqueue.class_scan_starts(p_classes, p_from);
begin
  return array(
    select r.ctid
    from (
      select h.place
      from unnest(p_classes) with ordinality k(class_id, ordinality)
      cross join lateral (
        select x.ctid as place, x.position from hwqueue.ready x
        where x.class_id = k.class_id and x.tier = p_tier and x.rank = p_rank
          and x.position >= hwqueue.scan_start_of(v_from, k.ordinality::int, p_tier, p_rank)
          and (x.deadline is null or x.deadline > p_now)
        order by x.position limit p_depth
      ) h
      order by h.position limit p_depth
    ) c
    join hwqueue.ready r on r.ctid = c.place
    where (r.class_id = any (p_classes)) is true  -- as in lock_seen
    limit p_limit
    for update of r skip locked);
end
$$;

-- The oldest entries of a score group, up to p_limit, as positions and classes, oldest first.
create or replace function hwqueue.score_group_entries(p_classes bigint[], p_from hwqueue.scan_starts,
  p_tier smallint, p_rank bigint, p_limit int, p_now timestamptz, out positions bigint[],
  out classes bigint[])
language plpgsql stable
as $$
declare
  v_from hwqueue.scan_starts := hwqueue.class_scan_starts(p_classes, p_from);
begin
  select coalesce(array_agg(c.position), '{}'), coalesce(array_agg(c.class_id), '{}') into positions, classes
  from (
    select h.position, k.class_id
    from unnest(p_classes) with ordinality k(class_id, ordinality)
    cross join lateral (
      select x.position from hwqueue.ready x
      where x.class_id = k.class_id and x.tier = p_tier and x.rank = p_rank
        and x.position >= hwqueue.scan_start_of(v_from, k.ordinality::int, p_tier, p_rank)
        and (x.deadline is null or x.deadline > p_now)
      order by x.position limit p_limit
    ) h
    order by h.position limit p_limit
  ) c;
end
$$;
