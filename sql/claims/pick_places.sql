-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there are none. A plain node
-- (p_is_plain) takes from the front of its only queue; when there is nothing for it, it is plain no longer: the next call need not ask.
-- p_tried_*: see take_front. counted: what to write into the claim of the only entry; null: nothing.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_places(p_state hwqueue.node_state, p_load hwqueue.node_load, p_room hwqueue.headroom,
  inout p_is_plain boolean, p_queue_ids int[], p_tasks text[], p_window int, p_tried_rank bigint, p_tried_position bigint, p_limit int, p_now timestamptz, p_shard int,
  out places tid[], out score double precision, out counted jsonb)
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.is_counted then 1 else p_limit end;
  v_checked bigint[];
  v_blocked bigint[] := '{}';
begin
  score := 0;
  if p_is_plain then
    select s.checked into v_checked from hwqueue.profile_queue s
    where s.shard_id = p_shard and s.profile_id = p_state.profile_id and s.queue_id = p_queue_ids[1];
    places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_queue_ids[1], p_tasks, p_window, p_tried_rank, p_tried_position, p_room,
                                 case when v_checked = '{}' then v_limit else 1 end, p_now, p_shard);
    if places <> '{}' and v_checked <> '{}' then
      -- what waits for a new term is left to pick_leases, which brings it into force
      select f.kept, f.counted, case when f.is_new then '{}' else f.blocked end into places, counted, v_blocked
      from hwqueue.enter_first(places, v_checked, p_state.node_id, p_now, p_shard) f;
    end if;
  end if;
  p_is_plain := places <> '{}';
  if p_is_plain is distinct from true then
    select p.places, p.score, p.counted into places, score, counted
    from hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, v_blocked, p_now, p_shard) p;
  end if;
end
$$;
