-- Of the classes that profile_queue lists, those of these tasks that a node has room for; the list as it is
-- when it is too long to be complete (201): then lock_stretch and stretch_entries ask class by class.
create or replace function hwqueue.runnable_classes(p_eligible hwqueue.profile_queue, p_tasks text[],
  p_room hwqueue.headroom, p_shard int) returns bigint[]
language plpgsql stable
as $$
begin
  if cardinality(p_eligible.classes) > 200
     or (p_tasks is null or cardinality(p_eligible.task_names) <= 50 and p_eligible.task_names <@ p_tasks)
        and hwqueue.shortage(p_eligible.most_cpu_milli, p_eligible.most_memory_mib, 0, 0, '{}', null,
                             p_room) = 0 then
    return p_eligible.classes;
  end if;
  return array(
    select e.class_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.profile_id = p_eligible.profile_id and e.queue_id = p_eligible.queue_id
      and e.gpu_count = 0 and e.custom is null and (p_tasks is null or e.task_name = any (p_tasks))
      and hwqueue.shortage(e.cpu_milli, e.memory_mib, 0, 0, '{}', null, p_room) = 0);
end
$$;

-- What a plain node looks for at the front of its only queue: the classes of these tasks that it has room
-- for, of p_only (claim_candidates; null: of all), without p_without. None: there are none, or the node likes some classes of this
-- queue better than others, or has not been judged for all there are: see pick_leases. p_is_judged: it is known to have been.
create or replace function hwqueue.front_classes(p_eligible hwqueue.profile_queue, p_state hwqueue.node_state,
  p_is_judged boolean, p_tasks text[], p_only bigint[], p_without bigint[], p_room hwqueue.headroom, p_shard int,
  out eligible hwqueue.profile_queue)
language plpgsql stable
as $$
begin
  eligible := p_eligible;
  if p_is_judged is not true and (not p_eligible.is_even
     or hwqueue.has_new_classes(least(p_eligible.classes_seen, p_state.classes_seen), p_eligible.classes_unseen || p_state.classes_unseen, p_shard)) then
    eligible.classes := '{}';
  elsif p_only is not null then
    select coalesce(array_agg(e.class_id), '{}'), coalesce(array_agg(e.class_id) filter (where e.is_checked), '{}')
    into eligible.classes, eligible.checked
    from unnest(p_only) k(class_id)
    cross join lateral (  -- fenced: each by its key
      select x.class_id, x.is_checked from hwqueue.profile_eligibility x
      where x.shard_id = p_shard and x.profile_id = p_eligible.profile_id and x.queue_id = p_eligible.queue_id and x.class_id = k.class_id
        and x.gpu_count = 0 and x.custom is null and (p_tasks is null or x.task_name = any (p_tasks))
        and hwqueue.shortage(x.cpu_milli, x.memory_mib, 0, 0, '{}', null, p_room) = 0 offset 0) e
    where k.class_id <> all (p_without);
  elsif p_tasks is not null or p_room is distinct from null then  -- of a row, "is not null" would ask every field
    eligible.classes := hwqueue.runnable_classes(p_eligible, p_tasks, p_room, p_shard);
  end if;
end
$$;

-- The oldest entries at the front of a queue of these classes (front_classes). Where none of the queue's
-- classes must be checked they are locked at once, up to p_limit of them (places). Else they are told by
-- position and class, oldest first: p_limit or 8 of the front's tier and rank, less where they are far apart;
-- another session may have them by the time that they are locked. No places and no positions: there are none.
-- Of a few classes it looks for their heads, however far behind the front they are. p_front: what has just
-- been seen of the queue, if anything; p_is_tried: its mark has been tried, in vain. p_is_behind: others, which are
-- left out of the classes, stand before these. checked: which of these classes must be checked; head: what is known of the first
-- entry.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.front_entries(p_eligible hwqueue.profile_queue, p_front hwqueue.queue_look,
  p_is_tried boolean, p_tasks text[], p_window int, p_is_behind boolean, p_room hwqueue.headroom, p_limit int,
  p_now timestamptz, p_shard int, out tier smallint, out rank bigint, out places tid[],
  out positions bigint[], out classes bigint[], out checked bigint[], out head hwqueue.entry_head)
