-- Takes what is at the front of a plain node's only queue, some of whose classes must be checked: see take_entries. Where the node has met
-- blocked classes and one that must be checked comes first, which are blocked is asked in one statement. No places: nothing there can be had.
-- blocked: all that were found to be; is_new: one of them for a term that has to be published first.
-- Locks: as take_entries. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_at_front(p_eligible hwqueue.profile_queue, p_state hwqueue.node_state, p_front hwqueue.queue_look, p_tasks text[], p_window int,
  p_room hwqueue.headroom, p_limit int, p_now timestamptz, p_shard int,
  out places tid[], out counted jsonb, out entry hwqueue.ready, out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_depth int := greatest(p_limit, 8);  -- others may hold the first ones
  v_node hwqueue.node;
  v_seen record;
  v_taken record;
begin
  places := '{}';
  blocked := '{}';
  is_new := false;
  v_seen := hwqueue.front_entries(p_eligible, p_state, p_front, p_tasks, p_window, '{}', p_room, v_depth, p_now, p_shard);
  if v_seen.positions = '{}' then
    return;
  end if;
  if v_seen.checked <> '{}' then
    if p_state.seen_at + p_state.heartbeat_timeout <= p_now then
      perform hwqueue.note_alive(p_state, p_now, p_shard);
    end if;
    v_node := hwqueue.read_node(p_state.node_id, p_shard);
    v_node.profile_id := p_state.profile_id;  -- as it is judged
    if p_state.meets_blocked and v_seen.classes[1] = any (v_seen.checked) then
      if cardinality(p_eligible.classes) > 200 then
        return;  -- more are asked about in pick_leases
      end if;
      blocked := hwqueue.blocked_classes(p_eligible.checked, v_node, p_now, p_shard);
      if cardinality(blocked) = cardinality(p_eligible.checked) then  -- as if they were not there
        places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_state.classes_unseen, p_eligible.queue_id, p_tasks, p_window,
                                     null, null, blocked, p_room, p_limit, p_now, p_shard);
        places := hwqueue.before_checked(places, hwqueue.checked_at_front(p_state.profile_id, p_eligible.queue_id, p_shard));
        return;
      elsif blocked && v_seen.checked then
        v_seen := hwqueue.front_entries(p_eligible, p_state, p_front, p_tasks, p_window, blocked, p_room, v_depth, p_now, p_shard);
      end if;
    end if;
  end if;
  if v_seen.checked = '{}' then
    places := hwqueue.lock_between(p_eligible.queue_id, v_seen.tier, v_seen.rank, v_seen.positions[1], v_seen.positions[cardinality(v_seen.positions)],
                                   array(select distinct unnest(v_seen.classes)), p_limit, p_now, p_shard);
  elsif v_seen.positions <> '{}' then
    v_taken := hwqueue.take_entries(v_seen.positions, v_seen.classes, v_seen.checked, v_seen.tier, v_seen.rank, v_seen.head, p_limit, v_node, p_now, p_shard);
    places := v_taken.places;
    counted := v_taken.counted;
    entry := v_taken.entry;
    blocked := case when v_taken.blocked is null then blocked else blocked || v_taken.blocked end;
    is_new := v_taken.reason is not distinct from 'unpublished';
  end if;
end
$$;

-- Of locked entries those before the first whose class must be checked.
-- Locks: they are held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.before_checked(p_places tid[], p_checked bigint[]) returns tid[]
language plpgsql volatile
as $$
declare
  v_first bigint;
begin
  if p_checked <> '{}' and p_places <> '{}' then
    select p.n into v_first from unnest(p_places) with ordinality p(place, n)
    cross join lateral (select r.class_id from hwqueue.ready r where r.ctid = p.place) e
    where cardinality(p_checked) > 200 or e.class_id = any (p_checked) order by p.n limit 1;
  end if;
  return case when v_first is null then p_places else p_places[1 : v_first - 1] end;
end
$$;
