-- Score groups: the ready entries of equal tier, rank and score, which differ in age alone.
--
-- choose_by_score and choose_checked come here with the classes that the node may run now and their
-- scores. An example: at rank 0, class A scores 67, B and C score 33. A is one score group, B and C are
-- the next one. The claim takes A's oldest entries, and B's and C's only when it can have none of A.
--
-- Invariant: no entry of a better group that another session has not locked is passed over, within the
-- queues' policies `window` (positions) and `probe` (classes compared).

-- Takes the best entries of these classes that can be had, before the tier and rank of the head of
-- p_before (null: all).
-- No ctids: there are none, or the class of the best one, blocked, may not run here now, for that reason
-- (choose_seen explains 'later').
-- Where no class must be checked, entries beyond those seen are read and locked in one statement.
-- Locks as choose_seen.
create or replace function hwqueue.choose_from_groups(p_request hwqueue.claim_request,
  p_fit hwqueue.scored_classes, p_node hwqueue.node, p_from hwqueue.scan_starts,
  p_before hwqueue.later_class, p_limit int, p_window int, p_probe int,
  out ctids tid[], out score double precision, out term_deltas jsonb, out entry hwqueue.ready,
  out blocked bigint, out reason text, out later_tier smallint, out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_group record;
  v_limit int;
  v_sees boolean;
  v_depth int;
  v_from hwqueue.scan_starts;
  v_seen hwqueue.seen_entries;
  v_taken record;
  v_after_tier smallint;
  v_after_rank bigint;
begin
  ctids := '{}';
  v_seen.checked := p_fit.checked;
  while ctids = '{}' and blocked is null and p_from.queue_ids is not null loop
    v_group := hwqueue.find_score_group(p_request, p_fit, v_after_tier, v_after_rank, score, p_from, p_window,
      p_probe);
    exit when v_group.classes is null or (v_group.tier, v_group.rank) >= (p_before.tier, p_before.rank);
    score := v_group.score;
    v_limit := least(p_limit, v_group.takes);
    v_seen.tier := v_group.tier;
    v_seen.rank := v_group.rank;
    v_seen.positions := v_group.positions;
    v_seen.classes := v_group.seen_classes;
    v_sees := v_seen.positions is not null and (v_group.is_head is not true or v_limit = 1
        or v_seen.classes[1] = any (p_fit.checked));
    v_depth := case when v_sees then 0 else v_limit end;
    loop
      if v_depth > 0 then
        v_from := hwqueue.class_scan_starts(v_group.classes, p_from);
      end if;
      if v_depth > 0 and p_fit.checked = '{}' then
        ctids := array(
          select r.ctid
          from (
            select h.place
            from unnest(v_group.classes) with ordinality k(class_id, ordinality)
            cross join lateral (
              select x.ctid as place, x.position from hwqueue.ready x
              where x.class_id = k.class_id and x.tier = v_seen.tier and x.rank = v_seen.rank
                and x.position >= hwqueue.scan_start_of(v_from, k.ordinality::int, v_seen.tier, v_seen.rank)
                and (x.deadline is null or x.deadline > p_request.now)
              order by x.position limit v_depth
            ) h
            order by h.position limit v_depth
          ) c
          join hwqueue.ready r on r.ctid = c.place
          -- the class again, under the lock: assign_target_class may have changed it. In a form that no
          -- index serves: read by ctid
          where (r.class_id = any (v_group.classes)) is true
          limit v_limit
          for update of r skip locked);
        exit when ctids <> '{}' or v_depth >= 16384;
      else
        if v_depth > 0 then
          select coalesce(array_agg(c.position), '{}'), coalesce(array_agg(c.class_id), '{}')
          into v_seen.positions, v_seen.classes
          from (
            select h.position, k.class_id
            from unnest(v_group.classes) with ordinality k(class_id, ordinality)
            cross join lateral (
              select x.position from hwqueue.ready x
              where x.class_id = k.class_id and x.tier = v_seen.tier and x.rank = v_seen.rank
                and x.position >= hwqueue.scan_start_of(v_from, k.ordinality::int, v_seen.tier, v_seen.rank)
                and (x.deadline is null or x.deadline > p_request.now)
              order by x.position limit v_depth
            ) h
            order by h.position limit v_depth
          ) c;
        end if;
        v_taken := hwqueue.choose_seen(p_request, v_seen, v_limit, p_node);
        ctids := v_taken.ctids;
        term_deltas := v_taken.term_deltas;
        entry := v_taken.entry;
        blocked := v_taken.blocked;
        reason := v_taken.reason;
        later_tier := v_taken.later_tier;
        later_rank := v_taken.later_rank;
        exit when ctids <> '{}' or blocked is not null
          or v_depth > 0 and (cardinality(v_seen.positions) < v_depth or v_depth >= 16384);
      end if;
      -- other sessions hold what was seen: read further back
      v_depth := least(8 * greatest(v_depth, v_limit), 16384);
    end loop;
    v_after_tier := v_group.tier;
    v_after_rank := v_group.rank;
  end loop;
end
$$;

-- Returns the best score group that has an entry, by tier, rank and score (higher first); with
-- p_after_*, the best one after that group.
-- p_fit: what may be claimed. p_from: where scans start, past the dead tuples of what was claimed.
-- It compares the heads of the first p_probe classes. With more classes than that, or than 16, it first
-- reads p_window entries at each queue's head: these have the best tier and rank, and only a class with
-- a better score could come first. It skips the window when the queue head is blocked and the window would
-- cross many dead tuples, unless there are more classes than p_probe.
-- classes: of the group. positions, seen_classes: entries that it saw there, oldest first. is_head: it
-- saw the oldest one alone. takes: how many may be taken at once, because something older may not have
-- been read; null: any number.
create or replace function hwqueue.find_score_group(p_request hwqueue.claim_request,
  p_fit hwqueue.scored_classes, p_after_tier smallint, p_after_rank bigint, p_after_score double precision,
  p_from hwqueue.scan_starts, p_window int, p_probe int, out tier smallint, out rank bigint,
  out score double precision, out classes bigint[], out positions bigint[], out seen_classes bigint[],
  out is_head boolean, out takes int)
language plpgsql stable
as $$
declare
  v_now timestamptz := p_request.now;
  v_classes bigint[] := p_fit.classes;
  v_scores double precision[] := p_fit.scores;
  v_reads_window boolean := p_after_tier is null and cardinality(p_fit.classes) > least(16, p_probe);
  v_window record;
  v_head record;
  v_from hwqueue.scan_starts := p_from;
  v_start bigint;
begin
  if v_reads_window and true = any (p_from.are_blocked) and cardinality(v_classes) <= p_probe then
    -- only where its entries lie close together, in the tier and rank of the head
    select bool_and(w.seen = p_window) into v_reads_window
    from unnest(p_from.queue_ids, p_from.tiers, p_from.ranks, p_from.positions)
         q(queue_id, tier, rank, position)
    cross join lateral (
      select count(*) as seen from (
        select from hwqueue.ready r
        where r.queue_id = q.queue_id and r.tier = q.tier and r.rank = q.rank
          and r.position between q.position and q.position + 4095
        order by r.position limit p_window) e) w;
  end if;
  if v_reads_window then
    v_window := hwqueue.find_group_in_window(v_classes, v_scores, p_from, p_window, v_now);
    tier := v_window.tier;
    rank := v_window.rank;
    score := v_window.score;
    positions := v_window.positions;
    seen_classes := v_window.classes;
    takes := v_window.takes;
    for i in 1 .. least(cardinality(v_classes), p_probe) loop
      exit when tier is null or v_scores[i] <= score or cardinality(p_from.queue_ids) > 1;
      if p_from.by_class and i % 16 = 1 then  -- mostly one of the first 16 has an entry
        v_from := hwqueue.class_scan_starts(v_classes[i : i + 15], p_from);
      end if;
      -- not inside the statement, which Postgres before 18 would plan each time; ordered for the index
      -- by class
      v_start := hwqueue.scan_start_of(v_from, (i - 1) % 16 + 1, tier, rank);
      perform 1 from hwqueue.ready r
      where r.class_id = v_classes[i] and r.tier = find_score_group.tier and r.rank = find_score_group.rank
        and r.position >= v_start and (r.deadline is null or r.deadline > v_now) order by r.position limit 1;
      if found then
        score := v_scores[i];
        positions := null;
      end if;
    end loop;
  end if;
  if tier is null or cardinality(p_from.queue_ids) > 1 then
    -- nothing in the window; or several queues, where a head behind one window may come before another's:
    -- the first of all class heads by tier, rank, score and age, with an index probe for each class
    v_from := hwqueue.class_scan_starts(v_classes[1 : p_probe], p_from);
    select h.tier, h.rank, h.position, k.class_id, k.score into v_head
    from (
      select c.class_id, c.score, coalesce(c.tier, p_from.tiers[1]) as tier,
             coalesce(c.rank, p_from.ranks[1]) as rank,
             coalesce(c.position, p_from.positions[1]) as position,
             p_after_rank + (c.score >= p_after_score)::int as after_rank
      from unnest(v_classes[1 : p_probe], v_scores[1 : p_probe], v_from.class_tiers, v_from.class_ranks,
           v_from.class_positions) c(class_id, score, tier, rank, position)) k
    cross join lateral (select (p_after_tier, k.after_rank) > (k.tier, k.rank) as is_after) a
    cross join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.class_id = k.class_id and (r.deadline is null or r.deadline > v_now)
        and (r.tier, r.rank, r.position) >= (case when a.is_after then p_after_tier else k.tier end,
          case when a.is_after then k.after_rank else k.rank end,
          case when a.is_after then 0 else k.position end)
      order by r.tier, r.rank, r.position limit 1) h
    order by h.tier, h.rank, k.score desc, h.position limit 1;
    if tier is null or (v_head.tier, v_head.rank, -v_head.score, v_head.position)
                       < (tier, rank, -score, coalesce(positions[1], 9223372036854775807)) then
      tier := v_head.tier;
      rank := v_head.rank;
      score := v_head.score;
      positions := array[v_head.position];
      seen_classes := array[v_head.class_id];
      is_head := true;
      takes := case when cardinality(v_classes) > p_probe and cardinality(p_from.queue_ids) > 1 then 1 end;
    end if;
  end if;
  if tier is not null then
    classes := array(select k.class_id
        from unnest(v_classes[1 : p_probe], v_scores[1 : p_probe]) k(class_id, score)
      where k.score = find_score_group.score);
    if cardinality(v_classes) > p_probe and positions is not null then
      classes := array(select distinct c from unnest(classes || seen_classes) c);
    end if;
  end if;
