-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there are none. A plain node
-- (p_is_plain) takes from the front of its only queue; when there is nothing for it, it is plain no longer (is_plain): the next call need not ask.
-- p_tried_*: see take_front. Of an only entry, counted: what to write into its claim, null: nothing; entry: what it was, if it is deleted already.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_places(p_state hwqueue.node_state, p_load hwqueue.node_load, p_room hwqueue.headroom,
  p_is_plain boolean, p_queue_ids int[], p_tasks text[], p_window int, p_tried_rank bigint, p_tried_position bigint, p_limit int, p_now timestamptz, p_shard int)
returns hwqueue.picked
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.is_counted then 1 else p_limit end;
  v_without bigint[] := '{}';
  v_checked bigint[];
  v_first hwqueue.first_entered;
  v_picked hwqueue.picked;
begin
  v_picked.score := 0;
  if p_is_plain then
    v_checked := hwqueue.checked_at_front(p_state.profile_id, p_queue_ids[1], p_shard);
    if p_state.meets_blocked and cardinality(v_checked) between 1 and 200 then  -- more are asked about in pick_leases
      v_without := hwqueue.blocked_classes(v_checked, hwqueue.read_node(p_state.node_id, p_shard), p_now, p_shard);
    end if;
    if cardinality(v_without) = cardinality(v_checked) and hwqueue.leaves_out(p_state.profile_id, p_queue_ids[1], v_without, p_shard) then
      v_picked.places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_state.classes_unseen, p_queue_ids[1], p_tasks, p_window, p_tried_rank, p_tried_position,
                                            v_without, p_room, v_limit, p_now, p_shard);
      -- read again: the look at the front may have seen classes that are newer than what was read before it
      v_checked := hwqueue.checked_at_front(p_state.profile_id, p_queue_ids[1], p_shard);
      if v_picked.places <> '{}' and v_checked <> '{}' then
        v_first := hwqueue.enter_first(v_picked.places, v_checked, p_state.node_id, true, p_now, p_shard);
        v_picked.places := v_first.kept;
      end if;
    elsif cardinality(v_checked) <= 200 or not p_state.meets_blocked then
      v_first := hwqueue.try_front(p_state, p_queue_ids[1], p_tasks, p_window, p_tried_rank, p_tried_position, v_without, p_room, v_limit,
                                   p_now, p_shard);
      v_picked.places := v_first.kept;
    end if;
    v_picked.counted := v_first.counted;
    v_picked.entry := v_first.entry;
  end if;
  v_picked.is_plain := coalesce(v_picked.places, '{}') <> '{}';
  if not v_picked.is_plain then
    v_picked := hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, v_without || v_first.blocked,
                                    coalesce(v_first.is_new, false), p_now, p_shard);
  elsif v_checked <> '{}' then
    perform hwqueue.note_blocked(p_state, v_without <> '{}', p_shard);
  end if;
  return v_picked;
end
$$;

-- Remembers of a node whether its last claim came upon blocked classes.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.note_blocked(p_state hwqueue.node_state, p_meets boolean, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if p_state.meets_blocked <> p_meets then
    update hwqueue.node_state s set meets_blocked = p_meets where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
end
$$;
