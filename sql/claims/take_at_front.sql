-- Takes what is at the front of a plain node's only queue: see front_entries, and take_entries for classes
-- that must be checked. Where the node has met blocked classes, it asks first which are not
-- (claim_candidates), and looks for these. No places: nothing there can be had. p_front, p_is_tried: see front_entries.
-- blocked: others that were found to be; meets: blocked ones stand before what was taken, null: as far as is
-- known they still do;
-- is_new: one of them for a term that has to be published first.
-- Locks: as take_entries. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_at_front(p_eligible hwqueue.profile_queue, p_state hwqueue.node_state,
  p_front hwqueue.queue_look, p_is_tried boolean, p_tasks text[], p_window int, p_room hwqueue.headroom,
  p_limit int, p_now timestamptz, p_shard int, out places tid[], out counted jsonb, out entry hwqueue.ready,
  out blocked bigint[], out meets boolean, out is_new boolean)
language plpgsql volatile
as $$
declare
  v_eligible hwqueue.profile_queue := p_eligible;
  v_open record;
  v_only bigint[];
  v_met bigint[];
  v_node hwqueue.node;
  v_seen record;
  v_taken record;
begin
  places := '{}';
  blocked := '{}';
  meets := false;
  is_new := false;
  if p_state.meets_blocked then
    v_open := hwqueue.claim_candidates(p_state, array[p_eligible.queue_id], p_room, p_now, p_shard);
    if v_open.met is distinct from '{}' and cardinality(v_open.classes) <= 200 then
      v_only := v_open.classes;
      v_met := v_open.met;
      blocked := v_open.blocked;
    end if;
  end if;
  v_eligible := hwqueue.front_classes(p_eligible, p_state, p_front.is_front, p_tasks, v_only, blocked, p_room,
                                      p_shard);
  if v_eligible.classes = '{}' then
    return;
  end if;
  v_seen := hwqueue.front_entries(v_eligible, p_front, p_is_tried, p_tasks, p_window, v_only is not null, p_room,
                                  p_limit, p_now, p_shard);
  places := v_seen.places;
  if v_seen.positions = '{}' then
    return;
  end if;
  if v_seen.checked <> '{}' then
    if p_state.meets_blocked and v_only is null and v_seen.classes[1] = any (v_seen.checked) then
      return;  -- of so many classes pick_leases asks
    end if;
    v_node := hwqueue.judged_node(p_state, p_now, p_shard);
  end if;
  if v_only is not null then
    meets := coalesce((v_seen.tier, v_seen.rank) > (p_front.tier, p_front.rank), true) or (
      select true from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_eligible.queue_id and r.tier = v_seen.tier and r.rank = v_seen.rank
        and r.position >= p_front.position and r.position < v_seen.positions[1] and (v_met is null or r.class_id = any (v_met))
      order by r.position limit 1) is not null;
    meets := case when not meets or v_met is not null then meets end;
  end if;
  if v_seen.checked = '{}' then
    places := hwqueue.lock_between(p_eligible.queue_id, v_seen.tier, v_seen.rank, v_seen.positions[1], v_seen.positions[cardinality(v_seen.positions)],
                                   array(select distinct unnest(v_seen.classes)), p_limit, p_now, p_shard);
  else
    v_taken := hwqueue.take_entries(v_seen.positions, v_seen.classes, v_seen.checked, v_seen.tier, v_seen.rank, v_seen.head, p_limit, v_node, p_now, p_shard);
    places := v_taken.places;
    counted := v_taken.counted;
    entry := v_taken.entry;
    if v_taken.blocked is not null then
      meets := true;
      if v_taken.reason <> 'later' then  -- pick_leases knows what comes before it
        blocked := blocked || v_taken.blocked;
      end if;
    end if;
    is_new := v_taken.reason is not distinct from 'unpublished';
  end if;
end
$$;

-- The node of a claim, as it is judged; who asks is alive.
-- Locks: node_state is held by the caller. Raises: QHN01. Idempotent: yes.
create or replace function hwqueue.judged_node(p_state hwqueue.node_state, p_now timestamptz, p_shard int) returns hwqueue.node
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
begin
  if p_state.seen_at + p_state.heartbeat_timeout <= p_now then
    perform hwqueue.note_alive(p_state, p_now, p_shard);
  end if;
  v_node := hwqueue.read_node(p_state.node_id, p_shard);
  v_node.profile_id := p_state.profile_id;
  return v_node;
end
$$;
