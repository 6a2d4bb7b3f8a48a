-- For the general claim: the head of a single queue (choose_at_head), and classes that must be checked, of
-- any queues (choose_checked).
--
-- An example: a node may run classes A and B of `renders`; A must be checked against other leases.
-- find_at_head finds the oldest entries of both, and choose_seen (claim/entries) decides about A before it
-- locks one.
--
-- Invariant: a class is decided before one of its entries is locked. So a class that is refused leaves no
-- entry locked and needs no subtransaction. The lock stripes under which it was refused stay locked until
-- the transaction ends (decide_class); a class that the counters refuse without them leaves no lock.

-- Takes what is at the head of the only queue of a plain node (node_state.on_fast_path). It looks for
-- classes of the tasks that are asked for, for which there is room; where the node has met blocked classes,
-- for those that are not blocked (claim_candidates). No ctids: nothing there can be had, or scores differ,
-- or the profile has not judged all classes. p_queue_head: what this claim has read of the queue.
-- blocked: classes that were found to be. meets: whether blocked classes are before what was taken;
-- null: unknown, so leave node_state.met_blocked as it is. is_new: one of the blocked classes waits for
-- the publication of an affinity term.
-- Locks as choose_seen. Not idempotent.
create or replace function hwqueue.choose_at_head(p_request hwqueue.claim_request,
  p_eligible hwqueue.profile_queue, p_state hwqueue.node_state, p_queue_head hwqueue.queue_head,
  p_window int, p_room hwqueue.headroom, p_limit int, out ctids tid[], out term_deltas jsonb,
  out blocked bigint[], out meets boolean, out is_new boolean)
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_eligible hwqueue.profile_queue := p_eligible;
  v_open record;
  v_only bigint[];
  v_met bigint[];
  v_found record;
  v_seen hwqueue.seen_entries;
  v_classes bigint[];
  v_taken record;
begin
  ctids := '{}';
  blocked := '{}';
  meets := false;
  is_new := false;
  if p_state.met_blocked then
    v_open := hwqueue.claim_candidates(p_state, array[p_eligible.queue_id], p_room, v_now);
    if v_open.met is distinct from '{}' and cardinality(v_open.classes) <= 200 then
      v_only := v_open.classes;
      v_met := v_open.met;
      blocked := v_open.blocked;
    end if;
  end if;
  if p_queue_head.first_is_best is not true and (not p_eligible.scores_equal
     or hwqueue.has_new_classes(least(p_eligible.classes_seen, p_state.classes_seen),
         p_eligible.classes_unseen || p_state.classes_unseen)) then
    return;
  elsif v_only is not null then
    select coalesce(array_agg(e.class_id), '{}'),
           coalesce(array_agg(e.class_id) filter (where e.is_checked), '{}')
    into v_eligible.classes, v_eligible.checked
    from unnest(v_only) k(class_id)
    cross join lateral (  -- fenced: each by its key
      select x.class_id, x.is_checked from hwqueue.eligibility x
      where x.profile_id = p_eligible.profile_id
        and x.queue_id = p_eligible.queue_id and x.class_id between k.class_id and k.class_id
        and x.gpu_count = 0 and x.custom is null
        and (p_request.tasks is null or x.task_name = any (p_request.tasks))
        and hwqueue.shortage(x.cpu_milli, x.memory_mib, p_room) = 0 offset 0) e
    where k.class_id <> all (blocked);
  -- "is not null" of a row would test every field. A list that is truncated (201) stays as it is: it is
  -- checked entry by entry
  elsif (p_request.tasks is not null or p_room is distinct from null)
    and (cardinality(p_eligible.classes) > 200
      or (p_request.tasks is null
        or cardinality(p_eligible.task_names) <= 50 and p_eligible.task_names <@ p_request.tasks)
      and hwqueue.shortage(p_eligible.most_cpu_milli, p_eligible.most_memory_mib, p_room) = 0) is not true
  then
    v_eligible.classes := array(
      select e.class_id from hwqueue.eligibility e
      where e.profile_id = p_eligible.profile_id and e.queue_id = p_eligible.queue_id and e.gpu_count = 0
        and e.custom is null and (p_request.tasks is null or e.task_name = any (p_request.tasks))
        and hwqueue.shortage(e.cpu_milli, e.memory_mib, p_room) = 0);
  end if;
  if v_eligible.classes = '{}' then
    return;
  end if;
  v_found := hwqueue.find_at_head(p_request, v_eligible, p_queue_head, p_window, v_only is not null,
    p_room, p_limit);
  ctids := v_found.ctids;
  v_seen := v_found.seen;
  if v_seen.positions = '{}' or v_seen.checked <> '{}' and p_state.met_blocked and v_only is null
     and v_seen.classes[1] = any (v_seen.checked) then
    return;  -- the latter: choose_by_score asks about more than 200 classes
  end if;
  if v_only is not null then
    meets := coalesce((v_seen.tier, v_seen.rank) > (p_queue_head.tier, p_queue_head.rank), true) or (
      select true from hwqueue.ready r
      where r.queue_id = p_eligible.queue_id and r.tier = v_seen.tier and r.rank = v_seen.rank
        and r.position >= p_queue_head.position and r.position < v_seen.positions[1]
        and (v_met is null or r.class_id = any (v_met))
      order by r.position limit 1) is not null;
    meets := case when not meets or v_met is not null then meets end;
  end if;
  if v_seen.checked = '{}' then
    v_classes := array(select distinct unnest(v_seen.classes));
    ctids := array(
      select r.ctid from hwqueue.ready r
      where r.queue_id = p_eligible.queue_id and r.tier = v_seen.tier and r.rank = v_seen.rank
        and r.position between v_seen.positions[1] and v_seen.positions[cardinality(v_seen.positions)]
        and r.class_id = any (v_classes) and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit
      for update skip locked);
  else
    v_taken := hwqueue.choose_seen(p_request, v_seen, p_limit, hwqueue.claiming_node(p_state, v_now));
    ctids := v_taken.ctids;
    term_deltas := v_taken.term_deltas;
    if v_taken.blocked is not null then
      meets := true;
      if v_taken.reason <> 'later' then  -- choose_by_score knows what comes before it
        blocked := blocked || v_taken.blocked;
      end if;
    end if;
    is_new := v_taken.reason is not distinct from 'unpublished';
  end if;