language plpgsql volatile
as $$
declare
  v_depth int := greatest(p_limit, 8);  -- others may hold the first ones
  v_is_mark boolean := coalesce(p_front.is_front, false) and not p_is_tried;
  v_from bigint := p_front.position;
  v_front record;
  v_seen record;
begin
  places := '{}';
  positions := '{}';
  tier := p_front.tier;
  rank := p_front.rank;
  for v_turn in 1 .. 2 loop
    if v_turn = 2 or not v_is_mark then
      v_front := hwqueue.queue_front(p_eligible.queue_id, p_shard, v_turn = 1 and not p_is_tried);
      exit when v_front.tier is null
        or v_turn = 2 and (v_front.tier, v_front.rank, v_front.position) = (tier, rank, v_from);
      tier := v_front.tier;
      rank := v_front.rank;
      v_from := v_front.position;
      v_is_mark := v_front.is_mark;
    end if;
    if p_eligible.checked = '{}' and not p_is_behind then
      places := hwqueue.lock_stretch(p_eligible.profile_id, p_eligible.queue_id, p_eligible.classes, p_tasks,
                                     p_room, tier, rank, v_from, p_window, p_limit, p_now, p_shard);
    else
      -- of a few that others stand before, the heads alone
      if not p_is_behind or cardinality(p_eligible.classes) > 16 then
        v_seen := hwqueue.stretch_entries(p_eligible, p_tasks, p_room, tier, rank, v_from, p_window, v_depth,
                                          p_now, p_shard);
        positions := v_seen.positions;
      end if;
      -- others stand there: whatever there is of these
      if positions = '{}' and cardinality(p_eligible.classes) <= 64 then
        v_seen := hwqueue.head_entries(p_eligible, tier, rank, v_from, v_depth, p_now, p_shard);
        tier := v_seen.tier;
        rank := v_seen.rank;
        positions := coalesce(v_seen.positions, '{}');
      end if;
    end if;
    -- the mark may lag behind; of a few classes that makes no difference
    exit when places <> '{}' or positions <> '{}' or not v_is_mark or cardinality(p_eligible.classes) <= 64;
  end loop;
  if positions <> '{}' then
    classes := v_seen.classes;
    checked := v_seen.checked;
    head := v_seen.head;
  end if;
end
$$;

-- The oldest entries of a few classes of a queue in which nothing lives before p_from_*: p_limit of the best tier and rank that these classes have.
-- Each class is looked for from its own mark on, if it has one. No entries: positions is null.
-- checked: which of their classes must be checked; head: what is known of the first entry.
create or replace function hwqueue.head_entries(p_eligible hwqueue.profile_queue, p_from_tier smallint, p_from_rank bigint, p_from_position bigint,
  p_limit int, p_now timestamptz, p_shard int,
  out tier smallint, out rank bigint, out positions bigint[], out classes bigint[], out checked bigint[], out head hwqueue.entry_head)
language plpgsql stable
as $$
declare
  v_leases uuid[];
  v_times timestamptz[];
begin
  select e.tier, e.rank, array_agg(e.position order by e.position), array_agg(e.class_id order by e.position),
         coalesce(array_agg(e.class_id) filter (where e.class_id = any (p_eligible.checked)), '{}'),
         array_agg(e.lease_id order by e.position), array_agg(e.eligible_at order by e.position)
  into tier, rank, positions, classes, checked, v_leases, v_times
  from (
    select h.tier, h.rank, h.position, k.class_id, h.lease_id, h.eligible_at
    from unnest(p_eligible.classes) k(class_id)
    left join lateral (
      select m.tiers, m.ranks, m.positions from hwqueue.low_water m
      where m.shard_id = p_shard and m.queue_id = p_eligible.queue_id and m.class_id = k.class_id order by m.version desc limit 1) w on true
    cross join lateral (
      select p_from_tier as tier, p_from_rank as rank, greatest(p_from_position, w.positions[1]) as position
      where w.tiers is null or w.tiers = array[p_from_tier] and w.ranks = array[p_from_rank]
      union all
      select f.tier, f.rank, f.position
      from hwqueue.class_front(k.class_id, w.tiers, w.ranks, w.positions, p_from_tier, p_from_rank, p_from_position, p_shard) f
      where w.tiers <> array[p_from_tier] or w.ranks <> array[p_from_rank]) s
    cross join lateral (
      select x.tier, x.rank, x.position, x.lease_id, x.eligible_at from hwqueue.ready x
      where x.shard_id = p_shard and x.class_id = k.class_id and (x.deadline is null or x.deadline > p_now)
        and (x.tier, x.rank, x.position) >= (s.tier, s.rank, s.position)
      order by x.tier, x.rank, x.position limit p_limit
    ) h
    order by h.tier, h.rank, h.position limit p_limit) e
  group by e.tier, e.rank order by e.tier, e.rank limit 1;
  head.lease_id := v_leases[1];
  head.eligible_at := v_times[1];