end
$$;

-- The best score group among the first p_window entries of each queue, with the positions and classes of
-- its entries there, oldest first.
-- takes: of several queues, how many of these are older than what was not read, at least one.
-- Joined by hash: looking up 100 entries in 1,000 classes takes a third of the time.
create or replace function hwqueue.find_group_in_window(p_classes bigint[], p_scores double precision[],
  p_from hwqueue.scan_starts, p_window int, p_now timestamptz, out tier smallint,
  out rank bigint, out score double precision, out positions bigint[], out classes bigint[], out takes int)
language plpgsql stable set enable_hashjoin = on set enable_nestloop = off
as $$
declare
  v_seen_to bigint;
begin
  with seen as not materialized (  -- of one queue it is read once
    select q.queue_id, w.tier, w.rank, w.position, w.class_id, w.deadline
    from unnest(p_from.queue_ids, p_from.tiers, p_from.ranks, p_from.positions)
         q(queue_id, tier, rank, position)
    cross join lateral (
      select r.tier, r.rank, r.position, r.class_id, r.deadline from hwqueue.ready r
      where r.queue_id = q.queue_id and (r.tier, r.rank, r.position) >= (q.tier, q.rank, q.position)
      order by r.tier, r.rank, r.position limit p_window
    ) w
  )
  select l.tier, l.rank, l.score, l.positions, l.classes,
         case when cardinality(p_from.queue_ids) > 1 then (
           select min(o.seen_to) from (
             select case
                 when bool_or((s.tier, s.rank) > (l.tier, l.rank)) then 9223372036854775807
                 else coalesce(max(s.position) filter (where (s.tier, s.rank) = (l.tier, l.rank)), -1)
               end as seen_to
             from seen s group by s.queue_id having count(*) = p_window) o) end
  into tier, rank, score, positions, classes, v_seen_to
  from (
    select s.tier, s.rank, k.score, array_agg(s.position order by s.position) as positions,
           array_agg(s.class_id order by s.position) as classes
    from seen s
    join unnest(p_classes, p_scores) k(class_id, score) on k.class_id = s.class_id
    where s.deadline is null or s.deadline > p_now
    group by s.tier, s.rank, k.score order by s.tier, s.rank, k.score desc limit 1) l;
  takes := case when v_seen_to is not null
    then greatest(1, (select count(*) from unnest(positions) p where p <= v_seen_to)) end;
end
$$;