end
$$;

-- The oldest entries of these classes at a queue's head. Where no class must be checked it locks them at
-- once, up to p_limit (ctids). Else it returns those that it has seen: p_limit or 8 of the best tier and
-- rank, fewer where they are far apart. Another session may have these by the time that they are locked. No
-- ctids and no positions: there are none. Of a few classes it reads their heads, wherever they are.
-- p_queue_head.is_tried: the low-water mark was tried in vain. p_is_behind: entries of other classes, which
-- are left out, come before these.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.find_at_head(p_request hwqueue.claim_request,
  p_eligible hwqueue.profile_queue, p_queue_head hwqueue.queue_head, p_window int, p_is_behind boolean,
  p_room hwqueue.headroom, p_limit int, out ctids tid[], out seen hwqueue.seen_entries)
language plpgsql volatile
as $$
declare
  v_is_tried boolean := coalesce(p_queue_head.is_tried, false);
  v_depth int := greatest(p_limit, 8);  -- other sessions may hold the first ones
  v_is_mark boolean := coalesce(p_queue_head.first_is_best, false) and not v_is_tried;
  v_from bigint := p_queue_head.position;
  v_queue_head record;
begin
  ctids := '{}';
  seen.positions := '{}';
  seen.tier := p_queue_head.tier;
  seen.rank := p_queue_head.rank;
  for v_lead in 1 .. 2 loop
    if v_lead = 2 or not v_is_mark then
      v_queue_head := hwqueue.first_live_entry(p_eligible.queue_id, v_lead = 1 and not v_is_tried);
      exit when v_queue_head.tier is null
        or v_lead = 2 and (v_queue_head.tier, v_queue_head.rank, v_queue_head.position)
          = (seen.tier, seen.rank, v_from);
      seen.tier := v_queue_head.tier;
      seen.rank := v_queue_head.rank;
      v_from := v_queue_head.position;
      v_is_mark := v_queue_head.is_mark;
    end if;
    if p_eligible.checked = '{}' and not p_is_behind then
      ctids := hwqueue.lock_in_window(p_request, p_eligible, p_room, seen.tier, seen.rank, v_from, p_window,
        p_limit);
    else
      -- of a few classes behind others, the heads alone
      if not p_is_behind or cardinality(p_eligible.classes) > 16 then
        seen := hwqueue.find_in_window(p_request, p_eligible, p_room, seen.tier, seen.rank, v_from,
          p_window, v_depth);
      end if;
      -- other classes fill the window: the heads of these
      if seen.positions = '{}' and cardinality(p_eligible.classes) <= 64 then
        seen := hwqueue.find_class_heads(p_eligible, seen.tier, seen.rank, v_from, v_depth, p_request.now);
      end if;
    end if;
    -- the low-water mark may lag behind; of a few classes that makes no difference
    exit when ctids <> '{}' or seen.positions <> '{}' or not v_is_mark
      or cardinality(p_eligible.classes) <= 64;
  end loop;
end
$$;

