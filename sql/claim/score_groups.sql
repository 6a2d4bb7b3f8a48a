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
  out ctids tid[], out score double precision, out term_deltas jsonb, out blocked bigint, out reason text,
  out later_tier smallint, out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_group record;
  v_limit int;
  v_depth int;
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
    exit when v_group.tier is null or (v_group.tier, v_group.rank) >= (p_before.tier, p_before.rank);
    score := v_group.score;
    v_limit := least(p_limit, v_group.takes);
    v_seen.tier := v_group.tier;
    v_seen.rank := v_group.rank;
    v_seen.positions := v_group.positions;
    v_seen.classes := v_group.seen_classes;
    v_depth := case when v_seen.positions is null then v_limit else 0 end;
    loop
      if v_depth > 0 and p_fit.checked = '{}' then
        ctids := array(
          select r.ctid
          from (
            select h.row_ctid
            from unnest(v_group.classes) k(class_id)
            cross join lateral hwqueue.class_entries(k.class_id, p_from, v_seen.tier, v_seen.rank, v_depth,
              p_request.now) h
            order by h.position limit v_depth
          ) c
          join hwqueue.ready r on r.ctid = c.row_ctid
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
            from unnest(v_group.classes) k(class_id)
            cross join lateral hwqueue.class_entries(k.class_id, p_from, v_seen.tier, v_seen.rank, v_depth,
              p_request.now) h
            order by h.position limit v_depth
          ) c;
        end if;
        v_taken := hwqueue.choose_seen(p_request, v_seen, v_limit, p_node);
        ctids := v_taken.ctids;
        term_deltas := v_taken.term_deltas;
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

-- The oldest entries of a class in a tier and rank, from its low-water mark there on, if its queue is
-- blocked, else from the head of its queue on. In a tier and rank before that head nothing lives and nothing
-- is read. Inlined.
create or replace function hwqueue.class_entries(p_class_id bigint, p_from hwqueue.scan_starts,
  p_tier smallint, p_rank bigint, p_limit int, p_now timestamptz)
returns table ("position" bigint, row_ctid tid)
language sql stable
as $$
  select x.position, x.ctid from hwqueue.ready x
  where x.class_id = p_class_id and x.tier = p_tier and x.rank = p_rank and x.position >= (
      select case when (p_tier, p_rank) >= (p_from.tiers[q.n], p_from.ranks[q.n]) then greatest(
          case when (p_tier, p_rank) = (p_from.tiers[q.n], p_from.ranks[q.n]) then p_from.positions[q.n]
            else 0 end,
          case when p_from.are_blocked[q.n] then (
            select case when w.tiers = array[p_tier] and w.ranks = array[p_rank] then w.positions[1]
              else hwqueue.low_water_at(w, p_tier, p_rank) end
            from hwqueue.low_water w
            where w.queue_id = p_from.queue_ids[q.n] and w.class_id = p_class_id
            order by w.version desc limit 1) end) end
      from (
        select case when not p_from.by_class or cardinality(p_from.queue_ids) = 1 then 1
          else array_position(p_from.queue_ids, (
            select c.queue_id from hwqueue.placement_class c where c.class_id = p_class_id)) end as n
        offset 0) q)
    and (x.deadline is null or x.deadline > p_now)
  order by x.position limit p_limit
$$;

-- Returns the best score group that has an entry, by tier, rank and score (higher first); with
-- p_after_*, the best one after that group.
-- p_fit: what may be claimed. p_from: where scans start, past the dead tuples of what was claimed.
-- It compares the heads of the first p_probe classes, mostly only until one is in the first tier and rank
-- that there may be. Where there are more classes, or many score best, it first reads p_window entries at
-- each queue's head: these have the best tier and rank, and only a class with a better score could come
-- first.
-- classes: of the group. positions, seen_classes: entries that it saw there, oldest first; null: none.
-- takes: how many may be taken at once, because something older may not have been read; null: any number.
create or replace function hwqueue.find_score_group(p_request hwqueue.claim_request,
  p_fit hwqueue.scored_classes, p_after_tier smallint, p_after_rank bigint, p_after_score double precision,
  p_from hwqueue.scan_starts, p_window int, p_probe int, out tier smallint, out rank bigint,
  out score double precision, out classes bigint[], out positions bigint[], out seen_classes bigint[],
  out takes int)