end
$$;

-- The entries of a tier and rank from a position on, of what a profile may run and has room for, p_limit of them within p_window positions (more
-- for a larger batch). checked: which of their classes must be checked; head: what is known of the first entry.
create or replace function hwqueue.stretch_entries(p_eligible hwqueue.profile_queue, p_tasks text[], p_room hwqueue.headroom, p_tier smallint,
  p_rank bigint, p_from bigint, p_window int, p_limit int, p_now timestamptz, p_shard int,
  out positions bigint[], out classes bigint[], out checked bigint[], out head hwqueue.entry_head)
language plpgsql stable
as $$
declare
  v_leases uuid[];
  v_times timestamptz[];
  v_to bigint := p_from + greatest(p_window, 8 * p_limit) - 1;
begin
  if cardinality(p_eligible.classes) = 1 then  -- comes upon nothing else
    select array_agg(e.position), array_agg(p_eligible.classes[1]), p_eligible.checked, array_agg(e.lease_id), array_agg(e.eligible_at)
    into positions, classes, checked, v_leases, v_times
    from (
      select r.position, r.lease_id, r.eligible_at from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_eligible.classes[1] and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and p_from + 1023 + 8 * p_limit and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit) e;
  elsif cardinality(p_eligible.classes) <= 200 then
    select array_agg(e.position), array_agg(e.class_id), coalesce(array_agg(e.class_id) filter (where e.class_id = any (p_eligible.checked)), '{}'),
           array_agg(e.lease_id), array_agg(e.eligible_at)
    into positions, classes, checked, v_leases, v_times
    from (
      select r.position, r.class_id, r.lease_id, r.eligible_at from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_eligible.queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to and r.class_id = any (p_eligible.classes) and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit) e;
  else  -- the list is not complete
    select array_agg(e.position), array_agg(e.class_id), coalesce(array_agg(e.class_id) filter (where e.is_checked), '{}')
    into positions, classes, checked
    from (
      select r.position, r.class_id, k.is_checked
      from hwqueue.ready r
      cross join lateral (
        select e.is_checked from hwqueue.profile_eligibility e
        where e.shard_id = p_shard and e.profile_id = p_eligible.profile_id and e.queue_id = p_eligible.queue_id and e.class_id = r.class_id
          and e.gpu_count = 0 and e.custom is null and (p_tasks is null or e.task_name = any (p_tasks))
          and hwqueue.shortage(e.cpu_milli, e.memory_mib, 0, 0, '{}', null, p_room) = 0 offset 0) k
      where r.shard_id = p_shard and r.queue_id = p_eligible.queue_id and r.tier = p_tier and r.rank = p_rank
        and r.position between p_from and v_to and (r.deadline is null or r.deadline > p_now)
      order by r.position limit p_limit) e;
  end if;
  positions := coalesce(positions, '{}');
  head.lease_id := v_leases[1];
  head.eligible_at := v_times[1];
end
$$;

-- Locks the oldest entries of these classes between two positions of a queue, up to p_limit of them, and gives their places.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.lock_between(p_queue_id int, p_tier smallint, p_rank bigint, p_from bigint, p_to bigint, p_classes bigint[],
  p_limit int, p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
begin
  return array(
    select r.ctid from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = p_tier and r.rank = p_rank and r.position between p_from and p_to
      and r.class_id = any (p_classes) and (r.deadline is null or r.deadline > p_now)
    order by r.position limit p_limit
    for update skip locked);
end
$$;