-- The oldest entries of a few classes of a queue in which no entry is before p_from_*: p_limit of the
-- best tier and rank that these classes have. Each class is scanned from its own low-water mark on, if
-- it has one. No entries: positions is empty.
create or replace function hwqueue.find_class_heads(p_eligible hwqueue.profile_queue, p_from_tier smallint,
  p_from_rank bigint, p_from_position bigint, p_limit int, p_now timestamptz, out seen hwqueue.seen_entries)
language plpgsql stable
as $$
declare
  v_from hwqueue.scan_starts := row(array[p_eligible.queue_id], array[p_from_tier], array[p_from_rank],
    array[p_from_position], '{true}', true);
  v_leases uuid[];
  v_times timestamptz[];
begin
  select e.tier, e.rank, array_agg(e.position order by e.position), array_agg(e.class_id order by e.position),
         coalesce(array_agg(e.class_id) filter (where e.class_id = any (p_eligible.checked)), '{}'),
         array_agg(e.lease_id order by e.position), array_agg(e.eligible_at order by e.position)
  into seen.tier, seen.rank, seen.positions, seen.classes, seen.checked, v_leases, v_times
  from (
    select h.tier, h.rank, h.position, k.class_id, h.lease_id, h.eligible_at
    from unnest(p_eligible.classes) k(class_id)
    cross join lateral hwqueue.class_start(k.class_id, v_from) s
    cross join lateral (
      select x.tier, x.rank, x.position, x.lease_id, x.eligible_at from hwqueue.ready x
      where x.class_id = k.class_id and (x.deadline is null or x.deadline > p_now)
        and (x.tier, x.rank, x.position) >= (s.tier, s.rank, s.position)
      order by x.tier, x.rank, x.position limit p_limit
    ) h
    order by h.tier, h.rank, h.position limit p_limit) e
  group by e.tier, e.rank order by e.tier, e.rank limit 1;
  seen.positions := coalesce(seen.positions, '{}');
  seen.head := row(v_leases[1], v_times[1]);
end
$$;

-- The entries of a tier and rank, from a position on, that a profile may run and has room for: p_limit
-- of them within p_window positions (more for a larger batch).
create or replace function hwqueue.find_in_window(p_request hwqueue.claim_request,
  p_eligible hwqueue.profile_queue, p_room hwqueue.headroom, p_tier smallint, p_rank bigint, p_from bigint,
  p_window int, p_limit int, out seen hwqueue.seen_entries)
language plpgsql stable
as $$
declare
  v_now timestamptz := p_request.now;
  v_leases uuid[];
  v_times timestamptz[];
  v_to bigint := p_from + greatest(p_window, 8 * p_limit) - 1;
begin
  if cardinality(p_eligible.classes) = 1 then  -- crosses no other entries
    select array_agg(e.position), array_agg(p_eligible.classes[1]), p_eligible.checked,
           array_agg(e.lease_id), array_agg(e.eligible_at)
    into seen.positions, seen.classes, seen.checked, v_leases, v_times
    from (
      select r.position, r.lease_id, r.eligible_at from hwqueue.ready r
      where r.class_id = p_eligible.classes[1] and r.tier = p_tier
        and r.rank = p_rank
        and r.position between p_from and p_from + 1023 + 8 * p_limit
        and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit) e;
  elsif cardinality(p_eligible.classes) <= 200 then
    select array_agg(e.position), array_agg(e.class_id),
           coalesce(array_agg(e.class_id) filter (where e.class_id = any (p_eligible.checked)), '{}'),
           array_agg(e.lease_id), array_agg(e.eligible_at)
    into seen.positions, seen.classes, seen.checked, v_leases, v_times
    from (
      select r.position, r.class_id, r.lease_id, r.eligible_at from hwqueue.ready r
      where r.queue_id = p_eligible.queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to and r.class_id = any (p_eligible.classes)
        and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit) e;
  else  -- the list is truncated
    select array_agg(e.position), array_agg(e.class_id),
           coalesce(array_agg(e.class_id) filter (where e.is_checked), '{}')
    into seen.positions, seen.classes, seen.checked
    from (
      select r.position, r.class_id, k.is_checked
      from hwqueue.ready r
      cross join lateral (
        select e.is_checked from hwqueue.eligibility e
        where e.profile_id = p_eligible.profile_id
          and e.queue_id = p_eligible.queue_id and e.class_id = r.class_id
          and e.gpu_count = 0 and e.custom is null
          and (p_request.tasks is null or e.task_name = any (p_request.tasks))
          and hwqueue.shortage(e.cpu_milli, e.memory_mib, p_room) = 0 offset 0) k
      where r.queue_id = p_eligible.queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to and (r.deadline is null or r.deadline > v_now)
      order by r.position limit p_limit) e;
  end if;
  seen.tier := p_tier;
  seen.rank := p_rank;
  seen.positions := coalesce(seen.positions, '{}');
  seen.head := row(v_leases[1], v_times[1]);
end
$$;

