-- Locks the oldest entries of a queue that a plain node may run and has room for, up to p_limit of them, and gives their places: those
-- at the front of the queue's order, else the heads of its classes; no places: there are none, or the node likes some
-- classes of this queue better than others, or is at a loss otherwise: see pick_leases.
-- At the front it walks a stretch of p_window positions (more for a larger batch) of the best tier and rank: no more entries
-- than that, less where other queues share them. p_tried_*: the only mark of the queue, if the caller has tried the stretch there in vain.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_front(p_profile_id bigint, p_classes_seen xid8, p_classes_unseen xid8[], p_queue_id int, p_tasks text[], p_window int, p_tried_rank bigint, p_tried_position bigint,
                                              p_room hwqueue.headroom, p_limit int, p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
declare
  v_reach int := greatest(p_window, 8 * p_limit) - 1;
  v_eligible hwqueue.profile_queue;
  v_tier smallint := 0;
  v_rank bigint := p_tried_rank;
  v_position bigint := p_tried_position;
  v_marks int := 1;
  v_mark record;
  v_front record;
  v_places tid[] := '{}';
begin
  select s.* into v_eligible
  from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = p_profile_id and s.queue_id = p_queue_id;
  if v_eligible.is_even is distinct from true then
    return '{}';
  end if;
  if p_tasks is not null or p_room is distinct from null then  -- of a row, "is not null" would ask every field
    v_eligible.classes := hwqueue.runnable_classes(v_eligible, p_tasks, p_room, p_shard);
    if v_eligible.classes = '{}' then
      return '{}';
    end if;
  end if;
  if p_tried_position is null then
    if hwqueue.has_new_classes(least(v_eligible.classes_seen, p_classes_seen), v_eligible.classes_unseen || p_classes_unseen, p_shard) then
      return '{}';
    end if;
    v_mark := hwqueue.only_mark(p_queue_id, p_shard);
    v_marks := v_mark.marks;
    v_tier := v_mark.tier;
    v_rank := v_mark.rank;
    v_position := v_mark.position;
    if v_mark.is_front then
      v_places := hwqueue.lock_stretch(p_profile_id, p_queue_id, v_eligible.classes, p_tasks, p_room, v_tier, v_rank, v_position,
                                       v_position + v_reach, p_limit, p_now, p_shard);
    end if;
  end if;
  if v_places = '{}' then
    -- the mark lags behind, or there is none: from the first entry that lives, unless that has been seen
    select f.tier, f.rank, f.position into v_front from hwqueue.queue_front(p_queue_id, p_shard) f;
    if v_front.tier is null then
      return '{}';
    end if;
    if v_marks <> 1 or (v_front.tier, v_front.rank) <> (v_tier, v_rank) or v_front.position > v_position + v_reach then
      v_places := hwqueue.lock_stretch(p_profile_id, p_queue_id, v_eligible.classes, p_tasks, p_room, v_front.tier, v_front.rank,
                                       v_front.position, v_front.position + v_reach, p_limit, p_now, p_shard);
    end if;
    if v_places = '{}' and cardinality(v_eligible.classes) <= 64 then
      v_places := hwqueue.lock_heads(v_eligible.classes, p_queue_id, v_front.tier, v_front.rank, v_front.position, p_limit, p_now, p_shard);
    end if;
  end if;
  return v_places;
end
$$;