language plpgsql stable
as $$
declare
  v_now timestamptz := p_request.now;
  v_classes bigint[] := p_fit.classes[1 : p_probe];
  v_scores double precision[] := p_fit.scores[1 : p_probe];
  v_is_cut boolean := cardinality(p_fit.classes) > p_probe;
  v_tier smallint := p_from.tiers[1];  -- the first that there may be
  v_rank bigint := p_from.ranks[1];
  v_above double precision;  -- of classes there only those with scores between these
  v_below double precision;
  v_window record;
  v_head record;
  v_goes_on boolean;
  v_group int[];
begin
  if p_after_tier is null
    and (v_is_cut or v_scores[17] = v_scores[1] and true <> all (p_from.are_blocked)) then
    v_window := hwqueue.find_group_in_window(p_fit.classes, p_fit.scores, p_from, p_window, v_now);
    tier := v_window.tier;
    rank := v_window.rank;
    score := v_window.score;
    positions := v_window.positions;
    seen_classes := v_window.classes;
    takes := v_window.takes;
    if tier is not null and cardinality(p_from.queue_ids) = 1 then
      v_tier := tier;
      v_rank := rank;
    end if;
    v_above := case when (tier, rank) = (v_tier, v_rank) then score end;
  elsif (p_after_tier, p_after_rank) >= (v_tier, v_rank) then
    v_tier := p_after_tier;
    v_rank := p_after_rank;
    v_below := p_after_score;
  end if;
  -- ordered as the list is: mostly one of the first has an entry
  select v_tier as tier, v_rank as rank, k.score, h.position into v_head
  from unnest(v_classes, v_scores) k(class_id, score)
  cross join lateral hwqueue.class_entries(k.class_id, p_from, v_tier, v_rank, 1, v_now) h
  where (k.score > v_above) is not false and (k.score < v_below) is not false limit 1;
  v_goes_on := not found and (tier is null or cardinality(p_from.queue_ids) > 1);
  if v_goes_on and cardinality(p_from.queue_ids) = 1 and (not p_from.are_blocked[1] or (
      -- blocked: ranks whose marks have moved may be full of dead tuples; classes start at their own marks
      select (w.tiers, w.ranks) = (array[v_tier], array[v_rank]) from hwqueue.low_water w
      where w.queue_id = p_from.queue_ids[1] and w.class_id = 0 order by w.version desc limit 1)) then
    perform 1 from hwqueue.ready r
    where r.queue_id = p_from.queue_ids[1] and (r.tier, r.rank) > (v_tier, v_rank)
    order by r.tier, r.rank, r.position limit 1;
    v_goes_on := found;
  end if;
  if v_goes_on then
    -- the first of all class heads by tier, rank, score and age, with an index probe for each class
    select h.tier, h.rank, k.score, h.position into v_head
    from unnest(v_classes, v_scores) k(class_id, score)
    cross join lateral hwqueue.class_start(k.class_id, p_from) s
    cross join lateral (
      select p_after_rank + (k.score >= p_after_score)::int as rank) a
    cross join lateral (
      select r.tier, r.rank, r.position from hwqueue.ready r
      where r.class_id = k.class_id and (r.deadline is null or r.deadline > v_now)
        and (r.tier, r.rank, r.position) >= (
          case when (p_after_tier, a.rank) > (s.tier, s.rank) then p_after_tier else s.tier end,
          case when (p_after_tier, a.rank) > (s.tier, s.rank) then a.rank else s.rank end,
          case when (p_after_tier, a.rank) > (s.tier, s.rank) then 0 else s.position end)
      order by r.tier, r.rank, r.position limit 1) h
    order by h.tier, h.rank, k.score desc, h.position limit 1;
  end if;
  if tier is null
    or (v_head.tier, v_head.rank, -v_head.score, v_head.position) < (tier, rank, -score, positions[1]) then
    tier := v_head.tier;
    rank := v_head.rank;
    score := v_head.score;
    positions := null;
    takes := case when v_is_cut and cardinality(p_from.queue_ids) > 1 then 1 end;
  end if;
  v_group := array_positions(v_scores, score);
  classes := coalesce(v_classes[v_group[1] : v_group[cardinality(v_group)]], '{}');
  if v_is_cut and positions is not null then
    classes := array(select distinct c from unnest(classes || seen_classes) c);
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