-- Takes the best entries of classes of which some must be checked: one of those, or up to p_limit of
-- others, all of one score.
-- p_asks: true: ask blocked_classes before the first try; false: after one failed try.
-- After eight tries in vain it leaves out the other classes that must be checked, except the next eight
-- that have entries, by class id from where the node's last such claim stopped. So some claim tries each
-- class, however many there are. Classes that need no check are taken all the same.
-- p_before: entries before its tier and rank alone; null: all.
-- A class with reason 'later' (choose_seen) is put aside until nothing can be had before its tier and
-- rank; the search starts there again.
-- blocked: all classes that were found to be. is_new: one of them waits for the publication of an
-- affinity term.
-- Locks as choose_seen; the caller holds node_state. Not idempotent.
create or replace function hwqueue.choose_checked(p_request hwqueue.claim_request,
  p_fit hwqueue.scored_classes, p_node hwqueue.node, p_asks boolean, p_limit int, p_window int, p_probe int,
  p_before hwqueue.later_class, out ctids tid[], out score double precision, out term_deltas jsonb,
  out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_starts := hwqueue.queue_scan_starts(p_request.queue_ids, cardinality(p_fit.classes));
  v_fit hwqueue.scored_classes := p_fit;
  v_asks boolean := p_asks;
  v_asked boolean := false;
  v_tries int := p_asks::int;  -- the queue head may have been one
  v_after bigint;
  v_open bigint[];
  v_lead bigint[];
  v_left_out bigint[] := '{}';
  v_later hwqueue.later_class[] := '{}';  -- entries of these that may run come after other classes
  v_next hwqueue.later_class;
  v_try record;
begin
  ctids := '{}';
  blocked := '{}';
  is_new := false;
  while v_from.queue_ids is not null loop
    if v_asks then
      blocked := blocked || (hwqueue.blocked_classes(p_fit.checked, p_node, p_request.now)).blocked;
      v_asked := true;
    end if;
    if v_tries = 8 then
      v_after := (
        select s.next_constrained_class from hwqueue.node_state s where s.node_id = p_node.node_id);
      v_open := array(
        select k from unnest(p_fit.checked) k
        where k not in (select unnest(blocked) union all select l.class_id from unnest(v_later) l)
        order by k <= v_after, k);
      v_lead := array(
        select k.class_id from unnest(v_open) with ordinality k(class_id, n)
        cross join lateral (
          select 1 from hwqueue.ready r where r.class_id = k.class_id
          order by r.tier, r.rank, r.position limit 1) h
        order by k.n limit 8);
      if v_lead <> '{}' then
        update hwqueue.node_state s set next_constrained_class = v_lead[cardinality(v_lead)]
          where s.node_id = p_node.node_id;
      end if;
      v_left_out := array(select k from unnest(v_open) k where k <> all (v_lead));
    end if;
    if blocked <> '{}' or v_tries > p_asks::int then  -- after a try others are left out
      select coalesce(array_agg(k.class_id order by k.ordinality), '{}'),
             array_agg(k.score order by k.ordinality)
      into v_fit.classes, v_fit.scores
      from unnest(p_fit.classes, p_fit.scores) with ordinality k(class_id, score, ordinality)
      where k.class_id not in (
        select unnest(blocked || v_left_out) union all select l.class_id from unnest(v_later) l);
    end if;
    exit when v_fit.classes = '{}' and v_later = '{}';
    select l.* into v_next from unnest(v_later || p_before) l where l.tier is not null
    order by l.tier, l.rank limit 1;
    v_try := hwqueue.choose_from_groups(p_request, v_fit, p_node, v_from, v_next, p_limit, p_window, p_probe);
    v_tries := v_tries + 1;
    if v_try.blocked is null then
      ctids := v_try.ctids;
      score := v_try.score;
      term_deltas := v_try.term_deltas;
      exit when ctids <> '{}' or v_later = '{}'
        or (v_next.tier, v_next.rank) = (p_before.tier, p_before.rank);
      -- all before that tier and rank has been tried
      for i in 1 .. cardinality(v_from.tiers) loop
        if (v_from.tiers[i], v_from.ranks[i]) < (v_next.tier, v_next.rank) then
          v_from.tiers[i] := v_next.tier;
          v_from.ranks[i] := v_next.rank;
          v_from.positions[i] := 0;
        end if;
      end loop;
      v_later := array(select l from unnest(v_later) l where (l.tier, l.rank) > (v_next.tier, v_next.rank));
    elsif v_try.reason = 'later' then
      v_later := v_later || row(v_try.blocked, v_try.later_tier, v_try.later_rank)::hwqueue.later_class;
    else
      blocked := blocked || v_try.blocked;
      is_new := is_new or v_try.reason = 'unpublished';
    end if;
    v_asks := not v_asked;
  end loop;
end
$$;
