-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there are none. A plain node
-- (p_is_plain) takes from the front of its only queue; when there is nothing for it, it is plain no longer: the next call need not ask.
-- p_tried_*: see take_front.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_places(p_state hwqueue.node_state, p_load hwqueue.node_load, p_room hwqueue.headroom,
  inout p_is_plain boolean, p_queue_ids int[], p_tasks text[], p_window int, p_tried_rank bigint, p_tried_position bigint, p_limit int, p_now timestamptz, p_shard int,
  out places tid[], out score double precision)
language plpgsql volatile
as $$
begin
  score := 0;
  if p_is_plain then
    places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_queue_ids[1], p_tasks, p_window, p_tried_rank, p_tried_position, p_room,
                                 case when p_state.is_counted then 1 else p_limit end, p_now, p_shard);
  end if;
  p_is_plain := places <> '{}';
  if p_is_plain is distinct from true then
    select p.places, p.score into places, score from hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, p_now, p_shard) p;
  end if;
end
$$;

-- Locks the best ready entries that a node may run now, up to p_limit of them that score alike (one, where something is counted: what
-- fits changes with each), and gives their places, best first; no places: there are none.
-- A node of a new kind has not seen all classes yet: judges up to eight batches of them while there is nothing.
-- Locks: the profile row, skip locked; the entries, skip locked. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_leases(p_state hwqueue.node_state, p_load hwqueue.node_load, p_queue_ids int[], p_tasks text[], p_limit int, p_now timestamptz,
  p_shard int, out places tid[], out score double precision)
language plpgsql volatile
as $$
declare
  v_node hwqueue.node := hwqueue.read_node(p_state.node_id, p_shard);
  v_judged record;
  v_fit record;
  v_policy record;
  v_best record;
begin
  places := '{}';
  if v_node.cordoned_at is not null or p_queue_ids = '{}' then
    return;
  end if;
  select max(q.window_size) as "window", max(q.probe_size) as probe into v_policy
  from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = any (p_queue_ids);
  for v_batch in 1 .. 8 loop
    v_judged := hwqueue.judge_classes(v_node, p_state, p_shard);
    v_fit := hwqueue.fitting_classes(v_node, hwqueue.node_headroom(v_node, p_load), p_queue_ids, p_tasks, v_judged.extra, p_now,
                                      p_shard);
    if v_fit.classes <> '{}' then
      v_best := hwqueue.take_best(v_fit.classes, v_fit.scores, p_queue_ids, case when p_state.is_counted then 1 else p_limit end,
                                  v_policy."window", v_policy.probe, p_now, p_shard);
      places := v_best.places;
      score := v_best.score;
    end if;
    exit when places <> '{}' or not v_judged.more;
  end loop;
end
$$;

-- Locks the oldest entries of the best lane that others have not locked all of, up to p_limit.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_best(p_classes bigint[], p_scores double precision[], p_queue_ids int[], p_limit int, p_window int,
  p_probe int, p_now timestamptz, p_shard int, out places tid[], out score double precision)
language plpgsql volatile
as $$
declare
  v_from record;
  v_lane record;
  v_after_tier smallint;
  v_after_rank bigint;
begin
  places := '{}';
  -- the first of the fronts: no queue has anything before it
  select f.tier, f.rank, f.position into v_from
  from unnest(p_queue_ids) q(queue_id)
  cross join lateral hwqueue.queue_front(q.queue_id, p_shard) f
  where f.tier is not null order by f.tier, f.rank, f.position limit 1;
  while v_from.tier is not null loop
    v_lane := hwqueue.next_lane(p_classes, p_scores, p_queue_ids, v_after_tier, v_after_rank, score, v_from.tier, v_from.rank, v_from.position,
                                p_window, p_probe, p_now, p_shard);
    exit when v_lane.classes is null;
    places := hwqueue.take_lane(v_lane.classes, v_lane.positions, p_queue_ids, v_lane.tier, v_lane.rank,
      case when (v_lane.tier, v_lane.rank) = (v_from.tier, v_from.rank) then v_from.position else 0 end, p_limit, p_now, p_shard);
    score := v_lane.score;
    exit when places <> '{}';
    v_after_tier := v_lane.tier;
    v_after_rank := v_lane.rank;
  end loop;
end
$$;
